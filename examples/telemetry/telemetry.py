"""Telemetry in three stages.

    raw --ingest--> clean --recent--> averages     the last 24 hours of every device
                      |
                      +-----store---> readings     a table: each reading once, what does not read as a dead letter

`telemetry.toml` says what the datasets are on a laptop; `../azure` has the same for PostgreSQL and for Azure.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import hubline
from hubline.spark import parse_json

READING = "id string, device string, at timestamp, celsius double"

pipeline = hubline.Pipeline("telemetry")


@pipeline.stage(source="raw", sink="clean", consumer_group="ingest", load_balancing=hubline.Balanced())
def ingest(events: DataFrame) -> DataFrame:
    """Keyed by device, so that the readings of one device stay in order from here on."""
    device = F.get_json_object(F.col("body").cast("string"), "$.device")
    return events.withColumn("partitionKey", F.coalesce(device, "partitionKey"))


@pipeline.stage(
    source="clean",
    sink="averages",
    consumer_group="recent",
    load_balancing=hubline.Fixed(4),
    lookback="24h",
    output_mode="update",
    event_ids=False,
)
def recent(events: DataFrame) -> DataFrame:
    """The average of each device over 24 hours, moving on by 6, whenever it changes.

    Kept in memory: at each start the last 24 hours are read again. What was averaged before is not published again.
    """
    readings = parse_json(events, READING).where("_error IS NULL").withWatermark("at", "24 hours")
    averages = readings.groupBy("device", F.window("at", "24 hours", "6 hours").alias("during")).agg(
        F.avg("celsius").alias("celsius"), F.count("*").alias("readings"), F.bool_and("replayed").alias("replayed")
    )
    body = F.to_json(F.struct("device", F.col("during.end").alias("until"), "celsius", "readings")).cast("binary")
    return averages.select(body.alias("body"), F.col("device").alias("partitionKey"), "replayed")


@pipeline.stage(
    source="clean",
    sink="readings",
    consumer_group="store",
    load_balancing=hubline.Fixed(4),
    max_batch_size=50_000,
    drop_duplicates="ordered",  # ingest keeps the readings of a device in order
)
def store(events: DataFrame) -> DataFrame:
    """Rows of the table, and dead letters where `_error` says why."""
    return parse_json(events, READING, required=True)


if __name__ == "__main__":
    pipeline.run()  # for spark-submit; `hubline run telemetry.py` shows more
