"""The balancer: a snapshot of the group in, a plan out. Pure: no I/O, no clock, randomness as an argument.

Every member computes the same shares from the same listing and acts on its own part only, so that members that
see the same state never reach for the same partition. Where their views differ, the store's compare-and-swap
decides, and the next cycle starts from what came of it.

Partitions are classified first, then a strategy chooses:

    held       this processor runs it
    stranded   recorded as this processor's, but not held: it restarted under the same owner id
    free       no owner, or one whose lease ran out
    promised   on its way to a member: given up for it, or asked for and not yet given up
    surplus    owned by a member above its share, and not promised to anyone
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: claim free partitions, take overdue ones, ask for others, give up what was asked for.

    ``rerun_seconds`` is when to plan again; None means after the usual interval.
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
        return Plan(
            claims=share.stranded or share.claims[:1],
            steals=share.steals[:1],
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
        waits = bool(share.requests or share.awaited)
        return Plan(
            claims=claims,
            steals=share.steals,
            requests=share.requests,
            relinquish=share.relinquish,
            rerun_seconds=0.0 if claims or share.steals else HANDOVER_POLL_SECONDS if waits else None,
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly ``count`` partitions, claimed in random order at a bounded pace and never given up while alive."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"Fixed takes at least one partition, not {self.count}")

    @property
    def partitions_max(self) -> int | None:
        return self.count

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        missing = self.count - len(snapshot.held)
        own = stranded(snapshot)[: max(missing, 0)]
        free = [partition for partition in snapshot.partitions if _is_free(snapshot, partition)]
        missing -= len(own)
        if missing <= 0 or not free:
            return Plan(claims=own, rerun_seconds=0.0 if own else None)
        return Plan(claims=(*own, rng.choice(free)), rerun_seconds=FIXED_PACE_SECONDS)


def _check_maximum(partitions_max: int | None) -> None:
    if partitions_max is not None and partitions_max < 1:
        raise ConfigError(f"the most partitions of a processor is at least one, not {partitions_max}")


# The fair share


@dataclass(slots=True)
class _Share:
    """This processor's part of the group's plan."""

    stranded: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    steals: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    relinquish: tuple[str, ...] = ()
    awaited: bool = False


@dataclass(slots=True)
class _Classes:
    """The snapshot's partitions by what may be done with them."""

    owned: dict[str, list[str]]
    free: list[str] = field(default_factory=list)
    promised: dict[str, str] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        counts = {name: len(owned) for name, owned in self.owned.items()}
        for name in self.promised.values():
            counts[name] += 1
        return counts

    def surplus(self, targets: Mapping[str, int], *, first: Collection[str]) -> list[str]:
        """What members above their share can give: the fullest member's before others', ``first`` before the rest."""
        counts = self.counts()
        surplus: list[str] = []
        for name in sorted(counts, key=lambda name: (-counts[name], name)):
            spare = max(counts[name] - targets[name], 0)
            surplus += sorted(self.owned[name], key=lambda partition: partition not in first)[:spare]
        return surplus


def fair_targets(total: int, counts: Mapping[str, int], limits: Mapping[str, int | None]) -> dict[str, int]:
    """How many partitions each member should have: even to within one, within limits, moving as few as possible."""
    unlimited = total + 1
    limit = {name: unlimited if (most := limits.get(name)) is None else most for name in counts}
    names = sorted(counts, key=lambda name: (limit[name], name))
    targets: dict[str, int] = {}
    while names and limit[names[0]] <= total // len(names):
        name = names.pop(0)
        targets[name] = limit[name]
        total -= limit[name]
    if names:
        base, extra = divmod(total, len(names))
        # The uneven ones stay with whoever has most: nothing moves for their sake.
        names.sort(key=lambda name: (-counts[name], name))
        targets |= {name: base + (place < extra) for place, name in enumerate(names)}
    return targets


def _fair_share(snapshot: Snapshot) -> _Share:
    me = snapshot.me.owner_id
    members = _living_members(snapshot)
    classes = _classify(snapshot, members)
    counts = classes.counts()
    targets = fair_targets(len(snapshot.partitions), counts, {name: m.partitions_max for name, m in members.items()})
    wanting = {name: count for name, count in counts.items() if count < targets[name]}

    share = _Share(stranded=stranded(snapshot))
    given_up = [p for p, name in classes.promised.items() if name == me and not _is_living(snapshot, p)]
    share.claims = (*given_up, *_deal(classes.free, wanting, targets)[me])
    share.awaited = any(name == me and _is_living(snapshot, p) for p, name in classes.promised.items())
    overdue = {p: name for p in snapshot.partitions if (name := _overdue_for(snapshot, p)) is not None}
    dealt = _deal(classes.surplus(targets, first=overdue), wanting, targets, preferred=overdue)
    for partition in dealt[me]:
        owner = snapshot.ownerships[partition].owner_id
        # A processor of another kind announces nothing and cannot be asked: the plain steal remains.
        if overdue.get(partition) == me or members[owner].age_seconds < 0:
            share.steals += (partition,)
        else:
            share.requests += (partition,)
    share.relinquish = _asked_of_me(snapshot, classes, spare=len(snapshot.held) - targets[me])
    return share


def _living_members(snapshot: Snapshot) -> dict[str, Member]:
    """Members by id: this one, those heard of within the lease, and silent ones that own (age below zero)."""
    members = {m.owner_id: m for m in snapshot.members if m.age_seconds < snapshot.lease_seconds}
    members[snapshot.me.owner_id] = snapshot.me
    for partition in snapshot.partitions:
        if _is_living(snapshot, partition):
            owner = snapshot.ownerships[partition].owner_id
            members.setdefault(owner, Member(owner, age_seconds=-1.0))
    return dict(sorted(members.items()))


def _classify(snapshot: Snapshot, members: Mapping[str, Member]) -> _Classes:
    classes = _Classes(owned={name: [] for name in members})
    for partition in snapshot.partitions:
        promised_to = _promised_to(snapshot, partition, members)
        if promised_to is not None:
            classes.promised[partition] = promised_to
        elif partition in snapshot.held:
            classes.owned[snapshot.me.owner_id].append(partition)
        elif _is_free(snapshot, partition):
            classes.free.append(partition)
        else:
            classes.owned[snapshot.ownerships[partition].owner_id].append(partition)
    return classes


def _is_living(snapshot: Snapshot, partition: str) -> bool:
    """Whether the record names an owner whose lease runs."""
    ownership = snapshot.ownerships.get(partition)
    return ownership is not None and ownership.owner_id != "" and ownership.age_seconds < snapshot.lease_seconds


def _is_free(snapshot: Snapshot, partition: str) -> bool:
    return not _is_living(snapshot, partition) and partition not in snapshot.held


def stranded(snapshot: Snapshot) -> tuple[str, ...]:
    """What the records give to this processor, and it does not hold: it restarted under the same owner id."""
    return tuple(
        partition
        for partition in snapshot.partitions
        if partition not in snapshot.held
        and _is_living(snapshot, partition)
        and snapshot.ownerships[partition].owner_id == snapshot.me.owner_id
    )


def _promised_to(snapshot: Snapshot, partition: str, members: Mapping[str, Member]) -> str | None:
    """The member that a partition is on its way to: for one grace from the asking, and one from the giving up."""
    ownership = snapshot.ownerships.get(partition)
    if ownership is None or ownership.requested_by not in members or ownership.requested_by == ownership.owner_id:
        return None
    is_given_up = ownership.owner_id == ""
    waited = ownership.age_seconds if is_given_up else ownership.request_age_seconds
    if waited >= snapshot.grace_seconds or not (is_given_up or _is_living(snapshot, partition)):
        return None
    return ownership.requested_by


def _overdue_for(snapshot: Snapshot, partition: str) -> str | None:
    """Who may take the partition, since its owner had its grace. A request older than two graces is forgotten."""
    ownership = snapshot.ownerships.get(partition)
    if ownership is None or not 1 <= ownership.request_age_seconds / snapshot.grace_seconds < 2:
        return None
    return ownership.requested_by


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


def _asked_of_me(snapshot: Snapshot, classes: _Classes, *, spare: int) -> tuple[str, ...]:
    asked = [p for p in classes.promised if p in snapshot.held and classes.promised[p] != snapshot.me.owner_id]
    return tuple(asked[: max(spare, 0)])
