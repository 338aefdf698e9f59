"""Groups written as strings, one character a partition.

A layout says who owns what: ``a`` is owned by member a, ``A`` was a's until its lease ran out, ``-`` was given up,
``.`` was never owned. ``asked`` says, place by place, who asked for a hand-over. A plan reads likewise: ``+`` claims,
``!`` takes, ``?`` asks for, ``-`` gives up, ``.`` leaves alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Plan, Strategy
from hubline.model.keys import GroupKey
from hubline.model.ownership import Member, Ownership

GROUP = GroupKey("namespace", "hub", "group")

LEASE_SECONDS = 30.0
GRACE_SECONDS = 20.0
"""Unlike the lease, so that neither can stand in for the other unnoticed."""

YOUNG_SECONDS = 5.0
FORGOTTEN_SECONDS = LEASE_SECONDS + GRACE_SECONDS

NOBODY = ".-"


def snapshot(
    layout: str,
    *,
    me: str,
    members: str = "",
    asked: str = "",
    asked_ago: float = YOUNG_SECONDS,
    age: float = YOUNG_SECONDS,
    heard_ago: float = YOUNG_SECONDS,
    limits: Mapping[str, int | None] | None = None,
    not_held: Iterable[int] = (),
) -> Snapshot:
    """What ``me`` knows. ``members`` announced themselves (all owners, unless given), and so did who has a limit.

    ``not_held`` are places that the records give to ``me``, and it does not hold.
    """
    limits = limits or {}
    names = sorted({me, *limits, *(members or filter(str.islower, layout))})
    everyone = {name: Member(name, limits.get(name), heard_ago) for name in names}
    requests = asked.ljust(len(layout), ".")
    missing = set(not_held)
    return Snapshot(
        me=everyone[me],
        partitions=[str(place) for place in range(len(layout))],
        ownerships={
            str(place): _record(place, character, request, age=age, asked_ago=asked_ago)
            for place, (character, request) in enumerate(zip(layout, requests, strict=True))
            if character != "."
        },
        members=tuple(everyone.values()),
        held=frozenset(
            str(place) for place, character in enumerate(layout) if character == me and place not in missing
        ),
        lease_seconds=LEASE_SECONDS,
        handover_timeout_seconds=GRACE_SECONDS,
    )


def _record(place: int, character: str, request: str, *, age: float, asked_ago: float) -> Ownership:
    is_asked = request not in NOBODY
    return Ownership(
        GROUP.partition(str(place)),
        owner_id="" if character == "-" else character.lower(),
        epoch=1,
        version="1",
        age_seconds=LEASE_SECONDS if character.isupper() else age,
        requested_by=request if is_asked else None,
        request_age_seconds=asked_ago if is_asked else 0.0,
    )


def planned(strategy: Strategy, known: Snapshot, *, seed: int = 0) -> str:
    """The plan, one mark a partition."""
    return drawn(strategy.plan(known, random.Random(seed)), len(known.partitions))


def drawn(plan: Plan, partitions_count: int) -> str:
    marks = ["."] * partitions_count
    for mark, partitions in (
        ("+", plan.claims),
        ("!", plan.steals),
        ("?", plan.requests),
        ("-", plan.releases),
    ):
        for partition in partitions:
            assert marks[int(partition)] == ".", f"partition {partition} is planned for twice: {plan}"
            marks[int(partition)] = mark
    return "".join(marks)
