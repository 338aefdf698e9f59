"""Finds the rows that a database refuses, among thousands that it takes.

Rows belong to units: one event each where that is known, or else all together. A unit is written whole or not at all,
so that a later redrive of its event repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.sinks.sql_sink.table_schema import Refusal

Units = npt.NDArray[np.int64]

Attempt = Callable[[pa.Table], None]
"""Writes rows, all or none. Raises Refusal where the database does not take them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A unit whose rows were not written, and why."""

    unit: int
    reason: str
    kind: str


def place(rows: pa.Table, units: Units, attempt: Attempt) -> list[Refused]:
    """Writes the rows of every unit that the database takes, in order; returns the others.

    ``units`` has the unit of each row, in ascending order. All is tried at once. Where the database names the row
    that it refuses, what comes before is written, and that unit is passed over; else a half is tried. From then on the
    parts are about as long as the way between two refusals: whatever is sent behind one was sent for nothing.
    """
    refused: list[Refused] = []
    start, size = 0, len(rows)
    blamed: tuple[int, Refusal] | None = None
    while start < len(rows):
        if blamed is not None and blamed[0] == start:
            end = _end_of_unit(units, start)
            refused.append(Refused(int(units[start]), str(blamed[1]), blamed[1].kind))
            start, blamed = end, None
            continue
        end = _end_of_unit(units, min(start + size, len(rows)) - 1)
        try:
            attempt(rows.slice(start, end - start))
        except Refusal as refusal:
            if units[start] == units[end - 1]:
                blamed = (start, refusal)
            elif refusal.row is not None and start + refusal.row < end:
                begin = _start_of_unit(units, start + refusal.row)
                blamed = (begin, refusal)
                size = max(begin - start, 1)
            else:
                blamed = None
                size = max((end - start) // 2, 1)
                if _end_of_unit(units, start + size - 1) == end:  # the last unit is longer than half of this
                    size = _start_of_unit(units, end - 1) - start
        else:
            start, size = end, 2 * size
    return refused


def _start_of_unit(units: Units, row: int) -> int:
    return int(np.searchsorted(units, units[row], side="left"))


def _end_of_unit(units: Units, row: int) -> int:
    """One after the last row of the unit that a row belongs to."""
    return int(np.searchsorted(units, units[row], side="right"))
