"""What one instance knows of its consumer group when it plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from hubline.model.ownership import Member, Ownership
from hubline.text import counted


@dataclass(frozen=True)
class Snapshot:
    """What a planner knows: the hub's partitions, the group's records, and what this processor holds."""

    me: Member
    partitions: Sequence[str]
    ownerships: Mapping[str, Ownership]
    members: Sequence[Member]
    held: frozenset[str]
    lease_seconds: float
    handover_timeout_seconds: float
    sdk_lease_seconds: float | None = None
    """The lease of owners that have not announced themselves, where the store has such: the official SDKs'."""
    keeps_requests: bool = True
    """Whether the store keeps handover requests. Without them, partitions are taken from any owner above its share."""

    @cached_property
    def living_records(self) -> dict[str, Ownership]:
        """The records that name an owner whose lease runs."""
        records, (leases, others_seconds) = self.ownerships, lease_lengths(self)
        return {
            partition: record
            for partition in self.partitions
            if (record := records.get(partition)) is not None
            and (owner_id := record.owner_id)
            and record.age_seconds < leases.get(owner_id, others_seconds)
        }


def recovered_after_restart(snapshot: Snapshot) -> tuple[str, ...]:
    """What the records give to this processor and it does not hold, within its limit: it restarted under its old id."""
    me, held = snapshot.me.owner_id, snapshot.held
    own = [p for p, record in snapshot.living_records.items() if record.owner_id == me and p not in held]
    return tuple(own[: free_room(snapshot)])


def free_room(snapshot: Snapshot) -> int:
    """How many partitions this processor may take beside those that it still holds, or is just releasing."""
    most = len(snapshot.partitions) if (limit := snapshot.me.max_partitions) is None else limit
    return max(most - len(snapshot.held), 0)


def first_expiry_seconds(snapshot: Snapshot) -> float | None:
    """When the first lease of another member expires unless renewed: looking then, a crash costs no more than it."""
    leases, others_seconds = lease_lengths(snapshot)
    others = (record for p, record in snapshot.living_records.items() if p not in snapshot.held)
    return min((leases.get(one.owner_id, others_seconds) - one.age_seconds for one in others), default=None)


NAMED_MAX: Final = 16
"""Of more partitions, the number says more than their names."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Partitions that somebody else owns, and when the last of their leases expires unless its owner renews it."""

    owner_id: str
    partitions: Sequence[str]
    seconds_left: float

    def __str__(self) -> str:
        count = len(self.partitions)
        named = f"partition{'s' * (count > 1)} {', '.join(self.partitions)}"
        partitions = named if count <= NAMED_MAX else counted(count, "partition")
        lease = f"lease expires in {self.seconds_left:.0f} s unless renewed"
        return f"waiting for {partitions}: owned by {self.owner_id}, {lease}"


def waits(snapshot: Snapshot) -> list[Wait]:
    """What this processor waits for: nothing, where it holds a partition, or one is free."""
    others = snapshot.living_records
    if snapshot.held or len(others) < len(snapshot.partitions):
        return []
    leases, others_seconds = lease_lengths(snapshot)
    owned: dict[str, list[str]] = {}
    for partition, record in others.items():
        owned.setdefault(record.owner_id, []).append(partition)
    return [
        Wait(
            owner_id, partitions, leases.get(owner_id, others_seconds) - min(others[p].age_seconds for p in partitions)
        )
        for owner_id, partitions in owned.items()
    ]


def lease_lengths(snapshot: Snapshot) -> tuple[Mapping[str, float], float]:
    """The leases of owners by id, and that of all others: of those that have not announced themselves."""
    if snapshot.sdk_lease_seconds is None:
        return {}, snapshot.lease_seconds
    return {member.owner_id: snapshot.lease_seconds for member in snapshot.members}, snapshot.sdk_lease_seconds


def living_members(snapshot: Snapshot) -> dict[str, Member]:
    """Members by id: this one, those heard of within the lease, and the owners whose lease runs."""
    announced = {member.owner_id: member for member in snapshot.members}
    names = {name for name, member in announced.items() if member.age_seconds < snapshot.lease_seconds}
    names |= {record.owner_id for record in snapshot.living_records.values()}
    members = {name: announced.get(name) or Member(name) for name in names}
    members[snapshot.me.owner_id] = snapshot.me
    return dict(sorted(members.items()))
