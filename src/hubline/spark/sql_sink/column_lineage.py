"""Whether columns of a query's rows are still those of the events that the rows were made of.

By these a sink knows which events a row is of, how far a partition has come, and what came before. One of the same name
that the query made itself says something else: rows would be taken for another event's, and lost with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from hubline.spark.sql_sink.micro_batch import analyzed, each_of, execution_of, kind_of, steps_of

_PROJECT: Final = "Project"
_ALIAS: Final = "Alias"
_ATTRIBUTE: Final = "AttributeReference"
_CAST: Final = "Cast"
_COALESCE: Final = "Coalesce"
# What a frame is that a batch was handed over in, as long as nothing was made of it.
_HANDED_OVER: Final = "LogicalRDD"


class BatchLineage:
    """Which of some columns of a query's batches are not those of its events: looked up once for a run of the query.

    A frame that is the batch as Spark hands it over comes of the query's own plan, which stays the same for all
    batches of a run. A frame that a ``foreachBatch`` function made of the batch can have another plan each time, and
    is looked at each time.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: tuple[tuple[str, ...], set[str]] | None = None

    def overwritten_in(self, frame: DataFrame, run_id: str) -> set[str]:
        if kind_of(analyzed(frame)) != _HANDED_OVER:
            return self._looked_up(frame)
        key = run_id, *frame.columns
        if self._known is None or self._known[0] != key:
            self._known = key, self._looked_up(frame)
        return self._known[1]

    def _looked_up(self, frame: DataFrame) -> set[str]:
        """The columns that the query overwrote, or the function that was given the batch."""
        names = set(self._names)
        overwritten = overwritten_columns(analyzed(frame), names, is_own=lambda _: True)
        query_plan = execution_of(frame).lastExecution().analyzed()
        return overwritten | overwritten_columns(query_plan, names - overwritten)


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
