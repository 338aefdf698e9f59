"""The doctor's judgement: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hubline.doctor.check_checkpoints import check_checkpoints, check_damage
from hubline.doctor.check_group import check_group
from hubline.doctor.check_intervals import (
    check_clock,
    check_hub_clock,
    check_lease,
    check_sdk_intervals,
    check_speed,
)
from hubline.doctor.findings import Finding, Severity, ok, warning, worst
from hubline.doctor.observations import ClockFacts, GroupFacts, HubFacts
from hubline.errors import PositionInvalid
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership
from hubline.processor import LeaseOptions

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
GROUP = GroupKey("ns", "orders", "billing")
LEASE = LeaseOptions(lease_seconds=30)


def hub(*partitions: PartitionProperties) -> HubFacts:
    names = tuple(each.partition for each in partitions)
    return HubFacts(HubProperties("ns", "orders", names, NOW), {each.partition: each for each in partitions}, {}, NOW)


def holding(partition: str, begin: int, last: int) -> PartitionProperties:
    return PartitionProperties(partition, begin, last, f"o{last}" if last >= 0 else None, NOW)


def facts(
    *,
    owners: str = "",
    ages: Sequence[float] = (),
    members: Sequence[Member] = (),
    checkpoints: Sequence[tuple[str, int]] = (),
    **others: object,
) -> GroupFacts:
    """A group. Owners are one dead letter a partition, ``-`` for nobody: ``"aab-"``."""
    ownerships = tuple(
        Ownership(GROUP.partition(str(index)), "" if owner == "-" else owner, epoch=1, age_seconds=age)
        for index, (owner, age) in enumerate(zip(owners, [*ages, *[1.0] * len(owners)], strict=False))
    )
    stored = {name: Checkpoint(GROUP.partition(name), f"o{number}", number) for name, number in checkpoints}
    return GroupFacts(GROUP, GroupState(ownerships, tuple(members)), stored, 0.01, **others)  # type: ignore[arg-type]


def codes(findings: Sequence[Finding]) -> set[str]:
    return {each.code for each in findings if each.severity is not Severity.OK}


def found(findings: Sequence[Finding], code: str) -> Finding:
    (finding,) = (each for each in findings if each.code == code)
    return finding


PARTITIONS = ("0", "1", "2", "3")
EMPTY = hub(*(holding(name, 0, -1) for name in PARTITIONS))
BOTH = [Member("a"), Member("b")]


# The group ---------------------------------------------------------------------------------------------------------


def test_a_group_that_is_well_has_no_findings() -> None:
    findings = check_group(facts(owners="aabb", members=BOTH), LEASE, PARTITIONS)
    assert codes(findings) == set()
    assert found(findings, "group.members").message == "2 members with 4 partitions"


def test_a_group_nobody_reads_is_noted() -> None:
    assert codes(check_group(facts(), LEASE, PARTITIONS)) == {"group.empty"}


def test_partitions_without_an_owner_are_named() -> None:
    findings = check_group(facts(owners="a-", members=[Member("a")]), LEASE, PARTITIONS)
    unowned = found(findings, "group.unowned")
    assert unowned.severity is Severity.WARNING
    assert list(unowned.partitions) == ["1", "2", "3"]


def test_owners_not_heard_of_for_a_lease_are_stale() -> None:
    stale = found(check_group(facts(owners="aabb", ages=[1, 1, 31, 500]), LEASE, PARTITIONS), "group.expired-leases")
    assert stale.partitions == {
        "2": "b has not renewed it for 31 s",
        "3": "b has not renewed it for 500 s",
    }


def test_stale_owners_of_an_official_sdk_have_longer() -> None:
    of_sdk = facts(owners="aabb", ages=[1, 1, 31, 121], members=[Member("a")], sdk_owners=frozenset("b"))
    assert list(found(check_group(of_sdk, LEASE, PARTITIONS), "group.expired-leases").partitions) == ["3"]


def test_a_dead_member_is_not_counted() -> None:
    findings = check_group(facts(owners="aaaa", members=[Member("a"), Member("b", age_seconds=31)]), LEASE, PARTITIONS)
    assert found(findings, "group.members").message == "1 member with 4 partitions"
    assert codes(findings) == set()


def test_members_without_a_partition_are_counted_as_standby() -> None:
    findings = check_group(facts(owners="aaaa", members=[Member("c"), Member("a"), Member("b")]), LEASE, PARTITIONS)
    standby = found(findings, "group.standby")
    assert (standby.severity, standby.where) == (Severity.NOTE, "b, c")
    assert "2 members of 3" in standby.message


@pytest.mark.parametrize(
    ("limits", "is_reported"), [((2, 1), True), ((2, 2), False), ((2, None), False), ((), False)], ids=str
)
def test_members_that_may_not_take_all_partitions_are_reported(
    limits: tuple[int | None, ...], is_reported: bool
) -> None:
    members = [Member(str(index), max_partitions=limit) for index, limit in enumerate(limits)]
    assert ("group.capacity" in codes(check_group(facts(members=members), LEASE, PARTITIONS))) is is_reported


def test_a_hand_over_that_waits_for_too_long_is_reported() -> None:
    ownership = Ownership(
        GROUP.partition("0"), "a", epoch=1, age_seconds=1, requested_by="b", request_age_seconds=41
    )  # the grace is 30 s, and a cycle 10 s
    waiting = GroupFacts(GROUP, GroupState((ownership,), tuple(BOTH)), {}, 0.01)
    assert found(check_group(waiting, LEASE, PARTITIONS), "group.overdue-handovers").partitions == {
        "0": "b requested it from a 41 s ago"
    }


def test_damaged_ownership_records_are_errors() -> None:
    damaged = GroupFacts(GROUP, GroupState((), (), {"2": "the epoch is 'x'"}), {}, 0.01)
    finding = found(check_group(damaged, LEASE, PARTITIONS), "group.damaged")
    assert (finding.severity, finding.partitions) == (Severity.ERROR, {"2": "the epoch is 'x'"})


def test_partitions_that_the_hub_does_not_have_are_reported() -> None:
    of_two_hubs = facts(owners="aaaaa", members=[Member("a")], checkpoints=[("7", 3), ("1", 3)])
    assert found(check_group(of_two_hubs, LEASE, PARTITIONS), "group.unknown-partitions").partitions == {
        "4": "owned by a",
        "7": "has a checkpoint",
    }


def test_without_the_hub_owners_and_members_are_judged_all_the_same() -> None:
    alone = facts(owners="aab-", ages=[1, 1, 500], members=[Member("a"), Member("c", max_partitions=1)])
    assert codes(check_group(alone, LEASE, None)) == {"group.expired-leases", "group.standby"}


def test_members_with_an_official_sdk_are_noted() -> None:
    shared = facts(owners="aabb", members=[Member("a")], sdk_owners=frozenset("b"))
    finding = found(check_group(shared, LEASE, PARTITIONS), "group.sdk-members")
    assert (finding.severity, finding.where) == (Severity.NOTE, "b")


# Checkpoints -------------------------------------------------------------------------------------------------------


def test_good_checkpoints_tell_how_much_is_left() -> None:
    there = hub(holding("0", 5, 14), holding("1", 0, 3))
    findings = check_checkpoints(there, facts(checkpoints=[("0", 4), ("1", 3)]), {})
    assert codes(findings) == set()
    assert found(findings, "checkpoint.ok").message == "2 checkpoints without problems; lag 10 events"


@pytest.mark.parametrize(("begin", "last"), [(9, 20), (9, 8)], ids=["holds events", "is empty"])
def test_expired_positions_tell_how_many_events_are_lost(begin: int, last: int) -> None:
    findings = check_checkpoints(hub(holding("0", begin, last)), facts(checkpoints=[("0", 3)]), {})
    expired = found(findings, "checkpoint.expired")
    assert expired.severity is Severity.ERROR
    assert "removed 5 events" in expired.message
    assert expired.partitions == {"0": "5 lost"}


def test_before_the_first_event_nothing_is_lost_until_retention_comes() -> None:
    before_first = {"0": Checkpoint.before_first(GROUP.partition("0"))}
    known = GroupFacts(GROUP, GroupState((), ()), before_first, 0.01)
    assert codes(check_checkpoints(hub(holding("0", 0, 5)), known, {})) == set()
    assert codes(check_checkpoints(hub(holding("0", 0, -1)), known, {})) == set()
    assert codes(check_checkpoints(hub(holding("0", 2, 5)), known, {})) == {"checkpoint.expired"}


def test_a_checkpoint_ahead_of_the_last_event_tells_of_a_new_hub() -> None:
    finding = found(check_checkpoints(hub(holding("0", 0, 3)), facts(checkpoints=[("0", 10)]), {}), "checkpoint.ahead")
    assert (finding.severity, finding.partitions) == (Severity.ERROR, {"0": "7 beyond the last event"})


def test_another_offset_at_the_newest_event_tells_of_another_hub() -> None:
    foreign = {"0": Checkpoint(GROUP.partition("0"), "elsewhere", 3)}
    findings = check_checkpoints(hub(holding("0", 0, 3)), GroupFacts(GROUP, GroupState((), ()), foreign, 0.01), {})
    assert codes(findings) == {"checkpoint.foreign"}


@pytest.mark.parametrize(("reason", "code"), [("foreign", "checkpoint.foreign"), ("expired", "checkpoint.expired")])
def test_what_the_hub_itself_refused_is_reported(reason: str, code: str) -> None:
    refusal = PositionInvalid("no", partition="0", reason=reason, begin_sequence=0, last_sequence=9)
    findings = check_checkpoints(hub(holding("0", 0, 9)), facts(checkpoints=[("0", 3)]), {"0": refusal})
    assert codes(findings) == {code}


def test_partitions_without_a_checkpoint_are_noted() -> None:
    assert codes(check_checkpoints(EMPTY, facts(), {})) == {"checkpoint.none"}
    there = hub(holding("0", 0, 3), holding("1", 0, 3), holding("2", 0, 3))
    partly = facts(checkpoints=[("0", 3)], damaged_checkpoints={"2": "the offset is empty"})
    findings = check_checkpoints(there, partly, {})
    assert found(findings, "checkpoint.missing").partitions == {"1": "has none"}
    assert found(check_damage(partly), "checkpoint.damaged").partitions == {"2": "the offset is empty"}


# Intervals and clocks ----------------------------------------------------------------------------------------------


def test_a_lease_shorter_than_three_renewals_cannot_work() -> None:
    lease, findings = check_lease(10, 5, 0, 120)
    assert found(findings, "interval.lease").severity is Severity.ERROR
    assert lease == LeaseOptions()  # the rest is judged by the defaults


def test_a_grace_shorter_than_a_renewal_is_reported() -> None:
    assert codes(check_lease(30, 10, 5, 120)[1]) == {"interval.handover-timeout"}
    assert codes(check_lease(30, 10, 10, 120)[1]) == set()


def test_a_store_slower_than_renewals_is_reported() -> None:
    assert codes(check_speed(LEASE, facts())) == set()
    slow = GroupFacts(GROUP, GroupState((), ()), {}, list_seconds=6.0)
    (finding,) = check_speed(LEASE, slow)
    assert (finding.code, finding.severity) == ("interval.slow-store", Severity.WARNING)
    assert "at least 36 s" in finding.fix


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        (LeaseOptions(), set()),
        (LeaseOptions(lease_seconds=90, renew_interval_seconds=30), set()),
        (LeaseOptions(sdk_lease_seconds=60), {"interval.sdk-lease"}),
        (LeaseOptions(lease_seconds=120, renew_interval_seconds=40), {"interval.sdk-renew"}),
    ],
    ids=["the defaults", "as the SDKs'", "too short", "too rare"],
)
def test_intervals_have_to_fit_those_of_the_sdks_in_the_group(lease: LeaseOptions, expected: set[str]) -> None:
    assert codes(check_sdk_intervals(lease, facts(sdk_owners=frozenset("b")))) == expected
    assert check_sdk_intervals(lease, facts()) == []


@pytest.mark.parametrize(
    ("ahead_seconds", "severity"),
    [
        (0, Severity.OK),
        (4.9, Severity.OK),
        (6, Severity.NOTE),
        (-25, Severity.WARNING),
        (25, Severity.WARNING),
        (-1000, Severity.ERROR),
    ],
)
def test_clocks_that_differ_are_reported_by_how_much_it_matters(ahead_seconds: float, severity: Severity) -> None:
    clock = ClockFacts(NOW, NOW + timedelta(seconds=ahead_seconds), NOW)
    (finding,) = check_clock(clock, sdk_members=False)
    assert (finding.code, finding.severity) == ("store.clock", severity)


def test_a_slow_answer_is_no_skew() -> None:
    for store_seconds in (0, 30, 60):
        clock = ClockFacts(NOW, NOW + timedelta(seconds=store_seconds), NOW + timedelta(seconds=60))
        assert clock.skew_seconds == 0
    assert ClockFacts(NOW, NOW + timedelta(seconds=70), NOW + timedelta(seconds=60)).skew_seconds == 10
    assert ClockFacts(NOW, NOW - timedelta(seconds=7), NOW + timedelta(seconds=60)).skew_seconds == -7


def test_an_event_from_the_future_tells_of_the_hubs_clock() -> None:
    assert check_hub_clock(1) == []
    (finding,) = check_hub_clock(60)
    assert finding.code == "hub.clock"
    assert "retention removes events too early" in str(finding.fix)


def test_the_worst_finding_counts() -> None:
    assert worst([]) is Severity.OK
    assert worst([ok("a", "b"), warning("c", "d", fix="e"), ok("f", "g")]) is Severity.WARNING
    assert [each.rank for each in Severity] == [0, 1, 2, 3]


def test_the_pages_have_every_code() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/reference/doctor-codes.md").read_text()
    explained = set(re.findall(r"^\| `([a-z]+\.[a-z-]+)` \|", page, re.MULTILINE))
    sources = "".join(path.read_text() for path in (root / "src/hubline/doctor").glob("*.py"))
    codes = set(re.findall(r'"((?:hub|store|blob|interval|group|checkpoint|environment|doctor)\.[a-z-]+)"', sources))
    kinds = {f"{whom}.{kind}" for whom in ("hub", "store") for kind in re.findall(r'return "([a-z]+)"', sources)}
    assert len(codes) > 20
    assert codes <= explained
    assert explained <= codes | kinds
    troubleshooting = (root / "docs/how-to/operate/troubleshooting.md").read_text()
    assert explained <= set(re.findall(r"`([a-z]+\.[a-z-]+)`", troubleshooting))


def test_the_page_has_the_severities_of_every_code() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/reference/doctor-codes.md").read_text()
    rows = re.findall(r"^\| `([a-z]+\.[a-z-]+)` \| ([^|]+) \|", page, re.MULTILINE)
    shown = {code: set(re.findall(r"`(\w+)`", severities)) for code, severities in rows}
    for path in (root / "src/hubline/doctor").glob("*.py"):
        made = re.findall(r'\b(ok|note|warning|error)\(\s*"([a-z]+\.[a-z-]+)"', path.read_text())
        assert [(severity, code) for severity, code in made if severity not in shown[code]] == []
    assert all(severities <= set(Severity) for severities in shown.values())
