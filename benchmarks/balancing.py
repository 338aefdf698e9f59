"""Balancing: how long a plan takes, and how long a group takes to be balanced after a change.

Planning is measured on this machine. The rest is virtual time, the same on every machine: production dispatchers over a
simulated store, with the default lease and interval. The official SDK's figures were measured beforehand, with a
simulated clock too; its cycle takes 33 s, ours 10 s, and it has no hand-over to wait for.
"""

from __future__ import annotations

import logging
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.balancing_model import Change, measure
from benchmarks.harness import Result, benchmark
from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Greedy
from hubline.model.keys import GroupKey
from hubline.model.ownership import Member, Ownership

GROUP: Final = GroupKey("bench", "hub", "group")
SMALL: Final = (32, 4)
LARGE: Final = (1_024, 32)

ROUNDS: Final = 30
SEEDS: Final = {SMALL: range(25), LARGE: range(3)}
"""A large group takes seconds to simulate, and its figures differ little from seed to seed."""

SDK: Final = "azure-eventhub 5.15.1"
SDK_SECONDS: Final = {
    Change.COLD_START: {SMALL: 263.0, LARGE: 1_071.0},
    Change.ONE_OWNS_ALL: {SMALL: 239.0, LARGE: 1_068.0},
    Change.JOIN: {SMALL: 235.0, LARGE: 1_022.0},
    Change.CRASH: {SMALL: 193.0, LARGE: 198.0},
    Change.STOP: {SMALL: 24.0, LARGE: 45.0},
}


# Planning


@benchmark("balance-plan-1024x32")
def balance_plan() -> Iterator[Result]:
    """The slowest of the snapshots that a member meets: at rest, at a cold start, before and during a hand-over."""
    partitions_count, hosts_count = LARGE
    snapshots = [
        snapshot(lambda place: place % hosts_count),
        snapshot(lambda _: None),
        snapshot(lambda _: 0),
        snapshot(lambda _: 0, requester_of=lambda place: place % hosts_count or None),
        snapshot(lambda _: 1, requester_of=lambda place: place % hosts_count if place % hosts_count != 1 else None),
    ]
    ours, peers = zip(*((fastest(plan_ours, known), fastest(plan_as_sdk, known)) for known in snapshots), strict=True)
    slowest = max(ours)
    yield Result(
        f"balance-plan-{partitions_count}x{hosts_count}",
        slowest * 1_000,
        "ms",
        peers[ours.index(slowest)] / slowest,
        f"the rule of {SDK}, on the same snapshot",
    )


def snapshot(
    owner_of: Callable[[int], int | None], *, requester_of: Callable[[int], int | None] | None = None
) -> Snapshot:
    """What host 1 sees; owners and requesters are numbers of hosts."""
    partitions_count, hosts_count = LARGE
    names = [f"host-{number:02}" for number in range(hosts_count)]
    ownerships = {}
    for place in range(partitions_count):
        owner, requester = owner_of(place), requester_of(place) if requester_of else None
        if owner is not None:
            ownerships[str(place)] = Ownership(
                GROUP.partition(str(place)),
                names[owner],
                epoch=1,
                version="1",
                age_seconds=3.0,
                requested_by=None if requester is None else names[requester],
                request_age_seconds=0.0 if requester is None else 1.0,
            )
    return Snapshot(
        me=Member(names[1]),
        partitions=[str(place) for place in range(partitions_count)],
        ownerships=ownerships,
        members=[Member(name, age_seconds=3.0) for name in names],
        held=frozenset(partition for partition, record in ownerships.items() if record.owner_id == names[1]),
        lease_seconds=30.0,
        handover_timeout_seconds=30.0,
    )


def plan_ours(known: Snapshot, rng: random.Random) -> None:
    Greedy().plan(known, rng)


def plan_as_sdk(known: Snapshot, rng: random.Random) -> list[str]:
    """What the official Python SDK's greedy strategy claims: what is claimable, or one from the largest owner."""
    claimable: list[str] = []
    counts = Counter({known.me.owner_id: 0})
    for partition in known.partitions:
        record = known.ownerships.get(partition)
        if record is None or not record.owner_id or record.age_seconds >= known.lease_seconds:
            claimable.append(partition)
        else:
            counts[record.owner_id] += 1
    least, most = len(known.partitions) // len(counts), math.ceil(len(known.partitions) / len(counts))
    own = counts[known.me.owner_id]
    if own < most and claimable:
        return rng.sample(claimable, min(most - own, len(claimable)))
    if own < least:
        [(largest, _)] = counts.most_common(1)
        return [rng.choice([p for p, record in known.ownerships.items() if record.owner_id == largest])]
    return []


def fastest(plan: Callable[[Snapshot, random.Random], object], known: Snapshot) -> float:
    """Seconds of the best round: the machine is shared."""
    return min(_timed(plan, known) for _ in range(ROUNDS))


def _timed(plan: Callable[[Snapshot, random.Random], object], known: Snapshot) -> float:
    rng = random.Random(0)
    start = time.perf_counter()
    plan(known, rng)
    return time.perf_counter() - start


# Whole groups


@benchmark("balance-cold-start")
def balance_cold_start() -> Iterator[Result]:
    yield from seconds_until_balanced("balance-cold-start", Change.COLD_START)


@benchmark("balance-one-owns-all")
def balance_one_owns_all() -> Iterator[Result]:
    yield from seconds_until_balanced("balance-one-owns-all", Change.ONE_OWNS_ALL)


@benchmark("balance-join")
def balance_join() -> Iterator[Result]:
    yield from seconds_until_balanced("balance-join", Change.JOIN)


@benchmark("balance-crash")
def balance_crash() -> Iterator[Result]:
    yield from seconds_until_balanced("balance-crash", Change.CRASH)


@benchmark("balance-stop")
def balance_stop() -> Iterator[Result]:
    yield from seconds_until_balanced("balance-stop", Change.STOP)


def seconds_until_balanced(name: str, change: Change) -> Iterator[Result]:
    """The median over seeds, for a small hub and a large one."""
    # The dispatchers report each claim and release; a thousand lines would hide the figure.
    logging.getLogger("hubline").setLevel(logging.ERROR)
    for size, seeds in SEEDS.items():
        partitions_count, hosts_count = size
        seconds = statistics.median(
            measure(
                change, partitions_count=partitions_count, hosts_count=hosts_count, strategy=Greedy(), seed=seed
            ).seconds
            for seed in seeds
        )
        peer_seconds = SDK_SECONDS[change][size]
        suffix = "" if size == SMALL else f"-{partitions_count}x{hosts_count}"
        against = f"{SDK}: {peer_seconds:,.0f} s, measured beforehand"
        yield Result(f"{name}{suffix}", seconds, "virtual s", seconds / peer_seconds, against)
