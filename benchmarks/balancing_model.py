"""Balancing in figures: whole groups of production dispatchers in virtual time, over a store with latency.

    figures = measure(Change.JOIN, partitions_count=32, hosts_count=4, strategy=Greedy(), seed=1)
    figures.seconds, figures.cycles, figures.excess_moves, figures.doubly_owned

A group is brought to rest, then something changes, and time runs until every partition is open at a living host and
the shares differ by at most one, for good. The dispatchers are those of the processor; what runs the partitions only
takes the time of a batch to drain.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.dispatcher import Dispatcher
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.strategies import Strategy
from hubline.errors import HublineError, LeaseLost
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import GroupState, Member, Ownership, ReleaseReason, Renewal
from hubline.ports import CheckpointStore, keeps_requests
from hubline.testing.simulation.faults import RemoteStore, Weather
from hubline.testing.simulation.virtual_loop import SimProcess, World

GROUP = GroupKey("simulated", "hub", "balancing")

LATENCY_SECONDS = 0.005
"""One way to the store, on average: a call takes 10 ms, as one with a commit does in a database nearby."""

DRAIN_SECONDS = (0.05, 0.5)
"""How long a partition takes to come to rest: the rest of a batch, and its checkpoint."""

START_SPREAD_SECONDS = 1.0
"""Hosts that start together do so within this time, as the containers of a deployment do."""

STILL_CYCLES = 4
"""A group is balanced for good if nothing moves for so long: a lease and a cycle."""

CYCLES_MAX = 2_000
"""By then even a single host that claims one partition a cycle has all of the largest hub's 1,024."""


class Change(enum.StrEnum):
    """What upsets a group."""

    COLD_START = "cold start"
    ONE_OWNS_ALL = "one owns all, the rest join"
    JOIN = "one host joins"
    CRASH = "crash"
    STOP = "graceful stop"


class SharedStore(Protocol):
    """The store of a group; each host has a client of its own. ``calls`` counts what is asked of it, by name."""

    @property
    def calls(self) -> Counter[str]: ...

    def connect(self, process: SimProcess) -> CheckpointStore: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """What a change cost until the group was balanced for good.

    ``doubly_owned`` counts the partitions that two hosts ran at the same time, each under a lease it believed in.
    ``calls_at_rest`` are the store's, per host and interval, once balanced.
    """

    seconds: float
    cycles: float
    moves: int
    excess_moves: int
    doubly_owned: int
    calls: Mapping[str, int]
    calls_at_rest: Mapping[str, float]


def measure(
    change: Change,
    *,
    partitions_count: int,
    hosts_count: int,
    strategy: Strategy,
    seed: int,
    lease: LeaseOptions | None = None,
    store: Callable[[World], SharedStore] | None = None,
) -> Figures:
    """Runs one change to its end; ``hosts_count`` hosts are there after a start or a join, before a crash or a stop."""
    group = _Group(partitions_count, strategy, lease or LeaseOptions(), seed, store or _CountingStore)
    try:
        group.prepare(change, hosts_count)
        return group.upset(change, hosts_count)
    finally:
        group.world.end()


def moves_needed(partitions_count: int, counts: Iterable[int]) -> int:
    """The fewest partitions that must change hands for even shares, where living hosts have ``counts`` of them now."""
    fullest_first = sorted(counts, reverse=True)
    base, extra = divmod(partitions_count, len(fullest_first))
    kept = sum(min(count, base + (place < extra)) for place, count in enumerate(fullest_first))
    return partitions_count - kept


class _Group:
    """Hosts that share the partitions of a hub, and what becomes of them."""

    def __init__(
        self,
        partitions_count: int,
        strategy: Strategy,
        lease: LeaseOptions,
        seed: int,
        store: Callable[[World], SharedStore],
    ) -> None:
        self.world = World(f"balancing {seed}")
        self.partitions = [str(number) for number in range(partitions_count)]
        self.strategy = strategy
        self.lease = lease
        self.store = store(self.world)
        self.hosts: list[_Host] = []
        self.runs: dict[str, dict[_Host, int]] = {partition: {} for partition in self.partitions}
        self.moves = 0
        self.doubly_owned: set[str] = set()
        self.balanced_at: float | None = None

    # The course of a measurement

    def prepare(self, change: Change, hosts_count: int) -> None:
        """Brings the group to rest before the change, at any moment of its cycle."""
        first = {Change.COLD_START: 0, Change.ONE_OWNS_ALL: 1, Change.JOIN: hosts_count - 1}.get(change, hosts_count)
        if first:
            # Over a whole interval: the hosts of a group that has run for long renew and plan at any time.
            self._start(first, spread_seconds=self.lease.load_balancing_interval_seconds)
            self._run_until_balanced()
            self._run(self.world.now + self.world.rng.uniform(1, 2) * self.lease.load_balancing_interval_seconds)

    def upset(self, change: Change, hosts_count: int) -> Figures:
        changed_at, before = self.world.now, {host: host.open_count for host in self.hosts}
        self.moves = 0
        self.balanced_at = None
        self.store.calls.clear()
        if change is Change.CRASH:
            self.world.rng.choice(self.hosts).crash()
        elif change is Change.STOP:
            self.world.rng.choice(self.hosts).stop()
        else:
            self._start(hosts_count - len(self.hosts), spread_seconds=START_SPREAD_SECONDS)
        self.look()
        balanced_at, calls, calls_at_rest = self._run_until_balanced_for_good()
        needed = moves_needed(len(self.partitions), (before.get(host, 0) for host in self.hosts if host.is_up))
        return Figures(
            seconds=balanced_at - changed_at,
            cycles=(balanced_at - changed_at) / self.lease.load_balancing_interval_seconds,
            moves=self.moves,
            excess_moves=self.moves - needed,
            doubly_owned=len(self.doubly_owned),
            calls=calls,
            calls_at_rest=calls_at_rest,
        )

    def _start(self, count: int, *, spread_seconds: float) -> None:
        for place in range(count):
            host = _Host(self, f"host-{len(self.hosts):02}")
            self.hosts.append(host)
            # The first one's start is when time begins to run.
            self.world.call_later(self.world.rng.uniform(0, spread_seconds) if place else 0.0, host.start)

    def _run_until_balanced(self) -> float:
        self._run(self.world.now + CYCLES_MAX * self.lease.load_balancing_interval_seconds, until_balanced=True)
        if self.balanced_at is None:
            raise AssertionError(f"not balanced after {CYCLES_MAX} cycles: {[host.open_count for host in self.hosts]}")
        return self.balanced_at

    def _run_until_balanced_for_good(self) -> tuple[float, Counter[str], dict[str, float]]:
        """When that was, the store calls until then, and those at rest, per host and interval."""
        interval = self.lease.load_balancing_interval_seconds
        for _ in range(CYCLES_MAX):
            balanced_at = self._run_until_balanced()
            calls = Counter(self.store.calls)
            self._run(balanced_at + interval)
            before_rest = Counter(self.store.calls)
            self._run(balanced_at + (1 + STILL_CYCLES) * interval)
            if self.balanced_at == balanced_at:
                at_rest = self.store.calls - before_rest
                shared_by = STILL_CYCLES * sum(host.is_up for host in self.hosts)
                return balanced_at, calls, {name: count / shared_by for name, count in sorted(at_rest.items())}
        raise AssertionError("the group never comes to rest: partitions move although shares are even")

    def _run(self, when: float, *, until_balanced: bool = False) -> None:
        self.world.run_until(when, is_done=lambda: until_balanced and self.balanced_at is not None)
        if self.world.failures:
            raise AssertionError("; ".join(self.world.failures))

    # What the hosts tell

    def opened(self, host: _Host, ownership: Ownership) -> None:
        partition = ownership.key.partition
        runs = self.runs[partition]
        if any(other is not host and other.runs_in_good_faith(partition, epoch) for other, epoch in runs.items()):
            self.doubly_owned.add(partition)
        runs[host] = ownership.epoch
        host.open_count += 1
        self.moves += 1
        self.look()

    def closed(self, host: _Host, partition: str) -> None:
        if self.runs[partition].pop(host, None) is not None:
            host.open_count -= 1
        self.look()

    def look(self) -> None:
        """Notes since when the group is balanced."""
        counts = [host.open_count for host in self.hosts if host.is_up]
        is_balanced = sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1
        if not is_balanced:
            self.balanced_at = None
        elif self.balanced_at is None:
            self.balanced_at = self.world.now


class _Host:
    """A process with a dispatcher; the Holder of its partitions, which takes a while to drain each."""

    def __init__(self, group: _Group, name: str) -> None:
        self._group = group
        self._rng = random.Random(f"{name} {group.world.rng.random()}")
        self._process = SimProcess(group.world, name)  # type: ignore[abstract]
        self.is_up = True
        self.open_count = 0
        self._store = group.store.connect(self._process)
        self.dispatcher = Dispatcher(
            self._store,
            self,
            group=GROUP,
            owner_id=name,
            strategy=group.strategy,
            partitions=lambda: group.partitions,
            lease=group.lease,
            rng=self._rng,
        )

    def start(self) -> None:
        self._process.spawn(self.dispatcher.start())

    def stop(self) -> None:
        self.is_up = False
        self._process.spawn(self.dispatcher.stop())

    def crash(self) -> None:
        self.is_up = False
        self._process.kill()

    def runs_in_good_faith(self, partition: str, epoch: int) -> bool:
        return not self._process.is_dead and self.dispatcher.is_current(partition, epoch)

    # The dispatcher's Holder

    def open(self, ownership: Ownership) -> None:
        self._group.opened(self, ownership)

    def renewed(self, ownership: Ownership) -> None:
        """Nothing hangs on it here."""

    async def close_partition(self, partition: str, reason: ReleaseReason) -> None:
        if reason.drains:
            await asyncio.sleep(self._rng.uniform(*DRAIN_SECONDS))
        self._group.closed(self, partition)

    def report_of(self, error: HublineError, partition: str | None) -> None:
        if keeps_requests(self._store) or not isinstance(error, LeaseLost):
            self._group.world.failures.append(f"partition {partition}: {error!r}")


class _CountingStore(MemoryStore):
    """A memory store on the world's clock that counts the calls of a dispatcher."""

    def __init__(self, world: World) -> None:
        super().__init__(now=lambda: world.now)
        self.calls: Counter[str] = Counter()

    def connect(self, process: SimProcess) -> CheckpointStore:
        return RemoteStore(process, self, Weather(latency_seconds=LATENCY_SECONDS))

    async def list_ownership(self, group: GroupKey) -> GroupState:
        self.calls["list"] += 1
        return await super().list_ownership(group)

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        self.calls["claim"] += 1
        return await super().claim_ownership(claims)

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        self.calls["renew"] += 1
        return await super().renew_ownership(group, member, owned)

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        self.calls["request"] += 1
        await super().request_handover(keys, owner_id=owner_id)
