"""The leases that this processor holds: renewed in time, given up as lost when they were not.

Two tasks run here, so that nothing slow stands before a renewal:

    renew    ``renew_interval_seconds`` after the last renewal: announces the member and renews its leases. Where a
             renewal lists the group, the dispatch cycle makes it at rest, so that one call serves both
    expire   loses what could not be renewed for a whole lease, before anyone else may take it

Elapsed time is the event loop's; ages are the store's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hubline.concurrency import BackgroundTasks
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.store_calls import GroupCalls
from hubline.errors import HublineError, LeaseLost, StoreError
from hubline.model.ownership import GroupState, Member, Ownership, ReleaseReason, Renewal

log = logging.getLogger("hubline.coordination")

RENEWAL_RETRIES = 4
"""A renewal that fails is retried this much sooner: the lease keeps running."""

RENEWAL_EARLY = 0.2
"""A look that comes in this last part of the interval renews at the same time, if renewals list the group."""

RENEWAL_MARGIN = 0.05
"""A look that is to make a renewal comes this part of the interval before it."""


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


@dataclass(slots=True, eq=False)
class HeldLease:
    """The lease of a partition that this processor holds. ``expires_at`` is when it ends unless renewed."""

    ownership: Ownership
    expires_at: float
    release: asyncio.Task[None] | None = None
    epoch_floor: int = 0

    def released(self) -> Ownership:
        """The record to write when the partition is released."""
        return replace(self.ownership, owner_id="", epoch=max(self.ownership.epoch, self.epoch_floor))


class LeaseKeeper:
    """Keeps what this processor holds, as last renewed, and loses what it could not keep."""

    def __init__(
        self,
        calls: GroupCalls,
        holder: Holder,
        *,
        member: Member,
        lease: LeaseOptions,
        wake: asyncio.Event,
        closing: BackgroundTasks,
    ) -> None:
        self.member = member
        self.held: dict[str, HeldLease] = {}
        # Renewing and releasing both move the version of a held record: one at a time.
        self.versions = asyncio.Lock()
        self._calls = calls
        self._holder = holder
        self._lease = lease
        self._wake = wake
        self._closing = closing
        self._clock: Callable[[], float] = loop_time
        self._renew_at = 0.0
        self._renewals_list = False

    def start(self) -> list[asyncio.Task[None]]:
        """Starts to renew and to expire, as the member has just joined; the caller ends the tasks."""
        self._clock = asyncio.get_running_loop().time
        self._renew_at = self._clock() + self._lease.renew_interval_seconds
        return [
            asyncio.create_task(self._renew_forever(), name="hubline-renew"),
            asyncio.create_task(self._expire_forever(), name="hubline-expire"),
        ]

    def is_current(self, partition: str, epoch: int) -> bool:
        """Whether the lease under which the partition was opened still runs. Any thread may ask."""
        held = self.held.get(partition)
        return held is not None and held.ownership.epoch == epoch and self._clock() < held.expires_at

    def add(self, ownership: Ownership, sent_at: float) -> None:
        """A lease that was claimed. ``sent_at`` is the time before the claim was sent."""
        self.held[ownership.key.partition] = HeldLease(ownership, sent_at + self._lease.lease_seconds)

    def forget(self, partition: str, held: HeldLease) -> None:
        """The partition was released. Where it was lost and claimed again meanwhile, the new lease stays."""
        if self.held.get(partition) is held:
            del self.held[partition]

    def seconds_until_listing(self, *, within: float) -> float | None:
        """Until just before the last renewal that is due within so many seconds, if renewals list the group.

        A look at that time makes the renewal, and both take one call.
        """
        interval = self._lease.renew_interval_seconds
        left_seconds = self._renew_at - self._clock() - RENEWAL_MARGIN * interval
        if not self._renewals_list or not 0 < left_seconds <= within:
            return None
        return left_seconds + (within - left_seconds) // interval * interval

    async def look(self) -> GroupState:
        """The group as it is now, for a plan. Where a renewal lists it and is nearly due, this is the renewal."""
        is_due = self._renew_at - self._clock() <= RENEWAL_EARLY * self._lease.renew_interval_seconds
        group = (await self.renew()).group if self._renewals_list and is_due else None
        return group or await self._calls.list_ownership()

    async def renew(self) -> Renewal:
        async with self.versions:
            held = list(self.held)
            renewal = await self._renew_leases(held)
            kept = {ownership.key.partition for ownership in renewal.renewed}
            if missing := [partition for partition in held if partition not in kept]:
                # Not renewed is not yet lost: an earlier renewal may have taken effect without its answer.
                self.reconcile(renewal.group or await self._calls.list_ownership(), missing)
                if still_held := [partition for partition in missing if partition in self.held]:
                    again = await self._renew_leases(still_held)
                    renewal = Renewal([*renewal.renewed, *again.renewed], again.group)
            return renewal

    def reconcile(self, state: GroupState, partitions: Iterable[str]) -> None:
        """Learns the versions of what is still this processor's, and loses the rest.

        No lease is longer for it: a record looks young also when the store's clock was turned back.
        """
        records = {ownership.key.partition: ownership for ownership in state.ownerships}
        for partition in partitions:
            held, record = self.held.get(partition), records.get(partition)
            if held is None:
                continue
            if record and (record.owner_id, record.epoch) == (self.member.owner_id, held.ownership.epoch):
                held.ownership = record
            else:
                gone = state.damaged.get(partition, "its record is gone")
                self._lose(partition, self._loss_reason(record) if record else gone)

    def lose_taken(self, state: GroupState) -> None:
        """Sees a takeover at the next listing already; a stale listing shows lower epochs only, and does no harm."""
        for record in state.ownerships:
            held = self.held.get(record.key.partition)
            if held is not None and record.epoch > held.ownership.epoch:
                self._lose(record.key.partition, self._loss_reason(record))

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._renew_at - self._clock())
            async with self.versions:  # while a look renews, wait for its end
                is_renewed = self._clock() < self._renew_at
            if is_renewed:
                continue
            try:
                renewed = (await self.renew()).renewed
            except StoreError as error:
                self._holder.report_of(error, None)
                self._renew_at = self._clock() + self._lease.renew_interval_seconds / RENEWAL_RETRIES
                continue
            if any(o.requested_by and o.request_age_seconds < self._lease.handover_timeout_seconds for o in renewed):
                self._wake.set()

    async def _renew_leases(self, partitions: Sequence[str]) -> Renewal:
        """Announces the member and renews these leases, but those of which the store has another version."""
        sent_at = self._clock()
        renewal = await self._calls.renew(self.member, [self.held[partition].ownership for partition in partitions])
        self._renew_at = sent_at + self._lease.renew_interval_seconds
        self._renewals_list = renewal.group is not None
        for ownership in renewal.renewed:
            self._keep(ownership, sent_at)
        return renewal

    def _keep(self, ownership: Ownership, sent_at: float) -> None:
        held = self.held.get(ownership.key.partition)
        if held is None or held.ownership.epoch != ownership.epoch:
            return
        held.ownership = ownership
        if self._clock() >= held.expires_at:
            # Woken after a pause: the answer is older than the end of the lease, which others may have seen. It ends
            # here too, and is claimed again.
            return
        # Counted from before the call: the store's clock for this lease started later, never earlier.
        held.expires_at = sent_at + self._lease.lease_seconds
        self._holder.renewed(ownership)

    async def _expire_forever(self) -> None:
        while True:
            now = self._clock()
            for partition, held in list(self.held.items()):
                if now >= held.expires_at:
                    self._lose(partition, f"the lease of {self._lease.lease_seconds:g} s expired before it was renewed")
            ends = min((held.expires_at for held in self.held.values()), default=now + self._lease.lease_seconds)
            await asyncio.sleep(min(ends - self._clock(), self._lease.renew_interval_seconds))

    def _lose(self, partition: str, reason: str) -> None:
        held = self.held.pop(partition)
        log.warning("lease_lost partition=%s epoch=%d reason=%s", partition, held.ownership.epoch, reason)
        self._holder.report_of(
            LeaseLost(
                f"partition {partition} was lost: {reason}. hubline stopped processing it here; the new owner "
                "continues from the last checkpoint.",
                partition=partition,
            ),
            partition,
        )
        self._closing.spawn(self._holder.close_partition(partition, ReleaseReason.LOST))
        self._wake.set()

    def _loss_reason(self, record: Ownership) -> str:
        if not record.owner_id:
            return "it was given up for this processor, as resetting a checkpoint does"
        if record.owner_id == self.member.owner_id:
            return f"another processor runs under this one's owner id {record.owner_id!r}. Give each its own."
        return f"owner {record.owner_id!r} took it"


def loop_time() -> float:
    return asyncio.get_running_loop().time()
