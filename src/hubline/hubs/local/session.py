"""What a hub object, its senders and its receivers share: threads, connections, and the lives of the hub."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hubline.errors import HubError, PartitionNotFound
from hubline.hubs.local.columns import Payload
from hubline.hubs.local.database import Connections
from hubline.hubs.local.folder import HubFolder, Meta, Retention
from hubline.hubs.local.life import Life
from hubline.hubs.local.threads import Threads
from hubline.model import PartitionProperties

# Retention by an appender: often enough to keep the limits, seldom enough to cost nothing.
TRIM_SECONDS: Final = 1.0

_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Share:
    """What of a send goes to one partition."""

    meta: Meta
    index: int
    payloads: Sequence[Payload]


class Session:
    """Coroutines are for the event loop; the other methods block, and are for the threads."""

    def __init__(self, folder: HubFolder, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.threads = Threads(folder.address)
        self._clock = clock
        self._connections = Connections()
        self._lives: dict[int, Life] = {}
        self._lives_lock = threading.Lock()
        self._writing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Lock]]
        self._writing = weakref.WeakKeyDictionary()
        self._trimmed: dict[tuple[int, int], float] = {}

    async def append(self, share: Share) -> None:
        """Makes the share durable, tells who waits for it, and now and then removes what is too old."""
        # In turn: SQLite takes one writer at a time, and its own way of waiting is to sleep and try again.
        async with self._turn(share.index):
            life = await self.threads.run(self._append, share)
        life.signal.wake(share.index)
        if self._is_trim_due(share):
            with suppress(HubError):  # the events are safe, and a later append tries again
                await self.threads.run(self.trim, share.meta, share.index)

    async def close(self) -> None:
        self.threads.refuse_more()
        for life in self._lives.values():
            life.signal.wake_all()
        await self.threads.close(self._let_go)
        for life in self._lives.values():
            life.signal.close()
        self._lives.clear()

    def current(self) -> tuple[Meta, Life]:
        """What the hub is now. Raises HubNotFound."""
        meta = self.folder.meta()
        return meta, self._life(meta.tag)

    def index(self, meta: Meta, partition: str) -> int:
        if partition not in meta.partition_ids:
            raise PartitionNotFound(
                f"hub {self.folder.address} has no partition {partition!r}: it has 0 to {meta.partition_count - 1}",
                hub=self.folder.address,
                partition=partition,
            )
        return int(partition)

    def describe_partition(self, partition: str) -> PartitionProperties:
        meta, life = self.current()
        return life.partition(self.index(meta, partition)).describe()

    def trim(self, meta: Meta, index: int) -> int:
        """Removes what the hub's retention no longer keeps of a partition; returns how many events that were."""
        retention = meta.retention
        if retention == Retention():
            return 0
        before_us = None if retention.seconds is None else self._now_us() - int(retention.seconds * _MICROSECONDS)
        return self._life(meta.tag).partition(index).trim(before_us=before_us, bytes_max=retention.bytes)

    def _append(self, share: Share) -> Life:
        life = self._life(share.meta.tag)
        life.partition(share.index).append(share.payloads, now_us=self._now_us())
        # Dying between the two tells nobody; who waits finds the events at its next look.
        life.signal.notify_changed(share.index)
        return life

    def _life(self, tag: int) -> Life:
        with self._lives_lock:
            if tag not in self._lives:
                self._lives[tag] = Life(self.folder, tag, self._connections)
            return self._lives[tag]

    def _turn(self, index: int) -> asyncio.Lock:
        locks = self._writing.setdefault(asyncio.get_running_loop(), {})
        return locks.setdefault(index, asyncio.Lock())

    def _is_trim_due(self, share: Share) -> bool:
        if share.meta.retention == Retention():
            return False
        now = time.monotonic()
        key = (share.meta.tag, share.index)
        is_due = now - self._trimmed.get(key, now - TRIM_SECONDS) >= TRIM_SECONDS
        if is_due:
            self._trimmed[key] = now
        return is_due

    def _now_us(self) -> int:
        return int(self._clock() * _MICROSECONDS)

    def _let_go(self) -> None:
        for life in self._lives.values():
            life.let_go()
        self._connections.close()
