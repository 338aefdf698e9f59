"""Appending from many senders: who comes while a partition is being written to is written next, all at once.

The first sender's thread writes for those who came meanwhile, in one transaction: under load, a sync of the disk serves
many sends, and no thread waits for another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from hubline.errors import HubError, HubFull
from hubline.hubs.local.hub_folder import Retention
from hubline.hubs.local.incarnation import Incarnation
from hubline.hubs.local.stored_batch import Payload
from hubline.hubs.local.thread_runner import Threads

# What one transaction writes at most, beside a send that is larger by itself: the next ones should not wait for long.
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024

# Retention by appenders: often enough to keep the limits, seldom enough to cost nothing.
TRIM_SECONDS: Final = 1.0

_MICROSECONDS: Final = 1_000_000


def _unstoppable() -> Future[None]:
    """A future that a cancelled task cannot cancel: the append is made or not, no matter who waits for it."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """What of a send goes to one partition. ``done`` tells when it is on the disk, or why it is not."""

    incarnation: Incarnation
    retention: Retention
    index: int
    places: npt.NDArray[np.int64]
    """Which events of the send these are."""
    payloads: Sequence[Payload]
    done: Future[None] = field(default_factory=_unstoppable)

    @property
    def key(self) -> tuple[int, int]:
        return self.incarnation.tag, self.index

    @property
    def bytes(self) -> int:
        return sum(payload.data.size for payload in self.payloads)


class Appends:
    """The appends of one hub object. Methods block; any thread may call them."""

    def __init__(self, threads: Threads, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        # By partition, what is to be written next. That a partition is here means that a thread is writing to it.
        self._waiting: dict[tuple[int, int], list[PartitionShare]] = {}
        self._trimmed: dict[tuple[int, int], float] = {}

    def append(self, shares: Sequence[PartitionShare]) -> None:
        """Writes the shares, or leaves them to threads that write to the same partitions already."""
        to_write = [share for share in shares if not self._queued(share)]
        for share in to_write[1:]:
            self._threads.start(self._write_next, share.key)
        for share in to_write[:1]:
            self._write_next(share.key)

    def trim(self, incarnation: Incarnation, index: int, retention: Retention) -> int:
        """Removes what retention no longer keeps of a partition; returns how many events that were."""
        if retention == Retention():
            return 0
        before_us = None if retention.seconds is None else self._now_us() - int(retention.seconds * _MICROSECONDS)
        return incarnation.partition(index).trim(before_us=before_us, bytes_max=retention.bytes)

    def _queued(self, share: PartitionShare) -> bool:
        """Whether another thread will write it; otherwise the caller must."""
        with self._lock:
            is_being_written_to = share.key in self._waiting
            self._waiting.setdefault(share.key, []).append(share)
        return is_being_written_to

    def _write_next(self, key: tuple[int, int]) -> None:
        group = self._next_group(key)
        try:
            self._write(group)
        finally:
            with self._lock:
                has_more = bool(self._waiting[key])
                if not has_more:
                    del self._waiting[key]
            if has_more:
                self._threads.start(self._write_next, key)
        self._trim_if_due(group[0])

    def _next_group(self, key: tuple[int, int]) -> list[PartitionShare]:
        with self._lock:
            waiting = self._waiting[key]
            left_bytes = GROUP_BYTES_MAX
            count = 0
            while count < len(waiting) and (not count or waiting[count].bytes <= left_bytes):
                left_bytes -= waiting[count].bytes
                count += 1
            self._waiting[key] = waiting[count:]
            return waiting[:count]

    def _write(self, group: list[PartitionShare]) -> None:
        incarnation, index = group[0].incarnation, group[0].index
        payloads = [payload for share in group for payload in share.payloads]
        try:
            incarnation.partition(index).append(payloads, now_us=self._now_us())
        except HubFull as error:
            if len(group) == 1:
                _fail(group, error)
            else:
                for share in group:  # the smaller ones may fit
                    self._write([share])
        except HubError as error:
            _fail(group, error)
        except BaseException as error:
            _fail(group, error)
            raise
        else:
            # Dying between the commit and this line tells nobody; who waits finds the events at its next look.
            incarnation.signal.notify_changed(index)
            for share in group:
                share.done.set_result(None)

    def _trim_if_due(self, share: PartitionShare) -> None:
        if share.retention == Retention():
            return
        now = time.monotonic()
        with self._lock:
            is_due = now - self._trimmed.get(share.key, now - TRIM_SECONDS) >= TRIM_SECONDS
            if is_due:
                self._trimmed[share.key] = now
        if is_due:
            # Nobody waits for it: the events are safe, and where it fails a later append tries again.
            self._threads.start(self.trim, share.incarnation, share.index, share.retention)

    def _now_us(self) -> int:
        return int(self._clock() * _MICROSECONDS)


def _fail(group: Sequence[PartitionShare], error: BaseException) -> None:
    for share in group:
        share.done.set_exception(error)
