"""Sending to the local hub: which events go to which partition, and in what portions."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.errors import HubError
from hubline.hubs.argument_checks import require_one_target, require_outgoing
from hubline.hubs.local.group_append import PartitionShare
from hubline.hubs.local.hub_folder import Meta
from hubline.hubs.local.open_hub import OpenHub
from hubline.hubs.local.stored_batch import encode, require_sizes
from hubline.hubs.partition_hash import partition_index, partition_targets
from hubline.model.events import OUTGOING_SCHEMA
from hubline.ports import Unsent


class LocalSender:
    """Appends to the hub, as :class:`~hubline.ports.Sender` says. Partitions added to the hub are seen at once."""

    def __init__(self, open_hub: OpenHub) -> None:
        self._open_hub = open_hub
        self._lock = asyncio.Lock()
        self._is_closed = False
        # Anywhere at first: many short-lived senders would otherwise all begin with the same partition.
        self._turn = random.randrange(1 << 16)  # noqa: S311

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        for unsent in await self.send_shares(events, partition=partition, partition_key=partition_key):
            raise unsent.error

    async def send_shares(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> list[Unsent]:
        if self._is_closed:
            raise HubError("the sender is closed. Open another one.", hub=self._open_hub.folder.address)
        async with self._lock:
            shares = await self._open_hub.threads.run(self._append, events, partition, partition_key)
            by_others = [asyncio.wrap_future(share.done) for share in shares if not share.done.done()]
            await asyncio.gather(*by_others, return_exceptions=True)
        unsent = []
        for share in shares:
            try:
                share.done.result()
            except HubError as error:
                unsent.append(Unsent(share.places, error))
            else:
                share.incarnation.signal.wake(share.index)
        return unsent

    async def close(self) -> None:
        self._is_closed = True

    def _append(self, events: pa.RecordBatch, partition: str | None, partition_key: str | None) -> list[PartitionShare]:
        shares = self._shares(events, partition, partition_key)
        self._open_hub.appends.append(shares)
        return shares

    def _shares(self, events: pa.RecordBatch, partition: str | None, partition_key: str | None) -> list[PartitionShare]:
        require_one_target(partition, partition_key)
        require_outgoing(events)
        if partition_key is not None:
            events = _with_key(events, partition_key)
        require_sizes(events, hub=self._open_hub.folder.address)
        if not len(events):
            return []
        meta, incarnation = self._open_hub.current()
        targets = self._targets(meta, events, partition, partition_key)
        if isinstance(targets, int):
            return [PartitionShare(incarnation, meta.retention, targets, np.arange(len(events)), encode(events))]
        places = {int(index): np.flatnonzero(targets == index) for index in np.unique(targets)}
        return [
            PartitionShare(incarnation, meta.retention, index, those, encode(events.take(pa.array(those))))
            for index, those in places.items()
        ]

    def _targets(
        self, meta: Meta, events: pa.RecordBatch, partition: str | None, partition_key: str | None
    ) -> int | npt.NDArray[np.int64]:
        """The index of the partition: one for all events, or one for each."""
        if partition is not None:
            return self._open_hub.index(meta, partition)
        if partition_key is not None:
            return partition_index(partition_key, meta.partition_count)
        keys = events.column("partitionKey")
        if keys.null_count == len(keys):
            return self._next_index(meta)
        next_index = self._next_index(meta) if keys.null_count else 0
        return partition_targets(keys, meta.partition_count, keyless=next_index)

    def _next_index(self, meta: Meta) -> int:
        self._turn += 1
        return self._turn % meta.partition_count


def _with_key(events: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """The events, all with this key."""
    keys = pa.repeat(pa.scalar(key, pa.string()), len(events))
    return events.set_column(events.schema.get_field_index("partitionKey"), OUTGOING_SCHEMA.field("partitionKey"), keys)
