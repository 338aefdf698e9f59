"""Reads one partition ahead of its handler, and cuts batches from what has arrived.

The reconnect after a network error is in :mod:`hubline.hubs.reconnecting_receiver`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from hubline.concurrency import TimeLimit
from hubline.errors import HublineError, PositionInvalid
from hubline.hubs.data_loss import accept_data_loss
from hubline.hubs.event_buffer import EventBuffer
from hubline.hubs.hub_calls import pinned
from hubline.hubs.reconnecting_receiver import ReconnectingReceiver, ReconnectPolicy
from hubline.model.events import EventBatch
from hubline.model.positions import OnDataLoss, Position
from hubline.ports import Hub
from hubline.read_ahead import ReadAhead
from hubline.retry import RetryPolicy

FETCH_COUNT_MAX = 20_000
"""Events asked of the receiver at once: enough to amortise a call. What it gives beyond a batch waits here."""


@dataclass(frozen=True, slots=True)
class Source:
    """What to read, in what batches, and how to live with what goes wrong."""

    hub: Hub
    partition: str
    group: str
    epoch: int
    max_batch_size: int
    read_ahead: ReadAhead
    on_data_loss: OnDataLoss
    reconnect_backoff: RetryPolicy
    hub_timeout_seconds: float
    report: Callable[[HublineError], None]
    start_over: Callable[[], Awaitable[None]]
    """Called where the position is of another hub, before reading continues elsewhere. May end the reading."""
    rng: random.Random


class PartitionReader:
    """A task that keeps the next batch ready while the handler works. The receiver reads further ahead, by itself.

    ``after_sequence`` is the last event before the position, if known. ``next_batch`` is called by one task;
    nothing is lost when it is cancelled.
    """

    def __init__(self, source: Source, position: Position, *, after_sequence: int | None) -> None:
        self._source = source
        policy = ReconnectPolicy(
            source.reconnect_backoff, source.report, stall_seconds=source.hub_timeout_seconds, rng=source.rng
        )
        self._receiver = ReconnectingReceiver(
            source.hub,
            source.partition,
            group=source.group,
            position=position,
            policy=policy,
            epoch=source.epoch,
            after_sequence=after_sequence,
        )
        source.read_ahead.join()
        self._receiver.prefetch(source.read_ahead)
        self._buffer = EventBuffer(source.read_ahead)
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._is_stopping = False
        self._failed: BaseException | None = None
        self._task = asyncio.create_task(self._run(), name=f"hubline-reader-{source.partition}")

    @property
    def last_sequence(self) -> int | None:
        """The partition's newest sequence number when the receiver last looked."""
        return self._receiver.last_sequence

    async def next_batch(self, *, wait_seconds: float, heartbeat: bool) -> EventBatch | None:
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
            if self._has_batch() or (self._buffer.count and is_late):
                return self._take()
            if is_late and heartbeat:
                return EventBatch.empty(self._source.partition)
            self._changed.clear()
            if is_late:
                await self._changed.wait()
                continue
            with suppress(TimeoutError), TimeLimit(deadline - loop.time()):
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
        self._buffer.clear()
        self._source.read_ahead.leave()

    def _take(self) -> EventBatch:
        batch = self._buffer.take(self._source.max_batch_size)
        self._source.read_ahead.give_room()
        self._taken.set()
        return batch

    def _has_batch(self) -> bool:
        count = self._buffer.count
        return count > 0 and (count >= self._source.max_batch_size or self._source.read_ahead.is_full)

    async def _run(self) -> None:
        try:
            while True:
                while self._has_batch():
                    self._taken.clear()
                    await self._taken.wait()
                await self._read()
        except Exception as error:  # noqa: BLE001 - raised by next_batch
            self._failed = error
            self._changed.set()
        finally:
            await self._receiver.close()

    async def _read(self) -> None:
        try:
            batch = await self._receiver.receive(
                max_count=FETCH_COUNT_MAX, wait_seconds=self._source.hub_timeout_seconds
            )
        except PositionInvalid as error:
            await self._receiver.seek(await self._position_instead(error))
            return
        if len(batch):
            self._buffer.put(batch)
            self._changed.set()
        elif self._source.read_ahead.is_full:
            self._changed.set()

    async def _position_instead(self, error: PositionInvalid) -> Position:
        source = self._source
        # Reported before reading continues elsewhere: dying here reports it again.
        accept_data_loss(error, source.on_data_loss)
        source.report(error)
        if error.reason != "expired":
            await source.start_over()
        if source.on_data_loss == "earliest":
            return Position.earliest()
        return await pinned(source.hub, source.partition, Position.latest(), seconds_max=source.hub_timeout_seconds)
