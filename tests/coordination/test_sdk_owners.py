"""Owners that have not announced themselves, in a store that the official SDKs share: they renew at their own pace."""

from __future__ import annotations

import random

from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Greedy, Plan
from hubline.model.keys import GroupKey
from hubline.model.ownership import Member, Ownership

GROUP = GroupKey("namespace", "hub", "group")
LEASE_SECONDS = 30.0
SDK_LEASE_SECONDS = 120.0


def plan(
    owners: str, *, age_seconds: float, sdk_lease_seconds: float | None = SDK_LEASE_SECONDS, keeps_requests: bool = True
) -> Plan:
    """What member "a" does; each character owns a partition, and "a" and "b" are announced."""
    records = {
        str(number): Ownership(GROUP.partition(str(number)), owner, 1, version="1", age_seconds=age_seconds)
        for number, owner in enumerate(owners)
        if owner != "-"
    }
    snapshot = Snapshot(
        me=Member("a"),
        partitions=[str(number) for number in range(len(owners))],
        ownerships=records,
        members=[Member("a"), Member("b", age_seconds=age_seconds)],
        held=frozenset(p for p, record in records.items() if record.owner_id == "a"),
        lease_seconds=LEASE_SECONDS,
        handover_timeout_seconds=LEASE_SECONDS,
        sdk_lease_seconds=sdk_lease_seconds,
        keeps_requests=keeps_requests,
    )
    return Greedy().plan(snapshot, random.Random(0))


def test_what_an_sdk_renews_seldom_stays_its_own() -> None:
    assert plan("aas", age_seconds=LEASE_SECONDS + 1).claims == ()


def test_what_an_sdk_does_not_renew_any_more_is_free() -> None:
    assert plan("aas", age_seconds=SDK_LEASE_SECONDS).claims == ("2",)


def test_an_announced_member_has_the_usual_lease() -> None:
    assert plan("aab", age_seconds=LEASE_SECONDS).claims == ("2",)


def test_without_sdks_everybody_has_the_usual_lease() -> None:
    assert plan("aas", age_seconds=LEASE_SECONDS, sdk_lease_seconds=None).claims == ("2",)


def test_an_sdk_above_its_share_is_not_asked_but_taken_from() -> None:
    plan_of_a = plan("ssss", age_seconds=0.0)
    assert (len(plan_of_a.steals), plan_of_a.requests) == (1, ())


def test_a_member_above_its_share_is_taken_from_where_requests_are_not_kept() -> None:
    asked, taken = (plan("bbbb", age_seconds=0.0, keeps_requests=keeps) for keeps in (True, False))
    assert (len(asked.requests), asked.steals) == (2, ())
    assert (len(taken.steals), taken.requests) == (2, ())


def test_a_member_looks_again_when_an_sdks_lease_ends_and_not_before() -> None:
    assert plan("as", age_seconds=LEASE_SECONDS + 10).rerun_seconds == SDK_LEASE_SECONDS - LEASE_SECONDS - 10
