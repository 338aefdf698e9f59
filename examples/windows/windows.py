"""A windowed aggregate: how many readings of each device came in every minute, into Parquet files.

hubline run windows.py --once
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import hubline
from hubline.spark import parse_json

pipeline = hubline.Pipeline("windows")


@pipeline.stage(source="raw", sink="minutes", consumer_group="windows")
def minutes(events: DataFrame, devices: DataFrame) -> DataFrame:
    """A window is written when it is over: ten seconds after its end, by the readings' own times.

    `devices` is a dataset as well: a table that does not change, to join with.
    """
    readings = parse_json(events, "device string, at timestamp, celsius double").where("_error IS NULL")
    named = readings.withWatermark("at", "10 seconds").join(F.broadcast(devices), "device")
    counts = named.groupBy(F.window("at", "1 minute").alias("during"), "site").agg(
        F.count("*").alias("readings"), F.max("celsius").alias("warmest")
    )
    return counts.select(F.col("during.start").alias("minute"), "site", "readings", "warmest")
