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
from tests.spark.hubs import TestHub

FIELDS = "device string, celsius double, parts array<string>, at timestamp"


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    read = spark.readStream.format("json").schema(SOURCE_SCHEMA).load(str(tmp_path))
    return read.withColumn("eventId", F.concat("partition", F.lit(":"), "sequenceNumber"))


def devices(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.range(1).select(F.lit("d1").alias("device"))


def late(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.withWatermark(name, "1 day")


def window() -> Column:
    return F.window("at", "1 minute")


def sql(text: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.sparkSession.sql(text, rows=rows)


def view(text: str) -> Callable[[DataFrame], DataFrame]:
    def query(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("steps_rows")
        found = rows.sparkSession.sql(text)
        rows.sparkSession.catalog.dropTempView("steps_rows")
        return found

    return query


def where(condition: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.where(condition)


LOSING: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a filter": (where("celsius > 3"), "Filter"),
    "a filter after other steps": (lambda rows: rows.select("device", "_error").where("device = 'd1'"), "Filter"),
    "a filter by a column of another name and type": (
        lambda rows: rows.select("_error", F.col("celsius").cast("int").alias("c")).where("c > 3"),
        "Filter",
    ),
    "a filter, the error under another name": (
        lambda rows: rows.withColumnRenamed("_error", "why").where("celsius > 3"),
        "Filter",
    ),
    "a filter by a function of a field": (where("lower(device) LIKE 'd%' OR partitionKey = 'a'"), "Filter"),
    "a filter by nulls of another column": (where("partitionKey IS NULL AND celsius > 3"), "Filter"),
    "a filter by fields that are there": (where("device IS NOT NULL"), "Filter"),
    "a filter by a text of two lines": (where("device = 'a\nb'"), "Filter"),
    "something computed of the error, and not used": (
        lambda rows: rows.withColumn("length", F.length("_error")).where("celsius > 3"),
        "Filter",
    ),
    "no nulls at all": (lambda rows: rows.na.drop(), "Filter"),
    "no nulls in fields": (lambda rows: rows.na.drop("all", subset=["device", "celsius"]), "Filter"),
    "SQL": (sql("SELECT * FROM {rows} WHERE celsius > 3"), "Filter"),
    "SQL of a view": (view("SELECT * FROM steps_rows WHERE celsius > 3"), "Filter"),
    "SQL by a subquery": (sql("SELECT * FROM {rows} WHERE celsius IN (SELECT id FROM range(3))"), "Filter"),
    "SQL after WITH": (sql("WITH q AS (SELECT * FROM {rows}) SELECT * FROM q WHERE celsius > 3"), "Filter"),
    "SQL in WITH": (
        sql("WITH q AS (SELECT * FROM {rows}), r AS (SELECT * FROM q WHERE celsius > 3) SELECT * FROM r"),
        "Filter",
    ),
    "SQL with a list that is null": (sql("SELECT * FROM {rows} LATERAL VIEW explode(parts) t AS part"), "Generate"),
    "an aggregate": (lambda rows: rows.groupBy("device").count(), "Aggregate"),
    "an aggregate of a field": (lambda rows: rows.groupBy("partitionKey").agg(F.max("celsius")), "Aggregate"),
    "an aggregate of what is computed of a field": (
        lambda rows: rows.withColumn("f", F.col("celsius") * 2).groupBy("device").agg(F.max("f")),
        "Aggregate",
    ),
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
    "kept by the filter": where("_error IS NOT NULL OR celsius > 3"),
    "dropped by choice": lambda rows: rows.where("_error IS NULL").where("celsius > 3").groupBy("device").count(),
    "dropped by choice, in one condition": view("SELECT * FROM steps_rows WHERE _error IS NULL AND celsius > 3"),
    "dropped by choice, in WITH": sql(
        "WITH q AS (SELECT * FROM {rows} WHERE _error IS NULL) SELECT * FROM q WHERE celsius > 3"
    ),
    "dropped by choice, by a column of one's own": lambda rows: rows.withColumn("bad", F.isnotnull("_error")).where(
        "NOT bad AND celsius > 3"
    ),
    "dropped by choice, under another name": lambda rows: (
        rows.withColumnRenamed("_error", "why").where("why IS NULL").where("celsius > 3")
    ),
    "dropped by choice, under an alias": lambda rows: rows.select("celsius", F.col("_error").alias("why")).where(
        "why IS NULL AND celsius > 3"
    ),
    "dropped with its column": lambda rows: rows.drop("_error").where("celsius > 3"),
    "replaced": lambda rows: rows.withColumn("_error", F.lit(None).cast("string")).where("celsius > 3"),
    "looked at, who knows what for": where("coalesce(_error, '') = '' AND celsius > 3"),
    "a filter by a property": where("properties['type'] = 'order'"),
    "a filter by the event": where("partitionKey = 'a' AND enqueuedTime > '2026-01-01'"),
    "a filter that keeps nulls": where("celsius IS NULL OR celsius > 3"),
    "a filter that keeps what is not": where("NOT (celsius IS NOT NULL AND celsius > 3)"),
    "a filter of null-safe values": where("NOT device <=> 'a'"),
    "a filter with a default": where("coalesce(celsius, 9) > 3"),
    "a filter after filling": lambda rows: rows.na.fill({"celsius": 9.0}).where("celsius > 3"),
    "a filter by a column that says what is missing": lambda rows: rows.withColumn("bad", F.isnull("celsius")).where(
        "bad OR celsius > 3"
    ),
    "a filter by what a join found none of": lambda rows: rows.join(
        devices(rows).withColumn("limit", F.lit(3)), "device", "left"
    ).where("limit IS NULL OR celsius > limit"),
    "a filter by cases": where("CASE WHEN celsius > 3 THEN false ELSE true END"),
    "a filter by a function that nobody knows": lambda rows: rows.where(F.udf(lambda x: x != 3, "boolean")("celsius")),
    "rows that are not all null": lambda rows: rows.na.drop("all"),
    "an event's duplicates": lambda rows: rows.dropDuplicates(["eventId"]),
    "an event's duplicates, for some time": lambda rows: late("enqueuedTime")(rows).dropDuplicatesWithinWatermark(
        ["eventId"]
    ),
    "an event's duplicates, by its place": lambda rows: rows.dropDuplicates(["partition", "sequenceNumber"]),
    "an inner join by the event": lambda rows: rows.withColumn("key", F.col("partitionKey")).join(
        F.broadcast(devices(rows).withColumnRenamed("device", "key")), "key"
    ),
    "rows that are not in a table": lambda rows: rows.join(F.broadcast(devices(rows)), "device", "left_anti"),
    "a join that keeps all": lambda rows: rows.join(devices(rows), "device", "left"),
    "a list that may be null": lambda rows: rows.select("*", F.explode_outer("parts")),
    "a list of its own": lambda rows: rows.select("*", F.explode(F.array("device", "partitionKey"))),
    "columns, a watermark, a repartition": lambda rows: late("at")(rows.withColumn("x", F.lit(1))).repartition(2),
    "a text that cannot be read": lambda rows: rows.withColumn("x", F.lit(":-)")).where("celsius > 3"),
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


def test_a_column_that_only_has_the_name_is_fine(events: DataFrame) -> None:
    rows = events.select(F.struct(F.lit("a").alias("_error")).alias("own"), "*").select("own._error", "partitionKey")
    assert losing_step(QueryPlan.of(rows.where("partitionKey = 'a'")).root) is None


def states(events: DataFrame, keys: list[str | Column]) -> DataFrame:
    return events.groupBy(*keys).applyInPandasWithState(
        lambda _key, _rows, _state: iter(()), "a int", "b int", "append", "NoTimeout"
    )


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (lambda events: events.groupBy(F.col("properties")["type"], "partition").count(), None),
        (lambda events: events.groupBy(F.col("properties")["type"], "partitionKey").count(), "Aggregate"),
        (lambda events: events.withColumnRenamed("partition", "part").groupBy("part").count(), None),
        (
            lambda events: events.withColumn("partition", F.col("partitionKey")).groupBy("partition").count(),
            "Aggregate",
        ),
        (lambda events: events.withColumn("x", F.lit(":-)")).groupBy("partition").count(), None),
        (lambda events: events.agg(F.max("partition")), "Aggregate"),
        (sql("WITH q AS (SELECT * FROM {rows}) SELECT partitionKey, count(*) FROM q GROUP BY 1"), "Aggregate"),
        (sql("WITH q AS (SELECT * FROM {rows}) SELECT partition, count(*) FROM q GROUP BY 1"), None),
        (
            sql(
                "WITH q AS (SELECT * FROM {rows}) SELECT a.partition, count(*) FROM q a GROUP BY 1 "
                "UNION ALL SELECT b.partition, count(*) FROM q b GROUP BY 1"
            ),
            None,
        ),
        (lambda events: states(events, ["partition"]), None),
        (lambda events: states(events, ["partitionKey"]), "FlatMapGroupsInPandasWithState"),
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


def test_events_of_a_hub_are_followed_in_the_same_way(spark: SparkSession, tmp_path: Path) -> None:
    hub = TestHub.local(tmp_path, "events", partitions=1)
    events = spark.readStream.format("eventhubs").option("hub", hub.address).load()
    plans = [QueryPlan.of(events.groupBy(key).count()).root for key in ("partition", "partitionKey")]
    assert [state_over_partitions(plan) for plan in plans] == [None, "Aggregate"]
    plans = [QueryPlan.of(parse_json(events, FIELDS).where(f"{key} > 3")).root for key in ("offset", "celsius")]
    assert [losing_step(plan) for plan in plans] == [None, "Filter"]
