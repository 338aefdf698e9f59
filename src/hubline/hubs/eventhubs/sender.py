"""Sending: which events go where, in messages as large as the service takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.amqp import conditions
from hubline.amqp.codec.performatives import Error
from hubline.amqp.events.encoder import Batch, encode_batches
from hubline.errors import EventTooLarge, HubError
from hubline.hubs.argument_checks import require_one_target, require_outgoing
from hubline.hubs.eventhubs.send_link import SendLink
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import Where, refused
from hubline.hubs.partition_hash import partition_targets
from hubline.model.events import OUTGOING_SCHEMA

# Messages on their way at once, where their order does not count: enough to fill a connection, few enough to hold in
# memory. To a partition goes one at a time: behind a message that is turned away, others would be kept before it.
UNSETTLED_MAX: Final = 32

PartitionIds = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Share:
    """Events that go to one place: a partition, or the whole hub, which then chooses by ``key`` or in turn.

    ``indexes`` are their places in what was sent.
    """

    partition: str | None
    events: pa.RecordBatch
    indexes: npt.NDArray[np.int64]
    key: str | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether all of it goes to one partition."""
        return self.partition is not None or self.key is not None


class EventHubsSender:
    """Appends to the hub, as :class:`~hubline.ports.Sender` says. There is a link for each place that is sent to.

    A key for all events is given to the service, which chooses the partition. Where each event has its own key, the
    service's hash is computed here, so that those of one partition travel together and in order.

    What goes to one partition is kept whole where it fits into one message. If it takes several and one of them fails,
    those before it are kept and those after it are not sent.
    """

    def __init__(self, service: Service, hub: str, name: str, partition_ids: PartitionIds) -> None:
        self._service = service
        self._hub = hub
        self._name = name
        self._partition_ids = partition_ids
        self._links: dict[str | None, SendLink] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        if self._is_closed:
            raise HubError("the sender is closed. Open another one.", hub=self._hub)
        require_one_target(partition, partition_key)
        require_outgoing(events)
        async with self._lock:
            shares = await shared_out(events, partition, partition_key, self._partition_ids)
            links = [await self._link(share.partition) for share in shares]
        batches = self._encoded(shares, links)
        # What one partition refuses does not keep the others from being sent, as with several hubs. Each link takes one
        # call after the other; so calls for different partitions do not wait for each other's acknowledgements.
        sending = [
            link.send(part, unsettled_max=1 if share.is_ordered else UNSETTLED_MAX)
            for share, link, part in zip(shares, links, batches, strict=True)
        ]
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _encoded(self, shares: Sequence[Share], links: Sequence[SendLink]) -> list[list[Batch]]:
        """All messages, made before the first is sent: an event that is too large keeps back all."""
        encoded: list[list[Batch]] = []
        too_large: list[EventTooLarge] = []
        for share, link in zip(shares, links, strict=True):
            try:
                batches = encode_batches(
                    share.events, max_bytes=link.message_bytes_max, partition_key=share.key, hub=self._hub
                )
                encoded.append(list(batches))
            except EventTooLarge as error:
                too_large.append(_renumbered(error, int(share.indexes[error.index])))
        if too_large:
            raise min(too_large, key=lambda error: error.index)
        return encoded

    async def _link(self, partition: str | None) -> SendLink:
        link = self._links.get(partition)
        if link is None:
            address = self._name if partition is None else f"{self._name}/Partitions/{partition}"
            link = SendLink(self._service, Where(self._hub, partition), address)
            if partition is not None and partition not in await self._partition_ids():
                raise refused(link.where, Error(conditions.NOT_FOUND, "the hub has no such partition"))
            self._links[partition] = link
        await link.open()
        return link


async def shared_out(
    events: pa.RecordBatch, partition: str | None, key: str | None, partition_ids: PartitionIds
) -> list[Share]:
    """Which events go where."""
    everything = np.arange(len(events))
    if not len(events):
        return []
    if partition is not None:
        return [Share(partition, events, everything)]
    if key is not None:
        return [Share(None, _without_keys(events), everything, key)]
    keys = events.column("partitionKey")
    if keys.null_count == len(keys):
        return [Share(None, events, everything)]
    ids = await partition_ids()
    targets = partition_targets(keys, len(ids), keyless=-1)
    return [
        _part(events, np.flatnonzero(targets == target), None if target < 0 else ids[target])
        for target in np.unique(targets).tolist()
    ]


def _part(events: pa.RecordBatch, indexes: npt.NDArray[np.int64], partition: str | None) -> Share:
    return Share(partition, events if len(indexes) == len(events) else events.take(pa.array(indexes)), indexes)


def _without_keys(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events without keys of their own: that of the whole message counts."""
    field = OUTGOING_SCHEMA.field("partitionKey")
    return events.set_column(events.schema.get_field_index("partitionKey"), field, pa.nulls(len(events), field.type))


def _renumbered(error: EventTooLarge, index: int) -> EventTooLarge:
    return EventTooLarge(
        f"event {index} has {error.bytes_count:,} bytes (body, key and properties): hub {error.hub} takes at most "
        f"{error.max_bytes:,}. Nothing was sent. Split the event.",
        hub=error.hub,
        index=index,
        bytes_count=error.bytes_count,
        max_bytes=error.max_bytes,
    )
