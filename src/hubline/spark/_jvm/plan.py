"""Plans of queries, as trees of steps: a logical plan is what was asked for, a physical one is how Spark does it.

A DataFrame that `foreachBatch` hands over is cut off from its plan; the query itself still has it (query.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

# What a streaming query begins with, before it starts.
_STREAM: Final = "StreamingRelationV2"
_FIELDS_COUNT_MAX: Final = 10_000
"""Spark itself leaves out those beyond the 25th."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan, with those before it.

    Attributes:
        kind: The name of Spark's class, without its package.
        node: The Java object.
        inputs: The steps that it takes rows from.
    """

    kind: str
    node: Any
    inputs: tuple[Step, ...] = ()

    def __iter__(self) -> Iterator[Step]:
        """This step, and all before it, the last one first."""
        yield self
        for step in self.inputs:
            yield from step

    @property
    def text(self) -> str:
        """Its line of the plan, with all its columns."""
        return str(self.node.simpleString(_FIELDS_COUNT_MAX))

    @property
    def leaves(self) -> Iterator[Step]:
        """What the plan begins with."""
        return (step for step in self if not step.inputs)


def analyzed(frame: DataFrame) -> Any:
    """A frame's logical plan as Spark understood it, before it is made any faster."""
    return frame._jdf.queryExecution().analyzed()


def executed(frame: DataFrame) -> Any:
    """A frame's physical plan."""
    return frame._jdf.queryExecution().executedPlan()


def steps_of(plan: Any) -> Step:
    """The steps of a plan, logical or physical."""
    kind = kind_of(plan)
    match kind:
        case "AdaptiveSparkPlanExec":
            inputs = [plan.initialPlan()]  # before it there are no exchanges yet, and later ones hide them in stages
        case "InMemoryTableScanExec":
            inputs = [plan.relation().cachedPlan()]
        case "ReusedExchangeExec":
            inputs = [plan.child()]
        case _:
            inputs = list(each_of(plan.children()))
    return Step(kind, plan, tuple(map(steps_of, inputs)))


def each_of(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Java's."""
    return (sequence.apply(number) for number in range(sequence.size()))


def kind_of(node: Any) -> str:
    """The name of a Java object's class."""
    return str(node.getClass().getSimpleName())


def streams_read(frame: DataFrame) -> list[set[str]]:
    """The streams that a query reads, before it starts: the columns of each."""
    streams = [leaf.node for leaf in steps_of(analyzed(frame)).leaves if leaf.kind == _STREAM]
    return [{column.name() for column in each_of(node.output())} for node in streams]


def attribute_of(frame: DataFrame, name: str) -> str:
    """A column as Spark knows it: another one of the same name is not the same. Empty if there is none."""
    names: list[str] = analyzed(frame).output().mkString(",").split(",")
    return next((each for each in names if each.startswith(f"{name}#")), "")
