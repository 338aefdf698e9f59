"""The partitions that a query owns: the dispatch cycle's other half, between Spark's batches.

The dispatcher of the processor decides what the query holds, and renews it in the background, also while a batch runs
long. Which partitions a batch reads is decided between two batches, and so is which are released:

    1. fence       takes the checkpoint for the epoch: no former owner can move it from now on
    2. place       where the partition stands; from here on it is part of the batches that are planned
    3. batch       dying in it replays the same range, which Spark has written down
    4. checkpoint  at the next trigger, when Spark says that the batch is done; dying before it, the offset in Spark's
                   log is ahead of the store, and counts if nobody has had the partition since: the next start writes it
                   to the store as soon as it has the partition
    5. release     a partition that is requested is in no further batch, and is released after 4

HeldPartition is one of them. PartitionOpener does 1 and 2, CheckpointWriter does 4. All of it lives on the control
loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hubline.concurrency import BackgroundTasks, cancel
from hubline.coordination.dispatcher import Dispatcher, locking_store
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.snapshot import Wait
from hubline.coordination.strategies import Strategy
from hubline.errors import Fenced, HublineError, HubUnavailable, PositionInvalid, StoreUnavailable
from hubline.model.keys import GroupKey
from hubline.model.ownership import Ownership, ReleaseReason
from hubline.model.positions import StartPositions
from hubline.ports import CheckpointStore
from hubline.retry import Backoff, RetryPolicy
from hubline.spark.source.checkpoint_writer import CheckpointWriter, NoCheckpoints
from hubline.spark.source.held_partition import HeldPartition
from hubline.spark.source.offsets import Entry, StreamOffset
from hubline.spark.source.partition_opener import PartitionOpener, SequenceAfterLoss
from hubline.spark.source.position_lookup import Places
from hubline.spark.source.query_share import QueryShare
from hubline.spark.source.settled_strategy import SettledStrategy

log = logging.getLogger("hubline.spark")

# Between two tries to open a partition.
REOPEN: Final = RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=5.0)
# How long a stop may take: Spark waits for its planning process, and people for Spark.
STOP_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Membership:
    """Who the query is in its group, and how it takes part."""

    group: GroupKey
    owner_id: str
    strategy: Strategy
    share: QueryShare
    lease: LeaseOptions
    start: StartPositions
    lookback_seconds: float | None = None
    keeps_checkpoints: bool = True
    """Whether progress is kept in the store. If not, the query continues where Spark's own checkpoint says, and its
    other partitions start at `start`."""


class OwnedPartitions:
    """The part of a hub's partitions that a query owns: the dispatcher's Holder."""

    def __init__(
        self,
        store: CheckpointStore,
        places: Places,
        membership: Membership,
        *,
        partitions: Callable[[], tuple[str, ...]],
        sequence_after_loss: SequenceAfterLoss,
        now: Callable[[], float],
        on_wait: Callable[[Wait], None],
    ) -> None:
        self._held: dict[str, HeldPartition] = {}
        self._done = StreamOffset()
        self._seen_next: dict[str, int] = {}
        self._replayed: dict[str, Entry] = {}
        self._in_flight: frozenset[str] = frozenset()
        self._opening = BackgroundTasks()
        self._is_stopping = False
        self._invalid: dict[str, PositionInvalid] = {}
        self._last_error: HublineError | None = None
        self._follows_spark = not membership.keeps_checkpoints
        lease = membership.lease
        writer = CheckpointWriter if membership.keeps_checkpoints else NoCheckpoints
        self._writer = writer(store, places, seconds_max=lease.renew_interval_seconds, on_fenced=self._lose)
        self._opener = PartitionOpener(
            self._writer,
            places,
            start=membership.start,
            lookback_seconds=membership.lookback_seconds,
            known_at_start=frozenset(partitions()),
            sequence_after_loss=sequence_after_loss,
            now=now,
        )
        self._settling = SettledStrategy(membership.share.strategy(membership.strategy))
        self._dispatcher = Dispatcher(
            locking_store(store, membership.strategy, lease),
            self,
            group=membership.group,
            owner_id=membership.owner_id,
            strategy=self._settling,
            partitions=partitions,
            lease=lease,
            rng=random.Random(),  # noqa: S311 - spreads load, guards nothing
            on_wait=on_wait,
        )

    async def start(self) -> None:
        await self._dispatcher.start()

    async def stop(self) -> None:
        """Gives everything up. A batch that still runs is not waited for: whether it ends well is not known here."""
        self._is_stopping = True
        for held in self._held.values():
            held.at_rest.set()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._dispatcher.stop()
        except TimeoutError:
            log.warning("stop_timeout seconds=%g: partitions stay owned until their leases expire", STOP_SECONDS_MAX)
            await self._dispatcher.abort()
        await cancel(self._opening)
        await self._writer.stop()

    @property
    def failed(self) -> HublineError | None:
        """What ends the query: a position that is gone, where the user wants to hear of it."""
        unused = self._done.entries if self._follows_spark else {}
        return next((error for partition, error in self._invalid.items() if partition not in unused), None)

    async def settled(self, seconds_max: float) -> None:
        """Waits until the query has its share, and knows where it stands: for a run that ends by itself.

        Raises StoreUnavailable or HubUnavailable if that takes longer: the run would end with events unread.
        """
        try:
            async with asyncio.timeout(seconds_max):
                await self._settling.is_settled.wait()
                while (opening := list(self._opening)) and self.failed is None:
                    await asyncio.wait(opening)
        except TimeoutError:
            kind = HubUnavailable if isinstance(self._last_error, HubUnavailable) else StoreUnavailable
            reason = f" ({self._last_error})" if self._last_error else ""
            message = (
                f"after {seconds_max:g} s, the query does not have its share of the partitions yet{reason}, and would "
                "end without their events. Run it again."
            )
        else:
            return
        raise kind(message)

    # What the planner reports

    def replays(self, end: StreamOffset) -> None:
        """Spark runs a batch again that was planned before the query started: what it reads, this query will have read.

        It counts when a partition is opened for the first time. Who resets the checkpoint of one that is open takes it.
        """
        self._replayed = dict(end.entries)
        for partition, held in self._held.items():
            held.replayed = self._replayed.pop(partition, None)

    def planned(self, end: StreamOffset) -> None:
        """A batch reads this: its partitions are not released before it is done.

        Their checkpoints will need the offsets of its last events: while it runs is the time to ask for them.
        """
        self._in_flight = frozenset(p for p, entry in end.entries.items() if entry.end > entry.start)
        for partition in self._in_flight:
            if partition in self._held:
                self._writer.learn_offset(self._held[partition], end.entries[partition].end)

    def note_offset(self, partition: str, next_sequence: int, offset: str) -> None:
        """The offset of the event before a sequence number."""
        if partition in self._held:
            self._held[partition].known_offset = (next_sequence, offset)

    async def done(self, start: StreamOffset) -> dict[str, Entry]:
        """Spark has done all up to ``start``: writes the checkpoints, releases the requested partitions.

        Returns where the partitions stand that the next batch may read.
        """
        self._in_flight = frozenset()
        self._done = start
        self._seen_next.update({partition: entry.end for partition, entry in start.entries.items()})
        found = {partition: self._resume_point(held) for partition, held in self._held.items()}
        places = {partition: place for partition, place in found.items() if place is not None}
        await self._writer.write_all(list(self._held.values()))
        for held in self._held.values():
            if held.is_closing and not held.is_owed:
                held.at_rest.set()
        return {partition: place for partition, place in places.items() if self._may_read(partition)}

    def _resume_point(self, held: HeldPartition) -> Entry | None:
        """Where the partition stands, by what Spark has done of it; None while that is not known."""
        entry = self._done.entries.get(held.partition)
        if entry is not None:
            held.move_back(entry)
        place = held.place(entry, seen_next=self._seen_next.get(held.partition, 0))
        if place is None or not self._dispatcher.is_current(held.partition, held.epoch):
            return None
        if place.gap is None:  # a gap has to be reported by the offset of a batch first
            held.done_next = place.end
        return place

    def _may_read(self, partition: str) -> bool:
        held = self._held.get(partition)
        return held is not None and not held.is_closing

    # What the dispatcher asks for

    def open(self, ownership: Ownership) -> None:
        replayed = self._replayed.pop(ownership.key.partition, None)
        held = HeldPartition(ownership, replayed=replayed, follows_spark=self._follows_spark)
        if self._is_stopping:
            held.at_rest.set()
        self._held[held.partition] = held
        self._opening.spawn(self._open(held))

    def renewed(self, ownership: Ownership) -> None:
        held = self._held.get(ownership.key.partition)
        if held is not None and held.epoch == ownership.epoch:
            held.ownership = ownership

    async def close_partition(self, partition: str, reason: ReleaseReason) -> None:
        held = self._held.get(partition)
        if held is None:
            return
        held.is_closing = True
        if not reason.drains:
            held.at_rest.set()
        elif partition in self._in_flight or held.is_owed:
            await held.at_rest.wait()
        self._forget(held)
        log.info("closed partition=%s epoch=%d reason=%s", partition, held.epoch, reason)

    def report_of(self, error: HublineError, partition: str | None) -> None:
        self._last_error = error
        log.warning("error partition=%s %s: %s", partition, type(error).__name__, error)

    async def _open(self, held: HeldPartition) -> None:
        """Finds the place, again after a while where the store or the hub cannot be reached."""
        backoff = Backoff(REOPEN)
        while self._held.get(held.partition) is held:
            try:
                await self._opener.find_place(held)
            except Fenced as error:
                self._lose(held, error)
            except PositionInvalid as error:
                self._invalid[held.partition] = error
                return
            except HublineError as error:
                self.report_of(error, held.partition)
                await backoff.wait()
            else:
                # What Spark has done, and the start that did it did not live to report it to the store. The next
                # trigger may be far, and who dies before it counts on being the only one since.
                self._resume_point(held)
                if held.is_owed:
                    await self._writer.write(held)
                return

    def _lose(self, held: HeldPartition, error: Fenced) -> None:
        self.report_of(error, held.partition)
        self._forget(held)
        self._dispatcher.release_fenced(held.partition, epoch=held.epoch, held_epoch=error.held_epoch)

    def _forget(self, held: HeldPartition) -> None:
        """Unless the partition came back meanwhile, under another epoch."""
        if self._held.get(held.partition) is held:
            del self._held[held.partition]
