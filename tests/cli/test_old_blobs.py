"""Old blobs: which ones are, what they say, and what is done with them."""

from __future__ import annotations

import json

import pytest

from hubline.checkpoint_stores.blob import Blob
from hubline.checkpoint_stores.blob.records import Damage
from hubline.checkpoints.copy import Kind, Side
from hubline.checkpoints.migrate import plan_moves
from hubline.checkpoints.old_blobs import (
    Lease,
    OldBlob,
    OldPartition,
    groups_in,
    partitions_of,
    read_lease,
    sort_out,
)
from hubline.doctor.check_blobs import (
    BlobSettings,
    check_old_blobs,
    check_other_groups,
    check_settings,
    soft_delete_days,
)
from hubline.doctor.findings import Severity
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Ownership

FORK = "Acme.servicebus.windows.net/Orders/$Default"
GROUP = GroupKey("acme.servicebus.windows.net", "orders", "$default")
KEY = GROUP.partition("0")
LIVING_SECONDS = 180.0


def blob(name: str, *, bytes_count: int = 0, age_seconds: float = 3600, leased: bool = False, **metadata: str) -> Blob:
    return Blob(name, "etag", 0.0, age_seconds, metadata, bytes_count, is_leased=leased)


def lease_body(**changes: object) -> bytes:
    whole = {"Offset": "640", "SequenceNumber": 12, "PartitionId": "0", "Owner": "host", "Token": "t", "Epoch": 3}
    return json.dumps({**whole, **changes}).encode()


def found(*blobs: Blob, bodies: tuple[bytes, ...] = ()) -> list[OldPartition]:
    return partitions_of(sort_out(blobs), bodies, active_seconds=LIVING_SECONDS)


# Which ones are old ------------------------------------------------------------------------------------------------


def test_forks_and_leases_are_found_among_everything_else() -> None:
    old = sort_out(
        [
            blob(f"{FORK}/checkpoint/0"),
            blob(f"{FORK}/ownership/0"),
            blob("acme.servicebus.windows.net/orders/$default/checkpoint/0"),
            blob("acme.servicebus.windows.net/orders/$default/ownership/0"),
            blob("hubline/acme.servicebus.windows.net/Orders/$default/member/a"),
            blob(f"{FORK}/0", bytes_count=200),
            blob(f"{FORK}/1"),  # empty: no lease
            blob(f"{FORK}/2", bytes_count=1_000_000),
            blob("a//b/checkpoint/0"),
            blob("A//b/checkpoint/0"),
            blob(f"{FORK}/checkpoint/not a partition"),
            blob(f"{FORK}/checkpoint/"),
            blob("Reports/2026/January/31/data.csv", bytes_count=10),
        ]
    )
    assert [each.blob.name for each in old.checkpoints] == [f"{FORK}/checkpoint/0"]
    assert [each.blob.name for each in old.ownerships] == [f"{FORK}/ownership/0"]
    assert [each.blob.name for each in old.leases] == [f"{FORK}/0"]
    assert old.checkpoints[0].key == old.leases[0].key == KEY


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lease_body(), Lease("host", Checkpoint(KEY, "640", 12))),
        (lease_body(Owner=None), Lease("", Checkpoint(KEY, "640", 12))),
        (lease_body(Offset=None, SequenceNumber=0), Lease("host", None)),
        (lease_body(Offset="", SequenceNumber=0), Lease("host", None)),
        (
            b'{"offset": "640", "sequenceNumber": 12, "owner": "h", "epoch": 1}',
            Lease("h", Checkpoint(KEY, "640", 12)),
        ),
        (b'{"name": "something else"}', None),
        (b"[1, 2]", None),
        (b"\xff\xfe", None),
        (b"", None),
        (b"[" * 4000, None),
    ],
)
def test_a_lease_is_read_and_other_content_is_left_alone(body: bytes, expected: Lease | None) -> None:
    assert read_lease(OldBlob(KEY, blob(f"{FORK}/0")), body) == expected


@pytest.mark.parametrize("changes", [{"Offset": 640}, {"SequenceNumber": "many"}, {"SequenceNumber": -1}], ids=str)
def test_a_lease_that_does_not_read_is_damage(changes: dict[str, object]) -> None:
    with pytest.raises(Damage):
        read_lease(OldBlob(KEY, blob(f"{FORK}/0")), lease_body(**changes))


# What they say -----------------------------------------------------------------------------------------------------


def test_the_furthest_of_several_old_positions_counts() -> None:
    (old,) = found(
        blob(f"{FORK}/checkpoint/0", offset="900", sequencenumber="20"),
        blob(f"{FORK.upper()}/checkpoint/0", offset="700", sequencenumber="14"),
        blob(f"{FORK}/0", bytes_count=200),
        bodies=(lease_body(),),
    )
    assert old.checkpoint == Checkpoint(KEY, "900", 20)
    assert len(old.blobs) == 3
    assert (old.active_owner, old.damage) == (None, None)


def test_partitions_come_in_order() -> None:
    blobs = [blob(f"{FORK}/checkpoint/{name}", offset="1", sequencenumber="1") for name in ("10", "9", "0")]
    assert [each.key.partition for each in found(*blobs)] == ["0", "9", "10"]


@pytest.mark.parametrize(("age_seconds", "owner", "active"), [(10, "go", "go"), (181, "go", None), (10, "", None)])
def test_who_wrote_its_ownership_lately_is_alive(age_seconds: float, owner: str, active: str | None) -> None:
    (old,) = found(
        blob(f"{FORK}/checkpoint/0", offset="900", sequencenumber="20"),
        blob(f"{FORK}/ownership/0", age_seconds=age_seconds, ownerid=owner),
    )
    assert old.active_owner == active
    assert len(old.blobs) == 2


def test_who_holds_the_lock_of_a_lease_is_alive() -> None:
    (old,) = found(blob(f"{FORK}/0", bytes_count=200, leased=True), bodies=(lease_body(),))
    assert old.active_owner == "host"


@pytest.mark.parametrize("metadata", [{}, {"offset": "7", "sequencenumber": "x"}, {"offset": "7"}], ids=str)
def test_a_fork_that_cannot_be_compared_is_damage(metadata: dict[str, str]) -> None:
    (old,) = found(Blob(f"{FORK}/checkpoint/0", "etag", 0.0, 3600, metadata))
    assert f"{FORK}/checkpoint/0" in str(old.damage)
    assert old.checkpoint is None


def test_ownership_without_a_checkpoint_is_nothing_to_move() -> None:
    assert found(blob(f"{FORK}/ownership/0", ownerid="go")) == []


# What is done with them --------------------------------------------------------------------------------------------


def old_at(sequence: int | None, *, active: str | None = None, damage: str | None = None) -> OldPartition:
    checkpoint = None if sequence is None else Checkpoint(KEY, f"o{sequence}", sequence)
    return OldPartition(KEY, (blob(f"{FORK}/checkpoint/0"),), checkpoint, active, damage)


def new_at(sequence: int | None, *, owner: str | None = None) -> Side:
    checkpoints = {} if sequence is None else {"0": Checkpoint(KEY, f"n{sequence}", sequence)}
    return Side(checkpoints, {"0": Ownership(KEY, owner, 1)} if owner else {}, {})


@pytest.mark.parametrize(
    ("old", "new", "kind", "is_deletable"),
    [
        (old_at(5), new_at(None), Kind.SET, True),
        (old_at(5), new_at(3), Kind.FORWARD, True),
        (old_at(5), new_at(5), Kind.SAME, True),
        (old_at(5), new_at(9), Kind.KEPT, True),
        (old_at(5), new_at(3, owner="a"), Kind.OWNED, False),
        (old_at(5, active="go"), new_at(None), Kind.OWNED, False),
        (old_at(5, active="go"), new_at(9), Kind.OWNED, False),
        (old_at(5, damage="no"), new_at(3), Kind.DAMAGED, False),
        (old_at(None), new_at(3), Kind.SAME, True),
    ],
)
def test_move_of_a_partition(old: OldPartition, new: Side, kind: Kind, is_deletable: bool) -> None:
    (move,) = plan_moves(GROUP, [old], new)
    assert (move.step.kind, move.is_deletable) == (kind, is_deletable)


# The doctor's view -------------------------------------------------------------------------------------------------


def test_forks_of_the_group_are_a_warning_and_those_of_others_a_note() -> None:
    moves = plan_moves(GROUP, [old_at(5)], new_at(None))
    (finding,) = check_old_blobs(GroupKey(*(each.upper() for each in FORK.split("/"))), moves)
    assert (finding.code, finding.severity) == ("blob.old", Severity.WARNING)
    assert finding.partitions == {"0": f"a checkpoint at 5 in {FORK}/checkpoint/0"}
    assert "migrate" in finding.fix
    (other,) = check_old_blobs(GroupKey("x", "y", "z"), moves)
    assert (other.code, other.severity, other.where) == ("blob.old-others", Severity.NOTE, str(GROUP))
    (fine,) = check_old_blobs(GROUP, [])
    assert fine.severity is Severity.OK


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (old_at(5), new_at(5), "blob.old-moved"),
        (old_at(5), new_at(9), "blob.old-moved"),
        (old_at(5), new_at(3), "blob.old"),
        (old_at(5), new_at(3, owner="a"), "blob.old"),
        (old_at(5, active="go"), new_at(9), "blob.old"),
        (old_at(5, damage="no"), new_at(9), "blob.old"),
    ],
)
def test_old_blobs_whose_checkpoints_were_moved_are_no_warning(old: OldPartition, new: Side, code: str) -> None:
    (finding,) = check_old_blobs(GROUP, plan_moves(GROUP, [old], new))
    assert (finding.code, finding.severity) == (
        code,
        Severity.NOTE if code == "blob.old-moved" else Severity.WARNING,
    )
    assert ("--delete-old" in finding.fix) == (code == "blob.old-moved")


def test_a_container_of_other_groups_is_likely_the_wrong_one() -> None:
    there = frozenset(groups_in([blob(f"{FORK}/checkpoint/0"), blob("hubline/a/b/c/member/0"), blob("x/y")]))
    assert there == {GROUP}
    (finding,) = check_other_groups(GroupKey("ns", "orders", "g"), there)
    assert (finding.code, finding.where) == ("blob.other-groups", str(GROUP))
    assert check_other_groups(GroupKey(*(name.upper() for name in FORK.split("/"))), there) == []
    assert check_other_groups(GROUP, frozenset()) == []


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        (BlobSettings(0, has_versions=False), {"blob.settings": Severity.OK}),
        (BlobSettings(7, has_versions=False), {"blob.soft-delete": Severity.WARNING}),
        (BlobSettings(0, has_versions=True), {"blob.versioning": Severity.WARNING}),
        (
            BlobSettings(None, has_versions=True),
            {"blob.versioning": Severity.WARNING, "blob.settings": Severity.NOTE},
        ),
        (BlobSettings(0, has_versions=None), {"blob.settings": Severity.NOTE}),
    ],
    ids=str,
)
def test_settings_that_make_lists_slow_are_reported(settings: BlobSettings, codes: dict[str, Severity]) -> None:
    assert {each.code: each.severity for each in check_settings(settings)} == codes


@pytest.mark.parametrize(
    ("body", "days"),
    [
        ("<P><DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></DeleteRetentionPolicy></P>", 7),
        ("<P><DeleteRetentionPolicy><Enabled>true</Enabled></DeleteRetentionPolicy></P>", 1),
        ("<P><DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy></P>", 0),
        ("<P></P>", 0),
        ("not xml", None),
        ("<!DOCTYPE x><P/>", None),
    ],
)
def test_soft_delete_is_read_from_the_service_properties(body: str, days: int | None) -> None:
    assert soft_delete_days(body.encode()) == days
