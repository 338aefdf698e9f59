"""Rows into the sink's table, within a transaction; the events whose rows the database rejects are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hubline.errors import RowsRejected, SinkError
from hubline.sinks.sql_sink.connection import SinkConnection, altered
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents
from hubline.sinks.sql_sink.table_plans import TablePlans
from hubline.sinks.sql_sink.table_schema import (
    SEQUENCE_COLUMN,
    Column,
    InsertPlan,
    Rejection,
    names_in,
    require_fit,
    tabled,
)
from hubline.text import sentences

Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
"""Rows for the sink: Arrow columns, or dictionaries."""

Chunk: TypeAlias = tuple[pa.Table, RowEvents | None]
"""Rows of one schema, and the event of each where it is known."""

Restart: TypeAlias = Callable[[SinkConnection], None]
"""Undoes a transaction that has nothing in it but the rows that just failed, and begins it again."""


class RowWriter:
    """What a transaction has written into the table.

    Attributes:
        written: How the rows were written, one plan for each chunk.
        rejected: The events whose rows the database rejects.
    """

    def __init__(self, plans: TablePlans, *, shown: str) -> None:
        self._plans = plans
        self._shown = shown
        self.written: list[InsertPlan] = []
        self.rejected: list[Rejected] = []

    def clear(self) -> None:
        """Everything was undone."""
        self.written.clear()
        self.rejected.clear()

    def savepoint(self) -> Callable[[], None]:
        """Marks what there is by now; what is returned goes back to it."""
        written, rejected = len(self.written), len(self.rejected)

        def undo() -> None:
            del self.written[written:], self.rejected[rejected:]

        return undo

    def insert(
        self, connection: SinkConnection, rows: Rows, *, row_events: RowEvents | None, restart: Restart | None
    ) -> None:
        """Writes rows. `restart` is given where nothing is in the transaction before them."""
        rejected: list[Rejected] = []
        if isinstance(rows, pa.RecordBatch):
            chunks: list[Chunk] = [(pa.Table.from_batches([rows]), row_events)]
        elif isinstance(rows, pa.Table):
            chunks = [(rows, row_events)]
        else:
            chunks, rejected = self._tabled(connection, rows, row_events)
        is_traced = row_events is not None or any(SEQUENCE_COLUMN in table.column_names for table, _ in chunks)
        for table, given in chunks:
            known = _known_events(table) if given is None else given
            rejected += self._write(connection, *_in_order(table, known), restart=restart)
            restart = None
        if rejected and not is_traced:
            raise RowsRejected(
                f"{self._shown} refuses rows: {rejected[0].kind}: {rejected[0].reason}. Give them a column "
                f"{SEQUENCE_COLUMN!r}, by which hubline finds the events of these rows.",
                table=str(self._plans.table),
            )
        self.rejected += rejected

    def _write(
        self, connection: SinkConnection, rows: pa.Table, row_events: RowEvents, *, restart: Restart | None
    ) -> list[Rejected]:
        if not len(rows):
            return []
        plan = self._plans.plan(connection, rows.schema)
        try:
            # With nothing before it, what fails is undone by beginning again: a savepoint would cost every batch.
            with nullcontext() if restart else connection.savepoint():
                connection.write(plan, rows)
                rejected = []
        except Rejection as rejection:
            if restart:
                restart(connection)
                plan = self._plans.plan(connection, rows.schema)  # a table that was made is to be made again
            rejected = connection.write_skipping_rejected(plan, rows, row_events, rejection)
            if rejected and connection.tables.shape(plan.table) != plan.shape:
                raise altered(plan.table) from None  # now: what is rejected may be undone, and no commit asks
        self.written.append(plan)
        return rejected

    def _tabled(
        self, connection: SinkConnection, records: Sequence[Mapping[str, Any]], row_events: RowEvents | None
    ) -> tuple[list[Chunk], list[Rejected]]:
        """Dictionaries as columns; where a value does not fit its column, without the event that has it."""
        columns = self._plans.columns(connection)
        try:
            return [(tabled(records, columns), row_events)], []
        except Rejection as rejection:
            if row_events is None:
                problem = f"the rows do not make columns: {rejection}"
                raise RowsRejected(
                    sentences(problem, "give each column one type"), table=str(self._plans.table)
                ) from None
        good, rejected = [], []
        for event in np.unique(row_events):
            places = np.nonzero(row_events == event)[0].tolist()
            try:
                require_fit(tabled([records[place] for place in places], columns), columns)
                good.append(places)
            except Rejection as rejection:
                rejected.append(Rejected(int(event), str(rejection), rejection.kind))
        names = names_in(records[place] for places in good for place in places)
        return list(_chunks(records, row_events, good, columns, names)), rejected


def _known_events(rows: pa.Table) -> RowEvents:
    return _sequences(rows) if SEQUENCE_COLUMN in rows.column_names else np.zeros(len(rows), np.int64)


def _sequences(rows: pa.Table) -> RowEvents:
    column = rows.column(SEQUENCE_COLUMN)
    if column.null_count or not pa.types.is_integer(column.type):
        raise SinkError(
            f"the rows' column {SEQUENCE_COLUMN!r} must hold a whole number in each row, the event that the "
            "row came from."
        )
    return np.asarray(column.cast(pa.int64()).combine_chunks().to_numpy(zero_copy_only=False), np.int64)


def _chunks(
    records: Sequence[Mapping[str, Any]],
    row_events: RowEvents,
    good: list[list[int]],
    columns: Sequence[Column],
    names: Sequence[str],
) -> Iterator[Chunk]:
    """The records of events, by their places, in as few chunks as make columns: 1 and 'a' need two.

    All have the same columns: whether a field that is missing is null, or what the table has in its place, does not
    depend on the types of others.
    """
    if not good:
        return
    places = [place for event in good for place in event]
    try:
        yield tabled([records[place] for place in places], columns, names), row_events[places]
    except Rejection:
        half = len(good) // 2
        yield from _chunks(records, row_events, good[:half], columns, names)
        yield from _chunks(records, row_events, good[half:], columns, names)


def _in_order(rows: pa.Table, row_events: RowEvents) -> tuple[pa.Table, RowEvents]:
    """Rows in the order of their events, which is the order in which they count."""
    if len(row_events) < 2 or bool(np.all(row_events[:-1] <= row_events[1:])):
        return rows, row_events
    order = np.argsort(row_events, kind="stable")
    return rows.take(pa.array(order)), row_events[order]
