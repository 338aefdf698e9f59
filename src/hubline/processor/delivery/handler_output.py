"""What a handler returned, as rows for the sink, with the event that each came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hubline.errors import SinkError
from hubline.model.events import EventBatch
from hubline.sinks import Rows
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.sinks.sql_sink.table_schema import SEQUENCE_COLUMN


@dataclass(frozen=True, slots=True)
class HandlerOutput:
    """What a handler made of some events: of one, or of a batch.

    Attributes:
        first_sequence: The event, or the first of the batch.
        rows: What it returned.
        part: The batch; None for one event.
    """

    first_sequence: int
    rows: object
    part: EventBatch | None = None


def grouped_rows(outputs: Iterable[HandlerOutput], untraced: dict[int, EventBatch]) -> Iterator[tuple[Rows, RowEvents]]:
    """What was returned, in as few groups as possible, with the event of each row.

    Rows of a batch that do not name their events count as those of its first, and it is noted in ``untraced``.
    """
    records: list[Mapping[str, Any]] = []
    tables: list[pa.Table] = []
    row_events: list[RowEvents] = []
    for output in outputs:
        rows: Any = _as_rows(output.rows)
        if rows is None or not len(rows):
            continue
        is_table = isinstance(rows, pa.Table)
        if row_events and (bool(tables) != is_table or (is_table and tables[0].schema != rows.schema)):
            yield _joined(records, tables), np.concatenate(row_events)
            records, tables, row_events = [], [], []
        row_events.append(_events_of(output, rows, untraced))
        if is_table:
            tables.append(rows)
        else:
            records += rows
    if row_events:
        yield _joined(records, tables), np.concatenate(row_events)


def _joined(records: list[Mapping[str, Any]], tables: list[pa.Table]) -> Rows:
    return pa.concat_tables(tables) if tables else records


def _as_rows(returned: object) -> pa.Table | Sequence[Mapping[str, Any]] | None:
    if returned is None or isinstance(returned, pa.Table):
        return returned
    if isinstance(returned, pa.RecordBatch):
        return pa.Table.from_batches([returned])
    if isinstance(returned, Mapping):
        return [returned]
    if isinstance(returned, Sequence) and all(isinstance(record, Mapping) for record in returned):
        return returned
    raise SinkError(
        f"the handler returned {type(returned).__name__}. Return an Arrow table or batch, dictionaries, "
        "or None for no rows."
    )


def _events_of(
    output: HandlerOutput, rows: pa.Table | Sequence[Mapping[str, Any]], untraced: dict[int, EventBatch]
) -> RowEvents:
    part, first = output.part, output.first_sequence
    if part is None or len(part) == 1:
        return np.full(len(rows), first, np.int64)
    named: Any = None
    if isinstance(rows, pa.Table):
        if SEQUENCE_COLUMN in rows.column_names:
            named = rows.column(SEQUENCE_COLUMN).to_pylist()
    elif all(SEQUENCE_COLUMN in record for record in rows):
        named = [record[SEQUENCE_COLUMN] for record in rows]
    if named is None:
        untraced[first] = part
        return np.full(len(rows), first, np.int64)
    sequences = np.asarray(named)
    if not np.isin(sequences, part.arrow.column("sequenceNumber").to_numpy()).all():
        raise SinkError(
            f"the rows' column {SEQUENCE_COLUMN!r} names events that are not in the batch, {part!r}. Give "
            "each row the sequence number of an event of the batch."
        )
    return sequences.astype(np.int64)
