"""Receiving from the embedded hub."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from hubline.errors import ConfigError, HubError, PositionInvalid
from hubline.hubs.local.columns import received
from hubline.hubs.local.life import HubReplaced, Life
from hubline.hubs.local.partition import Opened
from hubline.hubs.local.session import Session
from hubline.model import EventBatch

# A writer that died after its commit has told nobody: a waiting receiver looks by itself this often.
LOOK_SECONDS: Final = 1.0


class LocalReceiver:
    """Reads one partition, as :class:`~hubline.ports.Receiver` says.

    What was read from the disk but not yet received stays in memory: the rest of one stored batch at most.
    """

    def __init__(self, session: Session, life: Life, index: int, opened: Opened) -> None:
        self._session = session
        self._life = life
        self._index = index
        self._partition = life.partition(index)
        self._hold = opened.hold
        self._next_sequence = opened.next_sequence
        self._last_sequence: int | None = None
        self._rest: EventBatch | None = None
        self._is_closed = False

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    async def receive(self, *, count_max: int, wait_seconds: float) -> EventBatch:
        if count_max < 1:
            raise ConfigError(f"count_max is the number of events to receive at most: give 1 or more, not {count_max}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            self._require_open()
            stamp = self._life.signal.stamp(self._index)
            # A cancelled look changes nothing: what it found is found again.
            events, self._last_sequence = await self._session.threads.run(
                self._look, self._rest, self._next_sequence, count_max
            )
            if events is not None:
                return self._delivered(events, count_max)
            left_seconds = deadline - loop.time()
            if left_seconds <= 0:
                return EventBatch.empty(self._partition.id)
            self._require_open()
            await self._life.signal.changed(self._index, since=stamp, timeout=min(left_seconds, LOOK_SECONDS))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._life.signal.wake(self._index)
        if self._hold.epoch is not None:
            # Where this fails the hub is closed, gone or unusable, and holds nobody off.
            with suppress(HubError):
                await self._session.threads.run(self._partition.release_reader, self._hold)

    def _look(self, rest: EventBatch | None, next_sequence: int, count_max: int) -> tuple[EventBatch | None, int]:
        try:
            found = self._partition.read(self._hold, next_sequence, count_max=0 if rest else count_max)
        except HubReplaced as error:
            raise self._foreign(next_sequence) from error
        if found.batches:
            return received(self._partition.id, self._life.tag, found.batches), found.last_sequence
        return rest, found.last_sequence

    def _delivered(self, events: EventBatch, count_max: int) -> EventBatch:
        delivered = events.slice(0, count_max)
        self._rest = events.slice(count_max) if len(events) > count_max else None
        self._next_sequence += len(delivered)
        return delivered

    def _require_open(self) -> None:
        self._session.threads.require_open()
        if self._is_closed:
            raise HubError("the receiver is closed: open another one", partition=self._partition.id)

    def _foreign(self, next_sequence: int) -> PositionInvalid:
        hub = self._session.folder.address
        now = self._session.describe_partition(self._partition.id)
        return PositionInvalid(
            f"hub {hub} was deleted and created anew while partition {self._partition.id} was being read, up to "
            f"sequence number {next_sequence - 1}: open it again, and choose where to start in the new hub",
            hub=hub,
            partition=self._partition.id,
            reason="foreign",
            begin_sequence=now.begin_sequence,
            last_sequence=now.last_sequence,
        )
