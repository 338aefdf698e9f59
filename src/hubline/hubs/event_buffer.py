"""Events of one partition that have arrived and are not given out yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from hubline.model.events import EventBatch
from hubline.read_ahead import ReadAhead


@dataclass(slots=True)
class _Piece:
    """What is left of a batch, whose memory is held until the last of it is given out."""

    left: EventBatch
    count: int
    bytes_count: int


class EventBuffer:
    """Batches of one partition in order, given out in pieces of any size. Its bytes are counted in ``read_ahead``.

    A batch that is given out in pieces takes its memory until the last of them is.
    """

    def __init__(self, read_ahead: ReadAhead) -> None:
        self._read_ahead = read_ahead
        self._pieces: deque[_Piece] = deque()
        self._count = 0
        self._bytes_count = 0

    @property
    def count(self) -> int:
        """How many events it holds."""
        return self._count

    @property
    def bytes_count(self) -> int:
        """How many bytes it holds in memory."""
        return self._bytes_count

    def put(self, batch: EventBatch, bytes_count: int = 0) -> None:
        """Adds events. They count ``bytes_count`` bytes, or those that they take in memory if that is more."""
        size = max(bytes_count, batch.arrow.get_total_buffer_size())
        self._pieces.append(_Piece(batch, len(batch), size))
        self._count += len(batch)
        self._hold(size)

    def take(self, max_count: int, *, copied_bytes_max: int | None = None) -> EventBatch:
        """The next events, up to ``max_count``. There has to be one at least.

        Several batches are copied into one. From ``copied_bytes_max`` on no further batch is added. Without it the rest
        of a batch is copied, too, if it is small: it does not keep the whole batch in memory.
        """
        if len(self._pieces) == 1 and self._count == self._pieces[0].count <= max_count:  # mostly all there is
            piece = self._pieces.popleft()
            self._count = 0
            self._hold(-piece.bytes_count)
            return piece.left
        parts: list[EventBatch] = []
        left_count, taken_bytes, is_rest = max_count, 0, False
        while self._pieces and left_count:
            piece = self._pieces[0]
            if parts and copied_bytes_max is not None and taken_bytes >= copied_bytes_max:
                break
            part = piece.left
            if len(part) > left_count:
                part, piece.left = part.slice(0, left_count), part.slice(left_count)
            else:
                self._pieces.popleft()
                self._hold(-piece.bytes_count)
                is_rest = 2 * len(part) < piece.count
            parts.append(part)
            left_count -= len(part)
            taken_bytes += piece.bytes_count * len(part) // piece.count
        self._count -= max_count - left_count
        if len(parts) == 1 and is_rest and copied_bytes_max is None:
            return EventBatch(parts[0].partition, pa.concat_batches([parts[0].arrow]))
        return EventBatch.concat(parts)

    def clear(self) -> None:
        self._pieces.clear()
        self._count = 0
        self._hold(-self._bytes_count)

    def count_in(self, read_ahead: ReadAhead) -> None:
        """From now on its bytes are counted there."""
        self._read_ahead.hold(-self._bytes_count)
        self._read_ahead = read_ahead
        read_ahead.hold(self._bytes_count)

    def _hold(self, bytes_count: int) -> None:
        self._bytes_count += bytes_count
        self._read_ahead.hold(bytes_count)
