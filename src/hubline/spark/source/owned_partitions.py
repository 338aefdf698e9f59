"""The partitions that a query owns: the dispatch cycle's other half, between Spark's batches.

The dispatcher of the processor decides what the query holds, and renews it in the background, also while a batch runs
long. What a batch reads is decided between two batches, and so is what is given up:

    1. fence       takes the checkpoint for the epoch: no former owner can move it from now on
    2. place       where the partition stands; from here on it is part of the batches that are planned
    3. batch       dying in it replays the same range, which Spark has written down
    4. checkpoint  at the next trigger, when Spark says that the batch is done; dying before it, the offset in Spark's
                   log is ahead of the store, and counts if nobody has had the partition since: the next start tells the
                   store as soon as it has the partition
    5. release     a partition that is asked for is in no further batch, and is given up after 4

All of it lives on the control loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from hubline.coordination.dispatcher import Dispatcher, locking_store
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.snapshot import Snapshot, living_records
from hubline.coordination.store_calls import bounded, set_back
from hubline.coordination.strategies import Plan, Strategy
from hubline.errors import Fenced, HublineError, PositionInvalid
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Ownership, ReleaseReason
from hubline.model.positions import Position, PositionKind, StartPositions
from hubline.ports import CheckpointStore
from hubline.retry import RetryPolicy
from hubline.spark.source.offsets import Entry, Gap, StreamOffset
from hubline.spark.source.position_lookup import Places, first_wanted

log = logging.getLogger("hubline.spark.source.owned_partitions")

# After a store did not take a checkpoint. A query asks a hundred times a second whether there is something to do.
STORE_RETRY_SECONDS: Final = 1.0
# How much younger than the first look at it a lease is that was renewed since: stores count in whole seconds, too.
RENEWAL_SEEN_SECONDS: Final = 2.5
# How long a stop may take: Spark waits for its planning process, and people for Spark.
STOP_SECONDS_MAX: Final = 10.0


@dataclass(slots=True)
class Owned:
    """A partition that the query holds.

    ``next_sequence`` is where it stood when it was opened: None while that is being found out. ``lookback_next`` is the
    first event to replay. ``done_next`` is where it stands now, ``checkpointed_next`` what the store knows of it: while
    a replay lasts, that is ahead. ``stored_next`` is what the store knew when it was opened, be it of a hub that is no
    more. ``known_offset`` is the offset of the event before a sequence number: where a batch ends with the newest
    event, it need not be looked up. ``replayed`` is what the batch reads that Spark ran again when the query started.
    """

    ownership: Ownership
    next_sequence: int | None = None
    lookback_next: int = 0
    done_next: int = 0
    checkpointed_next: int = 0
    stored_next: int = 0
    known_offset: tuple[int, str] | None = None
    gap: Gap | None = None
    replayed: Entry | None = None
    is_closing: bool = False
    at_rest: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def epoch(self) -> int:
        return self.ownership.epoch

    @property
    def is_owed(self) -> bool:
        """Whether the store lags behind."""
        return self.checkpointed_next < self.done_next

    def offset_before(self, next_sequence: int) -> str | None:
        """The offset of the event before this one, if it is known."""
        known_next, offset = self.known_offset or (None, None)
        return offset if known_next == next_sequence else None

    def place(self, entry: Entry | None, *, seen_next: int = 0) -> Entry | None:
        """Where the next batch starts, given what the last one did; None while that is not known.

        A range of the epoch before this one counts as well: nobody has had the partition since, for whoever takes it,
        or resets its checkpoint, raises the epoch. So does a range of any epoch that was run again since the query
        started, from where the store stands on: each start that died raised the epoch as well. With any other, the
        store tells how far it came. The query has read the events before ``seen_next`` already: they are not replayed
        to it.
        """
        if self.next_sequence is None:
            return None
        if entry is not None and entry.epoch == self.epoch:
            return self._at(entry.end, self.next_sequence)
        if entry is not None and entry.end > self.next_sequence:
            is_next = entry.epoch + 1 == self.epoch
            replayed = self.replayed
            is_rerun = replayed is not None and (replayed.new_start, replayed.end) == (self.next_sequence, entry.end)
            if is_next or is_rerun:
                return self._at(entry.end, self.next_sequence)
        start = min(self.next_sequence, max(self.lookback_next, seen_next))
        return replace(self._at(start, self.next_sequence), gap=self.gap)

    def take_jump(self, entry: Entry) -> None:
        """Where the batch before this one jumped back, in a hub that was made anew meanwhile, the place is there.

        A replay is behind the checkpoint, too, and says so.
        """
        is_behind = entry.end < self.checkpointed_next and not entry.replayed_to
        if entry.epoch == self.epoch and is_behind:
            self.stored_next = max(self.stored_next, self.checkpointed_next)
            self.next_sequence = self.lookback_next = self.checkpointed_next = entry.start

    def _at(self, sequence: int, next_sequence: int) -> Entry:
        is_replayed = sequence < next_sequence
        return Entry(sequence, sequence, self.epoch, replayed_to=next_sequence if is_replayed else 0)


class SettledStrategy:
    """A strategy as it is, that also tells when there was nothing left to do, and nothing to wait for."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._seen_at: dict[tuple[str, int], float] = {}
        self.is_settled = asyncio.Event()

    @property
    def max_partitions(self) -> int | None:
        return self._strategy.max_partitions

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        plan = self._strategy.plan(snapshot, rng)
        if plan.is_idle and not self._awaits(snapshot, asyncio.get_running_loop().time()):
            self.is_settled.set()
        return plan

    def _awaits(self, snapshot: Snapshot, now: float) -> bool:
        """Whether a partition may still come: it was asked for, or its owner was not seen to renew it, and may be dead.

        Then its lease runs out. An owner that lives renews it meanwhile, and reads it, too.
        """
        limit = self.max_partitions
        if limit is not None and len(snapshot.held) >= limit:
            return False
        me = snapshot.me.owner_id
        records = living_records(snapshot).items()
        others = {(partition, record.epoch): record for partition, record in records if record.owner_id != me}
        self._seen_at = {lease: self._seen_at.get(lease, now) for lease in others}
        is_renewed = (o.age_seconds + RENEWAL_SEEN_SECONDS < now - self._seen_at[lease] for lease, o in others.items())
        is_asked = (
            o.requested_by == me and o.request_age_seconds < snapshot.handover_timeout_seconds for o in others.values()
        )
        return any(is_asked) or not all(is_renewed)


@dataclass(frozen=True, slots=True)
class Membership:
    """Who the query is in its group, and how it takes part."""

    group: GroupKey
    owner_id: str
    strategy: Strategy
    lease: LeaseOptions
    start: StartPositions
    lookback_seconds: float | None = None


Jump = Callable[[PositionInvalid], int]
"""Where to go on instead of an invalid position; raises it where the user wants that."""


class OwnedPartitions:
    """The part of a hub's partitions that a query owns: the dispatcher's Holder."""

    def __init__(
        self,
        store: CheckpointStore,
        places: Places,
        membership: Membership,
        *,
        partitions: Callable[[], tuple[str, ...]],
        jump: Jump,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._places = places
        self._membership = membership
        self._jump = jump
        self._now = now
        self._done = StreamOffset()
        self._seen_next: dict[str, int] = {}
        self._known_at_start = frozenset(partitions())
        self._owned: dict[str, Owned] = {}
        self._replayed: dict[str, Entry] = {}
        self._in_flight: frozenset[str] = frozenset()
        self._retry_at = 0.0
        self._opening: set[asyncio.Task[None]] = set()
        self._learning: set[asyncio.Task[None]] = set()
        self._reopen = RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=5.0)
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._settling = SettledStrategy(membership.strategy)
        self._is_stopping = False
        self.failed: HublineError | None = None
        """What ends the query: a position that is gone, where the user wants to hear of it."""
        self._dispatcher = Dispatcher(
            locking_store(store, membership.strategy, membership.lease),
            self,
            group=membership.group,
            owner_id=membership.owner_id,
            strategy=self._settling,
            partitions=partitions,
            lease=membership.lease,
            rng=self._rng,
        )

    async def start(self) -> None:
        await self._dispatcher.start()

    async def stop(self) -> None:
        """Gives everything up. A batch that still runs is not waited for: whether it ends well is not known here."""
        self._is_stopping = True
        for owned in self._owned.values():
            owned.at_rest.set()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._dispatcher.stop()
        except TimeoutError:
            log.warning("stop_timeout seconds=%g: the leases run out", STOP_SECONDS_MAX)
            await self._dispatcher.abort()
        for task in (*self._opening, *self._learning):
            task.cancel()

    async def settled(self, seconds_max: float) -> None:
        """Waits until the query has its share, and knows where it stands: for a run that ends by itself."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._settling.is_settled.wait()
                while self._opening and self.failed is None:
                    await asyncio.wait(self._opening)
        except TimeoutError:
            log.warning("not_settled seconds=%g", seconds_max)

    def replays(self, end: StreamOffset) -> None:
        """Spark runs a batch again that was planned before the query started: what it reads, this query will have read.

        It counts when a partition is opened for the first time. Who resets the checkpoint of one that is open takes it.
        """
        self._replayed = dict(end.entries)
        for partition, owned in self._owned.items():
            owned.replayed = self._replayed.pop(partition, None)

    def planned(self, end: StreamOffset) -> None:
        """A batch reads this: its partitions are not given up before it is done.

        Their checkpoints will need the offsets of its last events: while it runs is the time to ask for them.
        """
        self._in_flight = frozenset(p for p, entry in end.entries.items() if entry.end > entry.start)
        for partition in self._in_flight:
            owned, next_sequence = self._owned.get(partition), end.entries[partition].end
            if owned is not None and owned.offset_before(next_sequence) is None:
                task = asyncio.create_task(self._learn_offset(owned, next_sequence))
                self._learning.add(task)
                task.add_done_callback(self._learning.discard)

    def note_offset(self, partition: str, next_sequence: int, offset: str) -> None:
        """The offset of the event before a sequence number."""
        owned = self._owned.get(partition)
        if owned is not None:
            owned.known_offset = (next_sequence, offset)

    async def done(self, start: StreamOffset) -> dict[str, Entry]:
        """Spark has done all up to ``start``: writes the checkpoints, lets go of what was asked for.

        Returns where the partitions stand that the next batch may read.
        """
        self._in_flight = frozenset()
        self._done = start
        self._seen_next.update({partition: entry.end for partition, entry in start.entries.items()})
        found = {partition: self._resume_point(owned) for partition, owned in self._owned.items()}
        places = {partition: place for partition, place in found.items() if place is not None}
        await self._checkpoint()
        for owned in self._owned.values():
            if owned.is_closing and not owned.is_owed:
                owned.at_rest.set()
        return {partition: place for partition, place in places.items() if self._may_read(partition)}

    def _resume_point(self, owned: Owned) -> Entry | None:
        """Where the partition stands, by what Spark has done of it; None while that is not known."""
        partition = owned.ownership.key.partition
        entry = self._done.entries.get(partition)
        if entry is not None:
            owned.take_jump(entry)
        place = owned.place(entry, seen_next=self._seen_next.get(partition, 0))
        if place is None or not self._dispatcher.is_current(partition, owned.epoch):
            return None
        if place.gap is None:  # one that is jumped has to be told by the offset of a batch first
            owned.done_next = place.end
        return place

    def _may_read(self, partition: str) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and not owned.is_closing

    async def _checkpoint(self) -> None:
        """Writes what is ahead of the store. A store that is down costs repeats after a crash, and no progress."""
        behind = [owned for owned in self._owned.values() if owned.is_owed]
        loop = asyncio.get_running_loop()
        if behind and loop.time() >= self._retry_at:
            written = await asyncio.gather(*map(self._write, behind))
            if not all(written):
                self._retry_at = loop.time() + STORE_RETRY_SECONDS

    async def _write(self, owned: Owned) -> bool:
        key, done_next = owned.ownership.key, owned.done_next
        try:
            checkpoint = Checkpoint(key, await self._offset_before(owned), done_next - 1)
            if done_next > owned.stored_next:
                await self._update(checkpoint, owned.epoch)
            else:  # the store has more of a hub that is no more: the query jumped back, to the one made anew
                seconds_max = self._membership.lease.renew_interval_seconds
                await set_back(self._store, checkpoint, epoch=owned.epoch, seconds_max=seconds_max)
        except Fenced as error:
            # Another owner has it, and started from the checkpoint before this one: this query reads it no more.
            self._lose(owned, error)
        except HublineError as error:
            self.report_of(error, key.partition)
            return False
        owned.checkpointed_next = done_next
        return True

    async def _offset_before(self, owned: Owned) -> str:
        known = owned.offset_before(owned.done_next)
        return await self._offset_of(owned.ownership.key.partition, owned.done_next - 1) if known is None else known

    async def _learn_offset(self, owned: Owned, next_sequence: int) -> None:
        with suppress(HublineError):  # then it is asked for again, when it is needed
            offset = await self._offset_of(owned.ownership.key.partition, next_sequence - 1)
            owned.known_offset = (next_sequence, offset)

    async def _update(self, checkpoint: Checkpoint, epoch: int) -> None:
        seconds_max = self._membership.lease.renew_interval_seconds
        await bounded(seconds_max, self._store.update_checkpoint)(checkpoint, epoch=epoch)

    def _lose(self, owned: Owned, error: Fenced) -> None:
        partition = owned.ownership.key.partition
        self.report_of(error, partition)
        if self._owned.get(partition) is owned:
            del self._owned[partition]
        self._dispatcher.release_fenced(partition, epoch=owned.epoch, held_epoch=error.held_epoch)

    # What the dispatcher asks for

    def open(self, ownership: Ownership) -> None:
        owned = Owned(ownership, replayed=self._replayed.pop(ownership.key.partition, None))
        if self._is_stopping:
            owned.at_rest.set()
        self._owned[ownership.key.partition] = owned
        task = asyncio.create_task(self._find_place(owned))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def renewed(self, ownership: Ownership) -> None:
        owned = self._owned.get(ownership.key.partition)
        if owned is not None and owned.epoch == ownership.epoch:
            owned.ownership = ownership

    async def close_partition(self, partition: str, reason: ReleaseReason) -> None:
        owned = self._owned.get(partition)
        if owned is None:
            return
        owned.is_closing = True
        if not reason.drains:
            owned.at_rest.set()
        elif partition in self._in_flight or owned.is_owed:
            await owned.at_rest.wait()
        if self._owned.get(partition) is owned:
            del self._owned[partition]
        log.info("closed partition=%s epoch=%d reason=%s", partition, owned.epoch, reason)

    def report_of(self, error: HublineError, partition: str | None) -> None:
        log.warning("error partition=%s %s: %s", partition, type(error).__name__, error)

    # Opening

    async def _find_place(self, owned: Owned) -> None:
        """From the fence to the place, again after a while where the store or the hub cannot be reached."""
        attempts = 0
        while self._owned.get(owned.ownership.key.partition) is owned:
            attempts += 1
            try:
                await self._try_to_find_place(owned)
            except Fenced as error:
                self._lose(owned, error)
            except PositionInvalid as error:
                self.failed = error
                return
            except HublineError as error:
                self.report_of(error, owned.ownership.key.partition)
                await asyncio.sleep(self._reopen.delay(attempts, self._rng))
            else:
                # What Spark has done, and the start that did it did not live to tell the store. The next trigger may
                # be far, and who dies before it counts on being the only one since.
                self._resume_point(owned)
                if owned.is_owed:
                    await self._write(owned)
                return

    async def _try_to_find_place(self, owned: Owned) -> None:
        key = owned.ownership.key
        fence = bounded(self._membership.lease.renew_interval_seconds, self._store.fence)
        checkpoint = await fence(key, owned.epoch)
        if checkpoint is None:
            place = await self._first_place(owned)
        else:
            owned.stored_next = checkpoint.sequence_number + 1
            place = await self._place_after(owned, checkpoint)
        owned.lookback_next = await self._lookback_place(key.partition, place)
        owned.next_sequence = place
        # A gap counts when the batch that tells of it is done: dying before, it is found again.
        known = place if owned.gap is None else min(owned.gap.next_sequence, place)
        owned.done_next = owned.checkpointed_next = known
        log.info("opened partition=%s epoch=%d next=%d from=%d", key.partition, owned.epoch, place, owned.lookback_next)

    async def _lookback_place(self, partition: str, place: int) -> int:
        """The first event of the last so many hours; the place itself if nothing before it is to be replayed."""
        lookback_seconds = self._membership.lookback_seconds
        if lookback_seconds is None:
            return place
        first = Position.enqueued(_ago(self._now(), lookback_seconds), inclusive=True)
        return min(place, await self._places.start(partition, first))

    async def _place_after(self, owned: Owned, checkpoint: Checkpoint) -> int:
        partition = owned.ownership.key.partition
        try:
            return await self._places.resume(partition, checkpoint)
        except PositionInvalid as error:
            owned.gap = Gap(error.reason, checkpoint.sequence_number + 1)
            return self._jump(error)

    async def _first_place(self, owned: Owned) -> int:
        """Of a partition without a checkpoint. One that was added since the query runs starts at its beginning."""
        key = owned.ownership.key
        start = self._membership.start.for_partition(key.partition)
        if key.partition not in self._known_at_start:
            start = Position.earliest()
        try:
            place = await self._places.start(key.partition, start)
        except PositionInvalid as error:
            owned.gap = Gap(error.reason, first_wanted(start))
            return self._jump(error)
        if start == Position.latest() or (start.kind is PositionKind.ENQUEUED and self._looks_back):
            await self._write_down(owned, place)
        return place

    @property
    def _looks_back(self) -> bool:
        return self._membership.lookback_seconds is not None

    async def _write_down(self, owned: Owned, place: int) -> None:
        """After a crash before the first batch, "the end" would be further on, and so would be "an hour ago".

        A replay makes that a long time, and what lies between would pass for handled.
        """
        key = owned.ownership.key
        if place == 0:
            await self._update(Checkpoint.before_first(key), owned.epoch)
            return
        await self._update(Checkpoint(key, await self._offset_of(key.partition, place - 1), place - 1), owned.epoch)

    async def _offset_of(self, partition: str, sequence: int) -> str:
        """Of an event; empty where it was removed by now, and its offset with it: the sequence number has to do."""
        try:
            return await self._places.offset_of(partition, sequence)
        except PositionInvalid:
            return ""


def _ago(now: float, seconds: float) -> datetime:
    """So long before now, or as long ago as times go."""
    return datetime.fromtimestamp(max(now - seconds, 0.0), UTC)
