"""Where positions are in a partition, and which cannot be read from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hubline.errors import PositionInvalid
from hubline.hubs.position_check import PositionCheck
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position

NEWEST = datetime(2026, 11, 19, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HELD = PartitionProperties("3", 2, 9, "offset-9", NEWEST)
EMPTY = PartitionProperties("3", 10, 9, "offset-9", NEWEST)
NEW = PartitionProperties("3", 0, -1, None, None)
CHECK = PositionCheck("orders")


@pytest.mark.parametrize(
    ("position", "held", "sequence"),
    [
        (Position.earliest(), HELD, 2),
        (Position.earliest(), EMPTY, 10),
        (Position.latest(), HELD, 10),
        (Position.latest(inclusive=True), HELD, 9),
        (Position.latest(inclusive=True), EMPTY, 10),
        (Position.latest(inclusive=True), NEW, 0),
        (Position.sequence(1), HELD, 2),
        (Position.sequence(9), HELD, 10),
        (Position.sequence(10, inclusive=True), HELD, 10),
        (Position.sequence(-1), NEW, 0),
        (Position.sequence(-5), NEW, 0),
        (Position.offset("offset-9"), HELD, 10),
        (Position.offset("offset-9", inclusive=True), HELD, None),
        (Position.offset("offset-8"), HELD, None),
        (Position.enqueued(NEWEST), HELD, None),
        (Position.enqueued(NEWEST, inclusive=False), HELD, 10),
        (Position.enqueued(NEWEST + SECOND), HELD, 10),
        (Position.enqueued(NEWEST - SECOND), EMPTY, 10),
        (Position.enqueued(NEWEST), NEW, 0),
    ],
)
def test_a_position_is_a_sequence_number_where_the_properties_tell(
    position: Position, held: PartitionProperties, sequence: int | None
) -> None:
    assert CHECK.known_sequence(position, held) == sequence


@pytest.mark.parametrize(
    ("position", "held", "reason", "text"),
    [
        (Position.sequence(1, inclusive=True), HELD, "expired", r"have been removed\. It holds the sequence numbers 2"),
        (Position.sequence(10), HELD, "beyond", r"after the last event\. It holds the sequence numbers 2 to 9"),
        (Position.sequence(9, inclusive=True), EMPTY, "expired", r"have been removed\. It holds no events"),
    ],
)
def test_a_position_that_the_partition_does_not_reach_is_refused_with_the_reason(
    position: Position, held: PartitionProperties, reason: str, text: str
) -> None:
    with pytest.raises(PositionInvalid, match=f"partition 3 of hub orders cannot be read from .*{text}") as refused:
        CHECK.known_sequence(position, held)
    assert (refused.value.reason, refused.value.begin_sequence) == (reason, held.begin_sequence)
    assert (refused.value.last_sequence, refused.value.partition) == (held.last_sequence, "3")


def test_the_error_ends_with_what_helps_where_it_is_raised() -> None:
    check = PositionCheck("orders", fix="Set on_data_loss.")
    assert str(check.invalid("foreign", Position.offset("x"), HELD)).endswith("9. Set on_data_loss.")
