"""The driver's side of a stream: what its batches read, as offsets that Spark keeps.

One process of Spark's has a planner for the life of a query (stream_reader.py). Where the query stands is checked by
StartValidation, how much a batch takes is decided by RateLimit, and OwnedPartitions has the partitions of a query that
shares its group with others.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from hubline.adapters import open_hub, open_store
from hubline.concurrency import map_bounded
from hubline.coordination.snapshot import Wait
from hubline.coordination.strategies import All
from hubline.model.hubs import PartitionProperties
from hubline.model.keys import GroupKey
from hubline.ports import CheckpointStore, Hub
from hubline.spark.options import Options
from hubline.spark.source.hub_monitor import HubMonitor
from hubline.spark.source.offsets import Entry, Range, StreamOffset, in_order
from hubline.spark.source.owned_partitions import Membership, OwnedPartitions
from hubline.spark.source.position_lookup import LOOKUPS_AT_ONCE, Places
from hubline.spark.source.rate_limit import RateLimit
from hubline.spark.source.start_validation import StartValidation


async def start_planner(options: Options, *, on_wait: Callable[[Wait], None]) -> StreamPlanner:
    """Opens the hub and the store, and takes the first look at them."""
    store = open_store(options.store) if options.store else None
    planner = StreamPlanner(options, open_hub(options.hub), store, on_wait=on_wait)
    try:
        await planner.start()
    except BaseException:
        await planner.stop()
        raise
    return planner


class StreamPlanner:
    """Plans the batches of one query. All of it lives on one event loop."""

    def __init__(
        self,
        options: Options,
        hub: Hub,
        store: CheckpointStore | None,
        *,
        now: Callable[[], float] = time.time,
        on_wait: Callable[[Wait], None] = lambda _: None,
    ) -> None:
        self._on_wait = on_wait
        self._options = options
        self._hub = hub
        self._store = store
        self._now = now
        self._places = Places(hub, group=options.consumer_group, seconds_max=options.receiver_timeout_seconds)
        self._monitor = HubMonitor(self._places, options.share, outage_seconds=options.operation_timeout_seconds)
        self._validation = StartValidation(options, self._places, self._monitor)
        self._limit = RateLimit(options, self._places, self._monitor)
        self._owned: OwnedPartitions | None = None
        self._planned: StreamOffset | None = None

    async def start(self) -> None:
        await self._monitor.start()
        self._options.require_partitions(in_order(self._monitor.hub.partition_ids))
        if self._store is not None:
            owned = OwnedPartitions(
                self._store,
                self._places,
                self._membership(),
                partitions=lambda: self._monitor.partition_ids,
                sequence_after_loss=self._validation.sequence_after_loss,
                now=self._now,
                on_wait=self._on_wait,
            )
            await owned.start()
            self._owned = owned

    async def stop(self) -> None:
        if self._owned is not None:
            await self._owned.stop()
        await self._monitor.stop()
        await self._hub.close()
        if self._store is not None:
            await self._store.close()

    def _membership(self) -> Membership:
        options = self._options
        reads_all = isinstance(options.load_balancing, All)
        return Membership(
            self._group,
            owner_id=options.share.owner_id(options.owner_id or _fresh_owner_id()),
            strategy=options.load_balancing,
            share=options.share,
            # A query that reads all partitions does not wait for others to share with.
            lease=replace(options.lease, startup_delay_seconds=0.0) if reads_all else options.lease,
            start=options.stream_start,
            lookback_seconds=options.lookback_seconds,
            keeps_checkpoints=options.checkpoint != "never",
        )

    @property
    def _group(self) -> GroupKey:
        hub = self._monitor.hub
        return GroupKey(hub.namespace, hub.name, self._options.consumer_group)

    # What Spark asks

    async def initial_offset(self) -> StreamOffset:
        """Where a new query starts: nowhere yet. Spark does not write it down, and asks again after a crash; the first
        batch finds out, and is written down even if it reads nothing. "The end" stays where it was at first."""
        return StreamOffset(self._monitor.created, group=self._group)

    async def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        """What the next batch reads; ``start`` itself if there is nothing. All up to ``start`` is done."""
        there = await self._monitor.latest()
        places = await self._validation.validated(await self._places_after(start, there), start, there)
        counts = await self._limit.counts(places, there, is_limited=is_limited)
        has_gap = any(place.gap is not None for place in places.values())
        is_first = self._owned is None and not start.entries
        if not (any(counts.values()) or has_gap or is_first):
            return start
        entries = {
            partition: replace(place, start=place.end, end=place.end + counts.get(partition, 0))
            for partition, place in places.items()
        }
        self._note_offsets(entries, there)
        if self._owned is not None and not self._validation.is_foreign(start):
            # What was done of a partition that is not held, or not yet, stays known: the store may not have it.
            entries = {**{partition: entry.let_go() for partition, entry in start.entries.items()}, **entries}
        is_split = self._options.max_records_per_partition is not None
        return self._remembered(StreamOffset(self._monitor.created, entries, is_split, self._group))

    async def ranges(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        """What a batch reads, which was planned here, or before a crash."""
        if end != self._planned:
            if self._owned is not None:
                self._owned.replays(end)
            self._remembered(end)
            if not await self._validation.require_own(end):
                return []
        return end.ranges(start)

    async def pin(self) -> None:
        """From now on nothing is read that comes later: the query ends when it has read what is there."""
        self._limit.pin(await self._monitor.look())
        await self._settled()

    async def settle(self) -> None:
        """Waits until this query owns its share, so that the next batch reads what is in all of it now."""
        await self._settled()
        await self._monitor.look()

    async def _settled(self) -> None:
        if self._owned is not None:
            await self._owned.settled(self._options.operation_timeout_seconds)

    async def done(self, end: StreamOffset) -> None:
        """All up to ``end`` is done, and Spark will not ask for the next batch."""
        if self._owned is not None:
            await self._owned.done(end)

    async def latest(self) -> dict[str, int]:
        there = await self._monitor.latest()
        return {partition: self._limit.known_end(partition, there[partition]) for partition in in_order(there)}

    # Where the partitions stand

    async def _places_after(self, start: StreamOffset, there: Mapping[str, PartitionProperties]) -> dict[str, Entry]:
        """Where the partitions stand that the next batch may read. All up to ``start`` is done."""
        if self._owned is not None:
            places = await self._owned.done(start)
            if self._owned.failed is not None:
                raise self._owned.failed
            return places
        partitions = self._monitor.partition_ids
        if not start.entries:
            entries = await map_bounded(self._validation.first_entry, partitions, max_concurrent=LOOKUPS_AT_ONCE)
            return dict(zip(partitions, entries, strict=True))
        self._validation.require_known(start, partitions)
        # A partition that is not known yet was added to the hub: all of it is new.
        return {
            partition: Entry.at(start.entries[partition].end)
            if partition in start.entries
            else Entry.at(there[partition].begin_sequence)
            for partition in partitions
        }

    def _note_offsets(self, entries: Mapping[str, Entry], there: Mapping[str, PartitionProperties]) -> None:
        """Where a batch ends with the newest event, the offset for its checkpoint is known now, and not for long."""
        for partition, entry in entries.items():
            held = there[partition]
            if self._owned is not None and entry.end == held.last_sequence + 1 and held.last_offset is not None:
                self._owned.note_offset(partition, entry.end, held.last_offset)

    def _remembered(self, end: StreamOffset) -> StreamOffset:
        self._planned = end
        if self._owned is not None:
            self._owned.planned(end)
        return end


def _fresh_owner_id() -> str:
    return f"spark-{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
