"""The checkpoint store in Azure Blob Storage, which the official SDKs of a consumer group may share.

Where the service offers one blob at a time, these are the steps, and what dying between them leaves:

    claim    1. write the ownership blob, if it is as it was   2. delete the request that it answers
             between: a request for what was just taken; its asker has it, or it is forgotten in time
    renew    1. write the member's heartbeat   2. write those ownership blobs whose turn it is
             between: leases that are as young as the heartbeat, and blobs that are a little older
    first checkpoint   1. put it into the fence's blob   2. make the checkpoint's blob   3. delete the fence's
             between: who takes the fence next finds it there, and goes on with 2
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from hubline.addresses.blob_address import BlobAddress
from hubline.checkpoint_stores.blob import layout
from hubline.checkpoint_stores.blob.auth import credential_of
from hubline.checkpoint_stores.blob.client import Container, Written
from hubline.checkpoint_stores.blob.http import BULK_REQUESTS_MAX, Transport
from hubline.checkpoint_stores.blob.listing import Blob
from hubline.checkpoint_stores.blob.locks import PartitionLocks, lock_id
from hubline.checkpoint_stores.blob.records import (
    EPOCH,
    OWNER,
    Damage,
    OwnRecords,
    Version,
    checkpoint_metadata,
    checkpoint_or_raise,
    damaged_checkpoint,
    damaged_ownership,
    is_ahead,
    member_metadata,
    ownership_epoch,
    ownership_metadata,
    partitions_of,
    read_checkpoint,
    read_epoch,
    read_own,
    read_ownership,
)
from hubline.concurrency import gather_two, map_bounded
from hubline.credentials import Credential
from hubline.errors import Fenced, RecordDamaged, StoreError, StoreUnavailable
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, StoreExamination
from hubline.sql.fence import NOBODY, fenced

REFRESH_SECONDS: Final = 40.0
"""Every ownership blob is written this often while no SDK owns anything. The shortest expiry among the SDKs is 60 s:
one that joins never takes a living member's partition for abandoned, also if a renewal fails and is tried again.
Members see each other by their heartbeats, at every renewal."""

SDK_SECONDS_MAX: Final = 180.0
"""How long an SDK that does not renew any more may still be there: the longest expiry among them (Python)."""

FORGET_SECONDS: Final = 86_400.0
"""A heartbeat or request older than a day is deleted when a member renews: no lease is that long."""

CONTENTION_MAX: Final = 100
"""How often a write starts again because another was first. Who is to be fenced off may write all the time; each try
has a fair chance to come between two of its writes."""

CONTENTION_SECONDS: Final = 0.02
"""About what a write takes."""

TIDY_MAX: Final = 8
"""Blobs deleted in one renewal: what is old can wait, a lease cannot."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """A group as it is stored: the records, and the blobs that they were read from."""

    state: GroupState
    blobs: Mapping[str, Blob]
    own: OwnRecords

    def has_sdk_owners(self, *, beside: Member) -> bool:
        """Whether somebody owns a partition who has not announced itself, as the member that asks is about to."""
        known = {"", beside.owner_id, *self.own.members}
        return any(one.owner_id not in known and one.age_seconds < SDK_SECONDS_MAX for one in self.state.ownerships)


@dataclass(frozen=True, slots=True)
class _Fence:
    """Who holds a partition's checkpoint, and where that stands.

    ``official`` is the checkpoint's blob, which the SDKs read. They could not read one without a position, so until
    there is one the epoch is kept in ``own``, a blob of the store's own. Of both the ETag and the metadata are known.
    A checkpoint that ``is_pending`` has come as far as that blob only: its writer died, or is not finished yet.
    """

    epoch: int
    checkpoint: Checkpoint | None
    official: Blob | None
    own: Blob | None
    is_pending: bool = False


class BlobStore:
    """A :class:`~hubline.ports.CheckpointStore` in a container that exists. Nothing is connected before the first call.

    ``refresh_seconds`` is how often every ownership blob is written; 0 writes all of them at every renewal.
    """

    shares_with_sdks = True

    def __init__(
        self,
        address: BlobAddress,
        *,
        entra: Credential | None = None,
        clock: Callable[[], float] = time.time,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self._shown = str(address)
        self._container = Container(Transport(address, credential_of(address, entra=entra, clock=clock), clock=clock))
        self._refresh_seconds = refresh_seconds
        self._renewed_at: dict[tuple[GroupKey, str], float] = {}
        self._fences: dict[PartitionKey, _Fence] = {}
        self._locks: PartitionLocks | None = None

    def __repr__(self) -> str:
        return f"BlobStore({self._shown})"

    @property
    def container(self) -> Container:
        """The blobs themselves, for who looks for faults or moves them."""
        return self._container

    def with_locks(self, seconds: int) -> BlobStore:
        """This store, for an owner whose claims also lock their partitions by leases of Blob Storage."""
        locking = copy.copy(self)
        locking._locks = PartitionLocks(self._container, seconds=seconds)  # noqa: SLF001 - its own copy
        return locking

    # Ownership

    async def list_ownership(self, group: GroupKey) -> GroupState:
        return (await self._list(group)).state

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
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

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> list[Ownership]:
        announcing = self._container.put(layout.member_blob(group, member.owner_id), member_metadata(member))
        part = self._refreshed_part(group, member)
        if not owned:
            await announcing
            return []
        # At the same time: who takes a partition in between is seen by the next renewal, as who takes it just after.
        _, listing = await gather_two(announcing, self._list(group))
        listed = {one.key.partition: one for one in listing.state.ownerships}
        kept = [found for one in owned if (found := listed.get(one.key.partition)) and found.version == one.version]
        if self._locks is not None:
            kept = await self._locks.renew(kept)
        # Beside SDKs at the pace of those that renew most often (Go and JavaScript, every 10 s): they judge by their
        # own clocks, and one that is ahead must find as much room here as it finds among its own kind.
        has_sdk_owners = listing.has_sdk_owners(beside=member)
        due = self._due(kept, listing.blobs, 1.0 if has_sdk_owners else part)
        vanished = [one for one in owned if one.key.partition not in listing.blobs]
        rewritten = await map_bounded(self._rewrite, [*due.values(), *vanished], max_concurrent=BULK_REQUESTS_MAX)
        await self._tidy(listing.own)
        if has_sdk_owners:
            await self._repair_checkpoints(group)
        return [
            # The heartbeat has made it young, whatever the list said at the same moment.
            *(replace(one, age_seconds=0.0) for one in kept if one.key.partition not in due),
            *(_with_request(one, listing.own) for one in rewritten if one is not None),
        ]

    async def leave(self, group: GroupKey, owner_id: str) -> None:
        await self._container.delete(layout.member_blob(group, owner_id))
        self._renewed_at.pop((group, owner_id), None)

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        async def ask(key: PartitionKey) -> None:
            await self._container.put(layout.request_blob(key), {OWNER: owner_id})

        await map_bounded(ask, keys, max_concurrent=BULK_REQUESTS_MAX)

    async def _list(self, group: GroupKey) -> _Listing:
        prefix = layout.ownership_prefix(group)
        (blobs, now), own = await gather_two(self._container.list(prefix), self._list_own(group))
        ownerships: list[Ownership] = []
        damaged: dict[str, str] = {}
        by_partition: dict[str, Blob] = {}
        for key, blob in partitions_of(group, blobs, prefix):
            by_partition[key.partition] = blob
            try:
                ownerships.append(read_ownership(key, blob, own, now=now))
            except Damage as damage:
                damaged[key.partition] = damaged_ownership(blob, damage)
        return _Listing(GroupState(tuple(ownerships), own.listed_members(), damaged), by_partition, own)

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
            # Dying here leaves a lock that nobody uses; it lapses.
            written = await self._write_owner(claim.key, claim.owner_id, claim.epoch, version, locked_by=claim.owner_id)
        return _won(claim, written, is_new_epoch=version.epoch != claim.epoch)

    async def _claim_first(self, claim: Ownership) -> tuple[Ownership, bool] | None:
        metadata = ownership_metadata(claim.owner_id, claim.epoch)
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
            return await self._write_owner(claim.key, "", claim.epoch, version)  # the lock has lapsed
        if isinstance(written, Written):
            # Dying here leaves a partition that nobody owns, and that nobody can claim until the lock lapses.
            await self._locks.release(claim.key, version.owner_id)
        return written

    async def _write_owner(
        self, key: PartitionKey, owner_id: str, epoch: int, version: Version, *, locked_by: str = ""
    ) -> Written | Blob | None:
        lease_id = lock_id(key, locked_by) if self._locks and locked_by else ""
        metadata = ownership_metadata(owner_id, epoch)
        return await self._container.replace(layout.ownership_blob(key), metadata, etag=version.etag, lease_id=lease_id)

    async def _rewrite(self, owned: Ownership) -> Ownership | None:
        """Writes what a record says once more. A blob that has vanished is made again, unless its lock went with it."""
        version = Version.of(owned.version or "")
        if version is None:
            return None
        owner_id, epoch = version.owner_id, version.epoch
        written = await self._write_owner(owned.key, owner_id, epoch, version, locked_by=owner_id)
        if written is None and self._locks is None:
            written = await self._container.create(
                layout.ownership_blob(owned.key), ownership_metadata(owner_id, epoch)
            )
        if not isinstance(written, Written):
            return None
        return Ownership(owned.key, owner_id, epoch, str(replace(version, etag=written.etag)))

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

    # Checkpoints

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        # The ownership record too: an SDK takes no fence, and who reopens a partition that one has taken would take its
        # reader back.
        stood, owner_epoch = await gather_two(self._read_fence(key), self._owner_epoch(key))
        if owner_epoch > epoch:
            raise fenced(key, epoch=epoch, held_epoch=owner_epoch)
        for _ in range(CONTENTION_MAX):
            if stood.epoch > epoch:
                raise fenced(key, epoch=epoch, held_epoch=stood.epoch)
            taken = await self._write_fence(key, stood, stood.checkpoint, epoch=epoch)
            if isinstance(taken, _Fence):
                self._fences[key] = taken
                return taken.checkpoint
            stood = await self._read_fence(key, official=taken)
        raise self._contended(key)

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        checkpoints, _, _ = await self._list_checkpoints(group)
        return list(checkpoints.values())

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        known = self._fences.get(checkpoint.key)
        if known is not None and known.epoch != epoch:
            known = None
        await self._move(checkpoint, epoch=epoch, known=known, is_current=known is not None)

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        # The fence first: from here on its owner can write nothing. Dying before the partition is taken from it, the
        # owner finds out at its next checkpoint.
        self._fences.pop(key, None)
        await self._contend(key, lambda: self._reset(key, checkpoint))
        await self._contend(key, lambda: self._take_from_owner(key))

    async def examine(self, group: GroupKey) -> StoreExamination:
        _, damaged, now = await self._list_checkpoints(group)
        return StoreExamination(datetime.fromtimestamp(now, UTC), damaged)

    async def close(self) -> None:
        await self._container.close()

    async def _list_checkpoints(self, group: GroupKey) -> tuple[dict[str, Checkpoint], dict[str, str], float]:
        """The checkpoints by partition, what is wrong with the others, and the service's time."""
        prefix = layout.checkpoint_prefix(group)
        blobs, now = await self._container.list(prefix)
        checkpoints: dict[str, Checkpoint] = {}
        damaged: dict[str, str] = {}
        for key, blob in partitions_of(group, blobs, prefix):
            try:
                checkpoint = read_checkpoint(key, blob)
            except Damage as damage:
                damaged[key.partition] = str(damaged_checkpoint(key, blob, damage))
            else:
                if checkpoint is not None:
                    checkpoints[key.partition] = checkpoint
        return checkpoints, damaged, now

    async def _move(self, checkpoint: Checkpoint, *, epoch: int, known: _Fence | None, is_current: bool) -> None:
        """Moves a checkpoint forward. ``known`` is what this epoch wrote last; another may have written since."""
        key = checkpoint.key
        # An SDK that was late may have set it back: what this epoch has done once is not given up again.
        target = _furthest(checkpoint, known.checkpoint if known else None)
        stood = known if is_current else None
        for _ in range(CONTENTION_MAX):
            stood = stood or await self._read_fence(key)
            if stood.epoch != epoch:
                self._fences.pop(key, None)
                raise fenced(key, epoch=epoch, held_epoch=stood.epoch)
            goal = _furthest(target, stood.checkpoint)
            is_there = goal == stood.checkpoint and not stood.is_pending
            moved = stood if is_there else await self._write_fence(key, stood, goal, epoch=epoch)
            if isinstance(moved, _Fence):
                self._fences[key] = moved
                return
            await yield_to_others()
            stood = None
        raise self._contended(key)

    async def _read_fence(self, key: PartitionKey, *, official: Blob | None = None) -> _Fence:
        """Raises RecordDamaged. A checkpoint's blob that was just seen is not looked at again."""
        official, own = (official, None) if official else await self._look_at_fence(key)
        checkpoint, pending = checkpoint_or_raise(key, official), checkpoint_or_raise(key, own)
        is_pending = pending is not None and (checkpoint is None or is_ahead(pending, checkpoint))
        epoch = await self._held_epoch(key, official, own)
        return _Fence(epoch, pending if is_pending else checkpoint, official, own, is_pending)

    async def _look_at_fence(self, key: PartitionKey) -> tuple[Blob | None, Blob | None]:
        name = layout.checkpoint_blob(key)
        official, own = await gather_two(self._container.look(name), self._container.look(layout.fence_blob(key)))
        if official is None and own is None:
            # The first is made before the second is deleted: it may have been made between the two looks.
            official = await self._container.look(name)
        return official, own

    async def _held_epoch(self, key: PartitionKey, official: Blob | None, own: Blob | None) -> int:
        """Who holds the checkpoint. Where an SDK wrote last, and so removed the epoch, it is who owns the partition."""
        epochs = [
            epoch for blob in (official, own) if blob is not None and (epoch := _epoch_or_raise(key, blob)) is not None
        ]
        if epochs:
            return max(epochs)
        return NOBODY if official is None else await self._owner_epoch(key)

    async def _owner_epoch(self, key: PartitionKey) -> int:
        """The epoch of the ownership record, or NOBODY if there is none that reads."""
        owner = await self._container.look(layout.ownership_blob(key))
        try:
            return NOBODY if owner is None else ownership_epoch(owner)
        except Damage:
            return NOBODY  # list_ownership says what is wrong

    async def _write_fence(
        self, key: PartitionKey, stood: _Fence, checkpoint: Checkpoint | None, *, epoch: int
    ) -> _Fence | Blob | None:
        """Writes epoch and checkpoint over what stood there.

        If that has changed meanwhile, returns the checkpoint's blob as it is now, or None if there is none.
        """
        if stood.official is None:
            return await self._write_first(key, stood.own, checkpoint, epoch=epoch)
        if checkpoint is None or checkpoint == checkpoint_or_raise(key, stood.official):
            # As another wrote it, to the letter: nothing is known of it that would be better.
            metadata = {**stood.official.metadata, EPOCH: str(epoch)}
        else:
            metadata = checkpoint_metadata(checkpoint, epoch)
        written = await self._container.replace(stood.official.name, metadata, etag=stood.official.etag)
        if not isinstance(written, Written):
            return written
        if stood.own is not None:
            await self._container.delete(stood.own.name, etag=stood.own.etag)
        return _Fence(epoch, checkpoint, _written_blob(stood.official.name, metadata, written), None)

    async def _write_first(
        self, key: PartitionKey, own: Blob | None, checkpoint: Checkpoint | None, *, epoch: int
    ) -> _Fence | Blob | None:
        name = layout.fence_blob(key)
        metadata = {EPOCH: str(epoch)} if checkpoint is None else checkpoint_metadata(checkpoint, epoch)
        if own is None:
            held = await self._container.create(name, metadata)
        else:
            held = await self._container.replace(name, metadata, etag=own.etag)
        if not isinstance(held, Written):
            return None
        if checkpoint is None:
            return _Fence(epoch, None, None, _written_blob(name, metadata, held))
        # Dying here leaves the checkpoint in the fence's blob, where the next to take the fence finds it.
        official = layout.checkpoint_blob(key)
        made = await self._container.create(official, metadata)
        if not isinstance(made, Written):
            return None  # an SDK made it meanwhile: both are read, and it is decided anew
        await self._container.delete(name, etag=held.etag)
        return _Fence(epoch, checkpoint, _written_blob(official, metadata, made), None)

    async def _repair_checkpoints(self, group: GroupKey) -> None:
        """Writes again what an SDK, late to see that it lost a partition, has set back."""
        ours = {key: fence for key, fence in self._fences.items() if key.group_key == group and fence.checkpoint}
        if not ours:
            return
        stored, _, _ = await self._list_checkpoints(group)
        for key, fence in ours.items():
            found = stored.get(key.partition)
            if found is not None and fence.checkpoint is not None and is_ahead(fence.checkpoint, found):
                with suppress(Fenced, RecordDamaged):  # the partition's own next checkpoint says so to who owns it
                    await self._move(fence.checkpoint, epoch=fence.epoch, known=fence, is_current=False)

    async def _reset(self, key: PartitionKey, checkpoint: Checkpoint | None) -> bool:
        """Whether nobody came in between."""
        official, own = await self._look_at_fence(key)
        epoch = await self._epoch_of_damaged(key, official, own) + 1
        if checkpoint is None:
            await self._container.put(layout.fence_blob(key), {EPOCH: str(epoch)})
            return official is None or await self._container.delete(official.name, etag=official.etag)
        metadata = checkpoint_metadata(checkpoint, epoch)
        if official is None:
            written = await self._container.create(layout.checkpoint_blob(key), metadata)
        else:
            written = await self._container.replace(official.name, metadata, etag=official.etag)
        if not isinstance(written, Written):
            return False
        await self._container.delete(layout.fence_blob(key))
        return True

    async def _epoch_of_damaged(self, key: PartitionKey, official: Blob | None, own: Blob | None) -> int:
        try:
            return await self._held_epoch(key, official, own)
        except RecordDamaged:
            return await self._owner_epoch(key)

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

    async def _contend(self, key: PartitionKey, attempt: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(CONTENTION_MAX):
            if await attempt():
                return
            await yield_to_others()
        raise self._contended(key)

    def _contended(self, key: PartitionKey) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._container.shown}: the checkpoint of {key} was written by others each of {CONTENTION_MAX} times"
        )


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


def _furthest(checkpoint: Checkpoint, other: Checkpoint | None) -> Checkpoint:
    """The other one, if this is not ahead of it."""
    return checkpoint if other is None or is_ahead(checkpoint, other) else other


def _epoch_or_raise(key: PartitionKey, blob: Blob) -> int | None:
    try:
        return read_epoch(blob)
    except Damage as damage:
        problem = damaged_checkpoint(key, blob, damage)
    raise problem


def _written_blob(name: str, metadata: Mapping[str, str], written: Written) -> Blob:
    return Blob(name, written.etag, written.modified_at, 0.0, metadata)


async def yield_to_others() -> None:
    """Those who lost a race wait a little, each another time, so that they do not meet again."""
    await asyncio.sleep(random.uniform(0, CONTENTION_SECONDS))  # noqa: S311
