"""A part of a stored batch that is too large to be held: only the bytes of its events are read from the file."""

from __future__ import annotations

import mmap
import sqlite3
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.hubs.event_sizes import event_sizes
from hubline.hubs.local.stored_batch import EVENT_OVERHEAD_BYTES, PayloadDamaged, require_intact
from hubline.model.events import OUTGOING_SCHEMA

# A payload is read in pieces of this size: small enough to come from memory that the process has already.
PIECE_BYTES: Final = 64 * 1024

# Arrow's message begins with a mark and the size of its description, which says where the columns are.
_HEAD_BYTES: Final = 8

# Where a property's name and its value begin.
_PAIR_BYTES: Final = 8


class PayloadPart:
    """The payload is laid out in address space that takes no memory where nothing is put: Arrow finds the columns by
    its own rules, and only those places are filled that the events need."""

    def __init__(self, blob: sqlite3.Blob, *, count: int) -> None:
        self._blob = blob
        self._count = count
        self._space = mmap.mmap(-1, max(len(blob), _HEAD_BYTES))
        self._memory = pa.py_buffer(self._space)

    def check(self, checksum: int) -> None:
        """Raises PayloadDamaged if the payload is not what was written."""
        self._blob.seek(0)
        require_intact(iter(partial(self._blob.read, PIECE_BYTES), b""), checksum)

    def read(self, start: int, *, max_bytes: int, added_bytes: int) -> pa.RecordBatch:
        """The events from one on: as many as take ``max_bytes`` in memory with ``added_bytes`` for each, and one at
        least. Raises PayloadDamaged."""
        try:
            events = self._columns()
            count = min(self._count - start, max(max_bytes // added_bytes, 1))
            for column in events.columns:
                self._load(column, start, start + count, values=False)
            some = events.slice(start, count)
            pairs_bytes = _PAIR_BYTES * np.diff(some.column("properties").offsets.to_numpy())
            sizes = event_sizes(some) + pairs_bytes + EVENT_OVERHEAD_BYTES + added_bytes
            count = max(int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right")), 1)
            for column in events.columns:
                self._load(column, start, start + count, values=True)
            return pa.concat_batches([events.slice(start, count)])  # a copy, of these events alone
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise PayloadDamaged(str(error)) from error

    def _columns(self) -> pa.RecordBatch:
        self._fill(0, _HEAD_BYTES)
        description_bytes = int.from_bytes(self._space[4:_HEAD_BYTES], "little")
        self._fill(_HEAD_BYTES, _HEAD_BYTES + description_bytes)
        events = pa.ipc.read_record_batch(self._memory, OUTGOING_SCHEMA)
        if len(events) != self._count:
            raise PayloadDamaged(f"it holds {len(events)} events instead of {self._count}")
        return events

    def _load(self, column: pa.Array, start: int, end: int, *, values: bool) -> None:
        """Fills in where the values of some rows begin and which there are; and with ``values`` the values, too."""
        validity, offsets, *rest = column.buffers()
        self._fill_buffer(validity, start // 8, -(-end // 8))
        self._fill_buffer(offsets, 4 * start, 4 * (end + 1))
        first, last = np.frombuffer(offsets, np.int32)[[start, end]].tolist()
        if pa.types.is_map(column.type):
            for part in (column.keys, column.items):
                self._load(part, first, last, values=values)
        elif values:
            self._fill_buffer(rest[0], first, last)

    def _fill_buffer(self, buffer: pa.Buffer | None, start: int, end: int) -> None:
        if buffer is not None and start < end:
            begin = buffer.address - self._memory.address
            self._fill(begin + start, min(begin + end, begin + buffer.size))

    def _fill(self, start: int, end: int) -> None:
        self._blob.seek(start)
        for at in range(start, end, PIECE_BYTES):
            piece = self._blob.read(min(PIECE_BYTES, end - at))
            self._space[at : at + len(piece)] = piece
