"""Plans of queries: their steps, what they begin with, and whether rows stay in the task that read them.

A DataFrame that `foreachBatch` hands over is cut off from its plan; the query itself still has it (query.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

_STREAM: Final = "StreamingRelationV2"
_SCAN: Final = "MicroBatchScanExec"
# Better one too many than one too few: rows that were moved and passed for narrow would be lost.
_SPREAD: Final = re.compile(r"(?<!Broadcast)Exchange|CartesianProduct|^[\W\d]*Union\b", re.MULTILINE)
_BROADCAST: Final = "BroadcastExchange"
# The steps of a plan that keep state, each on a line of its own.
_STATE: Final = re.compile(
    r"^\W*\w*(?:StateStore|WithState|Streaming(?:SymmetricHashJoin|Deduplicate|GlobalLimit))", re.MULTILINE
)
# What hides a plan: the one that it changes as it goes, and the one that made what is kept.
_ADAPTIVE: Final = "AdaptiveSparkPlanExec"
_KEPT: Final = "InMemoryTableScanExec"
_ROWS: Final = "RDDScanExec"

# Steps of a plan that move rows between tasks; so do those that group by key.
_MOVING: Final = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Except", "Intersect", "Join",
     "RebalancePartitions", "Repartition", "RepartitionByExpression", "Sort", "Union", "Window"}
)  # fmt: skip


def analyzed(frame: DataFrame) -> Any:
    """A frame's plan as Spark understood it, before it is made any faster."""
    return frame._jdf.queryExecution().analyzed()


def executed(frame: DataFrame) -> Any:
    """A frame's plan as it runs."""
    return frame._jdf.queryExecution().executedPlan()


def each_of(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Java's."""
    return (sequence.apply(number) for number in range(sequence.size()))


def kind_of(step: Any) -> str:
    """What a step of a plan is."""
    return str(step.getClass().getSimpleName())


def steps_of(plan: Any) -> Iterator[Any]:
    """The steps of a plan, logical or physical, from its end."""
    yield plan
    # Of what Spark changes as it goes the first plan has the steps; the one before that has no exchanges yet.
    inner = [plan.initialPlan()] if kind_of(plan) == _ADAPTIVE else each_of(plan.children())
    for child in inner:
        yield from steps_of(child)


def leaves_of(plan: Any) -> Iterator[tuple[str, Any]]:
    """What the plan begins with, each with its kind."""
    for leaf in each_of(plan.collectLeaves()):
        kind = kind_of(leaf)
        if kind == _ADAPTIVE:
            yield from leaves_of(leaf.inputPlan())
        elif kind == _KEPT:
            yield from leaves_of(leaf.relation().cachedPlan())
        else:
            yield kind, leaf


def scans_of(plan: Any) -> list[Any]:
    """The reads of streams that a micro-batch begins with."""
    return [leaf for kind, leaf in leaves_of(plan) if kind == _SCAN]


def streams_read(frame: DataFrame) -> list[set[str]]:
    """The streams that a query reads, before it starts: the columns of each."""
    streams = [leaf for kind, leaf in leaves_of(analyzed(frame)) if kind == _STREAM]
    return [{column.name() for column in each_of(each.output())} for each in streams]


def has_state(plan: Any) -> bool:
    return _STATE.search(plan.toString()) is not None


def is_spread(plan: Any, rows_id: int) -> bool:
    """Whether the batch's rows of one task may come to several: moved, or sent to all to be joined with."""
    steps = plan.toString()
    if _SPREAD.search(steps):
        return True
    if _BROADCAST not in steps:
        return False
    sent = [leaf for step in steps_of(plan) if kind_of(step).startswith(_BROADCAST) for leaf in leaves_of(step)]
    return rows_id in rows_scanned(sent) or any(kind == _SCAN for kind, _ in sent)


def rows_scanned(leaves: Iterable[tuple[str, Any]]) -> list[int]:
    """The numbers of the sets of rows that are among what a plan begins with: those of a batch are one."""
    return [leaf.rdd().id() for kind, leaf in leaves if kind == _ROWS]


# Before a query starts ------------------------------------------------------------------------------------------------


def makes_several_rows(frame: DataFrame) -> bool:
    """Whether a query makes several rows of one, as `explode` does."""
    return "Generate" in _steps_of_events(analyzed(frame))


def moving_step(frame: DataFrame) -> str | None:
    """What in a query moves rows between tasks, if anything does."""
    steps = _steps_of_events(analyzed(frame))
    return next((step for step in steps if step in _MOVING or "Groups" in step or "WithState" in step), None)


def attribute_of(frame: DataFrame, name: str) -> str:
    """A column as Spark knows it: another one of the same name is not the same. Empty if there is none."""
    names: list[str] = analyzed(frame).output().mkString(",").split(",")
    return next((each for each in names if each.startswith(f"{name}#")), "")


def _steps_of_events(node: Any) -> Iterator[str]:
    """The steps that events go through, the last one first. Not those of a table that a join sends to every task."""
    name, sides = node.nodeName(), list(each_of(node.children()))
    if name == "Join" and (stays := [side for side in sides if not _is_sent(side)]) != sides:
        name, sides = "BroadcastJoin", stays
    yield name
    for side in sides:
        yield from _steps_of_events(side)


def _is_sent(side: Any) -> bool:
    """Whether one side of a join is marked to be sent, there or before steps that take it as it is."""
    if side.nodeName() == "ResolvedHint":
        return "strategy=broadcast" in side.toString().partition("\n")[0]
    inputs = list(each_of(side.children()))
    return len(inputs) == 1 and _is_sent(inputs[0])
