"""The balancer: a snapshot of the group in, a plan out. Pure: no I/O, no clock, randomness as an argument.

Every member computes the same shares from the same listing and acts on its own part only, so that members that
see the same state never reach for the same partition. Where their views differ, the store's compare-and-swap
decides, and the next cycle starts from what came of it.

Partitions are classified first, then a strategy chooses:

    held       this processor runs it
    recovered_after_restart   recorded as this processor's, but not held: it restarted under the same owner id
    free       no owner, or one whose lease ran out
    promised   on its way to a member: given up for it, or asked for and not yet given up
    overdue    asked for, and not given up within the grace: who asked may take it
    surplus    owned by a member above its share, and not promised to anyone
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from hubline.coordination.fair_share import classify, fair_share
from hubline.coordination.snapshot import Snapshot, first_expiry_seconds, recovered_after_restart
from hubline.errors import ConfigError

HANDOVER_POLL_SECONDS = 0.5
"""How soon a greedy member looks again for what it asked for: draining a partition takes about one batch."""

FIXED_PACE_SECONDS = 1.0
"""Fixed members claim one partition in this time, so that members that start together share them out."""


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
        share = fair_share(snapshot)
        claims = share.recovered_after_restart or share.claims[:1]
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
        share = fair_share(snapshot)
        claims = share.recovered_after_restart + share.claims
        if share.requests or share.is_waiting:
            rerun_seconds: float | None = HANDOVER_POLL_SECONDS
        elif claims or share.steals:
            rerun_seconds = 0.0
        else:
            rerun_seconds = first_expiry_seconds(snapshot)
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
        own = recovered_after_restart(snapshot)
        if len(snapshot.held) + len(own) >= self.count:
            return Plan(claims=own)
        free = classify(snapshot).free
        if not free:
            return Plan(claims=own, rerun_seconds=first_expiry_seconds(snapshot))
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
        claims = (*recovered_after_restart(snapshot), *classify(snapshot).free)
        return Plan(claims, rerun_seconds=0.0 if claims else first_expiry_seconds(snapshot))


def _check_maximum(partitions_max: int | None) -> None:
    if partitions_max is not None and partitions_max < 1:
        raise ConfigError(f"the most partitions of a processor is at least one, not {partitions_max}")
