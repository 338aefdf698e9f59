"""Whether columns of a query's rows are still those of the events that the rows were made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from pyspark.sql import DataFrame

from hubline.spark._jvm.plan import analyzed, each_of, kind_of, steps_of
from hubline.spark._jvm.query import RunningQuery

_PROJECT: Final = "Project"
_ALIAS: Final = "Alias"
_ATTRIBUTE: Final = "AttributeReference"
_CAST: Final = "Cast"
_COALESCE: Final = "Coalesce"
# What a frame is that a batch was handed over in, as long as nothing was made of it.
_HANDED_OVER: Final = "LogicalRDD"


def is_batch_itself(frame: DataFrame) -> bool:
    """Whether a frame is the batch as Spark hands it over, or something that a function made of it."""
    return kind_of(analyzed(frame)) == _HANDED_OVER


def overwritten_in_query(frame: DataFrame, names: Iterable[str]) -> set[str]:
    """Of these columns, those that a query computes itself, or takes from another column or a static table.

    What comes of an aggregate, or of a function over whole rows, is not looked into.
    """
    return _overwritten(analyzed(frame), names, is_events=lambda leaf: bool(leaf.isStreaming()))


def overwritten_in_batch(frame: DataFrame, names: Iterable[str]) -> set[str]:
    """The same of a batch: the columns that its query overwrote, or the function that was given the batch."""
    overwritten = _overwritten(analyzed(frame), names, is_events=lambda _: True)
    rest = [name for name in names if name not in overwritten]
    plan = RunningQuery(frame).analyzed
    return overwritten | _overwritten(plan, rest, is_events=lambda leaf: bool(leaf.isStreaming()))


def _overwritten(plan: Any, names: Iterable[str], *, is_events: Callable[[Any], bool]) -> set[str]:
    """`is_events` says which of the things that the plan begins with are the events."""
    ids = {column.name(): column.exprId().id() for column in each_of(plan.output())}
    sought = {ids[name]: name for name in names if name in ids}
    made = set()
    for step in steps_of(plan):
        if not sought:
            break
        if step.kind == _PROJECT:
            made |= _computed(step.node, sought)
        elif not step.inputs:
            is_other = not is_events(step.node)
            for column in each_of(step.node.output()):
                name = sought.pop(column.exprId().id(), None)
                if name is not None and (is_other or column.name() != name):
                    made.add(name)
    return made


def _computed(project: Any, sought: dict[int, str]) -> set[str]:
    """What the step computes of the columns sought. Where it gives one another name, that is what is sought now."""
    made = set()
    for column in each_of(project.projectList()):
        if kind_of(column) == _ALIAS and (name := sought.pop(column.exprId().id(), None)) is not None:
            value = _unwrapped(column.child())
            if kind_of(value) == _ATTRIBUTE:
                sought[value.exprId().id()] = name
            else:
                made.add(name)
    return made


def _unwrapped(value: Any) -> Any:
    """Without what changes nothing: a cast to its own type, and what `fillna` puts in where there is nothing."""
    while kind_of(value) == _COALESCE or (
        kind_of(value) == _CAST and value.dataType().equals(value.child().dataType())
    ):
        value = value.children().apply(0)
    return value
