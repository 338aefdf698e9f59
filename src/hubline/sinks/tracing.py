"""Finds the rows that a database refuses, among thousands that it takes.

Rows belong to units: one event each where that is known, or else all together. A unit is written whole or not at all,
so that a later redrive of its event repeats nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.sinks.tables import Refusal

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

    ``units`` has the unit of each row, in ascending order. Where the database names the row that it refuses, only
    that one is looked at alone; else what was refused is halved. Good rows before a bad one are written twice at most.
    """
    refused: list[Refused] = []
    pending = deque([(rows, units)])
    while pending:
        part, of_units = pending.popleft()
        if not len(part):
            continue
        try:
            attempt(part)
        except Refusal as refusal:
            if of_units[0] == of_units[-1]:
                refused.append(Refused(int(of_units[0]), str(refusal), refusal.kind))
            else:
                pending.extendleft(reversed(_split(part, of_units, refusal.row)))
    return refused


def _split(rows: pa.Table, units: Units, row: int | None) -> list[tuple[pa.Table, Units]]:
    """Cuts between units: around the one that is to blame, or in the middle."""
    if row is not None and row < len(rows):
        cuts = list(_bounds(units, row))
    else:
        middle, end = _bounds(units, len(rows) // 2)
        cuts = [middle or end]
    edges = [0, *cuts, len(rows)]
    return [
        (rows.slice(begin, end - begin), units[begin:end]) for begin, end in itertools.pairwise(edges) if begin < end
    ]


def _bounds(units: Units, row: int) -> tuple[int, int]:
    """The rows of the unit that a row belongs to: its first, and one after its last."""
    begin, end = (int(np.searchsorted(units, units[row], side=side)) for side in ("left", "right"))
    return begin, end
