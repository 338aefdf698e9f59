"""What the balancer does, by example: layouts as strings, as in :mod:`tests.coordination.layouts`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import (
    FIXED_PACE_SECONDS,
    HANDOVER_POLL_SECONDS,
    All,
    Balanced,
    Fixed,
    Greedy,
    Strategy,
)
from tests.coordination.layouts import FORGOTTEN_SECONDS, GRACE_SECONDS, LEASE_SECONDS, planned, snapshot

GREEDY = Greedy()


@dataclass(frozen=True)
class Case:
    """``me`` sees the layout, and plans."""

    what: str
    layout: str
    me: str
    plan: str
    by: Strategy
    known: dict[str, Any]

    def __str__(self) -> str:
        return self.what.replace(" ", "-")


def case(what: str, layout: str, me: str, plan: str, *, by: Strategy = GREEDY, **known: Any) -> Case:
    return Case(what, layout, me, plan, by, known)


OVERDUE: dict[str, Any] = {"asked_ago": GRACE_SECONDS}
FORGOTTEN: dict[str, Any] = {"asked_ago": FORGOTTEN_SECONDS}

CLAIMING = [
    case("an empty group: a single member claims all", "....", "a", "++++"),
    case("an empty group: everyone claims its share, and no other (a)", "......", "a", "+..+..", members="abc"),
    case("an empty group: everyone claims its share, and no other (b)", "......", "b", ".+..+.", members="abc"),
    case("an empty group: everyone claims its share, and no other (c)", "......", "c", "..+..+", members="abc"),
    case("more members than partitions: the last gets none", "..", "c", "..", members="abc"),
    case("what was given up is claimed", "aab-", "b", "...+"),
    case("what expired is claimed", "aabC", "b", "...+"),
    case("what this member itself let expire is claimed", "aabB", "b", "...+"),
    case("who has its share leaves the rest to the others", "aab.", "a", "...."),
    case("the uneven one goes to who has most already", "aabb.", "a", "....+"),
    case("the uneven one goes to one only", "aabb.", "b", "....."),
    case("one claim a cycle, when balanced", "......", "a", "+.....", by=Balanced(), members="ab"),
    case("one claim a cycle, when balanced, and then the next", "a.....", "a", "..+...", by=Balanced(), members="ab"),
]

ASKING = [
    case("a living owner is asked, not robbed", "aaab", "b", "?..."),
    case("who joins asks for its whole share", "aaaabbbb", "c", "?...?...", members="abc"),
    case("who joins asks the fullest first", "aaaaab", "b", "??...."),
    case("those who join together ask for different ones (b)", "aaaaaa", "b", "?.?...", members="abc"),
    case("those who join together ask for different ones (c)", "aaaaaa", "c", ".?.?..", members="abc"),
    case("the free is claimed, and only the rest asked for", "aaaaaa..", "b", "??....++", members="ab"),
    case("expired before asked for", "aaaB", "b", "?..+", members="ab"),
    case("a spread of one moves nothing", "aaabb", "b", "....."),
    case("even shares move nothing", "abcabc", "c", "......"),
    case("what is asked for already counts as moved", "aaaabb", "b", "......", asked="b....."),
    case("what another asked for is not asked for again", "aaaaaa", "c", ".?.?..", asked="b.b...", members="abc"),
    case("an owner keeps its excess until it is asked", "aaaa", "a", "....", members="ab"),
    case("one request a cycle, when balanced", "aaaaaa", "b", "?.....", by=Balanced(), members="ab"),
    case("an owner with an old announcement and a fresh lease is asked", "aaab", "b", "?...", heard_ago=LEASE_SECONDS),
    case("a stopping member is limited to nothing: its share is asked for", "aabb", "b", "??..", limits={"a": 0}),
]

GIVING_UP = [
    case("an owner gives up what it is asked for", "aaab", "a", "-...", asked="b..."),
    case("an owner gives up no more than its excess", "aaab", "a", "-...", asked="bb.."),
    case("an owner at its share gives up nothing", "aabb", "a", "....", asked="b..."),
    case("who asked and is gone is not served", "aaab", "a", "....", asked="x..."),
    case("what was given up for one is not another's", "-abb", "a", "....", asked="c...", members="abc"),
    case("what was given up for me is mine to claim", "-abb", "c", "+...", asked="c...", members="abc"),
    case("what was given up for one that is gone is free", "-abb", "a", "+...", asked="x..."),
    case("what was given up for one that stops is free", "-abb", "a", "+...", asked="c...", limits={"c": 0}),
    case("what was given up for one that did not come is free", "-abb", "a", "+...", asked="c...", age=GRACE_SECONDS),
    case("what the dead owner was asked for is free", "Xaab", "b", "+...", asked="a..."),
]

TAKING = [
    case("after the grace the requester takes it", "aaab", "b", "!...", asked="b...", **OVERDUE),
    case("after the grace only the requester takes it", "aaaa", "c", ".?..", asked="b...", **OVERDUE, members="abc"),
    case("an overdue one is taken before another is asked for", "aaab", "b", "..!.", asked="..b.", **OVERDUE),
    case("an old request is forgotten: the owner is asked again", "aaab", "b", "?...", asked="b...", **FORGOTTEN),
    case("an old request does not reserve what is given up", "-aab", "b", "+...", asked="a...", **FORGOTTEN),
    case("nothing is taken from an owner that has its share by now", "aabb", "b", "....", asked="b...", **OVERDUE),
    case("an owner that announces nothing cannot be asked", "xxxb", "b", "!...", members="b"),
    case("an owner that announces nothing keeps its share", "xxbb", "b", "....", members="b"),
    case("one theft a cycle, when balanced", "xxxxxx", "b", "!.....", by=Balanced(), members="b"),
    case("no theft beside a claim, when balanced", "xxxxx.", "b", ".....+", by=Balanced(), members="b"),
]

LIMITS = [
    case("a limit of this member", "......", "a", "+.....", members="ab", limits={"a": 1}),
    case("the others share what a limit leaves", "......", "b", ".+++++", members="ab", limits={"a": 1}),
    case("limits of all leave some unclaimed", "....", "a", "+...", members="ab", limits={"a": 1, "b": 1}),
    case("a limit above the share does not matter", "....", "a", "+.+.", members="ab", limits={"a": 3}),
    case("who is above another's limit is not asked", "aaab", "b", "....", limits={"b": 1}),
    case("a promise above the limit is void", "-bba", "b", "....", asked="b...", limits={"b": 2}),
    case("a promise above the limit is void, and another's", "-bba", "a", "+...", asked="b...", limits={"b": 2}),
]

RESTARTS = [
    case("what is recorded as its own is taken back at once", "aabb", "a", "++..", not_held=(0, 1)),
    case("also all of it, when balanced", "aabb", "a", "++..", by=Balanced(), not_held=(0, 1)),
    case("also what another asked for", "aaab", "a", "+...", asked="b...", not_held=(0,)),
    case("no more than the limit", "aaab", "a", "++..", limits={"a": 2}, not_held=(0, 1, 2)),
]

FIXED = [
    case("exactly its count and no more", "aa..", "a", "....", by=Fixed(2)),
    case("it does not ask", "bbbb", "a", "....", by=Fixed(2), members="ab"),
    case("it does not take, also after the grace", "bbbb", "a", "....", by=Fixed(2), asked="a...", **OVERDUE),
    case("it gives up nothing", "aaab", "a", "....", by=Fixed(3), asked="b..."),
    case("it leaves what was given up for another", "bb-", "a", "...", by=Fixed(1), asked="..c", members="abc"),
    case("it takes back its own at once", "aaab", "a", "++..", by=Fixed(3), not_held=(0, 1)),
    case("it takes back no more than its count", "aaab", "a", "+...", by=Fixed(1), not_held=(0, 1, 2)),
]

OF_ALL = [
    case("all of them at once", "....", "a", "++++", by=All()),
    case("what nobody has, beside its own and another's", "ab-.", "a", "..++", by=All(), members="ab"),
    case("also what it had before it restarted", "aab.", "a", "++.+", by=All(), not_held=(0, 1)),
    case("it does not ask", "bbbb", "a", "....", by=All(), members="ab"),
    case("it does not take, also after the grace", "bbbb", "a", "....", by=All(), asked="a...", **OVERDUE),
    case("it gives up nothing", "aaab", "a", "....", by=All(), asked="b..."),
]

EXAMPLES = [*CLAIMING, *ASKING, *GIVING_UP, *TAKING, *LIMITS, *RESTARTS, *FIXED, *OF_ALL]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_plan(example: Case) -> None:
    limits = {example.me: example.by.max_partitions, **example.known.get("limits", {})}
    known = snapshot(example.layout, me=example.me, **{**example.known, "limits": limits})

    assert planned(example.by, known) == example.plan


RERUNS = [
    ("after a claim: at once", GREEDY, snapshot("..", me="a"), 0.0),
    ("after asking: when it may be given up", GREEDY, snapshot("aa", me="b", members="ab"), HANDOVER_POLL_SECONDS),
    ("while waiting", GREEDY, snapshot("aaab", me="b", asked="b..."), HANDOVER_POLL_SECONDS),
    ("at rest: when the first lease ends unless renewed", GREEDY, snapshot("ab", me="b", age=7.0), LEASE_SECONDS - 7.0),
    ("alone and at rest: after the interval", GREEDY, snapshot("aa", me="a"), None),
    ("one step a cycle", Balanced(), snapshot("..", me="a"), None),
    ("fixed, and not complete: at its pace", Fixed(2), snapshot("..", me="a", limits={"a": 2}), FIXED_PACE_SECONDS),
    ("fixed, and nothing free", Fixed(1), snapshot("b", me="a", limits={"a": 1}, age=7.0), LEASE_SECONDS - 7.0),
    ("all, after a claim: at once", All(), snapshot("..", me="a"), 0.0),
    ("all, standing by: when the first lease ends", All(), snapshot("bb", me="a", age=7.0), LEASE_SECONDS - 7.0),
    ("fixed, and complete: after the interval", Fixed(1), snapshot("ab", me="a", limits={"a": 1}), None),
]


@pytest.mark.parametrize(("what", "strategy", "known", "seconds"), RERUNS, ids=[what for what, *_ in RERUNS])
def test_planned_again(what: str, strategy: Strategy, known: Snapshot, seconds: float | None) -> None:
    assert strategy.plan(known, random.Random(0)).rerun_seconds == seconds


def test_fixed_members_choose_at_random_one_at_a_time() -> None:
    known = snapshot("....", me="a", members="ab")

    plans = {planned(Fixed(2), known, seed=seed) for seed in range(50)}

    assert plans == {"+...", ".+..", "..+.", "...+"}
