"""Between the event loop of a Python worker, which receives, and a task's own thread, in which Spark takes batches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

# Received and arranged, and not yet taken by Spark. Enough that neither waits for the other; a task holds no more.
AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024


class HandoffQueue:
    """Hands batches from the loop's thread to the task's, bounded in bytes. The loop's side calls all but iteration.

    Each thread wakes the other seldom, which takes longer than the rest: a loop that waits for room is woken once there
    is room for many batches.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[pa.RecordBatch, int] | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._is_awaited = False
        self._room = asyncio.Event()

    async def put(self, batch: pa.RecordBatch) -> None:
        bytes_count = batch.nbytes
        while not self._has_room(bytes_count):
            await self._room.wait()
        self._queue.put((batch, bytes_count))

    def end(self, error: BaseException | None = None) -> None:
        self._queue.put(error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            taken = self._queue.get()
            if taken is None:
                return
            if isinstance(taken, BaseException):
                raise taken
            batch, bytes_count = taken
            yield batch
            self._give_room(bytes_count)

    def _has_room(self, bytes_count: int) -> bool:
        """Takes the room, if there is any."""
        with self._lock:
            if self._bytes < AHEAD_BYTES_MAX:
                self._bytes += bytes_count
                return True
            self._is_awaited = True
            self._room.clear()
            return False

    def _give_room(self, bytes_count: int) -> None:
        with self._lock:
            self._bytes -= bytes_count
            is_enough = self._is_awaited and self._bytes < AHEAD_BYTES_MAX // 2
            if is_enough:
                self._is_awaited = False
        if is_enough:
            self._loop.call_soon_threadsafe(self._room.set)
