"""Sends one task's events: a lane for each partition, in which one send follows the other.

What keeps the identity of events (:mod:`hubline.event_ids`) is that a lane sends nothing before what comes earlier in
it is kept. However often a task is tried, and however many of its attempts are still alive somewhere: wherever an event
stands in a partition, all that came before it in its lane stand before it. So a reader that remembers the highest id
that it has seen can drop every repetition, and drops nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.addresses.hub_address import HubAddress
from hubline.errors import EventTooLarge, HubUnavailable
from hubline.retry import RetryPolicy, retrying
from hubline.spark.tasks.event_loop import OpenHub, shared_hub

log = logging.getLogger("hubline.spark")

# Taken from Spark and not yet kept by the hub: enough that neither waits for the other; a task holds no more.
AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024
# What a lane sends at once of what waits in it: some messages of the service's size, one batch of the local hub's.
SEND_BYTES_MAX: Final = 4 * 1024 * 1024
# Between two tries: soon enough for a hub that only restarts, seldom enough for one that does not. How long it is tried
# is the outage that the user allows.
RETRY: Final = RetryPolicy(initial_backoff_seconds=0.25, max_backoff_seconds=8.0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Events for one lane (:data:`~hubline.model.events.OUTGOING_SCHEMA`), and their rows' numbers in the task."""

    events: pa.RecordBatch
    rows: npt.NDArray[np.int64]
    bytes_count: int

    @classmethod
    def of(cls, events: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> Piece:
        return cls(events, rows, int(events.nbytes))

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            pa.concat_batches([piece.events for piece in pieces]),
            np.concatenate([piece.rows for piece in pieces]),
            sum(piece.bytes_count for piece in pieces),
        )


class Publishing:
    """One task's sending. Lives on the process's loop; the task's thread calls its methods one after the other."""

    def __init__(self, address: HubAddress, *, outage_seconds: float) -> None:
        self._address = address
        self._outage_seconds = outage_seconds
        self._stack = AsyncExitStack()
        self._lanes: dict[str | None, _Lane] = {}
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    async def open(self) -> tuple[str, ...]:
        """Connects, and gives the ids of the hub's partitions as they are now."""
        self._opened = await self._stack.enter_async_context(shared_hub(self._address))
        hub = await retrying(
            self._opened.hub.describe,
            RETRY,
            on=HubUnavailable,
            timeout_seconds=self._outage_seconds,
            report=lambda error: log.warning("describe_again hub=%s error=%s", self._address, error),
        )
        return hub.partition_ids

    async def put(self, pieces: Mapping[str | None, Piece]) -> None:
        """Takes the pieces, each for its partition (None: for any), and waits until there is room for more.

        Raises what went wrong with an earlier one: then nothing more is sent.
        """
        for partition, piece in pieces.items():
            self._raise_error()
            self._waiting_bytes += piece.bytes_count
            self._lane(partition).put(piece)
        while self._waiting_bytes > AHEAD_BYTES_MAX and self._error is None:
            await self._change()
        self._raise_error()

    async def finish(self) -> None:
        """Waits until the hub has kept everything."""
        while self._waiting_bytes and self._error is None:
            await self._change()
        self._raise_error()

    async def close(self) -> None:
        """Sends nothing more. What is on its way may or may not be kept."""
        for lane in self._lanes.values():
            await lane.stop()
        await self._stack.aclose()

    # For the lanes

    def sent(self, piece: Piece) -> None:
        self._waiting_bytes -= piece.bytes_count
        self._changed.set()

    def failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()

    @property
    def is_failed(self) -> bool:
        return self._error is not None

    def _lane(self, partition: str | None) -> _Lane:
        if partition not in self._lanes:
            self._lanes[partition] = _Lane(self, self._opened, partition, self._outage_seconds)
        return self._lanes[partition]

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class _Lane:
    """What goes to one partition, in order."""

    def __init__(self, publishing: Publishing, opened: OpenHub, partition: str | None, outage_seconds: float) -> None:
        self._publishing = publishing
        self._opened = opened
        self._partition = partition
        self._outage_seconds = outage_seconds
        self._waiting: deque[Piece] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, piece: Piece) -> None:
        self._waiting.append(piece)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting and not self._publishing.is_failed:
                piece = self._next()
                await self._send(piece)
                self._publishing.sent(piece)
        except Exception as error:  # noqa: BLE001 - raised in the task's thread
            self._publishing.failed(error)

    def _next(self) -> Piece:
        """What came while the last was sent, together: messages are as full as they can be."""
        pieces = [self._waiting.popleft()]
        room = SEND_BYTES_MAX - pieces[0].bytes_count
        while self._waiting and self._waiting[0].bytes_count <= room:
            room -= self._waiting[0].bytes_count
            pieces.append(self._waiting.popleft())
        return Piece.joined(pieces)

    async def _send(self, piece: Piece) -> None:
        """Until it is kept. A part of it may have been kept by a try that failed: then it is there again, in order."""

        async def send() -> None:
            sender = await self._opened.sender(self._partition)
            await sender.send(piece.events, partition=self._partition)

        def report(error: HubUnavailable) -> None:
            log.warning("send_again partition=%s events=%d error=%s", self._partition, len(piece.rows), error)

        try:
            await retrying(send, RETRY, on=HubUnavailable, timeout_seconds=self._outage_seconds, report=report)
        except EventTooLarge as error:
            raise _named(error, int(piece.rows[error.index])) from None


def _named(error: EventTooLarge, row: int) -> EventTooLarge:
    return EventTooLarge(
        f"row {row} of the task is an event of {error.bytes_count:,} bytes: hub {error.hub} takes at most "
        f"{error.max_bytes:,}. It was not sent, nor what comes after it in its partition: split it, or filter it out",
        hub=error.hub,
        index=row,
        bytes_count=error.bytes_count,
        max_bytes=error.max_bytes,
    )
