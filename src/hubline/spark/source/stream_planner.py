"""The driver's side of a stream: where it starts, what a batch reads, and what becomes of the unforeseen.

One process of Spark's runs it for the life of a query, in one thread of Spark's; its own work is done by an event loop
in another. Nothing is started before the first call: the objects that Spark pickles around hold options only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from hubline.adapters import open_hub, open_store
from hubline.coordination.control_loop import ControlLoop
from hubline.coordination.strategies import All
from hubline.errors import HubUnavailable, PositionInvalid
from hubline.model.hubs import PartitionProperties
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.ports import CheckpointStore, Hub
from hubline.spark.options import Options
from hubline.spark.source.hub_monitor import RETRY_SECONDS, HubMonitor
from hubline.spark.source.offsets import Entry, Gap, Range, StreamOffset, in_order
from hubline.spark.source.owned_partitions import Membership, OwnedPartitions
from hubline.spark.source.position_lookup import Places, first_wanted
from hubline.spark.source.task_packing import allot

log = logging.getLogger("hubline.spark.source.stream_planner")

T = TypeVar("T")

# How large events are is looked up again after this long, where the hub does not tell.
SAMPLE_SECONDS: Final = 60.0


class Planner:
    """Plans the batches of one query. Spark's thread calls; each call is done on the loop."""

    def __init__(self, options: Options) -> None:
        self._control = ControlLoop(in_thread=True)
        try:
            self._planning = self._run(_planning(options))
        except BaseException:
            asyncio.run(self._control.close())
            raise

    def initial_offset(self) -> StreamOffset:
        return self._run(self._planning.initial_offset())

    def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        return self._run(self._planning.next_offset(start, is_limited=is_limited))

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        return self._run(self._planning.ranges(start, end))

    def pin(self) -> None:
        self._run(self._planning.pin())

    def latest(self) -> dict[str, int]:
        return self._run(self._planning.latest())

    def done(self, end: StreamOffset) -> None:
        self._run(self._planning.done(end))

    def stop(self) -> None:
        self._run(self._planning.stop())
        asyncio.run(self._control.close())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._control.loop).result()


def exit_on_sigterm() -> None:
    """Lets Spark's way to end a query run what is to be done at its end: it sends a signal, and calls nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def ignore_sigterm() -> None:
    """From the beginning of the end: a signal that comes now must not cut it short."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(*_: object) -> None:
    # Spark sends it twice: the second one must not end what the first one began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


async def _planning(options: Options) -> Planning:
    planning = Planning(options, open_hub(options.hub), open_store(options.store) if options.store else None)
    try:
        await planning.start()
    except BaseException:
        await planning.stop()
        raise
    return planning


class Planning:
    """The same, on the loop."""

    def __init__(
        self, options: Options, hub: Hub, store: CheckpointStore | None, *, now: Callable[[], float] = time.time
    ) -> None:
        self._options = options
        self._start_positions = options.stream_start
        self._hub = hub
        self._store = store
        self._now = now
        self._places = Places(hub, group=options.consumer_group, seconds_max=options.receiver_timeout_seconds)
        self._watch = HubMonitor(self._places, outage_seconds=options.operation_timeout_seconds)
        self._share: OwnedPartitions | None = None
        self._pinned: Mapping[str, int] | None = None
        self._turn = 0
        self._event_bytes: dict[str, tuple[float, float]] = {}
        self._planned: StreamOffset | None = None

    async def start(self) -> None:
        await self._watch.start()
        self._options.require_partitions(in_order(self._watch.partition_ids))
        if self._store is not None:
            share = OwnedPartitions(
                self._store,
                self._places,
                self._membership(),
                partitions=lambda: self._watch.partition_ids,
                jump=self._jump,
                now=self._now,
            )
            await share.start()
            self._share = share

    async def stop(self) -> None:
        if self._share is not None:
            await self._share.stop()
        await self._watch.stop()
        await self._hub.close()
        if self._store is not None:
            await self._store.close()

    def _membership(self) -> Membership:
        options = self._options
        reads_all = isinstance(options.load_balancing, All)
        return Membership(
            self._group,
            owner_id=options.owner_id or _fresh_owner_id(),
            strategy=options.load_balancing,
            # A query that reads all partitions does not wait for others to share with.
            lease=replace(options.lease, startup_delay_seconds=0.0) if reads_all else options.lease,
            start=self._start_positions,
            lookback_seconds=options.lookback_seconds,
        )

    @property
    def _group(self) -> GroupKey:
        hub = self._watch.hub
        return GroupKey(hub.namespace, hub.name, self._options.consumer_group)

    @property
    def _created(self) -> str:
        return self._watch.hub.created_at.isoformat()

    # What Spark asks

    async def initial_offset(self) -> StreamOffset:
        """Where a new query starts: nowhere yet. Spark does not write it down, and asks again after a crash; the first
        batch finds out, and is written down even if it reads nothing. "The end" stays where it was at first."""
        return StreamOffset(self._created, group=self._group)

    async def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        """What the next batch reads; ``start`` itself if there is nothing. All up to ``start`` is done."""
        there = await self._watch.latest()
        places = await self._current(start, there)
        backlogs = {partition: self._end(partition, place, there) - place.end for partition, place in places.items()}
        allotted = await self._allotted(backlogs, places) if is_limited else backlogs
        jumped = any(place.gap is not None for place in places.values())
        is_first = self._share is None and not start.entries
        if not (any(allotted.values()) or jumped or is_first):
            return start
        self._turn += 1
        entries = {
            partition: replace(place, start=place.end, end=place.end + allotted.get(partition, 0))
            for partition, place in places.items()
        }
        self._note_offsets(entries, there)
        if self._share is not None and not self._is_foreign(start):
            # What was done of a partition that is not held, or not yet, stays known: the store may not have it.
            entries = {**{partition: entry.let_go() for partition, entry in start.entries.items()}, **entries}
        is_split = self._options.max_records_per_partition is not None
        return self._remembered(StreamOffset(self._created, entries, is_split, self._group))

    async def ranges(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        """What a batch reads, which was planned here, or before a crash."""
        if end != self._planned:
            if self._share is not None:
                self._share.replays(end)
            self._remembered(end)
            if end.entries and self._is_foreign(end):
                partition = next(iter(end.entries))
                self._jump(await self._foreign(partition, end.entries[partition].start))
                return []
        return end.ranges(start)

    async def pin(self) -> None:
        """From now on nothing is read that comes later: the query ends when it has read what is there."""
        there = await self._watch.look()
        self._pinned = {partition: held.last_sequence + 1 for partition, held in there.items()}
        if self._share is not None:
            await self._share.settled(self._options.operation_timeout_seconds)

    async def done(self, end: StreamOffset) -> None:
        """All up to ``end`` is done, and Spark will not ask for the next batch."""
        if self._share is not None:
            await self._share.done(end)

    async def latest(self) -> dict[str, int]:
        there = await self._watch.latest()
        return {partition: there[partition].last_sequence + 1 for partition in in_order(there)}

    # Where the partitions stand

    async def _current(self, start: StreamOffset, there: Mapping[str, PartitionProperties]) -> dict[str, Entry]:
        if self._share is not None:
            places = await self._share.done(start)
            if self._share.failed is not None:
                raise self._share.failed
        elif not start.entries:
            partitions = self._watch.partition_ids
            places = dict(zip(partitions, await asyncio.gather(*map(self._first_entry, partitions)), strict=True))
        else:
            # A partition that is not known yet was added to the hub: all of it is new.
            places = {
                partition: Entry.at(start.entries[partition].end)
                if partition in start.entries
                else Entry.at(there[partition].begin_sequence)
                for partition in self._watch.partition_ids
            }
            self._require_known(start, places)
        is_foreign = self._is_foreign(start)
        return {
            partition: self._valid(
                place, await self._there(place, there[partition]), is_foreign and partition in start.entries
            )
            for partition, place in places.items()
        }

    def _is_foreign(self, offset: StreamOffset) -> bool:
        """Whether it tells of another hub, or of one of this name that was deleted since. The JVM connector's offsets
        tell the name alone."""
        if offset.connectors_hub:
            return offset.connectors_hub.lower() != self._watch.hub.name.lower()
        return offset.created not in ("", self._created)

    async def _there(self, place: Entry, seen: PartitionProperties) -> PartitionProperties:
        """What the partition holds. What was seen a moment ago does not tell whether a place is after the end: that
        was looked up since, and events have come in between."""
        if place.end <= seen.last_sequence + 1:
            return seen
        return await self._patiently(lambda: self._places.described(seen.partition))

    def _require_known(self, start: StreamOffset, places: Mapping[str, Entry]) -> None:
        for partition in start.entries.keys() - places.keys():
            self._jump(self._gone(partition, start.entries[partition].end))

    def _valid(self, place: Entry, there: PartitionProperties, is_foreign: bool) -> Entry:
        """The place, or the one to go on with instead, and the gap between them."""
        if place.end < min(there.begin_sequence, place.replayed_to):
            # What is to be replayed was handled before it went: nothing is lost.
            kept = min(there.begin_sequence, place.replayed_to)
            place = replace(place, start=kept, end=kept)
        reason = None
        if is_foreign:
            reason = "foreign"
        elif place.end < there.begin_sequence:
            reason = "expired"
        elif place.end > there.last_sequence + 1:
            reason = "beyond"
        if reason is None:
            return place
        position = Position.sequence(place.end, inclusive=True)
        next_sequence = self._jump(self._places.invalid(reason, position, there))
        return Entry(next_sequence, next_sequence, place.epoch, Gap(reason, place.end))

    def _jump(self, error: PositionInvalid) -> int:
        """Where to go on instead. The gap is logged here, and kept in the offset of the batch that jumps it."""
        if self._options.on_data_loss == "fail":
            raise error
        log.error("gap partition=%s %s", error.partition, error)
        is_earliest = self._options.on_data_loss == "earliest"
        return error.begin_sequence if is_earliest else error.last_sequence + 1

    async def _foreign(self, partition: str, sequence: int) -> PositionInvalid:
        there = (await self._watch.latest()).get(partition)
        if there is None:
            return self._gone(partition, sequence)
        return self._places.invalid("foreign", Position.sequence(sequence, inclusive=True), there)

    def _gone(self, partition: str, sequence: int) -> PositionInvalid:
        nothing = PartitionProperties(partition, 0, -1, None, None)
        return self._places.invalid("foreign", Position.sequence(sequence, inclusive=True), nothing)

    async def _first_entry(self, partition: str) -> Entry:
        position = self._start_positions.for_partition(partition)
        try:
            return Entry.at(await self._patiently(lambda: self._places.start(partition, position)))
        except PositionInvalid as error:
            next_sequence = self._jump(error)
            return Entry(next_sequence, next_sequence, 0, Gap(error.reason, first_wanted(position)))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Again while the hub is out of reach, as long as that may be."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.operation_timeout_seconds
        while True:
            try:
                return await call()
            except HubUnavailable:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    # How much a batch takes

    def _end(self, partition: str, place: Entry, there: Mapping[str, PartitionProperties]) -> int:
        end = there[partition].last_sequence + 1
        if self._pinned is not None:
            end = min(end, self._pinned.get(partition, place.end))
        return max(end, place.end)

    async def _allotted(self, backlogs: Mapping[str, int], places: Mapping[str, Entry]) -> dict[str, int]:
        """Events by partition, within the limits of events and of bytes."""
        allotted = allot(backlogs, self._options.max_events_per_trigger, turn=self._turn)
        bytes_max = self._options.max_bytes_per_trigger
        if bytes_max is None or not allotted:
            return allotted
        sizes = {p: await self._size(p, places[p].end) for p in allotted}
        backlog_bytes = {p: max(round(count * sizes[p]), 1) for p, count in allotted.items()}
        allotted_bytes = allot(backlog_bytes, bytes_max, turn=self._turn)
        return {p: min(allotted[p], max(int(count / sizes[p]), 1)) for p, count in allotted_bytes.items()}

    async def _size(self, partition: str, next_sequence: int) -> float:
        """How many bytes an event has, on average."""
        there = (await self._watch.latest())[partition]
        if there.bytes_count is not None and not there.is_empty:
            return max(there.bytes_count / (there.last_sequence + 1 - there.begin_sequence), 1.0)
        now = asyncio.get_running_loop().time()
        size, sampled_at = self._event_bytes.get(partition, (0.0, -SAMPLE_SECONDS))
        if now - sampled_at >= SAMPLE_SECONDS:
            size = max(await self._places.event_bytes(partition, next_sequence), 1.0)
            self._event_bytes[partition] = (size, now)
        return size

    def _note_offsets(self, entries: Mapping[str, Entry], there: Mapping[str, PartitionProperties]) -> None:
        """Where a batch ends with the newest event, the offset for its checkpoint is known now, and not for long."""
        for partition, entry in entries.items():
            held = there[partition]
            if self._share is not None and entry.end == held.last_sequence + 1 and held.last_offset is not None:
                self._share.note_offset(partition, entry.end, held.last_offset)

    def _remembered(self, end: StreamOffset) -> StreamOffset:
        self._planned = end
        if self._share is not None:
            self._share.planned(end)
        return end


def _fresh_owner_id() -> str:
    return f"spark-{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
