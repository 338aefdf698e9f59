"""Readings with the site of their device, from a table of devices. Readings of unknown devices are dead letters."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import hubline
from hubline.spark import parse_json

pipeline = hubline.Pipeline("enrichment")


@pipeline.stage(source="raw", sink="readings", consumer_group="enrich")
def enrich(events: DataFrame, devices: DataFrame) -> DataFrame:
    """A left join keeps readings of unknown devices, and `_error` says why they are not in the table."""
    readings = parse_json(events, "device string, celsius double", required=True)
    named = readings.join(F.broadcast(devices), "device", "left")
    unknown = F.when(F.col("site").isNull(), F.format_string("the device %s is not in devices.csv", "device"))
    return named.withColumn("_error", F.coalesce("_error", unknown))
