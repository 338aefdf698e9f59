"""The balancer: a snapshot of the group in, a plan out. Pure: no I/O, no clock, randomness as an argument.

Every member computes the same shares from the same listing and acts on its own part only, so that members that
see the same state never reach for the same partition. Where their views differ, the store's compare-and-swap
decides, and the next cycle starts from what came of it.

Partitions are classified first, then a strategy chooses:

    held       this processor runs it
    stranded   recorded as this processor's, but not held: it restarted under the same owner id
    free       no owner, or one whose lease ran out
    promised   on its way to a member: given up for it, or asked for and not yet given up
    overdue    asked for, and not given up within the grace: who asked may take it
    surplus    owned by a member above its share, and not promised to anyone
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hubline.errors import ConfigError
from hubline.model import Member, Ownership

HANDOVER_POLL_SECONDS = 0.5
"""How soon a greedy member looks again for what it asked for: draining a partition takes about one batch."""

FIXED_PACE_SECONDS = 1.0
"""Fixed members claim one partition in this time, so that members that start together share them out."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a planner knows: the hub's partitions, the group's records, and what this processor holds."""

    me: Member
    partitions: Sequence[str]
    ownerships: Mapping[str, Ownership]
    members: Sequence[Member]
    held: frozenset[str]
    lease_seconds: float
    grace_seconds: float
    sdk_lease_seconds: float | None = None
    """The lease of owners that have not announced themselves, where the store has such: the official SDKs'."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: claim free partitions, take overdue ones, ask for others, give up what was asked for.

    ``rerun_seconds`` is when to plan again, if that is sooner than the usual interval.
    """

    claims: tuple[str, ...] = ()
    steals: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    relinquish: tuple[str, ...] = ()
    rerun_seconds: float | None = None

    @property
    def is_idle(self) -> bool:
        return not (self.claims or self.steals or self.requests or self.relinquish)


class Strategy(Protocol):
    """How a processor gets its partitions. Called once a dispatch cycle; must not block or keep state."""

    @property
    def partitions_max(self) -> int | None:
        """The most this processor takes; announced, so that the others can share the rest."""
        ...

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Balanced:
    """The fair share, reached by one claim a cycle: gentle with the hub and the store."""

    partitions_max: int | None = None

    def __post_init__(self) -> None:
        _check_maximum(self.partitions_max)

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:  # noqa: ARG002
        share = _fair_share(snapshot)
        claims = share.stranded or share.claims[:1]
        return Plan(
            claims=claims,
            steals=() if claims else share.steals[:1],
            requests=share.requests[:1],
            relinquish=share.relinquish,
        )


@dataclass(frozen=True, slots=True)
class Greedy:
    """The fair share, all at once: planned again without delay until there is nothing left to do."""

    partitions_max: int | None = None

    def __post_init__(self) -> None:
        _check_maximum(self.partitions_max)

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:  # noqa: ARG002
        share = _fair_share(snapshot)
        claims = share.stranded + share.claims
        if share.requests or share.is_waiting:
            rerun_seconds: float | None = HANDOVER_POLL_SECONDS
        elif claims or share.steals:
            rerun_seconds = 0.0
        else:
            rerun_seconds = _first_expiry_seconds(snapshot)
        return Plan(claims, share.steals, share.requests, share.relinquish, rerun_seconds)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly ``count`` partitions, claimed in random order at a bounded pace and never given up while alive.

    Meant for groups in which every member is fixed: one that goes for its fair share asks, and takes after the grace.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"Fixed takes at least one partition, not {self.count}")

    @property
    def partitions_max(self) -> int | None:
        return self.count

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        own = stranded(snapshot)
        if len(snapshot.held) + len(own) >= self.count:
            return Plan(claims=own)
        free = _classify(snapshot).free
        if not free:
            return Plan(claims=own, rerun_seconds=_first_expiry_seconds(snapshot))
        return Plan(claims=(*own, rng.choice(free)), rerun_seconds=FIXED_PACE_SECONDS)


@dataclass(frozen=True, slots=True)
class All:
    """Every partition that nobody owns, all at once and never given up while alive: for one that reads a hub alone.

    A second one stands by, and takes what the first leaves.
    """

    @property
    def partitions_max(self) -> int | None:
        return None

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:  # noqa: ARG002
        claims = (*stranded(snapshot), *_classify(snapshot).free)
        return Plan(claims, rerun_seconds=0.0 if claims else _first_expiry_seconds(snapshot))


def stranded(snapshot: Snapshot) -> tuple[str, ...]:
    """What the records give to this processor and it does not hold, within its limit: it restarted under its old id."""
    me, held = snapshot.me.owner_id, snapshot.held
    own = [p for p, record in living_records(snapshot).items() if record.owner_id == me and p not in held]
    return tuple(own[: _room(snapshot)])


def _room(snapshot: Snapshot) -> int:
    """How many partitions this processor may take beside what it still holds, or is just giving up."""
    most = len(snapshot.partitions) if (limit := snapshot.me.partitions_max) is None else limit
    return max(most - len(snapshot.held), 0)


def _check_maximum(partitions_max: int | None) -> None:
    if partitions_max is not None and partitions_max < 1:
        raise ConfigError(f"the most partitions of a processor is at least one, not {partitions_max}")


def _first_expiry_seconds(snapshot: Snapshot) -> float | None:
    """When the first lease of another member runs out unless renewed: looking then, a crash costs no more than it."""
    leases, others_seconds = _leases(snapshot)
    others = (record for p, record in living_records(snapshot).items() if p not in snapshot.held)
    return min((leases.get(one.owner_id, others_seconds) - one.age_seconds for one in others), default=None)


# The fair share


@dataclass(frozen=True, slots=True)
class _Share:
    """This processor's part of the group's plan. ``is_waiting``: something it asked for is on its way."""

    stranded: tuple[str, ...]
    claims: tuple[str, ...]
    steals: tuple[str, ...]
    requests: tuple[str, ...]
    relinquish: tuple[str, ...]
    is_waiting: bool


def _fair_share(snapshot: Snapshot) -> _Share:
    me = snapshot.me.owner_id
    classes = _classify(snapshot)
    targets = classes.level.targets(classes.counts)
    wanting = {name: count for name, count in classes.counts.items() if count < targets[name]}

    mine = [partition for partition, name in classes.promised.items() if name == me]
    given_up = [partition for partition in mine if partition not in classes.living]
    # The free ones are dealt first: nobody is asked while there is something that nobody owns.
    claims = (*given_up, *_deal(classes.free, wanting, targets)[me])
    own = stranded(snapshot)
    room = _room(snapshot) - len(own)
    dealt = _deal(classes.surplus(targets), wanting, targets, preferred=classes.overdue)[me]
    # A processor of another kind announces nothing and cannot be asked: the plain steal remains.
    announced = {member.owner_id for member in snapshot.members}
    steals = {p for p in dealt if classes.overdue.get(p) == me or classes.living[p].owner_id not in announced}
    return _Share(
        stranded=own,
        claims=claims[:room],
        steals=tuple(partition for partition in dealt if partition in steals)[: max(room - len(claims), 0)],
        requests=tuple(partition for partition in dealt if partition not in steals),
        relinquish=tuple(p for p, name in classes.promised.items() if p in snapshot.held and name != me),
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
    rest: list[str] = []
    for partition in partitions:
        asker = preferred.get(partition) if preferred else None
        if asker in wanting and wanting[asker] < targets[asker]:
            dealt[asker].append(partition)
            wanting[asker] += 1
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
class _Level:
    """The even share: ``base`` each, one more for ``extra`` of the members, and less for those with a lower limit."""

    base: int
    extra: int
    limited: Mapping[str, int]

    @classmethod
    def of(cls, total: int, members: Mapping[str, Member]) -> _Level:
        """Fills up as water does: what a limit keeps out of one member rises in the others."""
        limits = sorted((m.partitions_max, name) for name, m in members.items() if m.partitions_max is not None)
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
        """Each member's share. The uneven ones stay with whoever has most: nothing moves for their sake."""
        sharing = sorted((name for name in counts if name not in self.limited), key=lambda name: (-counts[name], name))
        return {**self.limited, **{name: self.base + (place < self.extra) for place, name in enumerate(sharing)}}


# What is where


@dataclass(frozen=True, slots=True)
class _Classes:
    """The snapshot's partitions by what may be done with them; ``counts`` are the members', promises kept."""

    living: Mapping[str, Ownership]
    level: _Level
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


def _classify(snapshot: Snapshot) -> _Classes:
    living, members = living_records(snapshot), _living_members(snapshot)
    level = _Level.of(len(snapshot.partitions), members)
    owners = {partition: record.owner_id for partition, record in living.items()}
    owners |= dict.fromkeys(snapshot.held.intersection(snapshot.partitions), snapshot.me.owner_id)
    counts = {**dict.fromkeys(members, 0), **Counter(owners.values())}

    promised: dict[str, str] = {}
    overdue: dict[str, str] = {}
    for partition, asker in _asked(snapshot, members).items():
        owner = owners.get(partition)
        if _is_on_its_way(snapshot, partition) and _evens_out(counts, level, giver=owner, taker=asker):
            promised[partition] = asker
            counts[asker] += 1
            if owner is not None:
                counts[owner] -= 1
        elif partition in living and snapshot.ownerships[partition].request_age_seconds >= snapshot.grace_seconds:
            overdue[partition] = asker

    owned: dict[str, list[str]] = {name: [] for name in members}
    free: list[str] = []
    for partition in snapshot.partitions:
        if partition not in promised:
            (owned[owners[partition]] if partition in owners else free).append(partition)
    return _Classes(living, level, counts, owned, free, promised, overdue)


def _asked(snapshot: Snapshot, members: Mapping[str, Member]) -> dict[str, str]:
    """Partitions by the living member that asked for them. A request that came to nothing is forgotten in time."""
    forgotten_seconds = snapshot.grace_seconds + snapshot.lease_seconds
    return {
        partition: asker
        for partition in snapshot.partitions
        if (record := snapshot.ownerships.get(partition)) is not None
        and (asker := record.requested_by) is not None
        and asker in members
        and asker != record.owner_id
        and record.request_age_seconds < forgotten_seconds
    }


def _is_on_its_way(snapshot: Snapshot, partition: str) -> bool:
    """For one grace from the asking, while the owner lives, and one from the giving up."""
    record = snapshot.ownerships[partition]
    if not record.owner_id:
        return record.age_seconds < snapshot.grace_seconds
    return record.age_seconds < snapshot.lease_seconds and record.request_age_seconds < snapshot.grace_seconds


def _evens_out(counts: Mapping[str, int], level: _Level, *, giver: str | None, taker: str) -> bool:
    """Whether shares are more even after the move; else what was asked for once is not wanted any more."""
    if counts[taker] >= level.most(taker):
        return False
    return giver is None or counts[giver] > min(level.most(giver), counts[taker] + 1)


def living_records(snapshot: Snapshot) -> dict[str, Ownership]:
    """The records that name an owner whose lease runs."""
    records, (leases, others_seconds) = snapshot.ownerships, _leases(snapshot)
    return {
        partition: record
        for partition in snapshot.partitions
        if (record := records.get(partition)) is not None
        and (owner_id := record.owner_id)
        and record.age_seconds < leases.get(owner_id, others_seconds)
    }


def _leases(snapshot: Snapshot) -> tuple[Mapping[str, float], float]:
    """The leases of owners by id, and that of all others: of those that have not announced themselves."""
    if snapshot.sdk_lease_seconds is None:
        return {}, snapshot.lease_seconds
    return {member.owner_id: snapshot.lease_seconds for member in snapshot.members}, snapshot.sdk_lease_seconds


def _living_members(snapshot: Snapshot) -> dict[str, Member]:
    """Members by id: this one, those heard of within the lease, and whoever owns under a lease that runs."""
    announced = {member.owner_id: member for member in snapshot.members}
    names = {name for name, member in announced.items() if member.age_seconds < snapshot.lease_seconds}
    names |= {record.owner_id for record in living_records(snapshot).values()}
    members = {name: announced.get(name, Member(name)) for name in names}
    members[snapshot.me.owner_id] = snapshot.me
    return dict(sorted(members.items()))
