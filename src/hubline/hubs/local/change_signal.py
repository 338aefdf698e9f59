"""How a reader learns of a change without asking the disk: a shared file of stamps, two a partition.

A process that changes a partition writes a new stamp after its commit: ``changed`` after an append, and ``taken`` as
well as ``changed`` after taking it over as a reader. A process maps the file; while any of its tasks waits, one timer
compares the stamps with those it saw last, every few milliseconds, and wakes the tasks whose partition changed. No task
waiting, no timer.

A writer that dies between its commit and the stamp tells nobody, so a waiter also looks at the database itself from
time to time. A reader that dies there has not begun to read, and its predecessor may continue until it looks.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from pathlib import Path
from typing import Final

_STAMP_BYTES: Final = 8
_STAMP_KINDS: Final = 2

# Just after something happened more is likely to: look often. Then back off; 20 ms is below what a person or a batch
# notices, and 50 looks a second, for all waiting tasks together, were measured at 0.8 % of a core.
LOOK_SECONDS_MIN: Final = 0.002
LOOK_SECONDS_MAX: Final = 0.020
LOOK_BACKOFF: Final = 1.2


def create_file(path: Path, partition_count_max: int) -> None:
    """The file for a new hub."""
    _mapped(path, partition_count_max).close()


def notify_all(path: Path, partition_count_max: int) -> None:
    """Says to every process that all partitions changed: the hub is being deleted."""
    signal = Signal(path, partition_count_max)
    for index in range(partition_count_max):
        signal.notify_changed(index)
    signal.close()


def _mapped(path: Path, partition_count_max: int) -> mmap.mmap:
    """The file, which is created or lengthened as needed: it holds no data that could be lost."""
    size = _STAMP_KINDS * partition_count_max * _STAMP_BYTES
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        missing = size - os.fstat(descriptor).st_size
        if missing > 0:
            # Written, not just sized: writing to a hole of a mapped file on a full disk would kill the process.
            os.pwrite(descriptor, bytes(missing), size - missing)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class Signal:
    """The stamps of one hub, and the tasks of this process that wait for one to change.

    Reading and writing stamps is for any thread, waiting and waking for the event loop. The file holds first all
    ``changed`` stamps, then all ``taken`` ones.
    """

    def __init__(self, path: Path, partition_count_max: int) -> None:
        self._map = _mapped(path, partition_count_max)
        self._stamps = memoryview(self._map).cast("Q")
        self._count = partition_count_max
        self._seen = b""
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._look_seconds = LOOK_SECONDS_MIN

    def changed(self, index: int) -> int:
        """Take it before looking at the database: what happens after the look gives another one."""
        return self._stamps[index]

    def taken(self, index: int) -> int:
        return self._stamps[self._count + index]

    def notify_changed(self, index: int) -> None:
        """Says to every process that events were appended. Called after the commit."""
        # The clock gives a value that was never there before, also when several processes write at once.
        self._stamps[index] = time.monotonic_ns()

    def notify_taken(self, index: int) -> None:
        """Says to every process that a reader took the partition. Called after the commit."""
        self._stamps[self._count + index] = time.monotonic_ns()
        self.notify_changed(index)

    async def wait(self, index: int, *, since: int, timeout: float) -> None:
        """Returns when ``changed`` differs from ``since``, on ``wake``, or after ``timeout`` seconds."""
        if self._timer is None:
            self._seen = self._snapshot()
        # A change before this line shows here; one after it shows to the timer, whose snapshot is older.
        if self.changed(index) != since:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(index, set()).add(waiter)
        self._look_seconds = LOOK_SECONDS_MIN
        if self._timer is None:
            self._schedule()
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            self._forget(index, waiter)

    def wake(self, index: int) -> None:
        """Wakes this process's waiters of the partition at once."""
        for waiter in self._waiters.get(index, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wake_all(self) -> None:
        for index in self._waiters:
            self.wake(index)

    def close(self) -> None:
        """Call it when nobody waits or notifies any more."""
        if self._timer:
            self._timer.cancel()
        self._stamps.release()
        self._map.close()

    def _snapshot(self) -> bytes:
        return self._map[: self._count * _STAMP_BYTES]

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_seconds, self._look)

    def _look(self) -> None:
        seen, self._seen = self._seen, self._snapshot()
        if seen == self._seen:
            self._look_seconds = min(self._look_seconds * LOOK_BACKOFF, LOOK_SECONDS_MAX)
        else:
            self._look_seconds = LOOK_SECONDS_MIN
            self._wake_changed(seen, self._seen)
        self._schedule()

    def _wake_changed(self, before: bytes, after: bytes) -> None:
        for index in self._waiters:
            place = slice(index * _STAMP_BYTES, (index + 1) * _STAMP_BYTES)
            if before[place] != after[place]:
                self.wake(index)

    def _forget(self, index: int, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters[index]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[index]
        if not self._waiters and self._timer:
            self._timer.cancel()
            self._timer = None
