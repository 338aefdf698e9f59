"""The dispatch cycle: list ▶ plan ▶ claim ▶ open and close.

The dispatcher decides which partitions this processor holds; a :class:`Holder` runs them. Its parts share the work, so
that nothing slow stands before a renewal:

    LeaseKeeper     renews the leases that are held, and loses those that expired or were taken
    HandoverQueue   drains partitions and releases them
    Dispatcher      every ``load_balancing_interval_seconds``, or at once when there is work: list, plan, claim

All of them run on one event loop, the control loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hubline.concurrency import BackgroundTasks, TimeLimit, cancel
from hubline.coordination.handover import HandoverQueue
from hubline.coordination.lease_keeper import Holder, LeaseKeeper, loop_time
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.snapshot import Snapshot, Wait, recovered_after_restart, waits
from hubline.coordination.store_calls import GroupCalls
from hubline.coordination.strategies import Fixed, Plan, Strategy
from hubline.errors import ConfigError, HublineError, ProcessorError, RecordDamaged, StoreError
from hubline.model.keys import GroupKey
from hubline.model.ownership import GroupState, Member, Ownership, ReleaseReason
from hubline.ports import CheckpointStore, LockingStore, keeps_requests, shares_with_sdks
from hubline.text import sentences

log = logging.getLogger("hubline.coordination")

RERUN_SECONDS_MIN = 0.015
"""Planning again "at once" still leaves the store this much air, should every claim be lost."""

INTERVAL_JITTER = 0.2
"""Cycles start up to this part early, so that members do not march in step; never late, which would delay takeovers."""

JOIN_SECONDS_MAX = 30.0
"""The first call connects, and may create the schema beside others; no lease runs yet that waiting could cost."""


def locking_store(store: CheckpointStore, strategy: Strategy, lease: LeaseOptions) -> CheckpointStore:
    """The store for a strategy: the same one, or one that locks partitions if the strategy asks for it.

    Raises:
        ConfigError: If the store cannot lock partitions, or the locks would end before the leases.
    """
    if not isinstance(strategy, Fixed) or strategy.lock_seconds is None:
        return store
    if not isinstance(store, LockingStore):
        raise ConfigError(
            f"{store!r} cannot lock partitions: Fixed(lease=...) needs a store in Azure Blob Storage. Leave "
            "lease out, because a Fixed consumer does not release partitions while it is active."
        )
    if strategy.lock_seconds < lease.lease_seconds:
        raise ConfigError(
            f"Fixed(lease=...) locks partitions for {strategy.lock_seconds} s, but their owner keeps them for "
            f"{lease.lease_seconds:g} s. Use LeaseOptions(lease_seconds={strategy.lock_seconds}), or a longer lock."
        )
    return store.with_locks(strategy.lock_seconds)


class Dispatcher:
    """Keeps one member of a group in its share of the partitions. ``partitions`` returns the hub's, as known now.

    ``on_wait`` is called where it holds no partition, because others own all of them: once for each of them.
    """

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
        on_wait: Callable[[Wait], None] = lambda _: None,
    ) -> None:
        self._calls = GroupCalls(store, group, seconds_max=lease.renew_interval_seconds)
        self._holder = holder
        self._strategy = strategy
        self._partitions = partitions
        self._lease = lease
        self._rng = rng
        self._damaged: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = BackgroundTasks()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._on_wait = on_wait
        self._waits_for: frozenset[str] = frozenset()
        self._leases = LeaseKeeper(
            self._calls,
            holder,
            member=Member(owner_id, strategy.max_partitions),
            lease=lease,
            wake=self._wake,
            closing=self._closing,
        )
        self._handovers = HandoverQueue(
            self._calls, holder, self._leases, lease=lease, wake=self._wake, closing=self._closing
        )

    @property
    def held(self) -> dict[str, Ownership]:
        """What this processor holds, as last renewed."""
        return {partition: held.ownership for partition, held in self._leases.held.items()}

    def is_current(self, partition: str, epoch: int) -> bool:
        """Whether the lease under which the partition was opened still runs. Any thread may ask."""
        return self._leases.is_current(partition, epoch)

    def release_fenced(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        """The holder found a higher epoch on the checkpoint: releases the partition at that one, to claim it above."""
        self._handovers.release_fenced(partition, epoch=epoch, held_epoch=held_epoch)

    async def start(self) -> None:
        """Joins the group and starts the tasks. Raises StoreError if the store cannot be used at all."""
        joined = await self._calls.join(self._leases.member, seconds_max=JOIN_SECONDS_MAX)
        cycles = asyncio.create_task(self._cycle_forever(joined.group), name="hubline-cycle")
        self._tasks = [*self._leases.start(), cycles]

    async def stop(self) -> None:
        """Drains and releases every partition, then leaves the group. Renewals continue while that lasts."""
        *keeping, cycle = self._tasks
        # Not cancelled: a claim on its way would take effect, and its partition have no owner until the lease expired.
        self._is_stopping = True
        self._wake.set()
        await asyncio.wait([cycle])
        # Limited to nothing, this member is dealt nothing and the others plan for its share at once.
        self._leases.member = replace(self._leases.member, max_partitions=0)
        with suppress(StoreError):
            await self._leases.renew()
        for partition in list(self._leases.held):
            self._handovers.release(partition, ReleaseReason.STOPPED)
        await self._closing.wait()
        await cancel(keeping)
        try:
            await self._calls.renew(self._leases.member, ())
        except StoreError as error:
            # Dying here leaves a member that no longer renews: it counts for one more lease.
            self._holder.report_of(error, None)

    async def abort(self) -> None:
        """Stops at once and releases nothing: the leases expire."""
        await cancel([*self._tasks, *self._closing])

    async def _cycle_forever(self, joined: GroupState | None) -> None:
        await self._guarded(self._rejoin(joined))
        delay = self._lease.startup_delay_seconds
        while not self._is_stopping:
            with suppress(TimeoutError), TimeLimit(delay):
                await self._wake.wait()
            self._wake.clear()
            if not self._is_stopping:
                plan = await self._guarded(self._cycle())
                delay = self._seconds_until_next(plan)

    async def _guarded(self, cycle: Coroutine[Any, Any, Plan]) -> Plan:
        """One cycle; a failing store costs this cycle only."""
        try:
            return await cycle
        except HublineError as error:
            self._holder.report_of(error, None)
        except Exception as error:  # noqa: BLE001 - a strategy of the user's own may raise anything
            message = f"the dispatch cycle failed with {type(error).__name__}: {error}"
            fix = "hubline tries again in the next cycle; if it lasts, fix the strategy of load_balancing"
            self._holder.report_of(ProcessorError(sentences(message, fix), partition=""), None)
        return Plan()

    def _seconds_until_next(self, plan: Plan) -> float:
        longest = self._lease.load_balancing_interval_seconds
        interval = longest * self._rng.uniform(1 - INTERVAL_JITTER, 1)
        listing_seconds = self._leases.seconds_until_listing(within=longest)
        interval = interval if listing_seconds is None else listing_seconds
        return interval if plan.rerun_seconds is None else min(max(plan.rerun_seconds, RERUN_SECONDS_MIN), interval)

    async def _rejoin(self, joined: GroupState | None) -> Plan:
        """A member that joins takes back what is recorded as its own; the rest waits until those who start together
        with it have announced themselves.
        """
        snapshot = self._seen(joined or await self._calls.list_ownership())
        return await self._carry_out(Plan(claims=recovered_after_restart(snapshot)), snapshot)

    async def _cycle(self) -> Plan:
        state = await self._leases.look()
        snapshot = self._seen(state)
        plan = self._strategy.plan(snapshot, self._rng)
        if state.is_partial and not plan.is_idle:
            # There may be something to do: only now it is worth to ask who else is there, and who requested what.
            snapshot = self._seen(await self._calls.list_ownership())
            plan = self._strategy.plan(snapshot, self._rng)
        return await self._carry_out(plan, snapshot)

    def _seen(self, state: GroupState) -> Snapshot:
        self._report_damaged(state)
        self._leases.lose_taken(state)
        return self._snapshot(state)

    async def _carry_out(self, plan: Plan, snapshot: Snapshot) -> Plan:
        if plan.claims or plan.steals:
            await self._claim([*plan.claims, *plan.steals], snapshot)
        if plan.requests:
            await self._calls.request_handover(plan.requests, owner_id=self._leases.member.owner_id)
        for partition in plan.releases:
            self._handovers.release(partition, ReleaseReason.REQUESTED)
        self._tell_waits(snapshot)
        if not plan.is_idle:
            log.info(
                "cycle claims=%d steals=%d requests=%d releases=%d held=%d",
                *map(len, (plan.claims, plan.steals, plan.requests, plan.releases, self._leases.held)),
            )
        return plan

    def _tell_waits(self, snapshot: Snapshot) -> None:
        """Once for each owner that it waits for: after a crash, nothing else happens until a lease expires."""
        found = [] if self._leases.held else waits(snapshot)
        for wait in found:
            if wait.owner_id not in self._waits_for:
                log.info(
                    "waiting partitions=%s owner_id=%s lease_seconds_left=%.0f: unless renewed, it claims them then",
                    ",".join(wait.partitions),
                    wait.owner_id,
                    wait.seconds_left,
                )
                self._on_wait(wait)
        self._waits_for = frozenset(wait.owner_id for wait in found)

    def _snapshot(self, state: GroupState) -> Snapshot:
        return Snapshot(
            me=self._leases.member,
            partitions=[p for p in self._partitions() if p not in state.damaged],
            ownerships={ownership.key.partition: ownership for ownership in state.ownerships},
            members=state.members,
            held=frozenset(self._leases.held),
            lease_seconds=self._lease.lease_seconds,
            handover_timeout_seconds=self._lease.handover_timeout_seconds,
            sdk_lease_seconds=self._lease.sdk_lease_seconds if shares_with_sdks(self._calls.store) else None,
            keeps_requests=keeps_requests(self._calls.store),
        )

    async def _claim(self, partitions: Sequence[str], snapshot: Snapshot) -> None:
        claims = [self._claim_of(partition, snapshot.ownerships.get(partition)) for partition in partitions]
        sent_at = loop_time()
        # Dying after this call leaves the partitions to this owner id until the lease expires, or to its restart.
        for ownership in await self._calls.claim(claims):
            self._leases.add(ownership, sent_at)
            log.info("claimed partition=%s epoch=%d", ownership.key.partition, ownership.epoch)
            self._holder.open(ownership)

    def _claim_of(self, partition: str, record: Ownership | None) -> Ownership:
        return Ownership(
            key=self._calls.group.partition(partition),
            owner_id=self._leases.member.owner_id,
            epoch=record.epoch + 1 if record else 1,
            version=record.version if record else None,
        )

    def _report_damaged(self, state: GroupState) -> None:
        for partition, what in state.damaged.items():
            if self._damaged.get(partition) != what:
                self._holder.report_of(RecordDamaged(what, partition=partition, record="ownership"), partition)
        self._damaged = dict(state.damaged)
