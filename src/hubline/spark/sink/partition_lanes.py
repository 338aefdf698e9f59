"""Sends one task's events: a lane for each partition, in which one send follows the other.

What keeps the identity of events (:mod:`hubline.event_ids`) is that a lane sends nothing before what comes earlier in
it is kept. However often a task is tried, and however many of its attempts are still alive somewhere: wherever an event
stands in a partition, all that came before it in its lane stand before it. So a reader that remembers the highest id
that it has seen can drop every duplicate, and drops nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from hubline.addresses.hub_address import HubAddress
from hubline.errors import EventTooLarge, HubUnavailable
from hubline.producer.lanes import RETRY, Lanes, Piece
from hubline.producer.room import Room
from hubline.retry import retrying
from hubline.spark.tasks.event_loop import shared_hub

log = logging.getLogger("hubline.spark")

# Taken from Spark and not yet kept by the hub: enough that neither waits for the other; a task holds no more.
AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024


class Publishing:
    """One task's sending. Lives on the process's loop; the task's thread calls its methods one after the other."""

    def __init__(self, address: HubAddress, *, outage_seconds: float) -> None:
        self._address = address
        self._outage_seconds = outage_seconds
        self._stack = AsyncExitStack()
        self._room = Room(AHEAD_BYTES_MAX)
        self._lanes: Lanes | None = None
        self._error: Exception | None = None

    async def open(self) -> tuple[str, ...]:
        """Connects, and gives the ids of the hub's partitions as they are now."""
        opened = await self._stack.enter_async_context(shared_hub(self._address))
        self._lanes = Lanes(opened.senders.get, max_outage_seconds=self._outage_seconds)
        hub = await retrying(
            opened.hub.describe,
            RETRY,
            on=HubUnavailable,
            timeout_seconds=self._outage_seconds,
            report=lambda error: log.warning("describe_again hub=%s error=%s", self._address, error),
        )
        return hub.partition_ids

    async def put(self, pieces: Sequence[Piece]) -> None:
        """Takes the pieces, each as soon as there is room for it.

        Raises what went wrong with an earlier one: then nothing more is sent.
        """
        assert self._lanes is not None  # noqa: S101 - opened before
        for piece in pieces:
            await self._room.take(piece.bytes_count, len(piece))
            self._raise_error()
            self._lanes.put(piece)

    async def finish(self) -> None:
        """Waits until the hub has kept everything."""
        await self._room.emptied()
        self._raise_error()

    async def close(self) -> None:
        """Sends nothing more. What is on its way may or may not be kept."""
        if self._lanes is not None:
            await self._lanes.stop()
        await self._stack.aclose()

    # For the lanes

    def sent(self, piece: Piece) -> None:
        self._room.give(piece.bytes_count, len(piece))

    def failed(self, piece: Piece, error: Exception) -> None:
        """Nothing may be sent after what failed: that would be out of order."""
        if self._error is None:
            self._error = _named(error, int(piece.numbers[0])) if isinstance(error, EventTooLarge) else error
        if self._lanes is not None:
            self._lanes.halt()
        self._room.open_up()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _named(error: EventTooLarge, row: int) -> EventTooLarge:
    return EventTooLarge(
        f"row {row} of the task is an event of {error.bytes_count:,} bytes, but hub {error.hub} takes "
        f"at most {error.max_bytes:,}. hubline sent neither this event nor those after it in its "
        "partition. Split it, or filter it out.",
        hub=error.hub,
        index=row,
        bytes_count=error.bytes_count,
        max_bytes=error.max_bytes,
    )
