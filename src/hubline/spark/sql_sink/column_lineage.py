"""Whether columns of a query's rows are still those of the events that the rows were made of.

By these a sink knows which events a row is of, how far a partition has come, and what came before. One of the same name
that the query made itself says something else: rows would be taken for another event's, and lost with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from pyspark.sql import DataFrame

from hubline.spark.sql_sink.micro_batch import analyzed, each_of, execution_of, kind_of, steps_of

_PROJECT: Final = "Project"
_ALIAS: Final = "Alias"
_ATTRIBUTE: Final = "AttributeReference"
_CAST: Final = "Cast"
_COALESCE: Final = "Coalesce"


def made_in_batch(frame: DataFrame, names: Iterable[str]) -> set[str]:
    """Of these columns of a batch, those that its query made, or who was given the batch."""
    made = overwritten_columns(analyzed(frame), names, is_own=lambda _: True)
    return made | overwritten_columns(execution_of(frame).lastExecution().analyzed(), set(names) - made)


def overwritten_columns(
    plan: Any, names: Iterable[str], *, is_own: Callable[[Any], bool] = lambda leaf: bool(leaf.isStreaming())
) -> set[str]:
    """Of these columns, those that an analysed query computes, or takes from another column or a static table.

    What comes of an aggregate, or of a function over whole rows, is not looked into. ``is_own`` tells which of the
    things that the plan begins with are the events.
    """
    ids = {column.name(): column.exprId().id() for column in each_of(plan.output())}
    sought = {ids[name]: name for name in names if name in ids}
    made = set()
    for step in steps_of(plan):
        if not sought:
            break
        if kind_of(step) == _PROJECT:
            made |= _computed(step, sought)
        elif step.children().isEmpty():
            is_other = not is_own(step)
            for column in each_of(step.output()):
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
    """Without what changes nothing: a cast to its own type, and what ``fillna`` puts in where there is nothing."""
    while kind_of(value) == _COALESCE or (
        kind_of(value) == _CAST and value.dataType().equals(value.child().dataType())
    ):
        value = value.children().apply(0)
    return value
