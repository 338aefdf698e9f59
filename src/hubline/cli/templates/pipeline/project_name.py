"""Takes readings of devices from a hub into a table. Events that are not readings become dead letters."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import hubline
from hubline.spark import parse_json

READING = "device string, celsius double"

pipeline = hubline.Pipeline("project_name")


@pipeline.stage(source="events", sink="readings", consumer_group="project_name")
def store(events: DataFrame) -> DataFrame:
    """Return one row for each event."""
    readings = parse_json(events, READING, required=True)
    return readings.withColumn("fahrenheit", F.round(F.col("celsius") * 1.8 + 32, 1))
