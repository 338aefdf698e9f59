"""What is each member's fair share, and what stands against it now.

Every member computes the same shares from the same listing and acts on its own part only, so that members that
see the same state never claim the same partition. Where their views differ, the store's compare-and-swap
decides, and the next cycle starts from what came of it.

Partitions are classified first, then a strategy chooses:

    held       this processor runs it
    recovered  recorded as this processor's, but not held: it restarted under the same owner id
    free       no owner, or one whose lease expired
    promised   on its way to a member: released for it, or requested and not yet released
    overdue    requested, and not released within the handover timeout: the requester may steal it
    surplus    owned by a member above its share, and not promised to anyone
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hubline.coordination.snapshot import Snapshot, free_room, living_members, recovered_after_restart
from hubline.model.ownership import Member, Ownership

# The fair share


@dataclass(frozen=True, slots=True)
class _Share:
    """This processor's part of the group's plan. ``is_waiting``: a requested partition is on its way."""

    recovered_after_restart: tuple[str, ...]
    claims: tuple[str, ...]
    steals: tuple[str, ...]
    requests: tuple[str, ...]
    releases: tuple[str, ...]
    is_waiting: bool


def fair_share(snapshot: Snapshot) -> _Share:
    me = snapshot.me.owner_id
    classes = classify(snapshot)
    targets = classes.level.targets(classes.counts)
    wanting = {name: count for name, count in classes.counts.items() if count < targets[name]}

    mine = [partition for partition, name in classes.promised.items() if name == me]
    given_up = [partition for partition in mine if partition not in classes.living]
    # The free ones are dealt first: nobody is asked while there is something that nobody owns.
    claims = (*given_up, *_deal(classes.free, wanting, targets)[me])
    own = recovered_after_restart(snapshot)
    room = free_room(snapshot) - len(own)
    dealt = _deal(classes.surplus(targets), wanting, targets, preferred=classes.overdue)[me]
    # A processor of another kind announces nothing and cannot be asked: the plain steal remains.
    asked = {member.owner_id for member in snapshot.members} if snapshot.keeps_requests else set()
    steals = {p for p in dealt if classes.overdue.get(p) == me or classes.living[p].owner_id not in asked}
    return _Share(
        recovered_after_restart=own,
        claims=claims[:room],
        steals=tuple(partition for partition in dealt if partition in steals)[: max(room - len(claims), 0)],
        requests=tuple(partition for partition in dealt if partition not in steals),
        releases=tuple(p for p, name in classes.promised.items() if p in snapshot.held and name != me),
        is_waiting=len(given_up) < len(mine),
    )


def _deal(
    partitions: Sequence[str],
    wanting: dict[str, int],
    targets: Mapping[str, int],
    *,
    preferred: Mapping[str, str] | None = None,
) -> dict[str, list[str]]:
    """Deals partitions to those below their target: to the preferred one, else always to the one with fewest.

    Raises the counts in ``wanting`` by what was dealt.
    """
    dealt: dict[str, list[str]] = {name: [] for name in targets}
    if not (partitions and wanting):
        return dealt
    rest: list[str] = []
    for partition in partitions:
        requester = preferred.get(partition) if preferred else None
        if requester in wanting and wanting[requester] < targets[requester]:
            dealt[requester].append(partition)
            wanting[requester] += 1
        else:
            rest.append(partition)

    queue = [(count, name) for name, count in wanting.items() if count < targets[name]]
    heapq.heapify(queue)
    for partition in rest:
        if not queue:
            break
        count, name = queue[0]
        dealt[name].append(partition)
        wanting[name] = count + 1
        if count + 1 < targets[name]:
            heapq.heapreplace(queue, (count + 1, name))
        else:
            heapq.heappop(queue)
    return dealt


@dataclass(frozen=True, slots=True)
class EvenShare:
    """The even share: ``base`` each, one more for ``extra`` of the members, and less for those with a lower limit."""

    base: int
    extra: int
    limited: Mapping[str, int]

    @classmethod
    def of(cls, total: int, members: Mapping[str, Member]) -> EvenShare:
        """Fills up as water does: what a limit keeps out of one member rises in the others."""
        limits = sorted((m.max_partitions, name) for name, m in members.items() if m.max_partitions is not None)
        limited: dict[str, int] = {}
        sharing = len(members)
        for limit, name in limits:
            if limit > total // sharing:
                break
            limited[name] = limit
            total -= limit
            sharing -= 1
        return cls(*divmod(total, max(sharing, 1)), limited)

    def most(self, name: str) -> int:
        """What a member has at the most when all shares are even."""
        return self.limited.get(name, self.base + (self.extra > 0))

    def targets(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Each member's share. The uneven ones stay with the members that have most: nothing moves for their sake."""
        sharing = sorted((name for name in counts if name not in self.limited), key=lambda name: (-counts[name], name))
        return {**self.limited, **{name: self.base + (place < self.extra) for place, name in enumerate(sharing)}}


# What is where


@dataclass(frozen=True, slots=True)
class _Classes:
    """The snapshot's partitions by what may be done with them; ``counts`` has each member's, with promised ones."""

    living: Mapping[str, Ownership]
    level: EvenShare
    counts: Mapping[str, int]
    owned: Mapping[str, Sequence[str]]
    free: Sequence[str]
    promised: Mapping[str, str]
    overdue: Mapping[str, str]

    def surplus(self, targets: Mapping[str, int]) -> list[str]:
        """What members above their share can give: the fullest member's before others', overdue ones first."""
        surplus: list[str] = []
        for name in sorted(self.counts, key=lambda name: (-self.counts[name], name)):
            spare = max(self.counts[name] - targets[name], 0)
            if spare:
                surplus += sorted(self.owned[name], key=lambda partition: partition not in self.overdue)[:spare]
        return surplus


def classify(snapshot: Snapshot) -> _Classes:
    living, members = snapshot.living_records, living_members(snapshot)
    level = EvenShare.of(len(snapshot.partitions), members)
    owners = {partition: record.owner_id for partition, record in living.items()}
    owners |= dict.fromkeys(snapshot.held.intersection(snapshot.partitions), snapshot.me.owner_id)
    counts = dict.fromkeys(members, 0)
    for owner_id in owners.values():
        counts[owner_id] += 1

    promised: dict[str, str] = {}
    overdue: dict[str, str] = {}
    for partition, requester in _asked(snapshot, members).items():
        owner = owners.get(partition)
        if _is_on_its_way(snapshot, partition) and _evens_out(counts, level, giver=owner, taker=requester):
            promised[partition] = requester
            counts[requester] += 1
            if owner is not None:
                counts[owner] -= 1
        elif (
            partition in living
            and snapshot.ownerships[partition].request_age_seconds >= snapshot.handover_timeout_seconds
        ):
            overdue[partition] = requester

    owned: dict[str, list[str]] = {name: [] for name in members}
    free: list[str] = []
    for partition in snapshot.partitions:
        if partition not in promised:
            (owned[owners[partition]] if partition in owners else free).append(partition)
    return _Classes(living, level, counts, owned, free, promised, overdue)


def _asked(snapshot: Snapshot, members: Mapping[str, Member]) -> dict[str, str]:
    """Partitions by the active member that requested them. An old request is forgotten in time."""
    forgotten_seconds = snapshot.handover_timeout_seconds + snapshot.lease_seconds
    return {
        partition: requester
        for partition in snapshot.partitions
        if (record := snapshot.ownerships.get(partition)) is not None
        and (requester := record.requested_by) is not None
        and requester in members
        and requester != record.owner_id
        and record.request_age_seconds < forgotten_seconds
    }


def _is_on_its_way(snapshot: Snapshot, partition: str) -> bool:
    """For one grace period from the request, while the owner is active, and one from the release."""
    record = snapshot.ownerships[partition]
    if not record.owner_id:
        return record.age_seconds < snapshot.handover_timeout_seconds
    return (
        record.age_seconds < snapshot.lease_seconds and record.request_age_seconds < snapshot.handover_timeout_seconds
    )


def _evens_out(counts: Mapping[str, int], level: EvenShare, *, giver: str | None, taker: str) -> bool:
    """Whether shares are more even after the move; otherwise, an old request does not count any more."""
    if counts[taker] >= level.most(taker):
        return False
    return giver is None or counts[giver] > min(level.most(giver), counts[taker] + 1)
