"""What plans of queries say about where rows go."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hubline.spark._jvm.plan import moving_step


def test_what_moves_rows_between_tasks_is_seen_in_the_plan(spark: SparkSession) -> None:
    events = spark.range(10).withColumn("device", F.col("id") % 3)
    table = spark.range(3).withColumnRenamed("id", "device")
    other = table.withColumn("name", F.lit("x"))

    assert moving_step(events.where("id > 3").select("id")) is None
    assert moving_step(events.join(F.broadcast(table.groupBy("device").count()), "device")) is None
    assert moving_step(events.join(F.broadcast(table).where("device > 0"), "device")) is None
    assert moving_step(events.join(F.broadcast(table), "device").join(other, "device")) == "Join"
    assert moving_step(events.where("id > 3").unionByName(events.where("id <= 3"))) == "Union"
