"""Offsets as Spark keeps them."""

from __future__ import annotations

import json

import pytest

from hubline.errors import ConfigError
from hubline.model.keys import GroupKey
from hubline.spark.source.offsets import Entry, Gap, Range, StreamOffset, gaps_in

GROUP = GroupKey("acme.servicebus.windows.net", "telemetry", "store")
CREATED = "2026-01-31T12:00:00+00:00"


def test_partitions_are_in_the_order_of_their_numbers_whatever_order_they_came_in() -> None:
    one = StreamOffset(CREATED, {"10": Entry(0, 5), "9": Entry(0, 5)})
    other = StreamOffset(CREATED, {"9": Entry(0, 5), "10": Entry(0, 5)})

    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert list(one.to_json()) == ["@hub", "9", "10"]


def test_an_offset_tells_its_ranges_without_the_one_before_it() -> None:
    end = StreamOffset.from_json(StreamOffset(CREATED, {"0": Entry(3, 7, 2), "1": Entry(2, 4, 1).let_go()}).to_json())

    assert end.ranges(StreamOffset()) == [Range("0", 3, 7)]
    assert end.entries == {"0": Entry(3, 7, 2), "1": Entry(4, 4, 1, held=False)}


def test_an_offset_tells_whose_progress_it_is() -> None:
    written = StreamOffset(CREATED, {"0": Entry(3, 7, 2)}, group=GROUP)

    assert StreamOffset.from_json(written.to_json()) == written


def test_an_offset_of_an_earlier_version_without_a_group_is_still_read() -> None:
    value = {"@hub": {"created": CREATED, "split": True}, "0": {"from": 3, "to": 7, "epoch": 2}}

    assert StreamOffset.from_json(value) == StreamOffset(CREATED, {"0": Entry(3, 7, 2)}, is_split=True)
    assert StreamOffset.from_json(value).to_json() == value


def test_a_gap_is_reported_once() -> None:
    written = StreamOffset(CREATED, {"0": Entry(50, 60, 0, Gap("expired", 10))})

    assert written.to_json()["0"]["gap"] == {"reason": "expired", "next": 10}
    assert StreamOffset.from_json(written.to_json()).entries["0"].gap is None


def test_the_jvm_connectors_offsets_go_on_where_they_were() -> None:
    before = StreamOffset.from_json({"telemetry": {"0": 100, "1": 50}})
    after = StreamOffset.from_json({"telemetry": {"0": 130, "1": 50}})

    assert before.entries["0"].end == 100
    assert after.ranges(before) == [Range("0", 100, 130)]


@pytest.mark.parametrize(
    "value",
    [
        5,  # a source of Spark's own that counts seconds
        {},
        {"logOffset": 5},
        {"": {"0": 1}},
        {"a": {"0": 1}, "b": {"0": 1}},
        {"a": {"0": "1"}},
        {"a": {"0": -1}},
        {"@hub": {}},
        {"@hub": {"created": CREATED, "split": False}, "0": 5},
        {"@hub": {"created": CREATED, "split": False, "namespace": "acme", "name": "telemetry"}},
        {"@hub": {"created": CREATED, "split": False, "namespace": "acme", "name": "telemetry", "group": 5}},
        {"@hub": {"created": CREATED, "split": False}, "0": {"from": 5, "to": 4, "epoch": 0}},
        {"@hub": {"created": CREATED, "split": False}, "0": {"from": True, "to": 4, "epoch": 0}},
    ],
)
def test_offsets_of_another_source_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        StreamOffset.from_json(value)


@pytest.mark.parametrize(
    ("entry", "first"),
    [
        (Entry(3, 9), 3),
        (Entry(3, 9, replayed_to=3), 3),
        (Entry(3, 9, replayed_to=6), 6),
        (Entry(3, 9, replayed_to=9), 9),
        (Entry(3, 9, replayed_to=12), 9),  # all of it was handled before
    ],
)
def test_what_was_handled_before_is_not_new(entry: Entry, first: int) -> None:
    assert entry.new_start == first


def test_gaps_are_read_from_the_offset_that_tells_them() -> None:
    written = StreamOffset(CREATED, {"0": Entry(50, 60, 0, Gap("expired", 10)), "1": Entry(0, 5)})
    assert gaps_in(written.to_json()) == {"0": Gap("expired", 10)}
