"""The consumers of a group: expired leases, partitions without an owner, members without a partition, SDKs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hubline.coordination.lease_options import LeaseOptions
from hubline.doctor.findings import Finding, error, note, ok, warning
from hubline.doctor.observations import GroupFacts
from hubline.model.ownership import Member, Ownership
from hubline.text import counted


def check_group(facts: GroupFacts, lease: LeaseOptions, there: Sequence[str] | None) -> list[Finding]:
    """All findings about owners and members. Those that need the hub's partitions only if ``there`` names them."""
    active = _ActiveConsumers(facts, lease)
    findings = [
        *_damaged(facts),
        *_expired_leases(active),
        *_overdue_handovers(facts, lease),
        *_sdk_members(facts),
        *_members(active),
    ]
    if there is not None:
        findings += [*_unknown_partitions(facts, there), *_unowned(active, there), *_capacity(active, there)]
    return sorted(findings, key=lambda finding: -finding.severity.rank)


class _ActiveConsumers:
    """The owners and members that renewed within the lease; the other owners as stale."""

    def __init__(self, facts: GroupFacts, lease: LeaseOptions) -> None:
        self._sdk_owners = facts.sdk_owners
        self._lease = lease
        owned = [each for each in facts.state.ownerships if each.owner_id]
        self.owned = [each for each in owned if self._is_active(each)]
        self.stale = [each for each in owned if not self._is_active(each)]
        self.members: list[Member] = [each for each in facts.state.members if each.age_seconds <= lease.lease_seconds]
        self.owned_count = Counter(each.owner_id for each in self.owned)

    def _is_active(self, ownership: Ownership) -> bool:
        is_sdk = ownership.owner_id in self._sdk_owners
        return ownership.age_seconds <= (self._lease.sdk_lease_seconds if is_sdk else self._lease.lease_seconds)

    @property
    def owner_ids(self) -> set[str]:
        return {*self.owned_count, *(each.owner_id for each in self.members)}


def _damaged(facts: GroupFacts) -> list[Finding]:
    damaged = facts.state.damaged
    if not damaged:
        return []
    message = f"{counted(len(damaged), 'ownership record')} cannot be read, so no consumer can claim the partition"
    return [
        error(
            "group.damaged", message, fix="repair each record as its partition's message says", partitions=dict(damaged)
        )
    ]


def _unknown_partitions(facts: GroupFacts, there: Sequence[str]) -> list[Finding]:
    owned = {each.key.partition: each.owner_id for each in facts.state.ownerships if each.owner_id}
    unknown = {
        partition: f"owned by {owned[partition]}" if partition in owned else "has a checkpoint"
        for partition in sorted({*owned, *facts.checkpoints} - {*there})
    }
    if not unknown:
        return []
    message = f"the store has {counted(len(unknown), 'partition')} that the hub does not have: they are of another hub"
    fix = "check that the store belongs to this hub; if it does, these records are harmless"
    return [warning("group.unknown-partitions", message, fix=fix, partitions=unknown)]


def _expired_leases(active: _ActiveConsumers) -> list[Finding]:
    if not active.stale:
        return []
    partitions = {
        each.key.partition: f"{each.owner_id} has not renewed it for {each.age_seconds:.0f} s" for each in active.stale
    }
    message = f"the lease of {counted(len(partitions), 'partition')} expired, because the owner did not renew it"
    if active.owner_ids:
        fix = "wait a few seconds until active members claim them; if they don't, raise their limits"
        return [warning("group.expired-leases", message, fix=fix, partitions=partitions)]
    fix = "start a consumer of this group, which claims them immediately"
    return [
        warning("group.expired-leases", f"{message}, and there is no other consumer", fix=fix, partitions=partitions)
    ]


def _unowned(active: _ActiveConsumers, there: Sequence[str]) -> list[Finding]:
    taken = {each.key.partition for each in (*active.owned, *active.stale)}
    unowned = [partition for partition in there if partition not in taken]
    if not unowned or not active.owner_ids:
        return []
    message = f"{counted(len(unowned), 'partition')} of {len(there)} without an owner, so nothing reads their events"
    fix = "if members have just started, wait a few seconds; otherwise start more of them, or raise their limits"
    return [warning("group.unowned", message, fix=fix, partitions=dict.fromkeys(unowned, "has no owner"))]


def _capacity(active: _ActiveConsumers, there: Sequence[str]) -> list[Finding]:
    limits = [each.max_partitions for each in active.members]
    if not limits or None in limits:
        return []
    others = {each.owner_id for each in active.owned} - {each.owner_id for each in active.members}
    capacity, needed = sum(limit for limit in limits if limit is not None), len(there)
    if others or capacity >= needed:
        return []
    message = f"all members together own at most {counted(capacity, 'partition')}, but the hub has {needed}"
    return [warning("group.capacity", message, fix="start more members, or raise their limits (Fixed(count), max)")]


def _overdue_handovers(facts: GroupFacts, lease: LeaseOptions) -> list[Finding]:
    # A claim follows within a cycle after the handover timeout.
    patience_seconds = lease.handover_timeout_seconds + lease.load_balancing_interval_seconds
    waiting = {
        each.key.partition: (
            f"{each.requested_by} requested it from {each.owner_id} {each.request_age_seconds:.0f} s ago"
        )
        for each in facts.state.ownerships
        if each.owner_id and each.requested_by and each.request_age_seconds > patience_seconds
    }
    if not waiting:
        return []
    message = f"{counted(len(waiting), 'handover')} waiting for longer than the handover timeout"
    fix = "check why the handler of the owner does not finish, and whether the consumer that requested it still runs"
    return [warning("group.overdue-handovers", message, fix=fix, partitions=waiting)]


def _sdk_members(facts: GroupFacts) -> list[Finding]:
    if not facts.sdk_owners:
        return []
    message = (
        f"{counted(len(facts.sdk_owners), 'member')} with an official SDK: partitions move to and from them without a "
        "handover, so events may be duplicated, and their epochs stay 0"
    )
    return [note("group.sdk-members", message, where=", ".join(sorted(facts.sdk_owners)))]


def _members(active: _ActiveConsumers) -> list[Finding]:
    ids = active.owner_ids
    if not ids:
        return [note("group.empty", "the group has no consumers", fix="to process events, start a processor")]
    standby = sorted(each.owner_id for each in active.members if not active.owned_count[each.owner_id])
    shared = f"{counted(len(ids), 'member')} with {counted(sum(active.owned_count.values()), 'partition')}"
    if not standby:
        return [ok("group.members", shared)]
    message = f"{counted(len(standby), 'member')} of {len(ids)} without a partition, on standby to take over"
    return [ok("group.members", shared), note("group.standby", message, where=", ".join(standby))]
