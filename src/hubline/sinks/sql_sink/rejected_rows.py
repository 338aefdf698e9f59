"""Finds the rows that a database refuses, among thousands that it takes.

Rows belong to events, or to all of them together where that is not known. The rows of an event are written all or none,
so that a later redrive of the event writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.sinks.sql_sink.table_schema import Rejection

RowEvents = npt.NDArray[np.int64]
"""The event of each row: its sequence number, or another number of its own."""

Attempt = Callable[[pa.Table], None]
"""Writes rows, all or none. Raises Rejection where the database does not take them."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event whose rows were not written, and why.

    Attributes:
        event: The number of the event: its sequence number, or what `row_events` has in its place.
        reason: What the database says of the row.
        kind: The kind of error, such as `NotNullViolation`.
    """

    event: int
    reason: str
    kind: str


def insert_skipping_rejected(rows: pa.Table, row_events: RowEvents, attempt: Attempt) -> list[Rejected]:
    """Writes the rows of every event that the database takes, in order; returns the others.

    `row_events` has the event of each row, in ascending order. All is tried at once. Where the database names the row
    that it refuses, what comes before is written, and that event is skipped; else a half is tried. From then on the
    parts are about as long as the distance of two refusals: what is sent behind one was sent for nothing.
    """
    rejected: list[Rejected] = []
    start, size = 0, len(rows)
    blamed: tuple[int, Rejection] | None = None
    while start < len(rows):
        if blamed is not None and blamed[0] == start:
            end = _end_of_event(row_events, start)
            rejected.append(Rejected(int(row_events[start]), str(blamed[1]), blamed[1].kind))
            start, blamed = end, None
            continue
        end = _end_of_event(row_events, min(start + size, len(rows)) - 1)
        try:
            attempt(rows.slice(start, end - start))
        except Rejection as rejection:
            if row_events[start] == row_events[end - 1]:
                blamed = (start, rejection)
            elif rejection.row is not None and start + rejection.row < end:
                begin = _start_of_event(row_events, start + rejection.row)
                blamed = (begin, rejection)
                size = max(begin - start, 1)
            else:
                blamed = None
                size = max((end - start) // 2, 1)
                if _end_of_event(row_events, start + size - 1) == end:  # the last event has more than half of this
                    size = _start_of_event(row_events, end - 1) - start
        else:
            start, size = end, 2 * size
    return rejected


def _start_of_event(row_events: RowEvents, row: int) -> int:
    return int(np.searchsorted(row_events, row_events[row], side="left"))


def _end_of_event(row_events: RowEvents, row: int) -> int:
    """One after the last row of the event that a row belongs to."""
    return int(np.searchsorted(row_events, row_events[row], side="right"))
