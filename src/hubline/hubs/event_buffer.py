"""Events of one partition that have arrived and are not given out yet."""

from __future__ import annotations

from collections import deque

from hubline.model.events import EventBatch


class EventBuffer:
    """Batches of one partition in order, given out in pieces of any size. Its owner bounds it, by count or bytes.

    The bytes of a batch that is given out in pieces are shared out by the number of events, so that they add up.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[EventBatch, int]] = deque()
        self._count = 0
        self._bytes_count = 0

    @property
    def count(self) -> int:
        """How many events it holds."""
        return self._count

    @property
    def bytes_count(self) -> int:
        """How many bytes they count."""
        return self._bytes_count

    def put(self, batch: EventBatch, bytes_count: int | None = None) -> None:
        """Adds events. They count ``bytes_count`` bytes, by default those that they take in memory."""
        size = batch.nbytes if bytes_count is None else bytes_count
        self._batches.append((batch, size))
        self._count += len(batch)
        self._bytes_count += size

    def take(self, max_count: int, *, copied_bytes_max: int | None = None) -> EventBatch:
        """The next events, up to ``max_count``. There has to be one at least.

        Several batches are copied into one. From ``copied_bytes_max`` on no further batch is added.
        """
        parts: list[EventBatch] = []
        left_count, taken_bytes = max_count, 0
        while self._batches and left_count:
            if parts and copied_bytes_max is not None and taken_bytes >= copied_bytes_max:
                break
            batch, size = self._batches.popleft()
            if len(batch) > left_count:
                rest_size = size * (len(batch) - left_count) // len(batch)
                self._batches.appendleft((batch.slice(left_count), rest_size))
                batch, size = batch.slice(0, left_count), size - rest_size
            parts.append(batch)
            left_count -= len(batch)
            taken_bytes += size
        self._count -= max_count - left_count
        self._bytes_count -= taken_bytes
        return EventBatch.concat(parts)

    def clear(self) -> None:
        self._batches.clear()
        self._count = self._bytes_count = 0
