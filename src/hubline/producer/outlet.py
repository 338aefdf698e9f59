"""A hub as a producer uses it: opened when it is needed, with lanes to its partitions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from hubline.adapters import open_hub
from hubline.errors import ConfigError, EventTooLarge, FailedSend, HubError, HublineError, HubUnavailable, SendFailed
from hubline.hubs.argument_checks import require_one_target, require_outgoing, require_partition
from hubline.hubs.event_sizes import event_sizes
from hubline.model.events import OUTGOING_SCHEMA, EventBatch
from hubline.ports import Hub
from hubline.producer.lanes import RETRY, Giver, Lanes, Piece, Senders
from hubline.producer.routing import Indexes, parts_of, taken, targets_of
from hubline.retry import retrying
from hubline.text import counted, sentences

log = logging.getLogger("hubline.producer")

MAX_OUTAGE_SECONDS: Final = 60.0
"""How long a send is retried by default: longer than the service takes to move a hub to another of its nodes."""

# What an event takes beside its body, its key and its properties.
EVENT_OVERHEAD_BYTES: Final = 64

# Partitions can be added to a hub: keys go to these as well after so long at most.
PARTITIONS_SECONDS: Final = 60.0


class Outlet:
    """A hub, and the lanes to its partitions. An address is opened here, and closed; a hub stays its owner's."""

    def __init__(self, hub: str | Hub, *, max_outage_seconds: float) -> None:
        self.hub = open_hub(hub)
        self._is_own = self.hub is not hub
        self._senders = Senders(self.hub)
        self._max_outage_seconds = max_outage_seconds
        self.lanes = Lanes(self._senders.get, max_outage_seconds=max_outage_seconds)
        self._partition_ids: tuple[str, ...] = ()
        self._partition_ids_at = 0.0
        self._describing = asyncio.Lock()
        self.is_closed = False

    @property
    def name(self) -> str:
        """The name of the hub, for errors."""
        return self.hub.name

    async def open(self) -> None:
        """Connects. Raises at once what is wrong with the hub, and is closed then."""
        try:
            await self._describe()
        except BaseException:
            await self.close()
            raise

    async def require_target(self, partition_id: str | None, partition_key: str | None) -> None:
        """Refuses to send on a closed producer, to two places, or to a partition that is not there."""
        if self.is_closed:
            raise HubError("the producer is closed. Create another one.", hub=self.name)
        if partition_id is None and partition_key is None:
            return
        require_one_target(partition_id, partition_key)
        for name, value in (("partition_id", partition_id), ("partition_key", partition_key)):
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} is {type(value).__name__}. Give text, such as {name}={str(value)!a}.")
        if partition_id is not None and partition_id not in self._partition_ids:
            if partition_id not in await self.partition_ids():
                await self._describe()  # it may have been added lately
            if partition_id not in self._partition_ids:
                require_partition(partition_id, await self.hub.describe(), hub=self.name)

    async def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions, as they were lately."""
        async with self._describing:
            if not self._partition_ids:
                await retrying(
                    self._describe,
                    RETRY,
                    on=HubUnavailable,
                    timeout_seconds=self._max_outage_seconds,
                    report=lambda error: log.warning("describe_again hub=%s error=%s", self.name, error),
                )
            elif time.monotonic() - self._partition_ids_at >= PARTITIONS_SECONDS:
                try:
                    await self._describe()
                except HubUnavailable:  # they are what they were: sending finds out whether the hub is back
                    self._partition_ids_at = time.monotonic()
            return self._partition_ids

    async def _describe(self) -> None:
        self._partition_ids = (await self.hub.describe()).partition_ids
        self._partition_ids_at = time.monotonic()

    async def close(self) -> None:
        """Lets go of the hub. What still waits is not sent."""
        self.is_closed = True
        await self.lanes.stop()
        await self._senders.close()
        if self._is_own:
            self._is_own = False
            await self.hub.close()


COLUMNS: Final = (pa.RecordBatch, EventBatch)
"""What may be sent as it is, without a look at each event."""


def columns_of(events: pa.RecordBatch | EventBatch, partition_key: str | None) -> pa.RecordBatch:
    """The columns to send. Events that have no key get this one."""
    if isinstance(events, EventBatch):
        events = events.arrow.select(OUTGOING_SCHEMA.names)
    require_outgoing(events)
    if partition_key is None:
        return events
    keys = pc.fill_null(events.column("partitionKey"), partition_key)
    place = OUTGOING_SCHEMA.get_field_index("partitionKey")
    return events.set_column(place, OUTGOING_SCHEMA.field(place), keys)


def sizes_of(events: pa.RecordBatch) -> Indexes:
    """The bytes that each event counts."""
    return event_sizes(events) + EVENT_OVERHEAD_BYTES


def pieces_of(
    events: pa.RecordBatch,
    numbers: Indexes,
    sizes: Indexes,
    partition_id: str | None,
    partition_ids: Sequence[str],
    *,
    giver: Giver,
) -> list[Piece]:
    """The events by the partition that they go to: all to the one that is named, or each to its own."""
    if partition_id is not None:
        return [Piece(events, numbers, int(sizes.sum()), partition_id, giver)]
    targets = targets_of(events.column("partitionKey"), events.column("properties"), len(partition_ids))
    return [
        Piece(taken(events, places), numbers[places], int(sizes[places].sum()), partition, giver)
        for partition, places in parts_of(targets, partition_ids)
    ]


def failure(piece: Piece, error: Exception, *, what: str) -> FailedSend:
    """What is said of events that were not sent. ``what`` says of a too large one which it is."""
    if isinstance(error, EventTooLarge):
        error = EventTooLarge(
            f"{what} has {error.bytes_count:,} bytes (body, key and properties), but hub {error.hub} takes at most "
            f"{error.max_bytes:,}. It was not sent. Split it.",
            hub=error.hub,
            index=0,
            bytes_count=error.bytes_count,
            max_bytes=error.max_bytes,
        )
    return FailedSend(piece.events, piece.partition, error)


def send_failed(failures: Sequence[FailedSend], *, hub: str, more: str = "") -> SendFailed:
    """One error for all that failed."""
    count = sum(len(each.events) for each in failures)
    others = f" (and {counted(len(failures) - 1, 'other failure')})" if len(failures) > 1 else ""
    first = failures[0].error
    # What an unforeseen error says may quote an address.
    if isinstance(first, HublineError):
        why, fix = str(first), ""
    else:
        why, fix = f"unexpected {type(first).__name__}", "send the events in its `failures` again"
    problem = f"{counted(count, 'event')} could not be sent{others}: {why}"
    text = sentences(problem, fix)
    error = SendFailed(f"{text}{more}", hub=hub, failures=failures)
    error.__cause__ = first
    return error
