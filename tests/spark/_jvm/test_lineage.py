"""Which columns of a query are still those of the events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hubline.spark._jvm.lineage import is_batch_itself, overwritten_in_query

NAMES = ("value", "timestamp")

KEPT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as they are": lambda events: events,
    "filtered": lambda events: events.where("value > 3").select("timestamp", "value"),
    "renamed and back": lambda events: events.withColumnRenamed("value", "v").withColumnRenamed("v", "value"),
    "cast to their own type": lambda events: events.withColumn("value", F.col("value").cast("long")),
    "filled where there is nothing": lambda events: events.fillna(0, "value"),
    "dropped": lambda events: events.drop("value"),
}
OVERWRITTEN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "computed": lambda events: events.withColumn("value", F.col("value") + 1),
    "of another column": lambda events: events.withColumn("value", F.unix_millis("timestamp")),
    "of a constant": lambda events: events.withColumn("value", F.lit(1)),
    "of a static table": lambda events: events.drop("value").crossJoin(
        events.sparkSession.range(1).withColumnRenamed("id", "value")
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_columns_of_the_events_are_known(spark: SparkSession, name: str) -> None:
    assert overwritten_in_query(KEPT[name](_events(spark)), NAMES) == set()


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_columns_of_the_querys_own_are_seen(spark: SparkSession, name: str) -> None:
    assert overwritten_in_query(OVERWRITTEN[name](_events(spark)), NAMES) == {"value"}


def test_a_frame_that_was_made_of_a_batch_is_not_the_batch(spark: SparkSession) -> None:
    rows = spark.createDataFrame(spark.sparkContext.parallelize([(1,)]), "value long").localCheckpoint()
    assert is_batch_itself(rows)
    assert not is_batch_itself(rows.where("value > 0"))


def _events(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()
