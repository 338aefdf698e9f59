"""Sends events in the background: a lane for each partition, in which one send follows the other.

A lane sends nothing before what comes earlier in it is kept, or has failed. What comes while a send is under way waits,
and is sent together: so messages are as full as the hub is slow, and nothing waits where it is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.concurrency import cancel
from hubline.errors import EventTooLarge, HubError, HubUnavailable
from hubline.ports import Hub, Sender
from hubline.retry import RetryPolicy, retrying

log = logging.getLogger("hubline.producer")

# What a lane sends at once of what waits in it: some messages of the service's size, one batch of the local hub's.
SEND_BYTES_MAX: Final = 4 * 1024 * 1024
# Between two tries: soon enough for a hub that only restarts, seldom enough for one that does not. How long it is tried
# is the outage that the user allows.
RETRY: Final = RetryPolicy(initial_backoff_seconds=0.25, max_backoff_seconds=8.0)


class Giver(Protocol):
    """Who gave events to a lane, and learns what became of them: each event is in one call of these."""

    def sent(self, piece: Piece) -> None:
        """The hub has kept the events."""
        ...

    def failed(self, piece: Piece, error: Exception) -> None:
        """The events are not sent any more. What comes after them in the lane is, unless this halts the lanes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Events for one lane (:data:`~hubline.model.events.OUTGOING_SCHEMA`).

    ``numbers`` are those by which their giver knows them, and ``partition`` is where they go (None: anywhere).
    """

    events: pa.RecordBatch
    numbers: npt.NDArray[np.int64]
    bytes_count: int
    partition: str | None
    giver: Giver

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> Piece:
        """Some of the events. Each gets its share of the bytes by the number of events, so that they add up."""
        begin, end = (self.bytes_count * place // len(self) for place in (start, stop))
        events = self.events.slice(start, stop - start)
        return replace(self, events=events, numbers=self.numbers[start:stop], bytes_count=end - begin)


class Senders:
    """The senders of a hub: one for each partition, so that none waits for another, and one for what goes to any."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._senders: dict[str | None, Sender] = {}

    async def get(self, partition: str | None) -> Sender:
        """The sender for a partition, or for what goes to any (None)."""
        if partition not in self._senders:
            opened = await self._hub.open_sender()
            self._senders.setdefault(partition, opened)
        return self._senders[partition]

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()
        self._senders.clear()


class Lanes:
    """The lanes of a hub. Used from one event loop.

    Args:
        sender: Gives the sender for a partition, or for what goes to any (None).
        max_outage_seconds: How long a send is retried while the hub cannot be reached.
    """

    def __init__(self, sender: Callable[[str | None], Awaitable[Sender]], *, max_outage_seconds: float) -> None:
        self.sender = sender
        self.max_outage_seconds = max_outage_seconds
        self.is_halted = False
        self._lanes: dict[str | None, _Lane] = {}

    def put(self, piece: Piece) -> None:
        """Has the events sent, after what was given before for the same partition."""
        if self.is_halted:
            piece.giver.failed(piece, _not_sent(piece.partition))
            return
        lane = self._lanes.get(piece.partition)
        if lane is None:
            lane = self._lanes[piece.partition] = _Lane(self, piece.partition)
        lane.put(piece)

    async def drained(self) -> None:
        """Returns when all that was put before this call is sent, or has failed."""
        for lane, count in [(lane, lane.put_count) for lane in self._lanes.values()]:
            await lane.reached(count)

    def halt(self) -> None:
        """Begins no other send."""
        self.is_halted = True

    async def stop(self) -> None:
        """Sends nothing more: what waits has failed. What is on its way has, too, but may be kept all the same."""
        self.halt()
        await cancel(lane.task for lane in self._lanes.values() if lane.task is not None)
        for lane in self._lanes.values():
            lane.give_up()


class _Lane:
    """What goes to one partition, in order."""

    def __init__(self, lanes: Lanes, partition: str | None) -> None:
        self._lanes = lanes
        self._partition = partition
        self._waiting: deque[Piece] = deque()
        self._changed = asyncio.Event()
        self._done_count = 0
        self.put_count = 0
        self.task: asyncio.Task[None] | None = None

    def put(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self.put_count += 1
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    async def reached(self, count: int) -> None:
        while self._done_count < count:
            self._changed.clear()
            await self._changed.wait()

    def give_up(self) -> None:
        while self._waiting:
            piece = self._waiting.popleft()
            piece.giver.failed(piece, _not_sent(self._partition))
        self._done_count = self.put_count
        self._changed.set()

    async def _run(self) -> None:
        while self._waiting and not self._lanes.is_halted:
            pieces = self._next()
            await self._send(pieces)
            self._done_count += len(pieces)
            self._changed.set()

    def _next(self) -> list[Piece]:
        """What came while the last was sent, together: messages are as full as they can be."""
        pieces = [self._waiting.popleft()]
        left_bytes = SEND_BYTES_MAX - pieces[0].bytes_count
        while self._waiting and (left_bytes := left_bytes - self._waiting[0].bytes_count) >= 0:
            pieces.append(self._waiting.popleft())
        return pieces

    async def _send(self, pieces: Sequence[Piece]) -> None:
        """Until it is kept, or has failed. What is too large fails alone: the rest is sent without it."""
        left = list(pieces)
        while left:
            try:
                await self._try(left)
            except asyncio.CancelledError:
                text = (
                    "sending was stopped while events were on their way; the hub may or may not have stored them. "
                    "Send them again if duplicates do no harm."
                )
                _failed(left, HubUnavailable(text, partition=self._partition))
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the giver decides what to do
                failed, left = _divided(left, error)
                _failed(failed, error)
                if self._lanes.is_halted:
                    return
            else:
                for piece in left:
                    piece.giver.sent(piece)
                return

    async def _try(self, pieces: Sequence[Piece]) -> None:
        """A part of it may have been kept by a try that failed: then it is there again, in order."""
        events = pieces[0].events if len(pieces) == 1 else pa.concat_batches([piece.events for piece in pieces])

        async def send() -> None:
            sender = await self._lanes.sender(self._partition)
            await sender.send(events, partition=self._partition)

        def report(error: HubUnavailable) -> None:
            log.warning("send_again partition=%s events=%d error=%s", self._partition, len(events), error)

        await retrying(send, RETRY, on=HubUnavailable, timeout_seconds=self._lanes.max_outage_seconds, report=report)


def _not_sent(partition: str | None) -> HubError:
    return HubError("sending was stopped before these events were sent. Send them again.", partition=partition)


def _failed(pieces: Sequence[Piece], error: Exception) -> None:
    for piece in pieces:
        piece.giver.failed(piece, error)


def _divided(pieces: list[Piece], error: Exception) -> tuple[list[Piece], list[Piece]]:
    """What has failed, and what is left to send: without one that is too large, everything else."""
    if not isinstance(error, EventTooLarge):
        return pieces, []
    index = error.index
    for place, piece in enumerate(pieces):
        if index < len(piece):
            parts = [piece.slice(0, index), piece.slice(index + 1, len(piece))]
            left = [*pieces[:place], *(part for part in parts if len(part)), *pieces[place + 1 :]]
            return [piece.slice(index, index + 1)], left
        index -= len(piece)
    return pieces, []
