"""Positions in a partition, and where each partition starts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from hubline.errors import ConfigError

OnDataLoss = Literal["fail", "earliest", "latest"]
"""What to do if the events at the start position are gone, or the hub was re-created.

`"fail"` stops the partition with an error that says what happened. `"earliest"` continues with the oldest event that
the hub holds, `"latest"` with the events that arrive from now on; both report the skipped range.
"""

ON_DATA_LOSS: Final[tuple[OnDataLoss, ...]] = get_args(OnDataLoss)


class PositionKind(enum.StrEnum):
    """What a position is measured by."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SEQUENCE = "sequence"
    ENQUEUED = "enqueued"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start reading a partition. Make one with the class methods below.

    Attributes:
        kind: What it is measured by: an offset, a sequence number, a time, or one of the two ends.
        value: The offset, number or time. None for the two ends.
        inclusive: Whether the event at the position itself is read.

    Raises:
        ConfigError: The value does not go with the kind, or a time has no time zone.

    Example:
        processor = hubline.Processor(
            "local:./data/telemetry",
            "sqlite:///state.db",
            consumer_group="billing",
            starting_position=hubline.Position.enqueued(datetime.now(UTC) - timedelta(hours=1)),
        )
    """

    kind: PositionKind
    value: str | int | datetime | None = None
    inclusive: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, PositionKind):
            raise ConfigError(
                "a Position cannot be created directly. Use Position.earliest(), latest(), offset(), "
                "sequence() or enqueued()."
            )
        if not isinstance(self.inclusive, bool):
            raise ConfigError(f"Position: inclusive must be True or False, not {type(self.inclusive).__name__}.")
        expected = _POSITION_VALUE[self.kind]
        if type(self.value) is not expected:
            raise ConfigError(
                f"a position by {self.kind} must be of type {expected.__name__}, not {type(self.value).__name__}."
            )
        if self.kind is PositionKind.OFFSET and not self.value:
            raise ConfigError("the offset of a position is empty. Give an event's offset, or use Position.earliest().")
        if isinstance(self.value, datetime) and self.value.tzinfo is None:
            raise ConfigError("the time of a position has no time zone. Give one, such as datetime.now(UTC).")

    @classmethod
    def earliest(cls) -> Position:
        """Start at the oldest event that the hub still holds."""
        return cls(PositionKind.EARLIEST, None, inclusive=True)

    @classmethod
    def latest(cls, *, inclusive: bool = False) -> Position:
        """Start at the end: read only events that arrive from now on.

        Args:
            inclusive: Read the newest event that is already there, too. Default: False.
        """
        return cls(PositionKind.LATEST, None, inclusive=inclusive)

    @classmethod
    def offset(cls, offset: str, *, inclusive: bool = False) -> Position:
        """Start after the event with this offset.

        Args:
            offset: The offset of an event, as `Event.offset` has it.
            inclusive: Start at that event instead. Default: False.

        Raises:
            ConfigError: The offset is empty.
        """
        return cls(PositionKind.OFFSET, offset, inclusive=inclusive)

    @classmethod
    def sequence(cls, sequence_number: int, *, inclusive: bool = False) -> Position:
        """Start after the event with this sequence number.

        Args:
            sequence_number: The number of an event, as `Event.sequence_number` has it.
            inclusive: Start at that event instead. Default: False.
        """
        return cls(PositionKind.SEQUENCE, sequence_number, inclusive=inclusive)

    @classmethod
    def enqueued(cls, time: datetime, *, inclusive: bool = True) -> Position:
        """Start at the first event that the hub received at this time or later.

        Args:
            time: A time with a time zone.
            inclusive: With False, start at the first event after that time. Default: True.

        Raises:
            ConfigError: The time has no time zone.
        """
        return cls(PositionKind.ENQUEUED, time, inclusive=inclusive)

    def __str__(self) -> str:
        """As people write it: `hubline.addresses.values.parse_position` reads it back."""
        match self.kind, self.value:
            case PositionKind.EARLIEST, _:
                return "earliest"
            case PositionKind.LATEST, _:
                text, is_usual = "latest", not self.inclusive
            case _, datetime() as time:
                text, is_usual = f"time:{time.isoformat()}", self.inclusive
            case kind, value:
                text, is_usual = f"{kind}:{value}", not self.inclusive
        if is_usual and not text.endswith((":inclusive", ":exclusive")):  # an offset may be any text
            return text
        return f"{text}:{'inclusive' if self.inclusive else 'exclusive'}"


_POSITION_VALUE: Mapping[PositionKind, type] = {
    PositionKind.EARLIEST: type(None),
    PositionKind.LATEST: type(None),
    PositionKind.OFFSET: str,
    PositionKind.SEQUENCE: int,
    PositionKind.ENQUEUED: datetime,
}


@dataclass(frozen=True, slots=True)
class TimeAgo:
    """So long before a partition is opened, whenever that is: `time:-24h` as a start."""

    ago: timedelta
    inclusive: bool = True


StartPosition: TypeAlias = Position | TimeAgo
"""Where a partition starts."""


@dataclass(frozen=True, slots=True)
class StartPositions:
    """Where partitions without a checkpoint start: a general position, and others for single partitions."""

    general: StartPosition
    by_partition: Mapping[str, StartPosition] = field(default_factory=dict)

    def for_partition(self, partition: str, *, now: datetime | None = None) -> Position:
        """Where the partition starts if it is opened now."""
        start = self.by_partition.get(partition, self.general)
        if isinstance(start, Position):
            return start
        return Position.enqueued((now or datetime.now(UTC)) - start.ago, inclusive=start.inclusive)
