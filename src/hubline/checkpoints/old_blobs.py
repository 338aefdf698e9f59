"""Checkpoints that stand in other blobs than the ones that are read today.

- Forks: `{namespace}/{hub}/{group}/checkpoint/{partition}` with capital letters in the first three names. The Go and
  Rust SDKs write names as they were typed, all others in lower case: with capitals, a group has two states.
- Leases: `{namespace}/{hub}/{group}/{partition}` with a JSON body, of the Event Processor Host (early Functions).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hubline.addresses.names import validate_partition_id
from hubline.checkpoint_stores.blob import Blob, Container
from hubline.checkpoint_stores.blob.layout import OWN_PREFIX
from hubline.checkpoint_stores.blob.records import OWNER, Damage, read_checkpoint
from hubline.concurrency import map_bounded
from hubline.errors import ConfigError
from hubline.model.keys import GroupKey, PartitionKey, partition_order
from hubline.model.ownership import Checkpoint

# A lease is about 300 bytes: what is larger is something else, and is not read.
LEASE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class OldBlob:
    """A blob in an old place. ``key`` is the partition whose state it holds, in lower case as it is kept today."""

    key: PartitionKey
    blob: Blob


@dataclass(frozen=True, slots=True)
class OldBlobs:
    """All that stands in old places, by what it is. Leases may be something else: their content tells."""

    checkpoints: list[OldBlob] = field(default_factory=list)
    ownerships: list[OldBlob] = field(default_factory=list)
    leases: list[OldBlob] = field(default_factory=list)


def sort_out(blobs: Iterable[Blob]) -> OldBlobs:
    """The old ones among the blobs of a container, by their names."""
    old = OldBlobs()
    for blob in blobs:
        if blob.name.startswith(OWN_PREFIX):
            continue
        # From the right: the namespace of a local hub is a path.
        match blob.name.rsplit("/", 4):
            case [namespace, hub, group, ("checkpoint" | "ownership") as kind, partition]:
                is_fork = any(name != name.lower() for name in (namespace, hub, group))
                if is_fork and (key := _key(namespace, hub, group, partition)):
                    (old.checkpoints if kind == "checkpoint" else old.ownerships).append(OldBlob(key, blob))
            case [namespace, hub, group, partition] if 0 < blob.bytes_count <= LEASE_BYTES_MAX:
                if key := _key(namespace, hub, group, partition):
                    old.leases.append(OldBlob(key, blob))
    return old


def _key(namespace: str, hub: str, group: str, partition: str) -> PartitionKey | None:
    try:
        names = (name.lower() for name in (namespace, hub, group))
        return GroupKey(*names).partition(validate_partition_id(partition))
    except ConfigError:
        return None  # an empty name, or one that no partition has: another program's blob


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease of the Event Processor Host says. ``owner`` is empty if it was released."""

    owner: str
    checkpoint: Checkpoint | None


def read_lease(old: OldBlob, body: bytes) -> Lease | None:
    """The lease; None if the blob is something else. The checkpoint is None if nothing was done yet. Raises Damage."""
    content = _json_object(body)
    if content is None or not {"offset", "sequencenumber", "epoch"} <= set(content):
        return None
    owner, offset, sequence_number = content.get("owner"), content["offset"], content["sequencenumber"]
    if offset in (None, ""):
        return Lease(str(owner or ""), None)
    if not isinstance(offset, str) or not isinstance(sequence_number, int) or sequence_number < 0:
        raise Damage(f"Offset or SequenceNumber of the lease {old.blob.name!r} do not read")
    return Lease(str(owner or ""), Checkpoint(old.key, offset, sequence_number))


def _json_object(body: bytes) -> Mapping[str, object] | None:
    """By names in lower case: the ports of the host spelled them in different ways."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return {str(name).lower(): value for name, value in content.items()} if isinstance(content, dict) else None


@dataclass(frozen=True, slots=True)
class OldPartition:
    """All old blobs of one partition.

    ``checkpoint`` is the furthest position in them, ``active_owner`` the consumer that still writes them, ``damage``
    says what does not read back.
    """

    key: PartitionKey
    blobs: tuple[Blob, ...]
    checkpoint: Checkpoint | None
    active_owner: str | None
    damage: str | None


def groups_in(blobs: Iterable[Blob]) -> set[GroupKey]:
    """The groups that have owners or checkpoints there, in lower case."""
    groups: set[GroupKey] = set()
    for blob in blobs:
        if blob.name.startswith(OWN_PREFIX):
            continue
        match blob.name.rsplit("/", 4):
            case [namespace, hub, group, "checkpoint" | "ownership", partition]:
                if key := _key(namespace, hub, group, partition):
                    groups.add(key.group_key)
    return groups


async def find_old(container: Container, blobs: Iterable[Blob], *, active_seconds: float) -> list[OldPartition]:
    """Every partition of which one of the blobs is an old checkpoint, in the order of their keys."""
    old = sort_out(blobs)
    bodies = await map_bounded(lambda each: container.read(each.blob.name), old.leases)
    return partitions_of(old, bodies, active_seconds=active_seconds)


def partitions_of(old: OldBlobs, bodies: Sequence[bytes | None], *, active_seconds: float) -> list[OldPartition]:
    """What was sorted out, by partition. ``bodies`` are those of the leases; an owner that wrote lately is active."""
    found: dict[PartitionKey, _Found] = {}
    for each in old.checkpoints:
        _add_fork(found.setdefault(each.key, _Found()), each)
    for each, body in zip(old.leases, bodies, strict=True):
        if body is not None and (lease := _lease_or_damage(each, body)):
            _add_lease(found.setdefault(each.key, _Found()), each, lease)
    for each in old.ownerships:
        if each.key in found:
            owner = each.blob.metadata.get(OWNER)
            found[each.key].blobs.append(each.blob)
            if owner and each.blob.age_seconds <= active_seconds:
                found[each.key].active_owner = owner
    return [found[key].of(key) for key in sorted(found, key=_order)]


@dataclass(slots=True)
class _Found:
    blobs: list[Blob] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    active_owner: str | None = None
    damage: str | None = None

    def of(self, key: PartitionKey) -> OldPartition:
        return OldPartition(key, tuple(self.blobs), self.checkpoint, self.active_owner, self.damage)

    def take(self, blob: Blob, checkpoint: Checkpoint | None) -> None:
        """Keeps the further of two positions."""
        if checkpoint is None:
            return
        if checkpoint.last_sequence is None or not checkpoint.offset:
            self.damage = f"the blob {blob.name!r} lacks the offset or the sequence number: read on with its SDK first"
        elif self.checkpoint is None or self.checkpoint.sequence_number < checkpoint.sequence_number:
            self.checkpoint = checkpoint


def _add_fork(found: _Found, old: OldBlob) -> None:
    found.blobs.append(old.blob)
    try:
        found.take(old.blob, read_checkpoint(old.key, old.blob))
    except Damage as damage:
        found.damage = f"the checkpoint does not read: {damage}, in the metadata of blob {old.blob.name!r}"


def _lease_or_damage(old: OldBlob, body: bytes) -> Lease | Damage | None:
    try:
        return read_lease(old, body)
    except Damage as damage:
        return damage


def _add_lease(found: _Found, old: OldBlob, lease: Lease | Damage) -> None:
    found.blobs.append(old.blob)
    if isinstance(lease, Damage):
        found.damage = str(lease)
        return
    found.take(old.blob, lease.checkpoint)
    # Renewing it changes nothing in the blob: what tells is the lock that the service keeps.
    if old.blob.is_leased:
        found.active_owner = lease.owner or "somebody"


def _order(key: PartitionKey) -> tuple[str, str, str, tuple[int, str]]:
    return key.namespace, key.hub, key.group, partition_order(key.partition)
