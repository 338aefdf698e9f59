"""The dispatch cycle: renew ▶ list ▶ plan ▶ claim ▶ open and close.

The dispatcher decides which partitions this processor holds; a :class:`Holder` runs them. Three tasks share the
work, so that nothing slow stands before a renewal:

    renew    every ``renew_interval_seconds``: announces the member and renews its leases
    expire   gives up what could not be renewed for a whole lease, before anyone else may take it
    cycle    every ``load_balancing_interval_seconds``, or at once while there is something to do: list, plan, claim

All of them run on one event loop, the control loop. Elapsed time is that loop's; ages are the store's.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar

from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.snapshot import Snapshot, recovered_after_restart
from hubline.coordination.store_calls import bounded
from hubline.coordination.strategies import Fixed, Plan, Strategy
from hubline.errors import ConfigError, HublineError, LeaseLost, ProcessorError, RecordDamaged, StoreError
from hubline.model.keys import GroupKey
from hubline.model.ownership import GroupState, Member, Ownership, ReleaseReason
from hubline.ports import CheckpointStore, LockingStore, shares_with_sdks

log = logging.getLogger("hubline.dispatch")

P = ParamSpec("P")
T = TypeVar("T")

RERUN_SECONDS_MIN = 0.015
"""Planning again "at once" still leaves the store this much air, should every claim be lost."""

INTERVAL_JITTER = 0.2
"""Cycles start up to this part early, so that members do not march in step; never late, which would delay takeovers."""

JOIN_SECONDS_MAX = 30.0
"""The first call connects, and may create the schema beside others; no lease runs yet that waiting could cost."""

RENEWAL_RETRIES = 4
"""A renewal that fails is tried again this much sooner: the lease goes on running."""

RELEASE_ATTEMPTS_MAX = 3
"""A partition that cannot be given up in so many tries is left to expire: releasing early only saves time."""


class Holder(Protocol):
    """Runs partitions for a dispatcher. Called on the control loop; must never block it."""

    def open(self, ownership: Ownership) -> None:
        """The partition is this processor's now. A former run of it, if still closing, ends first."""
        ...

    def renewed(self, ownership: Ownership) -> None: ...

    async def close_partition(self, partition: str, reason: ReleaseReason) -> None:
        """Ends the partition and returns once it is at rest; drained and checkpointed if the reason says so."""
        ...

    def report_of(self, error: HublineError, partition: str | None) -> None: ...


@dataclass(slots=True)
class _Held:
    """A partition that this processor holds. ``expires_at`` is when its lease ends unless renewed."""

    ownership: Ownership
    expires_at: float
    release: asyncio.Task[None] | None = None
    epoch_floor: int = 0

    def given_up(self) -> Ownership:
        """The record to write when the partition is given up."""
        return replace(self.ownership, owner_id="", epoch=max(self.ownership.epoch, self.epoch_floor))


def locking_store(store: CheckpointStore, strategy: Strategy, lease: LeaseOptions) -> CheckpointStore:
    """The store for a strategy: the same one, or one that locks partitions if the strategy asks for it.

    Raises:
        ConfigError: If the store cannot lock partitions, or the locks would end before the leases.
    """
    if not isinstance(strategy, Fixed) or strategy.lock_seconds is None:
        return store
    if not isinstance(store, LockingStore):
        raise ConfigError(
            f"{store!r} cannot lock partitions: Fixed(lease=...) needs a store in Azure Blob Storage. Leave lease out: "
            "a Fixed consumer does not release partitions while it is active"
        )
    if strategy.lock_seconds < lease.lease_seconds:
        raise ConfigError(
            f"Fixed(lease=...) locks partitions for {strategy.lock_seconds} s, but their owner keeps them for "
            f"{lease.lease_seconds:g} s: use LeaseOptions(lease_seconds={strategy.lock_seconds}), or a longer lock"
        )
    return store.with_locks(strategy.lock_seconds)


class Dispatcher:
    """Keeps one member of a group in its share of the partitions. ``partitions`` tells the hub's, now."""

    def __init__(
        self,
        store: CheckpointStore,
        holder: Holder,
        *,
        group: GroupKey,
        owner_id: str,
        strategy: Strategy,
        partitions: Callable[[], Sequence[str]],
        lease: LeaseOptions,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._holder = holder
        self._group = group
        self._member = Member(owner_id, strategy.partitions_max)
        self._strategy = strategy
        self._partitions = partitions
        self._lease = lease
        self._rng = rng
        self._held: dict[str, _Held] = {}
        self._damaged: dict[str, str] = {}
        self._releases: dict[asyncio.Task[None], None] = {}  # a set in the order of its making
        self._tasks: list[asyncio.Task[None]] = []
        self._at_rest: dict[str, _Held] = {}
        self._giving_up: asyncio.Task[set[str]]
        # Renewing and releasing both move the version of a held record: one at a time.
        self._versions = asyncio.Lock()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._clock: Callable[[], float] = _time

    @property
    def held(self) -> dict[str, Ownership]:
        """What this processor holds, as last renewed."""
        return {partition: held.ownership for partition, held in self._held.items()}

    def is_current(self, partition: str, epoch: int) -> bool:
        """Whether the lease under which the partition was opened still runs. Any thread may ask."""
        held = self._held.get(partition)
        return held is not None and held.ownership.epoch == epoch and self._clock() < held.expires_at

    async def start(self) -> None:
        """Joins the group and starts the tasks. Raises StoreError if the store cannot be used at all."""
        self._clock = asyncio.get_running_loop().time
        await bounded(JOIN_SECONDS_MAX, self._store.renew_ownership)(self._group, self._member, ())
        self._tasks = [
            asyncio.create_task(self._renew_forever(), name="hubline-renew"),
            asyncio.create_task(self._expire_forever(), name="hubline-expire"),
            asyncio.create_task(self._cycle_forever(), name="hubline-cycle"),
        ]

    async def stop(self) -> None:
        """Drains and gives up every partition, then leaves the group. Renewals go on meanwhile."""
        *keeping, cycle = self._tasks
        # Not cancelled: a claim on its way would take effect, and its partition be nobody's until the lease ran out.
        self._is_stopping = True
        self._wake.set()
        await asyncio.wait([cycle])
        # Limited to nothing, this member is dealt nothing and the others plan for its share at once.
        self._member = replace(self._member, partitions_max=0)
        with suppress(StoreError):
            await self._renew()
        for partition in list(self._held):
            self._release(partition, ReleaseReason.STOPPED)
        while self._releases:
            await asyncio.wait(self._releases)
        await cancel(keeping)
        try:
            await self._bounded(self._store.leave, self._group, self._member.owner_id)
        except StoreError as error:
            # Dying here leaves a member that is not heard of again: it counts for one more lease.
            self._holder.report_of(error, None)

    async def abort(self) -> None:
        """Stops at once and gives up nothing: the leases run out."""
        await cancel([*self._tasks, *self._releases])

    def surrender(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        """The holder found a higher epoch on the checkpoint: gives the partition up at that one, to claim it above."""
        held = self._held.get(partition)
        if held is not None and held.ownership.epoch == epoch:
            held.epoch_floor = held_epoch
            self._release(partition, ReleaseReason.LOST)

    # Renewing

    async def _renew_forever(self) -> None:
        delay = self._lease.renew_interval_seconds
        while True:
            await asyncio.sleep(delay)
            started_at = _time()
            try:
                await self._renew()
                delay = self._lease.renew_interval_seconds - (_time() - started_at)
            except StoreError as error:
                self._holder.report_of(error, None)
                delay = self._lease.renew_interval_seconds / RENEWAL_RETRIES

    async def _renew(self) -> None:
        async with self._versions:
            missing = await self._renew_leases(list(self._held))
            if missing:
                # Not renewed is not yet lost: an earlier renewal may have taken effect without its answer.
                self._reconcile(await self._list(), missing)
                if still_held := [partition for partition in missing if partition in self._held]:
                    await self._renew_leases(still_held)

    async def _renew_leases(self, partitions: Sequence[str]) -> list[str]:
        """Announces the member and renews these leases; returns those of which the store has another version."""
        sent_at = _time()
        owned = [self._held[partition].ownership for partition in partitions]
        renewed = await self._bounded(self._store.renew_ownership, self._group, self._member, owned)
        for ownership in renewed:
            self._keep(ownership, sent_at)
        if any(o.requested_by and o.request_age_seconds < self._lease.handover_timeout_seconds for o in renewed):
            self._wake.set()
        kept = {ownership.key.partition for ownership in renewed}
        return [partition for partition in partitions if partition not in kept]

    def _keep(self, ownership: Ownership, sent_at: float) -> None:
        held = self._held.get(ownership.key.partition)
        if held is None or held.ownership.epoch != ownership.epoch:
            return
        held.ownership = ownership
        if _time() >= held.expires_at:
            # Woken after a pause: the answer is older than the end of the lease, which others may have seen. It ends
            # here too, and is claimed anew.
            return
        # Counted from before the call: the store's clock for this lease started later, never earlier.
        held.expires_at = sent_at + self._lease.lease_seconds
        self._holder.renewed(ownership)

    def _reconcile(self, state: GroupState, partitions: Iterable[str]) -> None:
        """Learns the versions of what is still this processor's, and loses the rest.

        No lease is longer for it: a record looks young also when the store's clock was set back.
        """
        records = {ownership.key.partition: ownership for ownership in state.ownerships}
        for partition in partitions:
            held, record = self._held.get(partition), records.get(partition)
            if held is None:
                continue
            if record and (record.owner_id, record.epoch) == (self._member.owner_id, held.ownership.epoch):
                held.ownership = record
            else:
                gone = state.damaged.get(partition, "its record is gone")
                self._lose(partition, self._who_took(record) if record else gone)

    def _lose_taken(self, state: GroupState) -> None:
        """Sees a takeover at the next listing already; a stale listing shows lower epochs only, and does no harm."""
        for record in state.ownerships:
            held = self._held.get(record.key.partition)
            if held is not None and record.epoch > held.ownership.epoch:
                self._lose(record.key.partition, self._who_took(record))

    def _who_took(self, record: Ownership) -> str:
        if not record.owner_id:
            return "it was given up for this processor, as resetting a checkpoint does"
        if record.owner_id == self._member.owner_id:
            return f"another processor runs under this one's owner id {record.owner_id!r}: give each its own"
        return f"owner {record.owner_id!r} took it"

    async def _expire_forever(self) -> None:
        while True:
            now = _time()
            for partition, held in list(self._held.items()):
                if now >= held.expires_at:
                    self._lose(partition, f"the lease of {self._lease.lease_seconds:g} s ran out before it was renewed")
            ends = min((held.expires_at for held in self._held.values()), default=now + self._lease.lease_seconds)
            await asyncio.sleep(min(ends - _time(), self._lease.renew_interval_seconds))

    def _lose(self, partition: str, why: str) -> None:
        held = self._held.pop(partition)
        log.warning("lease_lost partition=%s epoch=%d why=%s", partition, held.ownership.epoch, why)
        self._holder.report_of(LeaseLost(f"partition {partition} was lost: {why}", partition=partition), partition)
        self._spawn(self._holder.close_partition(partition, ReleaseReason.LOST))
        self._wake.set()

    # The cycle

    async def _cycle_forever(self) -> None:
        delay = await self._cycle_guarded(is_joining=True)
        while not self._is_stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            self._wake.clear()
            if not self._is_stopping:
                delay = await self._cycle_guarded(is_joining=False)

    async def _cycle_guarded(self, *, is_joining: bool) -> float:
        """One cycle; a failing store costs this cycle only. Returns the seconds until the next."""
        try:
            plan = await self._cycle(is_joining=is_joining)
        except HublineError as error:
            self._holder.report_of(error, None)
            plan = Plan()
        except Exception as error:  # noqa: BLE001 - a strategy of the user's own may raise anything
            message = f"the dispatch cycle failed with {type(error).__name__}: {error}"
            self._holder.report_of(ProcessorError(message, partition=""), None)
            plan = Plan()
        if is_joining:
            return self._lease.startup_delay_seconds
        interval = self._lease.load_balancing_interval_seconds * self._rng.uniform(1 - INTERVAL_JITTER, 1)
        return interval if plan.rerun_seconds is None else min(max(plan.rerun_seconds, RERUN_SECONDS_MIN), interval)

    async def _cycle(self, *, is_joining: bool) -> Plan:
        state = await self._list()
        self._report_damaged(state)
        self._lose_taken(state)
        snapshot = self._snapshot(state)
        # A member that joins takes back what is recorded as its own; the rest waits until those who start
        # together with it have announced themselves.
        plan = (
            Plan(claims=recovered_after_restart(snapshot)) if is_joining else self._strategy.plan(snapshot, self._rng)
        )
        if plan.claims or plan.steals:
            await self._claim([*plan.claims, *plan.steals], snapshot)
        if plan.requests:
            keys = [self._group.partition(partition) for partition in plan.requests]
            await self._bounded(self._store.request_handover, keys, owner_id=self._member.owner_id)
        for partition in plan.relinquish:
            self._release(partition, ReleaseReason.RELINQUISHED)
        if not plan.is_idle:
            log.info(
                "cycle claims=%d steals=%d requests=%d relinquished=%d held=%d",
                *map(len, (plan.claims, plan.steals, plan.requests, plan.relinquish, self._held)),
            )
        return plan

    def _snapshot(self, state: GroupState) -> Snapshot:
        return Snapshot(
            me=self._member,
            partitions=[p for p in self._partitions() if p not in state.damaged],
            ownerships={ownership.key.partition: ownership for ownership in state.ownerships},
            members=state.members,
            held=frozenset(self._held),
            lease_seconds=self._lease.lease_seconds,
            handover_timeout_seconds=self._lease.handover_timeout_seconds,
            sdk_lease_seconds=self._lease.sdk_lease_seconds if shares_with_sdks(self._store) else None,
        )

    async def _claim(self, partitions: Sequence[str], snapshot: Snapshot) -> None:
        claims = [self._claim_of(partition, snapshot.ownerships.get(partition)) for partition in partitions]
        sent_at = _time()
        # Dying after this call leaves the partitions to this owner id until the lease runs out, or to its restart.
        for ownership in await self._bounded(self._store.claim_ownership, claims):
            self._held[ownership.key.partition] = _Held(ownership, sent_at + self._lease.lease_seconds)
            log.info("claimed partition=%s epoch=%d", ownership.key.partition, ownership.epoch)
            self._holder.open(ownership)

    def _claim_of(self, partition: str, record: Ownership | None) -> Ownership:
        return Ownership(
            key=self._group.partition(partition),
            owner_id=self._member.owner_id,
            epoch=record.epoch + 1 if record else 1,
            version=record.version if record else None,
        )

    def _report_damaged(self, state: GroupState) -> None:
        for partition, what in state.damaged.items():
            if self._damaged.get(partition) != what:
                self._holder.report_of(RecordDamaged(what, partition=partition, record="ownership"), partition)
        self._damaged = dict(state.damaged)

    # Releasing

    def _release(self, partition: str, reason: ReleaseReason) -> None:
        """Starts to give a partition up; it is held, and renewed, until it is at rest."""
        held = self._held.get(partition)
        if held is not None and held.release is None:
            held.release = self._spawn(self._release_held(partition, held, reason))

    async def _release_held(self, partition: str, held: _Held, reason: ReleaseReason) -> None:
        await self._holder.close_partition(partition, reason)
        for attempt in range(RELEASE_ATTEMPTS_MAX):
            if self._held.get(partition) is not held:
                return
            with suppress(StoreError):
                if await self._give_up(partition, held):
                    break
            await asyncio.sleep(self._lease.renew_interval_seconds / RELEASE_ATTEMPTS_MAX * (attempt > 0))
        if self._held.get(partition) is held:
            del self._held[partition]
        log.info("released partition=%s reason=%s", partition, reason)
        if reason is not ReleaseReason.RELINQUISHED:
            self._wake.set()

    async def _give_up(self, partition: str, held: _Held) -> bool:
        """Gives up a partition at rest, in one call with all others that come to rest until it is sent.

        One by one, a member that hands over hundreds would keep its own renewals waiting.
        """
        self._at_rest[partition] = held
        if len(self._at_rest) == 1:
            self._giving_up = asyncio.create_task(self._release_drained())
        return partition in await self._giving_up

    async def _release_drained(self) -> set[str]:
        async with self._versions:
            at_rest, self._at_rest = self._at_rest, {}
            claims = [held.given_up() for held in at_rest.values()]
            given_up = {o.key.partition for o in await self._bounded(self._store.claim_ownership, claims)}
            for partition in given_up:
                # Before the next renewal gets its turn, which would find it taken.
                if self._held.get(partition) is at_rest[partition]:
                    del self._held[partition]
            missing = at_rest.keys() - given_up
            if missing:
                # Another version is stored: ours, if an answer was lost on the way; else someone took it.
                self._reconcile(await self._list(), sorted(missing))
            return given_up

    # Small things

    async def _list(self) -> GroupState:
        return await self._bounded(self._store.list_ownership, self._group)

    async def _bounded(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """A store call that takes no longer than the time between two renewals."""
        return await bounded(self._lease.renew_interval_seconds, function)(*args, **kwargs)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._releases[task] = None
        task.add_done_callback(self._releases.pop)
        return task


def _time() -> float:
    return asyncio.get_running_loop().time()


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
