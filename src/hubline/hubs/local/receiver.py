"""Receiving from the local hub."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from hubline.errors import HubError, PositionInvalid
from hubline.hubs.argument_checks import require_count
from hubline.hubs.event_buffer import EventBuffer
from hubline.hubs.local.incarnation import HubReplaced, Incarnation
from hubline.hubs.local.open_hub import OpenHub
from hubline.hubs.local.partition_file import OpenedReader
from hubline.hubs.local.stored_batch import StoredBatch, merge_small
from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.read_ahead import ReadAhead

# A writer that died after its commit has notified nobody: a waiting receiver looks by itself this often.
LOOK_SECONDS: Final = 1.0

# What was found beyond what was asked for is put together up to this, for calls that ask for more: a reader over AMQP
# asks for as many events as it has credit left, now for a few and then for thousands.
AHEAD_COUNT: Final = 5000

# Of which one look takes half: more at once gains nothing.
BYTES_MAX: Final = 32 * 1024 * 1024


class LocalReceiver:
    """Reads one partition, as :class:`~hubline.ports.PrefetchingReceiver` says.

    A look at the partition may find more than was asked for. The rest is given out by the next calls, without
    another look while no reader has taken the partition: one that does, says so before it begins.
    """

    def __init__(self, open_hub: OpenHub, incarnation: Incarnation, index: int, opened: OpenedReader) -> None:
        self._open_hub = open_hub
        self._incarnation = incarnation
        self._index = index
        self._partition = incarnation.partition(index)
        self._lease = opened.lease
        self._first_sequence = self._next_sequence = opened.next_sequence
        self._end_sequence: int | None = None
        self._read_ahead = ReadAhead(BYTES_MAX)
        self._last_sequence: int | None = None
        self._ahead = EventBuffer(self._read_ahead)
        self._taken: int | None = None  # the stamp from before the last look
        self._is_closed = False

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    def prefetch(self, read_ahead: ReadAhead, *, end_sequence: int | None = None) -> None:
        self._ahead.count_in(read_ahead)
        self._read_ahead = read_ahead
        self._end_sequence = end_sequence

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        require_count(max_count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            self._require_open()
            changed, taken = self._incarnation.signal.changed(self._index), self._incarnation.signal.taken(self._index)
            if not self._ahead.count or taken != self._taken:
                if not self._ahead.count and not self._read_ahead.portion:
                    self._read_ahead.mark_full()
                    return EventBatch.empty(self._partition.id)
                await self._read(0 if self._ahead.count else max_count)
                self._taken = taken
            if self._ahead.count:
                return self._next(max_count)
            left_seconds = deadline - loop.time()
            if left_seconds <= 0:
                return EventBatch.empty(self._partition.id)
            self._require_open()
            await self._incarnation.signal.wait(self._index, since=changed, timeout=min(left_seconds, LOOK_SECONDS))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._ahead.clear()
        self._read_ahead.give_room()
        self._incarnation.signal.wake(self._index)
        if self._lease.epoch is not None:
            # Where this fails the hub is closed, gone or unusable, and holds nobody off.
            with suppress(HubError):
                await self._open_hub.threads.run(self._partition.release_reader, self._lease)

    async def _read(self, max_count: int) -> None:
        """Keeps what there is to receive. With 0, looks only whether the reader may continue."""
        if self._end_sequence is not None:
            max_count = min(max_count, max(self._end_sequence - self._next_sequence, 0))
        portion = self._read_ahead.portion if max_count else 0
        self._read_ahead.hold(portion)  # other partitions do not count on it meanwhile
        try:
            # Cancelled here, nothing has changed: what the look found is found again.
            found, self._last_sequence = await self._open_hub.threads.run_quick(
                self._look, max_count=max_count, max_bytes=portion
            )
        finally:
            self._read_ahead.hold(-portion)
        if self._is_closed:
            return
        for batch in found:
            self._ahead.put(batch)

    def _look(self, *, max_count: int, max_bytes: int) -> tuple[list[EventBatch], int]:
        """What there is to receive, and the newest sequence number."""
        is_first = self._next_sequence == self._first_sequence
        try:
            found = self._partition.read(
                self._lease, self._next_sequence, max_count=max_count, max_bytes=max_bytes, is_first=is_first
            )
        except HubReplaced as error:
            raise self._foreign() from error
        merged = merge_small(self._wanted(found.batches), max_count=max(max_count, AHEAD_COUNT))
        return [batch.events for batch in merged], found.last_sequence

    def _wanted(self, batches: list[StoredBatch]) -> Iterator[StoredBatch]:
        """What is before the end, if there is one. Takes the batches out of the list, which then holds no memory."""
        batches.reverse()
        while batches:
            batch = batches.pop()
            if self._end_sequence is None:
                yield batch
            elif batch.first_sequence < self._end_sequence:
                yield batch.slice(0, self._end_sequence - batch.first_sequence)

    def _next(self, max_count: int) -> EventBatch:
        batch = self._ahead.take(max_count, copied_bytes_max=0)
        self._next_sequence += len(batch)
        return batch

    def _require_open(self) -> None:
        self._open_hub.threads.require_open()
        if self._is_closed:
            raise HubError("the receiver is closed. Open another one.", partition=self._partition.id)

    def _foreign(self) -> PositionInvalid:
        """The error for a reader whose hub was deleted and re-created while it read."""
        position = Position.sequence(self._next_sequence, inclusive=True)
        return self._partition.check.invalid("foreign", position, self._open_hub.describe_partition(self._partition.id))
