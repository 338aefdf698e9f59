"""The checkpoint store for partitions that never move: Azure Blob Storage with its own leases as the lock.

One blob a partition says all: who owns it, in which epoch, under which lease, and where its checkpoint stands. The
service alone decides whether the lease runs. Every write of the owner names the lease's id, so that one whose lease has
ended, or passed on, can write nothing; and the blob's ETag, so that a write that was delayed on its way cannot land
after a later one. Where that takes several requests, these are the steps, and what dying between them leaves:

    claim    1. acquire the lease   2. write owner, epoch and the lease's id
             between: a lease that nobody uses, and that lapses; the record names the former owner meanwhile
    first    1. make the blob, with the owner in it   2. acquire the lease
             between: a record whose lease does not run; it is free
    give up  1. write that nobody owns it   2. release the lease
             between: a partition that nobody can claim until the lease lapses
    reset    1. break the lease   2. write the checkpoint, without owner, in the next epoch
             between: an owner that has lost its lease, finds out, and claims anew
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Self

from hubline.addresses.blob_address import BlobAddress
from hubline.checkpoint_stores.blob import layout
from hubline.checkpoint_stores.blob.auth import credential_of
from hubline.checkpoint_stores.blob.client import Container, Written
from hubline.checkpoint_stores.blob.http import BULK_REQUESTS_MAX, Transport
from hubline.checkpoint_stores.blob.listing import RESOLUTION_SECONDS, Blob, age_seconds
from hubline.checkpoint_stores.blob.records import (
    EPOCH,
    OFFSET,
    OWNER,
    SEQUENCE,
    Damage,
    damaged_checkpoint,
    damaged_ownership,
    is_ahead,
    member_metadata,
    ownership_epoch,
    partitions_of,
    read_checkpoint,
    read_own,
)
from hubline.checkpoint_stores.blob.store import CONTENTION_MAX, FORGET_SECONDS, TIDY_MAX, yield_to_others
from hubline.concurrency import gather_two, map_bounded
from hubline.credentials import Credential
from hubline.errors import ConfigError, Fenced, RecordDamaged, StoreError, StoreUnavailable
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, StoreExamination
from hubline.sql.fence import NOBODY, fenced

LEASE_ID: Final = "hublinelease"
"""The metadata of the id of the lease under which the owner claimed: it writes with it, and may take it back by it."""

_VERSION: Final = re.compile(r"([0-9A-Za-z]{1,64})\|([0-9]{1,19})\|([0-9a-f-]{36})?\|(.*)\|", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Version:
    """The version of an ownership record. Others claim by its ETag; its owner renews and gives up by its lease."""

    etag: str
    epoch: int
    lease_id: str
    owner_id: str

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From its text; None if that is no version of this store."""
        match = _VERSION.fullmatch(text)
        return cls(match[1], int(match[2]), match[3] or "", match[4]) if match else None

    def __str__(self) -> str:
        return f"{self.etag}|{self.epoch}|{self.lease_id}|{self.owner_id}|"

    def ownership(self, key: PartitionKey, age: float = 0.0) -> Ownership:
        return Ownership(key, self.owner_id, self.epoch, str(self), age)


@dataclass(frozen=True, slots=True)
class _Record:
    """A partition's blob. ``is_leased`` is whether its lease ran when it was looked at."""

    etag: str
    owner_id: str
    epoch: int
    lease_id: str
    is_leased: bool
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, key: PartitionKey, blob: Blob) -> Self:
        """Raises Damage."""
        version = _read_version(blob)
        checkpoint = read_checkpoint(key, blob)
        return cls(blob.etag, version.owner_id, version.epoch, version.lease_id, blob.is_leased, checkpoint)

    @property
    def writing_lease_id(self) -> str:
        """What a write has to name: nothing where the lease does not run."""
        return self.lease_id if self.is_leased else ""

    @property
    def metadata(self) -> dict[str, str]:
        return {**_position(self.checkpoint), **_owner_metadata(self.owner_id, self.epoch, self.lease_id)}


class LeasedBlobStore:
    """A :class:`~hubline.ports.CheckpointStore` in which a claim holds as long as a lease of the service.

    For :class:`.strategies.Fixed` alone: what is leased cannot be taken, so nobody is asked to hand over.
    The address tells how long leases are. Nothing is connected before the first call.
    """

    def __init__(
        self,
        address: BlobAddress,
        *,
        entra: Credential | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if address.lease_seconds is None:
            raise ConfigError(f"{address}: how long leases are has to be said: add ?lease=30s")
        self._shown = str(address)
        self._container = Container(Transport(address, credential_of(address, entra=entra, clock=clock), clock=clock))
        self._lease_seconds = address.lease_seconds
        # What this store claimed or fenced, as it was last written or read: the next checkpoint goes on from there.
        self._known: dict[PartitionKey, _Record] = {}

    def __repr__(self) -> str:
        return f"LeasedBlobStore({self._shown})"

    @property
    def container(self) -> Container:
        """The blobs themselves, for who looks for faults."""
        return self._container

    @property
    def lease_seconds(self) -> float:
        return self._lease_seconds

    # Ownership

    async def list_ownership(self, group: GroupKey) -> GroupState:
        prefix = layout.fixed_prefix(group)
        blobs, now = await self._container.list(prefix)
        own = read_own(blobs, member_prefix=prefix + layout.MEMBER, request_prefix=prefix + layout.REQUEST)
        ownerships: list[Ownership] = []
        damaged: dict[str, str] = {}
        for key, blob in _lease_blobs(group, blobs):
            try:
                version = _read_version(blob)
            except Damage as damage:
                damaged[key.partition] = damaged_ownership(blob, damage)
            else:
                ownerships.append(version.ownership(key, self._age(blob, own.members.get(version.owner_id), now)))
        return GroupState(tuple(ownerships), own.listed_members(), damaged)

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        return [
            won for won in await map_bounded(self._claim, claims, max_concurrent=BULK_REQUESTS_MAX) if won is not None
        ]

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> list[Ownership]:
        announcing = self._container.put(layout.fixed_member_blob(group, member.owner_id), member_metadata(member))
        _, renewed = await gather_two(announcing, map_bounded(self._renew, owned, max_concurrent=BULK_REQUESTS_MAX))
        if not owned:
            await self._tidy(group)  # who joins or stands by has the time
        return [one for one in renewed if one is not None]

    async def leave(self, group: GroupKey, owner_id: str) -> None:
        await self._container.delete(layout.fixed_member_blob(group, owner_id))

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        """Does nothing: who has a partition here keeps it."""

    async def _claim(self, claim: Ownership) -> Ownership | None:
        """The record as it was written; None if the claim is lost."""
        if claim.version is None:
            return await self._claim_first(claim)
        version = _Version.of(claim.version)
        if version is None:
            return None
        if not claim.owner_id:
            return await self._give_up(claim, version)
        lease_id = _new_lease_id()
        if not await self._take_lease(claim, version, lease_id):
            return None
        # Dying here leaves a lease that nobody uses; it lapses.
        name = layout.lease_blob(claim.key)
        found = await self._container.look(name)
        return None if found is None else await self._sign(claim, found, lease_id, writing_lease_id=lease_id)

    async def _claim_first(self, claim: Ownership) -> Ownership | None:
        name = layout.lease_blob(claim.key)
        lease_id = _new_lease_id() if claim.owner_id else ""
        written = await self._container.create(name, _owner_metadata(claim.owner_id, claim.epoch, lease_id))
        if not isinstance(written, Written):
            return None
        # Dying here leaves a record whose lease does not run: it is free.
        if lease_id and not await self._acquire(name, lease_id, written.etag):
            return None
        self._known[claim.key] = _Record(written.etag, claim.owner_id, claim.epoch, lease_id, bool(lease_id), None)
        return _Version(written.etag, claim.epoch, lease_id, claim.owner_id).ownership(claim.key)

    async def _take_lease(self, claim: Ownership, version: _Version, lease_id: str) -> bool:
        name = layout.lease_blob(claim.key)
        is_own = claim.owner_id == version.owner_id and version.lease_id
        # A restart under its own id, or an answer that was lost: it takes its lease back, and the id that the former
        # process may still write with is worth nothing from here on.
        if is_own and await self._container.change_lease(name, version.lease_id, to=lease_id):
            return await self._container.renew_lease(name, lease_id)
        return await self._acquire(name, lease_id, version.etag)

    async def _acquire(self, name: str, lease_id: str, etag: str) -> bool:
        return await self._container.acquire_lease(name, lease_id, seconds=self._lease_seconds, etag=etag)

    async def _give_up(self, claim: Ownership, version: _Version) -> Ownership | None:
        found = await self._container.look(layout.lease_blob(claim.key))
        if found is None:
            return None
        is_own = found.metadata.get(LEASE_ID) == version.lease_id if version.lease_id else found.etag == version.etag
        if not is_own:
            return None
        writing_lease_id = version.lease_id if found.is_leased else ""
        given_up = await self._sign(claim, found, "", writing_lease_id=writing_lease_id)
        if given_up is not None and version.lease_id:
            # Dying here leaves a partition that is free, and that nobody can claim until the lease lapses.
            await self._container.release_lease(found.name, version.lease_id)
        return given_up

    async def _sign(self, claim: Ownership, found: Blob, lease_id: str, *, writing_lease_id: str) -> Ownership | None:
        """Writes the claim's owner and epoch into the blob, and leaves the checkpoint, to the letter."""
        position = {name: found.metadata[name] for name in (OFFSET, SEQUENCE) if name in found.metadata}
        metadata = {**position, **_owner_metadata(claim.owner_id, claim.epoch, lease_id)}
        written = await self._container.replace(found.name, metadata, etag=found.etag, lease_id=writing_lease_id)
        if not isinstance(written, Written):
            return None
        version = _Version(written.etag, claim.epoch, lease_id, claim.owner_id)
        with suppress(Damage):  # of the checkpoint: who takes the fence hears of it
            blob = Blob(found.name, written.etag, written.modified_at, 0.0, metadata, is_leased=bool(lease_id))
            self._known[claim.key] = _Record.of(claim.key, blob)
        return version.ownership(claim.key)

    async def _renew(self, owned: Ownership) -> Ownership | None:
        version = _Version.of(owned.version or "")
        if version is None or not version.lease_id:
            return None
        is_renewed = await self._container.renew_lease(layout.lease_blob(owned.key), version.lease_id)
        return version.ownership(owned.key) if is_renewed else None

    def _age(self, blob: Blob, heartbeat: Blob | None, now: float) -> float:
        """As far as the service tells: whether the lease runs, but not since when. That is as old as what its owner
        wrote last, within the lease; of one that does not run it is longer than a lease."""
        heard_at = max(blob.modified_at, heartbeat.modified_at if heartbeat else 0.0)
        age = age_seconds(heard_at, now)
        if not blob.metadata.get(OWNER):
            return age  # nobody's, and nobody's lease
        if blob.is_leased:
            return min(age, self._lease_seconds - RESOLUTION_SECONDS)
        return max(age, self._lease_seconds + RESOLUTION_SECONDS)

    async def _tidy(self, group: GroupKey) -> None:
        """Deletes what is left of members that died long ago. A failure costs nothing: the next renewal tries again."""
        with suppress(StoreError):
            blobs, _ = await self._container.list(layout.fixed_prefix(group) + layout.MEMBER)
            old = [blob for blob in blobs if blob.age_seconds > FORGET_SECONDS]
            for blob in old[:TIDY_MAX]:
                await self._container.delete(blob.name, etag=blob.etag)

    # Checkpoints

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        """The claim has taken it already, with the lease; what remains is to see that it still stands."""
        for _ in range(CONTENTION_MAX):
            stood = await self._read(key)
            if stood is not None and stood.epoch > epoch:
                raise fenced(key, epoch=epoch, held_epoch=stood.epoch)
            if stood is not None and stood.epoch == epoch:
                self._refuse_lapsed(key, stood)
                self._known[key] = stood
                return stood.checkpoint
            taken = await self._write_epoch(key, stood, epoch)
            if taken is not None:
                self._known[key] = taken
                return taken.checkpoint
            await yield_to_others()
        raise self._contended(key)

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        checkpoints, _, _ = await self._list_checkpoints(group)
        return checkpoints

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        key = checkpoint.key
        known = self._known.get(key)
        stood = known if known is not None and known.epoch == epoch else await self._read(key)
        for _ in range(CONTENTION_MAX):
            if stood is None or stood.epoch != epoch:
                raise fenced(key, epoch=epoch, held_epoch=NOBODY if stood is None else stood.epoch)
            self._refuse_lapsed(key, stood)
            if stood.checkpoint is not None and not is_ahead(checkpoint, stood.checkpoint):
                return
            moved = await self._write(key, stood, replace(stood, checkpoint=checkpoint))
            if moved is not None:
                self._known[key] = moved
                return
            await yield_to_others()
            stood = await self._read(key)
        raise self._contended(key)

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        self._known.pop(key, None)
        for _ in range(CONTENTION_MAX):
            if await self._reset(key, checkpoint):
                return
            await yield_to_others()
        raise self._contended(key)

    async def examine(self, group: GroupKey) -> StoreExamination:
        _, damaged, now = await self._list_checkpoints(group)
        return StoreExamination(datetime.fromtimestamp(now, UTC), damaged)

    async def close(self) -> None:
        await self._container.close()

    async def _list_checkpoints(self, group: GroupKey) -> tuple[list[Checkpoint], dict[str, str], float]:
        """The checkpoints, what is wrong with the others, and the service's time."""
        blobs, now = await self._container.list(layout.fixed_prefix(group) + layout.LEASE)
        checkpoints: list[Checkpoint] = []
        damaged: dict[str, str] = {}
        for key, blob in _lease_blobs(group, blobs):
            try:
                checkpoint = read_checkpoint(key, blob)
            except Damage as damage:
                damaged[key.partition] = str(damaged_checkpoint(key, blob, damage))
            else:
                checkpoints += [checkpoint] if checkpoint else []
        return checkpoints, damaged, now

    async def _read(self, key: PartitionKey) -> _Record | None:
        """Raises RecordDamaged."""
        found = await self._container.look(layout.lease_blob(key))
        if found is None:
            return None
        try:
            return _Record.of(key, found)
        except Damage as damage:
            problem: RecordDamaged = damaged_checkpoint(key, found, damage)
        raise problem

    def _refuse_lapsed(self, key: PartitionKey, stood: _Record) -> None:
        """Whoever claimed here holds the checkpoint as long as that lease, also if nobody has taken it since."""
        known = self._known.get(key)
        if known is None or known.epoch != stood.epoch:
            return
        if known.is_leased and known.lease_id != stood.writing_lease_id:
            raise Fenced(
                f"the checkpoint of {key} is not epoch {stood.epoch}'s to move: its lease has ended",
                partition=key.partition,
                epoch=stood.epoch,
                held_epoch=stood.epoch,
            )

    async def _write_epoch(self, key: PartitionKey, stood: _Record | None, epoch: int) -> _Record | None:
        """Raises the epoch of a record; makes one, of nobody's, where there is none."""
        if stood is not None:
            return await self._write(key, stood, replace(stood, epoch=epoch))
        record = _Record("", "", epoch, "", is_leased=False, checkpoint=None)
        written = await self._container.create(layout.lease_blob(key), record.metadata)
        return replace(record, etag=written.etag) if isinstance(written, Written) else None

    async def _write(self, key: PartitionKey, stood: _Record, record: _Record) -> _Record | None:
        """Writes a record over what stood there, under its ETag and its lease; None if either is another by now."""
        written = await self._container.replace(
            layout.lease_blob(key), record.metadata, etag=stood.etag, lease_id=stood.writing_lease_id
        )
        return replace(record, etag=written.etag) if isinstance(written, Written) else None

    async def _reset(self, key: PartitionKey, checkpoint: Checkpoint | None) -> bool:
        """Whether nobody came in between."""
        name = layout.lease_blob(key)
        found = await self._container.look(name)
        epoch = NOBODY if found is None else _epoch_of_damaged(found)
        metadata = _Record("", "", epoch + 1, "", is_leased=False, checkpoint=checkpoint).metadata
        if found is None:
            return isinstance(await self._container.create(name, metadata), Written)
        if found.is_leased:
            # From here on its owner can write nothing. Dying here, it finds out at its next renewal.
            await self._container.break_lease(name)
        return isinstance(await self._container.replace(name, metadata, etag=found.etag), Written)

    def _contended(self, key: PartitionKey) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._container.shown}: the record of {key} was written by others each of {CONTENTION_MAX} times"
        )


def _lease_blobs(group: GroupKey, blobs: Iterable[Blob]) -> Iterable[tuple[PartitionKey, Blob]]:
    prefix = layout.fixed_prefix(group) + layout.LEASE
    return partitions_of(group, (blob for blob in blobs if blob.name.startswith(prefix)), prefix)


def _read_version(blob: Blob) -> _Version:
    """Raises Damage."""
    owner_id = blob.metadata.get(OWNER)
    if owner_id is None:
        raise Damage(f"it has no {OWNER}")
    return _Version(blob.etag, ownership_epoch(blob), blob.metadata.get(LEASE_ID, ""), owner_id)


def _epoch_of_damaged(blob: Blob) -> int:
    """The blob's epoch; where it does not read, the second in which that was written, which is above all others."""
    try:
        return ownership_epoch(blob)
    except Damage:
        return int(blob.modified_at)


def _position(checkpoint: Checkpoint | None) -> dict[str, str]:
    """Also without an offset: no SDK reads it here, and one without is resumed by its number."""
    if checkpoint is None:
        return {}
    number = {SEQUENCE: str(checkpoint.sequence_number)}
    return {OFFSET: checkpoint.offset, **number} if checkpoint.offset else number


def _owner_metadata(owner_id: str, epoch: int, lease_id: str) -> dict[str, str]:
    return {OWNER: owner_id, EPOCH: str(epoch)} | ({LEASE_ID: lease_id} if lease_id else {})


def _new_lease_id() -> str:
    return str(uuid.uuid4())
