"""Metadata into records, no matter who wrote it: hubline, an official SDK of any language, or a person.

What the SDKs write says nothing of epochs. An ownership record without one is as if its epoch were the second in which
it was written: every later claim is above it, as with every change of owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from hubline.checkpoint_stores.blob.client import Blob, age_seconds
from hubline.errors import ConfigError, RecordDamaged
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.text import abbreviated

OWNER: Final = "ownerid"
EPOCH: Final = "hublineepoch"
OFFSET: Final = "offset"
SEQUENCE: Final = "sequencenumber"
PARTITIONS_MAX: Final = "partitionsmax"
HEARD: Final = "heardat"
"""When a member wrote its heartbeat, in seconds since 1970, where somebody else has written the blob since."""

COVER_SECONDS: Final = 60.0
"""How long after it was written an ownership blob stays as young as its owner's heartbeat.

As long as the shortest expiry among the SDKs (Go, JavaScript): a blob that its owner does not write again within that
time is free for them, and then it is for hubline."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_NO_OFFSET: Final = ("", "no offset")
_VERSION: Final = re.compile(r"([0-9A-Za-z]{1,64})\|([0-9]{1,19})\|(.*)\|", re.DOTALL)


class Damage(Exception):
    """A value that does not read. Does not leave this package."""


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an ownership record: all that it says.

    A write replaces all metadata: to renew a record, or to know what a claim changes, one has to know what it said.
    """

    etag: str
    epoch: int
    owner_id: str

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From its text; None if that is not a version of this store."""
        match = _VERSION.fullmatch(text)
        return cls(match[1], int(match[2]), match[3]) if match else None

    def __str__(self) -> str:
        return f"{self.etag}|{self.epoch}|{self.owner_id}|"


@dataclass(frozen=True, slots=True)
class OwnRecords:
    """What the blobs of hubline's own prefix say: the members' heartbeats, and who asks for what."""

    members: Mapping[str, Blob]
    requests: Mapping[str, Blob]

    @classmethod
    def of_owners(cls, blobs: Iterable[Blob]) -> Self:
        """What ownership blobs alone say: of each owner of hubline's, the last blob that it wrote is its heartbeat."""
        last: dict[str, Blob] = {}
        for blob in sorted(blobs, key=lambda blob: blob.modified_at):
            owner_id = blob.metadata.get(OWNER)
            if owner_id and EPOCH in blob.metadata:
                last[owner_id] = blob
        return cls(last, {})

    def listed_members(self, *, now: float) -> tuple[Member, ...]:
        return tuple(
            Member(owner_id, _max_partitions(blob), age_seconds(heard_at(blob), now))
            for owner_id, blob in self.members.items()
        )


def read_own(blobs: Iterable[Blob], *, member_prefix: str, request_prefix: str) -> OwnRecords:
    """A blob that does not read is left out: its next write repairs it."""
    members: dict[str, Blob] = {}
    requests: dict[str, Blob] = {}
    for blob in blobs:
        owner_id = blob.metadata.get(OWNER)
        if not owner_id:
            continue
        if blob.name.startswith(member_prefix):
            members[owner_id] = blob
        elif blob.name.startswith(request_prefix):
            requests[blob.name.removeprefix(request_prefix)] = blob
    return OwnRecords(members, requests)


def read_ownership(key: PartitionKey, blob: Blob, own: OwnRecords, *, now: float) -> Ownership:
    """The record of an ownership blob. Raises Damage."""
    owner_id = blob.metadata.get(OWNER)
    if owner_id is None:
        raise Damage(f"it has no {OWNER}")
    epoch = ownership_epoch(blob)
    request = own.requests.get(key.partition)
    return Ownership(
        key,
        owner_id=owner_id,
        epoch=epoch,
        version=str(Version(blob.etag, epoch, owner_id)),
        age_seconds=age_seconds(_renewed_at(blob, own.members.get(owner_id)), now),
        requested_by=request.metadata[OWNER] if request else None,
        request_age_seconds=request.age_seconds if request else 0.0,
    )


def ownership_epoch(blob: Blob) -> int:
    """Raises Damage."""
    epoch = read_epoch(blob)
    return int(blob.modified_at) if epoch is None else epoch


def read_epoch(blob: Blob) -> int | None:
    """What hubline wrote; None where it did not write last. Raises Damage."""
    text = blob.metadata.get(EPOCH)
    if text is None:
        return None
    epoch = _number(EPOCH, text)
    if epoch is None or epoch < 0:
        raise Damage(f"{EPOCH} is {abbreviated(text)}, which is not an epoch")
    return epoch


def _renewed_at(blob: Blob, heartbeat: Blob | None) -> float:
    """When the lease was last renewed: by its owner's heartbeat, for a while after the blob itself was written."""
    if heartbeat is None:
        return blob.modified_at
    return max(blob.modified_at, min(heard_at(heartbeat), blob.modified_at + COVER_SECONDS))


def heard_at(heartbeat: Blob) -> float:
    """When the member wrote its heartbeat. A blob that was rung since says so itself."""
    try:
        written_at = _number(HEARD, heartbeat.metadata.get(HEARD, ""))
    except Damage:
        written_at = None
    return heartbeat.modified_at if written_at is None else min(written_at, heartbeat.modified_at)


def read_checkpoint(key: PartitionKey, blob: Blob) -> Checkpoint | None:
    """The checkpoint that a blob holds; None if it holds nothing but a fence. Raises Damage, also of its epoch."""
    read_epoch(blob)
    offset = blob.metadata.get(OFFSET, "")
    if offset in _NO_OFFSET:
        offset = ""
    sequence_number = _number(SEQUENCE, blob.metadata.get(SEQUENCE, ""))
    if not offset and sequence_number is None:
        if OFFSET not in blob.metadata and SEQUENCE not in blob.metadata and EPOCH in blob.metadata:
            return None
        raise Damage(f"it has neither {OFFSET} nor {SEQUENCE}")
    if sequence_number is None or sequence_number < 0:
        # Of another one's, which does not know it; "-1" is before the first event.
        return Checkpoint(key, offset or "-1", -1)
    return Checkpoint(key, offset, sequence_number)


def checkpoint_or_raise(key: PartitionKey, blob: Blob | None) -> Checkpoint | None:
    if blob is None:
        return None
    try:
        return read_checkpoint(key, blob)
    except Damage as damage:
        problem = damaged_checkpoint(key, blob, damage)
    raise problem


def damaged_checkpoint(key: PartitionKey, blob: Blob, damage: Damage) -> RecordDamaged:
    return RecordDamaged(
        f"the checkpoint cannot be read: {damage}, in the metadata of blob {blob.name!r}. Correct it, "
        "or set the checkpoint again with `hubline checkpoints set`, or reset it with `hubline "
        "checkpoints reset`.",
        partition=key.partition,
        record=blob.name,
    )


def damaged_ownership(blob: Blob, damage: Damage) -> str:
    return (
        f"the ownership record cannot be read: {damage}, in the metadata of blob {blob.name!r}. Correct it, or "
        "delete the blob: hubline then claims the partition again."
    )


def ownership_metadata(owner_id: str, epoch: int, *, max_partitions: int | None = None) -> dict[str, str]:
    """With the owner's limit: by the ownership blobs alone, its share would look larger than it is."""
    return {OWNER: owner_id, EPOCH: str(epoch), **_limit(max_partitions)}


def member_metadata(member: Member) -> dict[str, str]:
    return {OWNER: member.owner_id, **_limit(member.max_partitions)}


def _limit(max_partitions: int | None) -> dict[str, str]:
    return {} if max_partitions is None else {PARTITIONS_MAX: str(max_partitions)}


def checkpoint_metadata(checkpoint: Checkpoint, epoch: int) -> dict[str, str]:
    """Both values always, and neither empty: where a blob lacks one, some SDKs cannot read the whole group."""
    if not checkpoint.offset or checkpoint.last_sequence is None:
        raise ConfigError(
            "a checkpoint in a blob needs an offset and a sequence number, because the official SDKs read "
            f"both. Set both for {checkpoint.key}."
        )
    return {OFFSET: checkpoint.offset, SEQUENCE: str(checkpoint.sequence_number), EPOCH: str(epoch)}


def partitions_of(group: GroupKey, blobs: Iterable[Blob], prefix: str) -> Iterable[tuple[PartitionKey, Blob]]:
    """Blobs that are named as a partition's, with its key."""
    for blob in blobs:
        partition = blob.name.removeprefix(prefix)
        if partition:
            yield group.partition(partition), blob


def _max_partitions(blob: Blob) -> int | None:
    try:
        return _number(PARTITIONS_MAX, blob.metadata.get(PARTITIONS_MAX, ""))
    except Damage:
        return None


def _number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise Damage(f"{name} is {abbreviated(text)}, which is not a whole number")
    return int(text)
