"""Positions become selectors, and nothing is skipped in silence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from hubline.errors import PositionInvalid
from hubline.hubs.eventhubs.start_position import Progress, Start, resolve
from hubline.hubs.position_check import PositionCheck
from hubline.model.events import EVENT_SCHEMA, EventBatch
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position

HUB = "eventhubs://ns/orders"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = 1_769_860_800_000


def partition(begin: int, last: int) -> PartitionProperties:
    """A partition whose offsets are ten times the sequence numbers."""
    return PartitionProperties("0", begin, last, f"{last * 10}" if last >= 0 else None, NOON if last >= 0 else None)


def batch(*sequences: int) -> EventBatch:
    rows = [
        {"body": b"", "partition": "0", "offset": str(number * 10), "sequenceNumber": number, "enqueuedTime": NOON}
        for number in sequences
    ]
    return EventBatch("0", pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))


def sequences(events: EventBatch) -> list[int]:
    numbers: list[int] = events.arrow.column("sequenceNumber").to_pylist()
    return numbers


@pytest.mark.parametrize(
    ("position", "selector", "next_sequence"),
    [
        (Position.earliest(), "x-opt-offset > '-1'", None),
        (Position.offset("-1"), "x-opt-offset > '-1'", None),
        (Position.latest(), "x-opt-sequence-number > '9'", 10),
        (Position.latest(inclusive=True), "x-opt-sequence-number > '8'", 9),
        (Position.sequence(5), "x-opt-sequence-number > '5'", 6),
        (Position.sequence(5, inclusive=True), "x-opt-sequence-number > '4'", 5),
        (Position.sequence(9), "x-opt-sequence-number > '9'", 10),
        (Position.sequence(10, inclusive=True), "x-opt-sequence-number > '9'", 10),
        (Position.offset("90"), "x-opt-sequence-number > '9'", 10),
        (Position.offset("90", inclusive=True), "x-opt-offset >= '90'", None),
        (Position.offset("70"), "x-opt-offset >= '70'", None),
        (Position.enqueued(NOON), f"x-opt-enqueued-time >= '{NOON_MS}'", None),
        (Position.enqueued(NOON, inclusive=False), f"x-opt-enqueued-time > '{NOON_MS}'", None),
        (Position.enqueued(NOON + timedelta(microseconds=1)), f"x-opt-enqueued-time >= '{NOON_MS + 1}'", None),
        (
            Position.enqueued(NOON + timedelta(microseconds=1), inclusive=False),
            f"x-opt-enqueued-time > '{NOON_MS}'",
            None,
        ),
    ],
)
def test_positions_become_selectors(position: Position, selector: str, next_sequence: int | None) -> None:
    start = resolve(PositionCheck(HUB), position, partition(2, 9))
    assert start.selector == f"amqp.annotation.{selector}"
    assert start.next_sequence == next_sequence


@pytest.mark.parametrize(
    ("position", "there", "reason"),
    [
        (Position.sequence(0), partition(2, 9), "expired"),
        (Position.sequence(-1), partition(2, 9), "expired"),
        (Position.sequence(10), partition(2, 9), "beyond"),
        (Position.sequence(11, inclusive=True), partition(2, 9), "beyond"),
        (Position.sequence(3), partition(10, 9), "expired"),
        (Position.sequence(0), partition(0, -1), "beyond"),
        (Position.offset("70"), partition(10, 9), "expired"),
        (Position.offset("70"), partition(0, -1), "foreign"),
        (Position.offset("7' OR '1"), partition(2, 9), "foreign"),
        (Position.offset("@latest"), partition(2, 9), "foreign"),
    ],
)
def test_what_the_partition_does_not_reach_is_refused(
    position: Position, there: PartitionProperties, reason: str
) -> None:
    with pytest.raises(PositionInvalid) as refused:
        resolve(PositionCheck(HUB), position, there)
    assert (refused.value.reason, refused.value.partition) == (reason, "0")
    assert (refused.value.begin_sequence, refused.value.last_sequence) == (there.begin_sequence, there.last_sequence)


@pytest.mark.parametrize(
    ("position", "expected"),
    [(Position.earliest(), 0), (Position.latest(inclusive=True), 0), (Position.sequence(-1), 0)],
)
def test_a_partition_that_never_had_an_event_is_read_from_its_first(position: Position, expected: int) -> None:
    start = resolve(PositionCheck(HUB), position, partition(0, -1))
    assert start.next_sequence in (None, expected)


class TestProgress:
    def test_events_that_follow_each_other_pass(self) -> None:
        progress = Progress(HUB, Position.sequence(4), partition(2, 9))
        assert sequences(progress.take(batch(5, 6))) == [5, 6]
        assert sequences(progress.take(batch(7))) == [7]
        assert (progress.start, progress.missing_from, progress.failed) == (Start.at_sequence(8), None, None)

    def test_events_that_came_before_are_left_out(self) -> None:
        progress = Progress(HUB, Position.sequence(4), partition(2, 9))
        progress.take(batch(5, 6, 7))
        assert sequences(progress.take(batch(6, 7, 8))) == [8]
        assert sequences(progress.take(batch(8))) == []

    def test_events_that_all_came_before_leave_it_where_it_was(self) -> None:
        progress = Progress(HUB, Position.sequence(5, inclusive=True), partition(0, 9))
        assert sequences(progress.take(batch(1, 2))) == []
        assert sequences(progress.take(batch(3, 4, 5, 6))) == [5, 6]

    def test_the_event_of_an_offset_proves_it_and_is_not_given_out(self) -> None:
        progress = Progress(HUB, Position.offset("40"), partition(2, 9))
        was_proven = progress.is_proven
        assert sequences(progress.take(batch(4, 5))) == [5]
        assert (was_proven, progress.is_proven, progress.failed) == (False, True, None)

    def test_the_event_of_an_inclusive_offset_is_given_out(self) -> None:
        progress = Progress(HUB, Position.offset("40", inclusive=True), partition(2, 9))
        assert sequences(progress.take(batch(4, 5))) == [4, 5]

    @pytest.mark.parametrize(("first", "reason"), [(2, "expired"), (5, "foreign")])
    def test_another_event_than_the_offsets_is_refused(self, first: int, reason: str) -> None:
        progress = Progress(HUB, Position.offset("15"), partition(2, 9))
        progress.take(batch(first))
        assert progress.failed is not None
        assert progress.failed.reason == reason

    def test_a_gap_that_retention_made_is_refused(self) -> None:
        progress = Progress(HUB, Position.sequence(4), partition(2, 9))
        progress.take(batch(8, 9))
        assert progress.missing_from == 5
        progress.explain(partition(8, 12))
        assert progress.failed is not None
        assert (progress.failed.reason, progress.failed.begin_sequence) == ("expired", 8)

    def test_a_gap_in_what_the_partition_holds_is_none(self) -> None:
        progress = Progress(HUB, Position.sequence(4), partition(2, 9))
        assert sequences(progress.take(batch(8, 9))) == [8, 9]
        progress.explain(partition(2, 9))
        assert (progress.missing_from, progress.failed) == (None, None)

    def test_the_newest_sequence_number_only_grows(self) -> None:
        progress = Progress(HUB, Position.sequence(4), partition(2, 9))
        progress.take(batch(5))
        assert progress.last_sequence == 9
        progress.take(batch(*range(6, 12)))
        assert progress.last_sequence == 11
