"""Releasing partitions: drain one, then release it in the store together with the others that are drained by then."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from hubline.concurrency import BackgroundTasks
from hubline.coordination.lease_keeper import HeldLease, Holder, LeaseKeeper
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.store_calls import GroupCalls
from hubline.errors import StoreError
from hubline.model.ownership import ReleaseReason

log = logging.getLogger("hubline.coordination")

RELEASE_ATTEMPTS_MAX = 3
"""A partition that cannot be released in so many attempts is left to expire: releasing early only saves time."""


class HandoverQueue:
    """Releases the partitions that this processor holds; each is held, and renewed, until it is drained."""

    def __init__(
        self,
        calls: GroupCalls,
        holder: Holder,
        leases: LeaseKeeper,
        *,
        lease: LeaseOptions,
        wake: asyncio.Event,
        closing: BackgroundTasks,
    ) -> None:
        self._calls = calls
        self._holder = holder
        self._leases = leases
        self._lease = lease
        self._wake = wake
        self._closing = closing
        self._drained: dict[str, HeldLease] = {}
        self._pending: asyncio.Task[set[str]]

    def release(self, partition: str, reason: ReleaseReason) -> None:
        """Starts to release a partition. Does nothing if it is not held, or is being released."""
        held = self._leases.held.get(partition)
        if held is not None and held.release is None:
            held.release = self._closing.spawn(self._drain_and_release(partition, held, reason))

    def release_fenced(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        """The checkpoint's fence has a higher epoch: releases the partition at that one, to claim it above."""
        held = self._leases.held.get(partition)
        if held is not None and held.ownership.epoch == epoch:
            held.epoch_floor = held_epoch
            self.release(partition, ReleaseReason.LOST)

    async def _drain_and_release(self, partition: str, held: HeldLease, reason: ReleaseReason) -> None:
        await self._holder.close_partition(partition, reason)
        for attempt in range(RELEASE_ATTEMPTS_MAX):
            if self._leases.held.get(partition) is not held:
                return
            with suppress(StoreError):
                if await self._release_with_others(partition, held):
                    break
            await asyncio.sleep(self._lease.renew_interval_seconds / RELEASE_ATTEMPTS_MAX * (attempt > 0))
        self._leases.forget(partition, held)
        log.info("released partition=%s reason=%s", partition, reason)
        if reason is not ReleaseReason.REQUESTED:
            self._wake.set()

    async def _release_with_others(self, partition: str, held: HeldLease) -> bool:
        """Releases a drained partition, in one call with all others that are drained until it is sent.

        One by one, a member that hands over hundreds would keep its own renewals waiting.
        """
        self._drained[partition] = held
        if len(self._drained) == 1:
            self._pending = asyncio.create_task(self._release_drained())
        return partition in await self._pending

    async def _release_drained(self) -> set[str]:
        async with self._leases.versions:
            drained, self._drained = self._drained, {}
            claims = [held.released() for held in drained.values()]
            released = {ownership.key.partition for ownership in await self._calls.claim(claims)}
            for partition in released:
                # Before the next renewal gets its turn, which would find it taken.
                self._leases.forget(partition, drained[partition])
            if missing := drained.keys() - released:
                # Another version is stored: ours, if an answer was lost on the way; else another owner took it.
                self._leases.reconcile(await self._calls.list_ownership(), sorted(missing))
            return released
