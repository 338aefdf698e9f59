"""Whether rows stay in the task that read them, as the plan of a query says.

A sink that commits by partition counts on it: rows that were moved and passed for unmoved would be lost. So a step
counts as one that moves rows unless it is named here as one that does not: a step of a later Spark, or of an extension,
is refused until somebody has looked at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import DataFrame

from hubline.spark._jvm.plan import Step, analyzed, steps_of
from hubline.spark.compatibility import STATEFUL

SCAN: Final = "MicroBatchScanExec"
"""The read of a stream in a micro-batch."""

ROWS: Final = "RDDScanExec"
"""Rows that something else has made, such as a batch that `foreachBatch` hands over."""

BROADCAST: Final = "BroadcastExchangeExec"
"""Sends all rows to all tasks, for a join."""

UNMOVED: Final = frozenset(
    {"AdaptiveSparkPlanExec", "AppendColumnsExec", "AppendColumnsWithObjectExec", "ArrowEvalPythonExec",
     "ArrowEvalPythonUDTFExec", "ArrowWindowPythonExec", "BatchEvalPythonExec", "BatchEvalPythonUDTFExec",
     "BatchScanExec", "BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec", "CoalesceExec", "CollectMetricsExec",
     "ColumnarToRowExec", "DeserializeToObjectExec", "EmptyRelationExec", "EventTimeWatermarkExec", "ExpandExec",
     "FileSourceScanExec", "FilterExec", "FlatMapGroupsInArrowExec", "FlatMapGroupsInPandasExec", "GenerateExec",
     "HashAggregateExec", "InMemoryTableScanExec", "InputAdapter", "LocalTableScanExec", "MapElementsExec",
     "MapGroupsExec", "MapInArrowExec", "MapInPandasExec", "MapPartitionsExec", SCAN, "ObjectHashAggregateExec",
     "OneRowRelationExec", "ProjectExec", ROWS, "RangeExec", "RowDataSourceScanExec", "RowToColumnarExec",
     "SampleExec", "SerializeFromObjectExec", "ShuffledHashJoinExec", "SortAggregateExec", "SortExec",
     "SortMergeJoinExec", "UpdateEventTimeColumnExec", "WholeStageCodegenExec", "WindowExec", "WindowGroupLimitExec"}
)  # fmt: skip
"""Physical steps after which rows are in the task where they were. Those that group or join rows do not move any by
themselves: where they must, there is an exchange before them."""

IN_ORDER: Final = frozenset(
    {"AppendColumns", "BroadcastJoin", "CTERelationDef", "CollectMetrics", "DeserializeToObject", "EventTimeWatermark",
     "Expand", "Filter", "Generate", "MapElements", "MapInArrow", "MapInPandas", "MapPartitions", "Project",
     "ResolvedHint", "Sample", "SerializeFromObject", "SubqueryAlias", "TypedFilter", "UpdateEventTimeWatermarkColumn",
     "View", "WithCTE"}
)  # fmt: skip
"""Logical steps that leave rows in their task, and in their order. `BroadcastJoin` is one of ours, see below."""

SEVERAL_ROWS: Final = frozenset({"Expand", "Generate"})
"""Logical steps that make several rows of one: `explode`, `unpivot`."""


# By the kind of a step: to ask takes several calls to Java.
_known_state: dict[str, bool] = {}


# While a query runs, by its physical plan


def is_spread(plan: Step, rows_id: int) -> bool:
    """Whether the batch's rows of one task may come to several: moved, or sent to all to be joined with.

    `rows_id` is the number of the batch, as its function gets it.
    """
    if plan.kind == BROADCAST:  # how the rows of a static table came together does not matter
        return rows_id in rows_scanned(plan) or any(leaf.kind == SCAN for leaf in plan.leaves)
    if plan.kind == "ReusedExchangeExec":
        return plan.inputs[0].kind != BROADCAST or is_spread(plan.inputs[0], rows_id)
    return plan.kind not in UNMOVED or any(is_spread(step, rows_id) for step in plan.inputs)


def rows_scanned(plan: Step) -> list[int]:
    """The numbers of the sets of rows that are among what a plan begins with: those of a batch are one."""
    return [leaf.node.rdd().id() for leaf in plan.leaves if leaf.kind == ROWS]


def has_state(plan: Step) -> bool:
    """Whether a step keeps rows for later batches."""
    return any(_has_state(step) for step in plan)


def _has_state(step: Step) -> bool:
    if step.kind not in _known_state:
        _known_state[step.kind] = bool(is_instance_of(SparkContext._gateway, step.node, STATEFUL))
    return _known_state[step.kind]


# Before a query starts, by its logical plan


def makes_several_rows(frame: DataFrame) -> bool:
    """Whether a query makes several rows of one, as `explode` does."""
    return any(kind in SEVERAL_ROWS for kind in _kinds_of_events(steps_of(analyzed(frame))))


def moving_step(frame: DataFrame) -> str | None:
    """What in a query moves rows between tasks, or changes their order, if anything does."""
    return next((kind for kind in _kinds_of_events(steps_of(analyzed(frame))) if kind not in IN_ORDER), None)


def _kinds_of_events(step: Step) -> Iterator[str]:
    """The steps that events go through, the last one first, without what they begin with.

    A table that a join sends to every task is not among them: that join is a `BroadcastJoin`.
    """
    if not step.inputs:
        return
    kind, inputs = step.kind, step.inputs
    if kind == "Join" and (stays := tuple(side for side in inputs if not _is_sent(side))) != inputs:
        kind, inputs = "BroadcastJoin", stays
    yield kind
    for each in inputs:
        yield from _kinds_of_events(each)


def _is_sent(side: Step) -> bool:
    """Whether one side of a join is marked to be sent, there or before steps that take it as it is."""
    if side.kind == "ResolvedHint":
        return "strategy=broadcast" in side.node.toString().partition("\n")[0]
    return len(side.inputs) == 1 and _is_sent(side.inputs[0])
