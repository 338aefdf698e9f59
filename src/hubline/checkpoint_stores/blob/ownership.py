"""Who owns which partition, in blobs: records, members, requests.

Where the service offers one blob at a time, these are the steps, and what dying between them leaves:

    claim    1. write the ownership blob, if it is as it was   2. delete the request that it answers
             between: a request for what was just taken; its requester has it, or it is forgotten in time
    renew    1. write the member's heartbeat   2. write those ownership blobs whose turn it is
             between: leases that are as young as the heartbeat, and blobs that are a little older
    request  1. write the requests   2. ring their owners: write their heartbeats, so that they look for requests
             between: a request that its owner does not see; the partition is taken after the handover timeout

With locks there are more steps: see :mod:`.locks`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Final

from hubline.checkpoint_stores.blob import layout
from hubline.checkpoint_stores.blob.client import Blob, Container, Written
from hubline.checkpoint_stores.blob.contention import contend
from hubline.checkpoint_stores.blob.http import BULK_REQUESTS_MAX
from hubline.checkpoint_stores.blob.locks import PartitionLocks, lock_id
from hubline.checkpoint_stores.blob.records import (
    EPOCH,
    HEARD,
    OWNER,
    Damage,
    OwnRecords,
    Version,
    damaged_ownership,
    member_metadata,
    ownership_epoch,
    ownership_metadata,
    partitions_of,
    read_own,
    read_ownership,
)
from hubline.concurrency import gather_two, map_bounded
from hubline.errors import StoreError
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import GroupState, Member, Ownership, Renewal
from hubline.sql.fence import NOBODY

REFRESH_SECONDS: Final = 40.0
"""Every ownership blob is written this often while no SDK owns anything. The shortest expiry among the SDKs is 60 s:
one that joins never takes an active member's partition for abandoned, also if a renewal fails and is retried.
Members see each other by their heartbeats, at every renewal."""

SDK_SECONDS_MAX: Final = 180.0
"""How long an SDK that does not renew any more may still be there: the longest expiry among them (Python)."""

FORGET_SECONDS: Final = 86_400.0
"""A heartbeat or request older than a day is deleted when a member renews: no lease is that long."""

TIDY_MAX: Final = 8
"""Blobs deleted in one renewal: what is old can wait, a lease cannot."""

LOOK_SECONDS: Final = 600.0
"""A member that nobody rings looks this often at hubline's own blobs, to delete those that are old."""

PENDING_SECONDS: Final = 60.0
"""A member looks at every renewal while a request for one of its partitions, or of its own, is younger than this: the
first plan may not release the partition, and the next one may."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """A group as it is stored: the records, and the blobs that they were read from."""

    state: GroupState
    blobs: Mapping[str, Blob]
    own: OwnRecords

    @property
    def has_sdk_owners(self) -> bool:
        """Whether somebody owns a partition whose record hubline did not write."""
        return any(
            blob.metadata.get(OWNER) and EPOCH not in blob.metadata and blob.age_seconds < SDK_SECONDS_MAX
            for blob in self.blobs.values()
        )

    def has_requests_of(self, owner_id: str) -> bool:
        """Whether somebody has just requested one of this owner's partitions, or it has just requested another's."""
        requests = {name: one for name, one in self.own.requests.items() if one.age_seconds < PENDING_SECONDS}
        owned = (one.key.partition for one in self.state.ownerships if one.owner_id == owner_id)
        return any(name in requests for name in owned) or any(
            one.metadata.get(OWNER) == owner_id for one in requests.values()
        )


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """A member's blob as it wrote it last, and when it last looked at the others' by the loop's clock."""

    etag: str
    looked_at: float


class BlobOwnership:
    """The ownership records, members and requests of groups in a container.

    ``refresh_seconds`` is how often every ownership blob is written; 0 writes all of them at every renewal.
    """

    def __init__(
        self, container: Container, *, refresh_seconds: float = REFRESH_SECONDS, locks: PartitionLocks | None = None
    ) -> None:
        self._container = container
        self._refresh_seconds = refresh_seconds
        self._locks = locks
        self._renewed_at: dict[tuple[GroupKey, str], float] = {}
        self._heartbeats: dict[tuple[GroupKey, str], _Heartbeat] = {}
        self._unrung: dict[PartitionKey, str] = {}
        self._limits: dict[str, int | None] = {}

    def with_locks(self, seconds: int) -> BlobOwnership:
        """The same records, for an owner whose claims also lock their partitions."""
        locks = PartitionLocks(self._container, seconds=seconds)
        return BlobOwnership(self._container, refresh_seconds=self._refresh_seconds, locks=locks)

    async def list_group(self, group: GroupKey) -> GroupState:
        await self._request_again(group)
        listed, own = await gather_two(self._list_owners(group), self._list_own(group))
        return _read_listing(group, *listed, own).state

    async def claim(self, claims: Sequence[Ownership]) -> list[Ownership]:
        won: list[Ownership] = []
        for group, of_group in groupby(sorted(claims, key=_group_of), key=_group_of):
            own, written = await gather_two(
                self._list_own(group), map_bounded(self._claim, list(of_group), max_concurrent=BULK_REQUESTS_MAX)
            )
            for claimed, is_new_epoch in filter(None, written):
                if claimed.owner_id and is_new_epoch:
                    await self._forget_request(claimed.key, own)
                    won.append(claimed)
                else:
                    won.append(_with_request(claimed, own))
        return won

    async def renew(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> tuple[Renewal, bool]:
        """Announces the member, renews what it owns, and lists the group. Also: whether SDKs own something there."""
        name = (group, member.owner_id)
        self._limits[member.owner_id] = member.max_partitions
        # Forgotten until all is done: a renewal that fails half way may have been rung, and nobody would know.
        last = self._heartbeats.pop(name, None)
        if member.max_partitions == 0 and not owned:
            self._renewed_at.pop(name, None)
            await self._container.delete(layout.member_blob(*name))
            return Renewal([], await self.list_group(group)), False
        part = self._refreshed_part(group, member)
        # At the same time: who takes a partition in between is seen by the next renewal, as who takes it just after.
        heartbeat, listed = await gather_two(self._announce(group, member, last), self._list_owners(group))
        # After the heartbeat: a request comes before its ring.
        must_look = last is None or heartbeat.looked_at != last.looked_at
        own = await self._list_own(group) if must_look else None
        listing = _read_listing(group, *listed, own)
        records = {one.key.partition: one for one in listing.state.ownerships}
        kept = [found for one in owned if (found := records.get(one.key.partition)) and found.version == one.version]
        if self._locks is not None:
            kept = await self._locks.renew(kept)
        # Beside SDKs at the pace of those that renew most often (Go and JavaScript, every 10 s): they judge by their
        # own clocks, and one that is ahead must find as much room here as it finds among its own kind.
        due = self._due(kept, listing.blobs, 1.0 if listing.has_sdk_owners else part)
        vanished = [one for one in owned if one.key.partition not in listing.blobs]
        rewritten = await map_bounded(self._rewrite, [*due.values(), *vanished], max_concurrent=BULK_REQUESTS_MAX)
        if must_look:
            await self._tidy(listing.own)
        renewed = [
            # The heartbeat has made it young, whatever the list said at the same moment.
            *(replace(one, age_seconds=0.0) for one in kept if one.key.partition not in due),
            *(_with_request(one, listing.own) for one in rewritten if one is not None),
        ]
        if not listing.has_requests_of(member.owner_id):
            self._heartbeats[name] = heartbeat
        # A write that was refused: another owner came after the listing.
        state = listing.state if all(rewritten) else await self.list_group(group)
        return Renewal(renewed, state), listing.has_sdk_owners

    async def request(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        """Writes the requests, and then rings the owners: at rest, each looks at its own heartbeat only."""

        async def ask(key: PartitionKey) -> None:
            await self._container.put(layout.request_blob(key), {OWNER: owner_id})

        # Until it has succeeded: dying here, or failing, leaves requests that their owners do not see.
        self._unrung |= dict.fromkeys(keys, owner_id)
        await map_bounded(ask, keys, max_concurrent=BULK_REQUESTS_MAX)
        for group in {key.group_key for key in keys}:
            self._heartbeats.pop((group, owner_id), None)  # what becomes of a request is in the others' blobs
            await self._ring_owners(group, {key.partition for key in keys if key.group_key == group})
        for key in keys:
            self._unrung.pop(key, None)

    async def owner_epoch(self, key: PartitionKey) -> int:
        """The epoch of the ownership record, or NOBODY if there is none that reads."""
        owner = await self._container.look(layout.ownership_blob(key))
        try:
            return NOBODY if owner is None else ownership_epoch(owner)
        except Damage:
            return NOBODY  # list_ownership says what is wrong

    async def take_from_owner(self, key: PartitionKey) -> None:
        """Takes the partition from its owner, by an operator's hand: the record has no owner, in the next epoch."""
        await contend(lambda: self._take_from_owner(key), what=f"{self._container.shown}: the owner of {key}")

    async def _announce(self, group: GroupKey, member: Member, last: _Heartbeat | None) -> _Heartbeat:
        """Writes the member's heartbeat. If it was rung, and at intervals, it has to look at the others' blobs."""
        name, metadata = layout.member_blob(group, member.owner_id), member_metadata(member)
        now = asyncio.get_running_loop().time()
        if last is not None:
            written = await self._container.replace(name, metadata, etag=last.etag)
            if isinstance(written, Written):
                return _Heartbeat(written.etag, last.looked_at if now - last.looked_at < LOOK_SECONDS else now)
        return _Heartbeat((await self._container.put(name, metadata)).etag, now)

    async def _request_again(self, group: GroupKey) -> None:
        """Repeats requests that may not have rung. They start again: nobody takes what its owner did not hear of."""
        unrung = [(owner_id, key) for key, owner_id in self._unrung.items() if key.group_key == group]
        for owner_id, keys in groupby(sorted(unrung), key=itemgetter(0)):
            await self.request([key for _, key in keys], owner_id=owner_id)

    async def _ring_owners(self, group: GroupKey, partitions: Set[str]) -> None:
        blobs, _ = await self._list_owners(group)
        owners = {blob.metadata.get(OWNER, "") for partition, blob in blobs.items() if partition in partitions}

        async def ring(owner: str) -> None:
            heartbeat = layout.member_blob(group, owner)
            await contend(lambda: self._ring(heartbeat), what=f"{self._container.shown}: {heartbeat!r}")

        await map_bounded(ring, sorted(owners - {""}), max_concurrent=BULK_REQUESTS_MAX)

    async def _ring(self, heartbeat: str) -> bool:
        """Writes a heartbeat, so that its member finds another one than it left. Whether nobody came in between."""
        found = await self._container.look(heartbeat)
        if found is None or HEARD in found.metadata:
            return True  # the member's next heartbeat is a new blob; or it was rung, and has not renewed since
        metadata = {**found.metadata, HEARD: str(int(found.modified_at))}
        return isinstance(await self._container.replace(heartbeat, metadata, etag=found.etag), Written)

    async def _list_owners(self, group: GroupKey) -> tuple[dict[str, Blob], float]:
        """The ownership blobs by partition, and the service's time."""
        prefix = layout.ownership_prefix(group)
        blobs, now = await self._container.list(prefix)
        return {key.partition: blob for key, blob in partitions_of(group, blobs, prefix)}, now

    async def _list_own(self, group: GroupKey) -> OwnRecords:
        prefix = layout.own_prefix(group)
        blobs, _ = await self._container.list(prefix)
        return read_own(blobs, member_prefix=prefix + layout.MEMBER, request_prefix=prefix + layout.REQUEST)

    async def _claim(self, claim: Ownership) -> tuple[Ownership, bool] | None:
        """The record as it was written, and whether its epoch is another than before; None if the claim is lost."""
        if claim.version is None:
            return await self._claim_first(claim)
        version = Version.of(claim.version)
        if version is None:
            return None
        if not claim.owner_id:
            written = await self._write_released(claim, version)
        elif self._locks and not await self._locks.acquire(claim.key, claim.owner_id, etag=version.etag):
            return None
        else:
            # Dying here leaves a lock that nobody uses; it expires.
            written = await self._write_owner(claim.key, claim.owner_id, claim.epoch, version, locked_by=claim.owner_id)
        return _won(claim, written, is_new_epoch=version.epoch != claim.epoch)

    async def _claim_first(self, claim: Ownership) -> tuple[Ownership, bool] | None:
        metadata = self._metadata(claim.owner_id, claim.epoch)
        written = await self._container.create(layout.ownership_blob(claim.key), metadata)
        if not isinstance(written, Written):
            return None
        # Dying here leaves a record without a lock. It is free after a lease, as every record.
        if self._locks is None or not claim.owner_id:
            return _won(claim, written, is_new_epoch=True)
        is_locked = await self._locks.acquire(claim.key, claim.owner_id, etag=written.etag)
        return _won(claim, written if is_locked else None, is_new_epoch=True)

    async def _write_released(self, claim: Ownership, version: Version) -> Written | Blob | None:
        """Writes that nobody owns the partition, and then releases its lock: before, another could take it over."""
        if self._locks is None:
            return await self._write_owner(claim.key, "", claim.epoch, version)
        written = await self._write_owner(claim.key, "", claim.epoch, version, locked_by=version.owner_id)
        if isinstance(written, Blob) and written.etag == version.etag and not written.is_leased:
            return await self._write_owner(claim.key, "", claim.epoch, version)  # the lock has expired
        if isinstance(written, Written):
            # Dying here leaves a partition that nobody owns, and that nobody can claim until the lock expires.
            await self._locks.release(claim.key, version.owner_id)
        return written

    async def _write_owner(
        self, key: PartitionKey, owner_id: str, epoch: int, version: Version, *, locked_by: str = ""
    ) -> Written | Blob | None:
        lease_id = lock_id(key, locked_by) if self._locks and locked_by else ""
        metadata = self._metadata(owner_id, epoch)
        return await self._container.replace(layout.ownership_blob(key), metadata, etag=version.etag, lease_id=lease_id)

    async def _rewrite(self, owned: Ownership) -> Ownership | None:
        """Writes what a record says once more. A blob that has vanished is made again, unless its lock went with it."""
        version = Version.of(owned.version or "")
        if version is None:
            return None
        owner_id, epoch = version.owner_id, version.epoch
        written = await self._write_owner(owned.key, owner_id, epoch, version, locked_by=owner_id)
        if written is None and self._locks is None:
            written = await self._container.create(layout.ownership_blob(owned.key), self._metadata(owner_id, epoch))
        if not isinstance(written, Written):
            return None
        return Ownership(owned.key, owner_id, epoch, str(replace(version, etag=written.etag)))

    def _metadata(self, owner_id: str, epoch: int) -> dict[str, str]:
        return ownership_metadata(owner_id, epoch, max_partitions=self._limits.get(owner_id))

    def _refreshed_part(self, group: GroupKey, member: Member) -> float:
        """The part of its ownership blobs that a member writes now: what comes up to all of them in time."""
        now = asyncio.get_running_loop().time()
        before = self._renewed_at.get((group, member.owner_id), now)
        self._renewed_at[group, member.owner_id] = now
        return 1.0 if self._refresh_seconds <= 0 else min((now - before) / self._refresh_seconds, 1.0)

    def _due(self, kept: Sequence[Ownership], blobs: Mapping[str, Blob], part: float) -> dict[str, Ownership]:
        """What has to be written now: what is too old, and of the rest so many that they do not all come at once."""
        oldest_first = sorted(kept, key=lambda one: blobs[one.key.partition].modified_at)
        count = math.ceil(len(kept) * part)
        return {
            one.key.partition: one
            for place, one in enumerate(oldest_first)
            if place < count or blobs[one.key.partition].age_seconds >= self._refresh_seconds
        }

    async def _forget_request(self, key: PartitionKey, own: OwnRecords) -> None:
        request = own.requests.get(key.partition)
        if request is not None:
            await self._container.delete(request.name, etag=request.etag)

    async def _tidy(self, own: OwnRecords) -> None:
        """Deletes what is left of members that died long ago. A failure costs nothing: the next renewal tries again."""
        old = [blob for blob in (*own.members.values(), *own.requests.values()) if blob.age_seconds > FORGET_SECONDS]
        with suppress(StoreError):
            for blob in old[:TIDY_MAX]:
                await self._container.delete(blob.name, etag=blob.etag)

    async def _take_from_owner(self, key: PartitionKey) -> bool:
        """Whether nobody came in between."""
        found = await self._container.look(layout.ownership_blob(key))
        if found is None:
            return True
        try:
            epoch = ownership_epoch(found)
        except Damage:
            return True  # nobody can own it as it is
        if found.is_leased:
            # Dying here leaves an owner without its lock. It finds out at its next renewal, and loses the partition.
            await self._container.break_lease(found.name)
        taken = await self._container.replace(found.name, ownership_metadata("", epoch + 1), etag=found.etag)
        return isinstance(taken, Written)


def _read_listing(group: GroupKey, blobs: Mapping[str, Blob], now: float, own: OwnRecords | None) -> _Listing:
    """A group as it was listed. It is partial where hubline's own blobs were not."""
    known = OwnRecords.of_owners(blobs.values()) if own is None else own
    ownerships: list[Ownership] = []
    damaged: dict[str, str] = {}
    for partition, blob in blobs.items():
        try:
            ownerships.append(read_ownership(group.partition(partition), blob, known, now=now))
        except Damage as damage:
            damaged[partition] = damaged_ownership(blob, damage)
    members = known.listed_members(now=now)
    return _Listing(GroupState(tuple(ownerships), members, damaged, is_partial=own is None), blobs, known)


def _group_of(claim: Ownership) -> GroupKey:
    return claim.key.group_key


def _won(claim: Ownership, written: Written | Blob | None, *, is_new_epoch: bool) -> tuple[Ownership, bool] | None:
    if not isinstance(written, Written):
        return None
    version = str(Version(written.etag, claim.epoch, claim.owner_id))
    return Ownership(claim.key, claim.owner_id, claim.epoch, version), is_new_epoch


def _with_request(ownership: Ownership, own: OwnRecords) -> Ownership:
    request = own.requests.get(ownership.key.partition)
    if request is None:
        return ownership
    return replace(ownership, requested_by=request.metadata[OWNER], request_age_seconds=request.age_seconds)
