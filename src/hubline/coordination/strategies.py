"""Load balancing: a snapshot of the group in, a plan out. Pure: no I/O, no clock, randomness as an argument.

Each strategy is a small class that chooses from what :mod:`.fair_share` computes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Protocol, TypeAlias

from hubline.addresses.did_you_mean import nearest
from hubline.addresses.option_checks import check_value, checked_options
from hubline.addresses.option_kinds import Count, Named, Parsed
from hubline.addresses.values import parse_duration
from hubline.coordination.fair_share import classify, fair_share
from hubline.coordination.snapshot import Snapshot, first_expiry_seconds, recovered_after_restart
from hubline.errors import ConfigError
from hubline.secrets import shown, shown_value

HANDOVER_POLL_SECONDS = 0.5
"""How soon a greedy member looks again for a requested partition: draining a partition takes about one batch."""

LOCK_SECONDS_MIN: Final = 15
LOCK_SECONDS_MAX: Final = 60
"""What Blob Storage grants. It also has leases without an end, which would outlast a crash for good."""

FIXED_PACE_SECONDS = 1.0
"""Fixed members claim one partition in this time, so that members that start together share them out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: claim free partitions, take overdue ones, request others, release what was requested.

    ``rerun_seconds`` is when to plan again, if that is sooner than the usual interval.
    """

    claims: tuple[str, ...] = ()
    steals: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    rerun_seconds: float | None = None

    @property
    def is_idle(self) -> bool:
        return not (self.claims or self.steals or self.requests or self.releases)


class Strategy(Protocol):
    """How a processor gets its partitions. Called once a dispatch cycle; must not block or keep state."""

    @property
    def max_partitions(self) -> int | None:
        """The most this processor takes; announced, so that the others can share the rest."""
        ...

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        """Return what to do now.

        Args:
            snapshot: The partitions, owners and members of the group.
            rng: The source of randomness.
        """
        ...


@checked_options
@dataclass(frozen=True, slots=True)
class Balanced:
    """An even share of the partitions, reached one partition per cycle. Gentle with the hub and the store.

    Args:
        max_partitions: The most partitions this consumer takes. Default: no limit.

    Raises:
        ConfigError: If the limit is not a whole number of at least 1.
    """

    max_partitions: Count | None = None

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:  # noqa: ARG002
        """Return what to do now.

        Args:
            snapshot: The partitions, owners and members of the group.
            rng: The source of randomness.
        """
        share = fair_share(snapshot)
        claims = share.recovered_after_restart or share.claims[:1]
        return Plan(
            claims=claims,
            steals=() if claims else share.steals[:1],
            requests=share.requests[:1],
            releases=share.releases,
        )


@checked_options
@dataclass(frozen=True, slots=True)
class Greedy:
    """An even share of the partitions, reached at once: it plans again without delay while there is something to do.

    Args:
        max_partitions: The most partitions this consumer takes. Default: no limit.

    Raises:
        ConfigError: If the limit is not a whole number of at least 1.
    """

    max_partitions: Count | None = None

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:  # noqa: ARG002
        """Return what to do now.

        Args:
            snapshot: The partitions, owners and members of the group.
            rng: The source of randomness.
        """
        share = fair_share(snapshot)
        claims = share.recovered_after_restart + share.claims
        if share.requests or share.is_waiting:
            rerun_seconds: float | None = HANDOVER_POLL_SECONDS
        elif claims or share.steals:
            rerun_seconds = 0.0
        else:
            rerun_seconds = first_expiry_seconds(snapshot)
        return Plan(claims, share.steals, share.requests, share.releases, rerun_seconds)


def _lock_seconds(lease: str | int) -> int:
    """The length of a lock, which may be a text such as ``30s``."""
    seconds = parse_duration(lease).total_seconds() if isinstance(lease, str) else float(lease)
    if not seconds.is_integer() or not LOCK_SECONDS_MIN <= seconds <= LOCK_SECONDS_MAX:
        raise ConfigError(
            f"Blob Storage grants leases of {LOCK_SECONDS_MIN} to {LOCK_SECONDS_MAX} whole seconds, not "
            f'{shown_value(lease)}. Write Fixed(2, lease="30s"), for example.'
        )
    return int(seconds)


@checked_options
@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly this many partitions, claimed one per second and never released while the consumer is active.

    All consumers of the group should be ``Fixed``: one that takes an even share requests partitions, and takes them
    after the handover timeout.

    Args:
        count: How many partitions this consumer takes.
        lease: Only for a store in Azure Blob Storage: also lock each partition by a lease of the service of this
            length, 15 to 60 seconds, as in ``"30s"`` or ``30``. Nobody can take a locked partition, not even an
            official SDK. It must not be shorter than ``LeaseOptions.lease_seconds``. Default: no lock.

    Raises:
        ConfigError: If the count is not a whole number of at least 1, or Blob Storage has no lease of this length.
    """

    count: Count
    lease: Annotated[str | int, Named("text such as '30s' or seconds from 15 to 60"), Parsed(_lock_seconds)] | None = (
        None
    )

    @property
    def lock_seconds(self) -> int | None:
        """The length of the lock in seconds. None: no lock."""
        return self.lease if isinstance(self.lease, int) else None

    @property
    def max_partitions(self) -> int | None:
        return self.count

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        """Return what to do now.

        Args:
            snapshot: The partitions, owners and members of the group.
            rng: The source of randomness.
        """
        own = recovered_after_restart(snapshot)
        if len(snapshot.held) + len(own) >= self.count:
            return Plan(claims=own)
        free = classify(snapshot).free
        if not free:
            return Plan(claims=own, rerun_seconds=first_expiry_seconds(snapshot))
        return Plan(claims=(*own, rng.choice(free)), rerun_seconds=FIXED_PACE_SECONDS)


@dataclass(frozen=True, slots=True)
class All:
    """Every partition without an owner, all at once and never released while the consumer is active.

    For a consumer that reads a hub alone. A second one stands by, and takes over when the first one ends.
    """

    @property
    def max_partitions(self) -> int | None:
        return None

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:  # noqa: ARG002
        claims = (*recovered_after_restart(snapshot), *classify(snapshot).free)
        return Plan(claims, rerun_seconds=0.0 if claims else first_expiry_seconds(snapshot))


_BY_NAME: Final[dict[str, Callable[[], Strategy]]] = {"balanced": Balanced, "greedy": Greedy, "all": All}
_FIXED: Final = re.compile(r"fixed:([1-9][0-9]{0,5})(?::([^:]+))?")
_FORMS: Final = '"balanced", "greedy", "fixed:N" (as in "fixed:2"), "fixed:N:LEASE" (as in "fixed:2:30s") or "all"'
StrategyOrText: TypeAlias = Annotated[
    Strategy | str, Named(f"a load balancing strategy: {_FORMS}, or an object such as Fixed(2)")
]
"""What a `load_balancing` option takes."""


def parse_load_balancing(value: str | Strategy) -> Strategy:
    """Turns the value of a ``load_balancing`` option into a strategy.

    Args:
        value: ``"balanced"``, ``"greedy"``, ``"fixed:N"``, ``"fixed:N:LEASE"``, ``"all"``, or a strategy, which is
            returned unchanged.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(value, str):
        if match := _FIXED.fullmatch(value):
            return Fixed(int(match[1]), lease=match[2])
        if value in _BY_NAME:
            return _BY_NAME[value]()
        raise ConfigError(f"{shown(value)} is not a load balancing strategy. Write {_FORMS}{nearest(value, _BY_NAME)}.")
    strategy: Strategy = check_value("load_balancing", StrategyOrText, value)
    return strategy


def load_balancing_text(strategy: Strategy) -> str:
    """Writes a strategy as the text that :func:`parse_load_balancing` reads.

    Raises:
        ConfigError: If a text cannot express it: a strategy of the user's own, or one with ``max_partitions``.
    """
    if isinstance(strategy, Fixed):
        lock = "" if strategy.lock_seconds is None else f":{strategy.lock_seconds}s"
        return f"fixed:{strategy.count}{lock}"
    for name, known in _BY_NAME.items():
        if strategy == known():
            return name
    raise ConfigError(f"{strategy!r} cannot be written as text. Use {_FORMS}.")
