"""Between the event loop of a Python worker, which receives, and a task's own thread, in which Spark takes batches."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator

import pyarrow as pa

from hubline.read_ahead import ReadAhead

_Held = tuple[ReadAhead, int]


class HandoffQueue:
    """Hands batches from the loop's thread to the task's. The loop's side calls all but iteration.

    What Spark has not taken counts as read ahead: of its range, and of the task, which may hold ``max_bytes``. Each
    thread wakes the other seldom, which takes longer than the rest: the loop hears of what was taken together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._loop = loop
        self._together_bytes = max_bytes // 4
        self._queue: queue.SimpleQueue[tuple[pa.RecordBatch, _Held] | BaseException | None] = queue.SimpleQueue()

    def put(self, batch: pa.RecordBatch, read_ahead: ReadAhead) -> None:
        bytes_count = batch.get_total_buffer_size()
        read_ahead.hold(bytes_count)
        self._queue.put((batch, (read_ahead, bytes_count)))

    def end(self, error: BaseException | None = None) -> None:
        self._queue.put(error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        taken: list[_Held] = []
        taken_bytes = 0
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            batch, held = item
            yield batch
            taken.append(held)
            taken_bytes += held[1]
            if taken_bytes >= self._together_bytes or self._queue.empty():
                self._loop.call_soon_threadsafe(_release, taken)
                taken, taken_bytes = [], 0


def _release(taken: list[_Held]) -> None:
    for read_ahead, bytes_count in taken:
        read_ahead.release(bytes_count)
