"""What a query drops of events that failed, and where it keeps state, by the text of its plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users have it

from hubline.spark import parse_json
from hubline.spark.query_plan import QueryPlan
from hubline.spark.query_steps import losing_step, state_over_partitions
from hubline.spark.schema import SOURCE_SCHEMA

FIELDS = "device string, celsius double, parts array<string>, at timestamp"


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return spark.readStream.format("json").schema(SOURCE_SCHEMA).load(str(tmp_path))


def devices(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.range(1).select(F.lit("d1").alias("device"))


def late(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.withWatermark(name, "1 day")


def window() -> Column:
    return F.window("at", "1 minute")


LOSING: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a filter": (lambda rows: rows.where("celsius > 3"), "Filter"),
    "a filter after other steps": (lambda rows: rows.select("device", "_error").where("device = 'd1'"), "Filter"),
    "an aggregate": (lambda rows: rows.groupBy("device").count(), "Aggregate"),
    "a window, whose time is null": (lambda rows: rows.groupBy(window()).count(), "Filter"),
    "an inner join": (lambda rows: rows.join(F.broadcast(devices(rows)), "device"), "Join"),
    "a list that is null": (lambda rows: rows.select("*", F.explode("parts")), "Generate"),
    "duplicates": (lambda rows: rows.dropDuplicates(["device"]), "Deduplicate"),
    "one of two branches": (lambda rows: rows.where("_error IS NULL").unionByName(rows.where("celsius > 3")), "Filter"),
    "an error of one's own": (
        lambda rows: rows.withColumn("_error", F.coalesce("_error", F.lit("x"))).where("celsius > 3"),
        "Filter",
    ),
}

KEEPING: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nothing": lambda rows: rows,
    "kept by the filter": lambda rows: rows.where("_error IS NOT NULL OR celsius > 3"),
    "dropped by choice": lambda rows: rows.where("_error IS NULL").where("celsius > 3").groupBy("device").count(),
    "dropped by choice, by a column of one's own": lambda rows: rows.withColumn("bad", F.isnotnull("_error")).where(
        "NOT bad"
    ),
    "a join that keeps all": lambda rows: rows.join(devices(rows), "device", "left"),
    "a list that may be null": lambda rows: rows.select("*", F.explode_outer("parts")),
    "columns, a watermark, a repartition": lambda rows: late("at")(rows.withColumn("x", F.lit(1))).repartition(2),
    "both branches": lambda rows: rows.where("_error IS NULL").unionByName(rows.where("_error IS NOT NULL")),
    "counted with their errors": lambda rows: rows.groupBy("_error").count(),
}


@pytest.mark.parametrize("what", LOSING)
def test_a_step_that_drops_failures_unseen_is_found(events: DataFrame, what: str) -> None:
    query, kind = LOSING[what]
    assert losing_step(QueryPlan.of(query(parse_json(events, FIELDS))).root) == kind


@pytest.mark.parametrize("what", KEEPING)
def test_steps_that_keep_failures_or_drop_them_by_choice_are_fine(events: DataFrame, what: str) -> None:
    assert losing_step(QueryPlan.of(KEEPING[what](parse_json(events, FIELDS))).root) is None


def test_a_filter_before_parsing_is_fine(events: DataFrame) -> None:
    rows = parse_json(events.where("partitionKey = 'a'"), FIELDS)
    assert losing_step(QueryPlan.of(rows).root) is None


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (lambda events: events.groupBy("partitionKey").count(), "Aggregate"),
        (lambda events: events.dropDuplicates(["partitionKey"]), "Deduplicate"),
        (lambda events: events.groupBy("partition", "partitionKey").count(), None),
        (lambda events: events.dropDuplicates(["partition", "offset"]), None),
        (lambda events: events.where("offset > 3").repartition(2), None),
        (
            lambda events: events.select(F.col("partitionKey").alias("device")).join(
                F.broadcast(devices(events).groupBy("device").count()), "device"
            ),
            None,
        ),
        (
            lambda events: late("enqueuedTime")(events).join(
                late("at")(events.select(F.col("enqueuedTime").alias("at"), "partitionKey")), "partitionKey"
            ),
            "Join",
        ),
    ],
)
def test_state_of_several_partitions_is_found(
    events: DataFrame, query: Callable[[DataFrame], DataFrame], kind: str | None
) -> None:
    assert state_over_partitions(QueryPlan.of(query(events)).root) == kind
