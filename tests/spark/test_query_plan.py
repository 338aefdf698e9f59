"""What the text of `EXPLAIN` says of a query: on a classic session here, and over Spark Connect in test_connect.py."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hubline.spark import parse_json, query_plan
from hubline.spark.query_plan import QueryPlan
from tests.spark.hubs import TestHub

NAMES = ("partition", "sequenceNumber", "offset")

KEPT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as they are": lambda events: events,
    "parsed": lambda events: parse_json(events, "device string").drop("body"),
    "filtered": lambda events: events.where("sequenceNumber > 3").select("sequenceNumber", "partition"),
    "renamed and back": lambda events: events.withColumnRenamed("partition", "p").withColumnRenamed("p", "partition"),
    "cast to their own type": lambda events: events.withColumn("sequenceNumber", F.col("sequenceNumber").cast("long")),
    "filled where there is nothing": lambda events: events.fillna(0, "sequenceNumber").fillna("", "partition"),
    "dropped": lambda events: events.drop("partition"),
    "among 60 others": lambda events: events.select(*(F.lit(n).alias(f"c{n}") for n in range(60)), "*"),
    "of odd names": lambda events: events.withColumn("a, b#3] c", F.lit(1)).withColumn("x.y", F.lit("(")),
    "with a static table": lambda events: events.crossJoin(F.broadcast(events.sparkSession.range(2))),
    "watermarked": lambda events: events.withWatermark("enqueuedTime", "1 hour"),
    "observed": lambda events: events.observe("seen", F.count(F.lit(1))),
}
COMPUTED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "computed": lambda events: events.withColumn("partition", F.upper("partition")),
    "of another column": lambda events: events.withColumn("partition", F.col("offset")),
    "of a constant": lambda events: events.withColumn("partition", F.lit("0")),
    "cast and back": lambda events: events.withColumn("partition", F.col("partition").cast("int").cast("string")),
    "of a static table": lambda events: events.drop("partition").join(F.broadcast(numbers(events))),
    "of a range": lambda events: events.drop("partition").join(
        F.broadcast(events.sparkSession.range(2).withColumnRenamed("id", "partition"))
    ),
}
MOVING: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "Join": ("a join that nothing is sent for", lambda events: events.join(numbers(events), "partition")),
    "Repartition": ("", lambda events: events.repartition(2)),
    "Aggregate": ("state", lambda events: events.groupBy("partition").count()),
    "Deduplicate": ("state", lambda events: events.dropDuplicates(["partition"])),
    "GlobalLimit": ("state", lambda events: events.limit(3)),
    "Union": ("", lambda events: events.where("sequenceNumber < 3").union(events.where("sequenceNumber >= 3"))),
}


def numbers(events: DataFrame) -> DataFrame:
    return events.sparkSession.createDataFrame([("0",)], "partition string")


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    hub = TestHub.local(tmp_path, "events", partitions=1)
    return spark.readStream.format("eventhubs").option("hub", hub.address).load()


def test_columns_and_places_of_the_events_are_known(events: DataFrame) -> None:
    plans = {name: QueryPlan.of(changed(events)) for name, changed in KEPT.items()}
    assert {name: plan.computed(NAMES) for name, plan in plans.items()} == {name: set() for name in KEPT}
    assert {name: (plan.stays_in_task, plan.has_state) for name, plan in plans.items()} == dict.fromkeys(
        KEPT, (True, False)
    )


def test_columns_of_the_querys_own_are_seen(events: DataFrame) -> None:
    found = {name: QueryPlan.of(changed(events)).computed(NAMES) for name, changed in COMPUTED.items()}
    assert found == {name: {"partition"} for name in COMPUTED}


def test_a_stream_of_files_is_one_as_well(spark: SparkSession, tmp_path: Path) -> None:
    files = spark.readStream.schema("partition string, sequenceNumber long").json(str(tmp_path))
    plan = QueryPlan.of(files.where("sequenceNumber > 3"))
    assert (plan.computed(NAMES), plan.stays_in_task, plan.has_state) == (set(), True, False)


def test_what_moves_rows_or_keeps_them_is_seen(events: DataFrame) -> None:
    plans = {name: QueryPlan.of(changed(events)) for name, (_, changed) in MOVING.items()}
    assert {name: plan.moving_step for name, plan in plans.items()} == {name: name for name in MOVING}
    assert {name for name, plan in plans.items() if plan.has_state} == {
        name for name, (why, _) in MOVING.items() if why == "state"
    }
    assert not any(plan.stays_in_task for plan in plans.values())


def test_a_join_counts_only_on_a_table_that_must_be_sent(events: DataFrame) -> None:
    table = F.broadcast(numbers(events).where("partition != '7'"))
    assert QueryPlan.of(events.join(table, "partition", "left")).stays_in_task
    assert not QueryPlan.of(table.join(F.broadcast(events), "partition")).stays_in_task
    assert not QueryPlan.of(table.join(events, "partition", "left_semi")).stays_in_task


def test_several_rows_of_one_are_seen(events: DataFrame) -> None:
    several = [
        events.select("*", F.explode(F.array("offset", "partition"))),
        events.unpivot("partition", "offset", "name", "value"),
    ]
    assert [QueryPlan.of(frame).makes_several_rows for frame in several] == [True, True]
    assert not QueryPlan.of(events.where("offset > 3")).makes_several_rows


def test_a_column_that_is_made_first_is_known(events: DataFrame) -> None:
    given = events.withColumn("eventId", F.concat("partition", "offset"))
    assert QueryPlan.of(given.where("partition > 3")).is_first_computed("eventId")
    assert not QueryPlan.of(given.withColumn("eventId", F.upper("eventId"))).is_first_computed("eventId")


def test_streams_are_counted(events: DataFrame, spark: SparkSession) -> None:
    assert QueryPlan.of(events.union(events)).hubs_read == 2
    assert QueryPlan.of(spark.readStream.format("rate").load()).hubs_read == 0
    # One that was loaded with fewer columns is one, too.
    hub = spark.readStream.format("eventhubs").schema("partition string").option("hub", "local:./data/hub")
    assert QueryPlan.of(hub.load()).hubs_read == 1


def test_nothing_is_proved_by_a_text_that_is_not_a_plan(events: DataFrame) -> None:
    for literal in ("a\n+- Project", "a\n   +- Project [x]", "\n", "a\n:- b"):
        plan = QueryPlan.of(events.repartition(2).withColumn("a", F.lit(literal)))
        assert not plan.stays_in_task, literal
        assert plan.has_state == (not plan.is_certain)


def test_every_step_named_is_one_of_this_spark() -> None:
    """A step that a later Spark calls by another name would prove nothing any more."""
    jars = (Path(pyspark.__file__).parent / "jars").glob("spark-[sc][qa][lt]*.jar")
    entries = {name for jar in jars for name in zipfile.ZipFile(jar).namelist() if name.endswith(".class")}
    classes = {name.rpartition("/")[2].removesuffix(".class") for name in entries}
    assert query_plan.STATELESS - classes == {"BroadcastJoin"}
