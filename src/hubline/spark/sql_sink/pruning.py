"""Columns of events that the rows of a batch are made without.

Spark takes all columns of a Python source, and copies each of them at every row, whatever becomes of them: those that
only dead letters need take a sixth of a stage that parses JSON. So a sink that drops them has its tasks read without
them. It tells what to leave out beside the job, as Spark lets a job's properties go with it; the source leaves these
columns null. A job that says nothing reads whole events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import DataFrame

from hubline.spark.sql_sink.micro_batch import analyzed, each_of, execution_of, kind_of, steps_of

_LEFT_OUT: Final = "hubline.columns.left_out"

# What a frame is that a batch was handed over in, as long as nothing was made of it.
_HANDED_OVER: Final = "LogicalRDD"
_SCAN: Final = "StreamingDataSourceV2ScanRelation"


@contextmanager
def leaving_out(frame: DataFrame, names: Sequence[str]) -> Iterator[None]:
    """Within it, what the calling thread has Spark do reads events without these columns."""
    context = frame.sparkSession.sparkContext
    context.setLocalProperty(_LEFT_OUT, ",".join(names))
    try:
        yield
    finally:
        context.setLocalProperty(_LEFT_OUT, None)  # type: ignore[arg-type] # which takes it away


def left_out() -> frozenset[str]:
    """In a task: the columns that nobody needs."""
    context = TaskContext.get()
    names = context.getLocalProperty(_LEFT_OUT) if context is not None else None
    return frozenset(names.split(",") if names else ())


def is_handed_over(frame: DataFrame) -> bool:
    """Whether it is a batch as a query hands it over, and nobody keeps what is read of it."""
    level = frame.storageLevel
    return kind_of(analyzed(frame)) == _HANDED_OVER and not (level.useMemory or level.useDisk)


def unread(frame: DataFrame, dropped: Sequence[str]) -> list[str] | None:
    """Of the columns that are dropped of a batch, those that its query reads for nothing else; None if nobody can say.

    Where one of them is something that the query made, all are read: it may not be made of null. So they are where the
    time of day is in the query: another batch may use what this one does not.
    """
    batch = execution_of(frame).lastExecution()
    sql: Any = frame.sparkSession.sparkContext._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001
    if batch.analyzed().containsPattern(sql.catalyst.trees.TreePattern.CURRENT_LIKE()):
        return []
    whole = DataFrame(sql.classic.Dataset.ofRows(batch.sparkSession(), batch.analyzed()), frame.sparkSession)
    plan = batch.sparkSession().sessionState().optimizer().execute(analyzed(whole.drop(*dropped)))
    scanned = [
        column for leaf in each_of(plan.collectLeaves()) if kind_of(leaf) == _SCAN for column in each_of(leaf.output())
    ]
    if not scanned:
        return None  # this batch has nothing to read
    ids = {column.exprId().id() for column in scanned}
    given = {column.name(): column.exprId().id() for column in each_of(batch.analyzed().output())}
    if not {given[name] for name in dropped} <= ids:
        return []
    used = [step.references() for step in steps_of(plan)]
    # A user's schema may say that a column is never null.
    read = {
        column.exprId().id()
        for column in scanned
        if not column.nullable() or any(names.contains(column) for names in used)
    }
    return [name for name in dropped if given[name] not in read]
