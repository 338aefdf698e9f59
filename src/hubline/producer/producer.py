"""The producer that waits: `send` returns once the hub has kept the events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import Seconds
from hubline.errors import FailedSend
from hubline.hubs.event_sizes import parts_by_size
from hubline.model.events import NewEvent, new_events
from hubline.ports import HubOrAddress
from hubline.producer.lanes import SEND_BYTES_MAX, Piece
from hubline.producer.outlet import (
    COLUMNS,
    MAX_OUTAGE_SECONDS,
    Outlet,
    columns_of,
    failure,
    pieces_of,
    send_failed,
    sizes_of,
)
from hubline.producer.room import Room

# On its way to the hub, of all calls together. The rest of a call waits in what it was given.
AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024


class Producer:
    """Sends events to a hub, and waits until the hub has kept them.

    One object serves a whole program. Calls from several tasks share messages: what comes while a send is under way is
    sent together with the next. Use it from one event loop.

    Args:
        hub: An address, or an open hub, which stays open.
        max_outage_seconds: How long a send is retried while the hub cannot be reached. Default: 60. With 0 it is
            tried once.

    Example:
        async with hubline.Producer("local:./data/telemetry") as producer:
            await producer.send(["21.5 C", "22 C"], partition_key="device-7")
    """

    @checked
    def __init__(self, hub: HubOrAddress, *, max_outage_seconds: Seconds = MAX_OUTAGE_SECONDS) -> None:
        self._outlet = Outlet(hub, max_outage_seconds=max_outage_seconds)
        self._room = Room(AHEAD_BYTES_MAX)

    async def __aenter__(self) -> Self:
        await self._outlet.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self,
        events: NewEvent | Iterable[NewEvent] | pa.RecordBatch,
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> None:
        """Send events, in messages as large as the hub takes, and return once it has kept all of them.

        Events of one partition stay in order. An event goes to the partition of its key; without a key, to any.

        Args:
            events: One event or several: bodies (`bytes` or text), mappings with `body`, `partitionKey` and
                `properties`, events that were received, or the columns of `hubline.new_events`.
            partition_key: The key of the events that have no other. Default: None.
            partition_id: Sends all to this partition, whatever their keys. Default: None.

        Raises:
            ConfigError: An event or an argument is wrong. Nothing was sent.
            PartitionNotFound: The hub has no such partition. Nothing was sent.
            HubError: The hub cannot be opened. Nothing was sent.
            SendFailed: Some events could not be sent. Its `failures` have them; all others were sent.
        """
        await self._outlet.require_target(partition_id, partition_key)
        if isinstance(events, COLUMNS):
            columns = columns_of(events, partition_key)
        else:
            columns = new_events(events, partition_key=partition_key)
        if not len(columns):
            return
        ids = await self._outlet.partition_ids()
        call = _Call(len(columns), self._room)
        sizes = sizes_of(columns)
        for start, stop in parts_by_size(sizes, max_bytes=SEND_BYTES_MAX):
            numbers, some = np.arange(start, stop), columns.slice(start, stop - start)
            for piece in pieces_of(some, numbers, sizes[start:stop], partition_id, ids, giver=call):
                await self._room.take(piece.bytes_count, len(piece))
                self._outlet.lanes.put(piece)
        await call.done
        if call.failures:
            raise send_failed(call.failures, hub=self._outlet.name)

    async def close(self) -> None:
        """Finish the sends under way, and close what was opened. Closing twice is fine."""
        self._outlet.is_closed = True
        try:
            await self._outlet.lanes.drained()
        finally:
            await self._outlet.close()


class _Call:
    """What becomes of the events of one call."""

    def __init__(self, count: int, room: Room) -> None:
        self._left_count = count
        self._room = room
        self.failures: list[FailedSend] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sent(self, piece: Piece) -> None:
        self._room.give(piece.bytes_count, len(piece))
        self._left_count -= len(piece)
        if not self._left_count and not self.done.done():  # done, if the caller was cancelled
            self.done.set_result(None)

    def failed(self, piece: Piece, error: Exception) -> None:
        self.failures.append(failure(piece, error, what=f"event {piece.numbers[0]:,}"))
        self.sent(piece)
