"""Reads one partition ahead of its handler, bounded in bytes, and cuts batches from what has arrived."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from hubline.errors import HublineError, HubUnavailable, PartitionStalled, PositionInvalid
from hubline.hubs.hub_calls import describe_partition, within
from hubline.model.events import EventBatch
from hubline.model.positions import OnDataLoss, Position, PositionKind
from hubline.ports import Hub, Receiver
from hubline.retry import RetryPolicy

log = logging.getLogger("hubline.prefetch")

FETCH_COUNT_MAX = 20_000
"""Events asked of the receiver at once: enough to amortise a call, few enough for the byte bound to bite."""

RECEIVE_OVERRUN = 2.0
"""A receive call that takes so many times its wait hangs, whatever the reason: the receiver is opened anew."""


@dataclass(frozen=True, slots=True)
class Source:
    """What to read, and how to live with what goes wrong."""

    hub: Hub
    partition: str
    group: str
    epoch: int
    on_data_loss: OnDataLoss
    reopen: RetryPolicy
    bytes_max: int
    stall_seconds: float
    report: Callable[[HublineError], None]
    start_over: Callable[[], Awaitable[None]]
    """Called where the position is of another hub than this one, before it is jumped from. May end the reading."""
    rng: random.Random


class Prefetch:
    """A task that keeps a buffer of events filled. The receiver is replaced where that helps; other errors surface.

    ``after_sequence`` is the last event before the position, if known. ``next_batch`` is called by one task;
    nothing is lost when it is cancelled.
    """

    def __init__(self, source: Source, position: Position, *, after_sequence: int | None) -> None:
        self._source = source
        self._position = position
        self._buffer: deque[EventBatch] = deque()
        self._count = 0
        self._bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_stopping = False
        self._failed: BaseException | None = None
        self._last_received = after_sequence
        self.last_sequence: int | None = None
        self._task = asyncio.create_task(self._run(), name=f"hubline-prefetch-{source.partition}")

    async def next_batch(self, *, max_count: int, wait_seconds: float, heartbeat: bool) -> EventBatch | None:
        """The next batch: full, or as large as the byte bound allows, or what has come within the wait.

        None once ``stop`` was called.

        Where nothing has come at all, waits on; or returns an empty batch if ``heartbeat``. Raises what ended the
        reading at once: what is buffered then is read again by the next run.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while not self._is_stopping:
            if self._failed is not None:
                raise self._failed
            is_late = loop.time() >= deadline
            is_full = self._count >= max_count or not self._room.is_set()
            if is_full or (self._count and is_late):
                return self._take(max_count)
            if is_late and heartbeat:
                return EventBatch.empty(self._source.partition)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if is_late else deadline):
                    await self._changed.wait()
        return None

    def stop(self) -> None:
        """Makes ``next_batch`` return None, now and from now on."""
        self._is_stopping = True
        self._changed.set()

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _take(self, max_count: int) -> EventBatch:
        parts: list[EventBatch] = []
        wanted = min(max_count, self._count)
        while wanted:
            part = self._buffer.popleft()
            self._bytes -= part.nbytes
            if len(part) > wanted:
                # The bytes of the rest are counted anew: those of two slices do not add up to those of the whole.
                rest = part.slice(wanted)
                self._buffer.appendleft(rest)
                self._bytes += rest.nbytes
                part = part.slice(0, wanted)
            parts.append(part)
            wanted -= len(part)
            self._count -= len(part)
        if self._bytes < self._source.bytes_max:
            self._room.set()
        return EventBatch.concat(parts)

    def _put(self, batch: EventBatch) -> None:
        self._position = Position.offset(batch.last_offset)
        self._last_received = batch.last_sequence
        self._buffer.append(batch)
        self._count += len(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._source.bytes_max:
            self._room.clear()
        self._changed.set()

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                received_before = self._last_received
                try:
                    await self._read()
                except HubUnavailable as error:
                    self._source.report(error)
                    failures = failures + 1 if self._last_received == received_before else 1
                    await asyncio.sleep(self._source.reopen.delay(failures, self._source.rng))
                except PositionInvalid as error:
                    self._position = await self._position_instead(error)
        except Exception as error:  # noqa: BLE001 - raised by next_batch
            self._failed = error
            self._changed.set()

    async def _read(self) -> None:
        """Reads with one receiver until it fails or stalls."""
        source = self._source
        opening = source.hub.open_receiver(
            source.partition, group=source.group, position=self._position, epoch=source.epoch
        )
        receiver = await within(source.stall_seconds, opening, what=f"open partition {source.partition}")
        try:
            while True:
                await self._room.wait()
                batch = await self._receive(receiver)
                self.last_sequence = receiver.last_sequence
                if batch is not None and len(batch):
                    self._put(batch)
                elif batch is None or await self._is_behind():
                    self._report_stall()
                    return
        finally:
            await self._let_go(receiver)

    async def _let_go(self, receiver: Receiver) -> None:
        """Never raises: what was received counts, and an error here would hide that the reading is to end."""
        source = self._source
        try:
            await within(source.stall_seconds, receiver.close(), what=f"let go of partition {source.partition}")
        except Exception as error:  # noqa: BLE001 - a hub of the user's own may raise anything
            log.warning("receiver_not_closed partition=%s %s: %s", source.partition, type(error).__name__, error)

    async def _receive(self, receiver: Receiver) -> EventBatch | None:
        wait_seconds = self._source.stall_seconds
        try:
            async with asyncio.timeout(wait_seconds * RECEIVE_OVERRUN):
                return await receiver.receive(max_count=FETCH_COUNT_MAX, wait_seconds=wait_seconds)
        except TimeoutError:
            return None

    async def _is_behind(self) -> bool:
        """Whether the hub holds events after the last received one. The first look sets what is not known yet."""
        source = self._source
        properties = await describe_partition(source.hub, source.partition, timeout_seconds=source.stall_seconds)
        if self._last_received is None:
            self._last_received = properties.last_sequence
        return properties.last_sequence > max(self._last_received, properties.begin_sequence - 1)

    def _report_stall(self) -> None:
        partition = self._source.partition
        log.warning("stalled partition=%s last_received=%s", partition, self._last_received)
        message = (
            f"partition {partition} has events after {self._last_received}, and none arrived for "
            f"{self._source.stall_seconds:g} s: its receiver is opened anew"
        )
        self._source.report(PartitionStalled(message, partition=partition))

    async def _position_instead(self, error: PositionInvalid) -> Position:
        choice = self._source.on_data_loss
        if choice == "fail":
            raise error
        # The gap is recorded before it is jumped: dying here reports it again.
        self._source.report(error)
        log.error("gap partition=%s reason=%s from=%s choice=%s", error.partition, error.reason, self._position, choice)
        if error.reason != "expired":
            await self._source.start_over()
        if choice == "earliest":
            return Position.earliest()
        source = self._source
        return await pinned(source.hub, source.partition, Position.latest(), seconds_max=source.stall_seconds)


async def pinned(hub: Hub, partition: str, position: Position, *, seconds_max: float) -> Position:
    """The same place, by sequence number where it was "the end": opened again later, "the end" would skip events."""
    if position.kind is not PositionKind.LATEST:
        return position
    properties = await describe_partition(hub, partition, timeout_seconds=seconds_max)
    return Position.sequence(properties.last_sequence, inclusive=position.inclusive and not properties.is_empty)
