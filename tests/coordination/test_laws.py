"""The laws of balancing, over thousands of layouts: what one plan may hold, and where whole groups end up."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Balanced, Fixed, Greedy, Plan, Strategy
from tests.coordination.group import DEAD, ROUND_SECONDS, Cell, Group
from tests.coordination.layouts import FORGOTTEN_SECONDS, GRACE_SECONDS, LEASE_SECONDS

NAMES = "abcdefghijkl"
SILENT = "x"
"""An owner that never announces itself, as the official SDKs do not."""

PARTITIONS_MAX = 64

laws = settings(database=None, max_examples=200)
journeys = settings(database=None, max_examples=100)
"""A whole group costs as much as a hundred plans."""


# Layouts


def limits() -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(1, 12)


def fair_strategies() -> st.SearchStrategy[Strategy]:
    return st.one_of(st.builds(Greedy, limits()), st.builds(Balanced, limits()))


def any_strategies() -> st.SearchStrategy[Strategy]:
    return st.one_of(fair_strategies(), st.builds(Fixed, st.integers(1, 12)))


def strategies_by_name(kinds: st.SearchStrategy[Strategy]) -> st.SearchStrategy[dict[str, Strategy]]:
    drawn = st.lists(kinds, min_size=1, max_size=len(NAMES))
    return drawn.map(lambda strategies: dict(zip(NAMES, strategies, strict=False)))


@functools.cache
def calm_cells(names: tuple[str, ...]) -> st.SearchStrategy[Cell]:
    """Owned by the living, or by nobody, or by one whose lease has run out; nobody asked for anything."""
    return st.sampled_from(
        [Cell(), Cell(""), Cell("z", LEASE_SECONDS), Cell(SILENT, LEASE_SECONDS), *(Cell(name, 1.0) for name in names)]
    )


@functools.cache
def wild_cells(names: tuple[str, ...]) -> st.SearchStrategy[Cell]:
    """Anything a store may hold."""
    owners = [None, "", *DEAD, SILENT, *names]
    ages = [0.0, GRACE_SECONDS, LEASE_SECONDS - 1, LEASE_SECONDS, 1e6]
    requesters = [None, *DEAD, *names]
    waits = [0.0, GRACE_SECONDS - 1, GRACE_SECONDS, FORGOTTEN_SECONDS, 1e6]
    # One draw a cell: layouts are large, and drawing them costs more than planning them.
    return st.sampled_from([Cell(*cell) for cell in itertools.product(owners, ages, requesters, waits)])


@st.composite
def groups(draw: st.DrawFn, kinds: st.SearchStrategy[Strategy], *, is_calm: bool = False) -> Group:
    strategies = draw(strategies_by_name(kinds))
    cell = (calm_cells if is_calm else wild_cells)(tuple(strategies))
    # The size is drawn by itself: lists alone are mostly short.
    count = draw(st.integers(1, PARTITIONS_MAX))
    cells = draw(st.lists(cell, min_size=count, max_size=count))
    return Group(strategies, cells, random.Random(draw(st.integers(0, 2**32))))


@st.composite
def even_groups(draw: st.DrawFn) -> Group:
    """Dealt out in turn, to all that have room."""
    strategies = draw(strategies_by_name(fair_strategies()))
    room = {name: PARTITIONS_MAX if (most := s.max_partitions) is None else most for name, s in strategies.items()}
    turns = [name for turn in range(PARTITIONS_MAX) for name in strategies if turn < room[name]]
    count = draw(st.integers(1, PARTITIONS_MAX))
    cells = [Cell(name, 1.0) for name in turns[:count]] + [Cell()] * (count - len(turns))
    rng = random.Random(draw(st.integers(0, 2**32)))
    rng.shuffle(cells)
    return Group(strategies, cells, rng)


def plans_of(group: Group) -> dict[str, tuple[Snapshot, Plan]]:
    """What every member would do, all from the same state."""
    for name in group.actors:
        group.look(name)
    seen = {name: actor.seen for name, actor in group.actors.items()}
    return {name: (known, group.actors[name].strategy.plan(known, group.rng)) for name, known in seen.items() if known}


def reached_for(plan: Plan) -> tuple[str, ...]:
    return plan.claims + plan.steals + plan.requests


# One plan


@laws
@given(groups(any_strategies()))
def test_a_plan_follows_from_the_snapshot_alone_and_leaves_it_as_it_was(group: Group) -> None:
    for name, (known, _) in plans_of(group).items():
        strategy, before = group.actors[name].strategy, copy.deepcopy(known)

        first, second = strategy.plan(known, random.Random(1)), strategy.plan(known, random.Random(1))

        assert first == second
        assert known == before


@laws
@given(groups(fair_strategies()))
def test_members_that_see_the_same_never_reach_for_the_same_partition(group: Group) -> None:
    reached = [partition for _, plan in plans_of(group).values() for partition in reached_for(plan)]

    assert len(reached) == len(set(reached))


@laws
@given(groups(any_strategies()))
def test_only_what_nobody_owns_is_claimed(group: Group) -> None:
    for known, plan in plans_of(group).values():
        for partition in plan.claims:
            record = known.ownerships.get(partition)
            assert record is None or not record.owner_id or record.age_seconds >= LEASE_SECONDS


@laws
@given(groups(any_strategies()))
def test_an_owner_that_can_be_asked_is_asked_before_its_partition_is_taken(group: Group) -> None:
    for name, (known, plan) in plans_of(group).items():
        announced = {member.owner_id for member in known.members}
        for partition in plan.steals:
            record = known.ownerships[partition]
            had_its_grace = record.requested_by == name and record.request_age_seconds >= GRACE_SECONDS
            assert had_its_grace or record.owner_id not in announced
        for partition in plan.requests:
            assert known.ownerships[partition].owner_id in announced - {name}


@laws
@given(groups(st.builds(Greedy, limits()), is_calm=True))
def test_what_expired_is_claimed_before_anything_is_asked_for_or_taken(group: Group) -> None:
    plans = plans_of(group)
    claimed = {partition for _, plan in plans.values() for partition in plan.claims}

    for known, plan in plans.values():
        if plan.steals or plan.requests:
            expired = {p for p, o in known.ownerships.items() if o.owner_id and o.age_seconds >= LEASE_SECONDS}
            assert expired <= claimed


@laws
@given(groups(any_strategies()))
def test_nobody_goes_above_its_limit(group: Group) -> None:
    for name, (known, plan) in plans_of(group).items():
        limit = group.actors[name].member.max_partitions
        if limit is not None and (plan.claims or plan.steals):
            assert len(known.held) + len(plan.claims) + len(plan.steals) <= limit


@laws
@given(groups(st.builds(Balanced, limits())))
def test_balanced_members_take_one_step_a_cycle(group: Group) -> None:
    for _, plan in plans_of(group).values():
        assert len(plan.claims) + len(plan.steals) <= 1
        assert len(plan.requests) <= 1


@laws
@given(groups(any_strategies()))
def test_fixed_members_claim_one_at_a_time_and_never_ask_take_or_give_up(group: Group) -> None:
    for name, (_, plan) in plans_of(group).items():
        if isinstance(group.actors[name].strategy, Fixed):
            assert len(plan.claims) <= 1
            assert plan.steals == plan.requests == plan.releases == ()


@laws
@given(groups(any_strategies()))
def test_who_restarts_under_its_old_id_takes_back_its_own_at_once(group: Group) -> None:
    for actor in group.actors.values():
        owned = {p for p, owner in group.owners().items() if owner == actor.member.owner_id}
        actor.held.clear()
        group.look(actor.member.owner_id)
        assert actor.seen is not None

        plan = actor.strategy.plan(actor.seen, group.rng)

        room = len(owned) if (limit := actor.member.max_partitions) is None else limit
        assert len(owned.intersection(plan.claims)) == min(len(owned), room)


@laws
@given(even_groups(), st.booleans())
def test_a_balanced_group_stays_still_whatever_was_asked_for_once(group: Group, has_requests: bool) -> None:
    before = group.owners()
    if has_requests:
        group.ask({partition: group.rng.choice([*group.actors, *DEAD]) for partition in before})

    for _ in range(int(FORGOTTEN_SECONDS / ROUND_SECONDS) + 1):
        assert group.round()

    assert group.owners() == before


# Whole groups


def rounds_max(group: Group) -> int:
    """A lease and a grace may have to run out, then balanced and fixed members claim one partition a cycle."""
    are_greedy = all(isinstance(actor.strategy, Greedy) for actor in group.actors.values())
    return 10 + (0 if are_greedy else 2 * len(group.partitions))


def assert_even(group: Group) -> None:
    """Nobody has two more than one that could take more; nobody is above its limit while another could take more."""
    counts = group.counts()
    limit = {name: actor.member.max_partitions for name, actor in group.actors.items()}
    for (fuller, more), (emptier, fewer) in itertools.permutations(counts.items(), 2):
        most = limit[fuller]
        has_room = (room := limit[emptier]) is None or fewer < room
        assert not has_room or (more - fewer <= 1 and (most is None or more <= most)), f"{fuller}, {emptier}: {counts}"


def assert_all_claimed(group: Group) -> None:
    counts = group.counts()
    unclaimed = len(group.partitions) - sum(counts.values())
    limits = [actor.member.max_partitions for actor in group.actors.values()]
    if unclaimed:
        assert all(limit is not None and counts[name] >= limit for name, limit in zip(counts, limits, strict=True))


@journeys
@given(groups(fair_strategies()), st.booleans())
def test_every_partition_is_claimed_and_shares_end_even(group: Group, is_stale: bool) -> None:
    group.run_until_quiet(rounds_max(group), is_stale=is_stale)

    assert_all_claimed(group)
    assert_even(group)


@journeys
@given(groups(any_strategies()), st.booleans())
def test_members_of_mixed_strategies_come_to_rest_with_every_partition_claimed(group: Group, is_stale: bool) -> None:
    group.run_until_quiet(rounds_max(group), is_stale=is_stale)

    assert_all_claimed(group)


@journeys
@given(groups(st.builds(Fixed, st.integers(1, 12)), is_calm=True), st.booleans())
def test_fixed_members_reach_exactly_their_count_and_lose_nothing(group: Group, is_stale: bool) -> None:
    before = {name: set(actor.held) for name, actor in group.actors.items()}

    group.run_until_quiet(rounds_max(group), is_stale=is_stale)

    assert_all_claimed(group)
    for name, actor in group.actors.items():
        assert before[name] <= set(actor.held)
        assert len(actor.held) <= max(actor.strategy.max_partitions or 0, len(before[name]))


@journeys
@given(groups(fair_strategies(), is_calm=True))
def test_no_partition_moves_that_could_have_stayed(group: Group) -> None:
    counts, limit = group.counts(), {name: actor.member.max_partitions for name, actor in group.actors.items()}

    group.run_until_quiet(rounds_max(group))

    assert group.moves == fewest_moves(len(group.partitions), counts, limit)


def fewest_moves(total: int, counts: Mapping[str, int], limits: Mapping[str, int | None]) -> int:
    """Pours partitions one by one into the emptiest that has room, first into those that have so many already."""
    poured = dict.fromkeys(counts, 0)
    for _ in range(total):
        roomy = [name for name in counts if (limit := limits[name]) is None or poured[name] < limit]
        if roomy:
            poured[min(roomy, key=lambda name: (poured[name], counts[name] <= poured[name]))] += 1
    return sum(max(poured[name] - counts[name], 0) for name in counts)


@laws
@given(st.integers(0, 8), st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(1, 4)), min_size=1, max_size=4))
def test_the_fewest_moves_are_those_found_by_trying_all(total: int, members: list[tuple[int, int | None]]) -> None:
    counts = {NAMES[place]: count for place, (count, _) in enumerate(members)}
    limits = {NAMES[place]: limit for place, (_, limit) in enumerate(members)}
    most = [total if limit is None else limit for limit in limits.values()]
    ends = [end for end in itertools.product(*(range(m + 1) for m in most)) if sum(end) == min(total, sum(most))]
    fairest = max(sorted(end) for end in ends)

    by_trying = min(
        sum(max(after - before, 0) for after, before in zip(end, counts.values(), strict=True))
        for end in ends
        if sorted(end) == fairest
    )

    assert fewest_moves(total, counts, limits) == by_trying
