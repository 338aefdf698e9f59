"""What plans of queries say about where rows go."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hubline.spark._jvm import row_movement
from hubline.spark._jvm.plan import Step, executed, steps_of
from hubline.spark._jvm.row_movement import has_state, is_spread, makes_several_rows, moving_step, rows_scanned
from hubline.spark.compatibility import STATEFUL

BATCH_ID = 7


class Rows:
    """The Java object of a step that reads rows."""

    def __init__(self, number: int) -> None:
        self.number = number

    def rdd(self) -> Rows:
        return self

    def id(self) -> int:
        return self.number


def plan(kind: str, *inputs: Step) -> Step:
    return Step(kind, None, inputs)


def written(step: Step) -> str:
    """The same in every process of a parallel run, unlike the text of `Rows`."""
    rows = f"{step.node.id()}" if isinstance(step.node, Rows) else ""
    return f"{step.kind.removesuffix('Exec')}({rows}{', '.join(map(written, step.inputs))})"


BATCH = Step("RDDScanExec", Rows(BATCH_ID))
TABLE = plan("ProjectExec", plan("ShuffleExchangeExec", Step("RDDScanExec", Rows(1))))
SENT_TABLE = plan("BroadcastExchangeExec", TABLE)
SENT_BATCH = plan("BroadcastExchangeExec", plan("ProjectExec", BATCH))
SENT_STREAM = plan("BroadcastExchangeExec", plan("MicroBatchScanExec"))


class TestWhileAQueryRuns:
    @pytest.mark.parametrize(
        "unmoved",
        [
            BATCH,
            plan("WholeStageCodegenExec", plan("ProjectExec", plan("InputAdapter", plan("FilterExec", BATCH)))),
            plan("BroadcastHashJoinExec", BATCH, SENT_TABLE),
            plan("BroadcastHashJoinExec", BATCH, plan("ReusedExchangeExec", SENT_TABLE)),
            plan("InMemoryTableScanExec", plan("ProjectExec", BATCH)),
        ],
        ids=written,
    )
    def test_rows_are_in_their_task(self, unmoved: Step) -> None:
        assert not is_spread(unmoved, BATCH_ID)

    @pytest.mark.parametrize(
        "moved",
        [
            plan("ProjectExec", plan("ShuffleExchangeExec", BATCH)),
            plan("InMemoryTableScanExec", plan("ShuffleExchangeExec", BATCH)),
            plan("ReusedExchangeExec", plan("ShuffleExchangeExec", BATCH)),
            plan("UnionExec", BATCH, BATCH),
            plan("CartesianProductExec", BATCH, TABLE),
            plan("BroadcastHashJoinExec", TABLE, SENT_BATCH),
            plan("BroadcastHashJoinExec", TABLE, plan("ReusedExchangeExec", SENT_BATCH)),
            plan("BroadcastNestedLoopJoinExec", plan("RangeExec"), SENT_STREAM),
            plan("BroadcastHashJoinExec", plan("ShuffleExchangeExec", BATCH), SENT_TABLE),
        ],
        ids=written,
    )
    def test_rows_come_to_several_tasks(self, moved: Step) -> None:
        assert is_spread(moved, BATCH_ID)

    def test_a_step_that_nobody_has_looked_at_counts_as_one_that_moves_rows(self) -> None:
        assert is_spread(plan("ProjectExec", plan("SomethingNewExec", BATCH)), BATCH_ID)

    def test_an_exchange_is_seen_through_all_that_hides_it(self, spark: SparkSession) -> None:
        kept = spark.range(10).repartition(3).withColumn("a", F.lit(1)).persist()
        try:
            frames = {"kept": kept, "adaptive": spark.range(10).groupBy((F.col("id") % 3).alias("k")).count()}
            assert [name for name, frame in frames.items() if not is_spread(steps_of(executed(frame)), -1)] == []
        finally:
            kept.unpersist()

    def test_the_rows_of_a_batch_are_known_by_their_number(self, spark: SparkSession) -> None:
        rows = spark.createDataFrame(spark.sparkContext.parallelize([(1,)]), "id long")
        found = rows_scanned(steps_of(executed(rows)))
        assert len(found) == 1
        assert rows_scanned(steps_of(executed(rows.union(rows)))) == 2 * found

    def test_state_is_seen(self, spark: SparkSession, tmp_path: Path) -> None:
        found = {name: self._has_state(spark, tmp_path / name, name) for name in ("none", "window", "distinct")}
        assert found == {"none": False, "window": True, "distinct": True}

    @staticmethod
    def _has_state(spark: SparkSession, folder: Path, kind: str) -> bool:
        events = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        frame = {
            "none": events,
            "window": events.withWatermark("timestamp", "1 hour").groupBy(F.window("timestamp", "1 hour")).count(),
            "distinct": events.withWatermark("timestamp", "1 hour").dropDuplicates(["value", "timestamp"]),
        }[kind]
        writing = frame.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True)
        query = writing.start()
        query.awaitTermination()
        execution: Any = query._jsq.streamingQuery()
        return has_state(steps_of(execution.lastExecution().executedPlan()))


class TestBeforeAQueryStarts:
    def test_what_moves_rows_between_tasks_is_seen_in_the_plan(self, spark: SparkSession) -> None:
        events = spark.range(10).withColumn("device", F.col("id") % 3)
        table = spark.range(3).withColumnRenamed("id", "device")
        other = table.withColumn("name", F.lit("x"))

        assert moving_step(events.where("id > 3").select("id")) is None
        assert moving_step(events.join(F.broadcast(table.groupBy("device").count()), "device")) is None
        assert moving_step(events.join(F.broadcast(table).where("device > 0"), "device")) is None
        assert moving_step(events.join(F.broadcast(table), "device").join(other, "device")) == "Join"
        assert moving_step(events.where("id > 3").unionByName(events.where("id <= 3"))) == "Union"
        assert moving_step(events.limit(3)) == "GlobalLimit"
        assert moving_step(events.groupBy("device").count()) == "Aggregate"
        assert moving_step(events.repartition(2)) == "Repartition"

    def test_what_keeps_rows_where_they_are_is_known(self, spark: SparkSession) -> None:
        events = spark.range(10).withColumn("device", F.col("id") % 3)
        events.createOrReplaceTempView("events_of_a_view")
        unmoved = {
            "arrow": events.mapInArrow(lambda batches: batches, events.schema),
            "a Python function": events.withColumn("x", F.udf(lambda value: value, "long")("id")),
            "explode": events.select("id", F.explode(F.array("id", "device"))),
            "a view": spark.sql("SELECT * FROM events_of_a_view"),
            "a named query": spark.sql("WITH e AS (SELECT * FROM events_of_a_view) SELECT id FROM e"),
            "observed": events.observe("seen", F.count(F.lit(1))),
            "a watermark": events.withColumn("at", F.current_timestamp()).withWatermark("at", "1 hour"),
            "unpivot": events.unpivot("id", "device", "name", "value"),
        }
        assert {name: moving_step(frame) for name, frame in unmoved.items()} == dict.fromkeys(unmoved)

    def test_several_rows_of_one_are_seen(self, spark: SparkSession) -> None:
        events = spark.range(10).withColumn("device", F.col("id") % 3)
        several: list[DataFrame] = [
            events.select("id", F.explode(F.array("id", "device"))),
            events.select("id", F.inline(F.array(F.struct("device")))),
            events.unpivot("id", "device", "name", "value"),
        ]
        assert [makes_several_rows(frame) for frame in several] == [True, True, True]
        assert not makes_several_rows(events.where("id > 3"))


def test_every_step_named_is_one_of_this_spark() -> None:
    """A step that a later Spark calls by another name would be refused, and one that lost its state missed."""
    jars = (Path(pyspark.__file__).parent / "jars").glob("spark-[sc][qa][lt]*.jar")
    entries = {name for jar in jars for name in zipfile.ZipFile(jar).namelist() if name.endswith(".class")}
    classes = {name.rpartition("/")[2].removesuffix(".class") for name in entries}
    ours = {"BroadcastJoin"}
    assert row_movement.UNMOVED - classes == set()
    assert row_movement.IN_ORDER - classes == ours
    assert f"{STATEFUL.replace('.', '/')}.class" in entries
