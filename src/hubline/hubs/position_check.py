"""Where a position is in a partition, by sequence number, and the error if the partition does not reach there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hubline.errors import PositionInvalid
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position, PositionKind

OF_ANOTHER_HUB: Final = "it is of another hub"

_REASONS: Final = {
    "expired": "events from there on have been removed",
    "beyond": "it is after the last event",
    "foreign": f"{OF_ANOTHER_HUB}, or of this one from before it was deleted and re-created",
}


@dataclass(frozen=True, slots=True)
class PositionCheck:
    """Resolves positions in the partitions of one hub, by what each partition holds at the moment."""

    hub: str
    fix: str = "Choose another position, such as earliest."
    """What the error recommends."""

    def known_sequence(self, position: Position, held: PartitionProperties) -> int | None:
        """The sequence number of the first event that a position asks for; the next one to come if there is none yet.

        None if the partition's properties do not tell: then the hub has to look for the offset or the time.
        Raises PositionInvalid if the partition does not reach there.
        """
        value = position.value
        match position.kind:
            case PositionKind.EARLIEST:
                return held.begin_sequence
            case PositionKind.LATEST:
                return held.last_sequence + (0 if position.inclusive and not held.is_empty else 1)
        if isinstance(value, int):
            return self.checked_sequence(value if position.inclusive else value + 1, position, held)
        if isinstance(value, datetime):
            return held.last_sequence + 1 if _is_after_all(value, position, held) else None
        return held.last_sequence + 1 if value == held.last_offset and not position.inclusive else None

    def checked_sequence(self, sequence: int, position: Position, held: PartitionProperties) -> int:
        """The sequence number that the position stands for, if reading can start there. Raises PositionInvalid."""
        # A position before the very first event skips nothing: it is the first event's.
        sequence = max(sequence, 0)
        if sequence < held.begin_sequence:
            raise self.invalid("expired", position, held)
        if sequence > held.last_sequence + 1:
            raise self.invalid("beyond", position, held)
        return sequence

    def invalid(self, reason: str, position: Position, held: PartitionProperties) -> PositionInvalid:
        """The error for a position that cannot be read from. ``reason`` is "expired", "beyond" or "foreign"."""
        numbers = f"the sequence numbers {held.begin_sequence} to {held.last_sequence}"
        return PositionInvalid(
            f"partition {held.partition} of hub {self.hub} cannot be read from {position}: {_REASONS[reason]}. "
            f"It holds {'no events' if held.is_empty else numbers}. {self.fix}",
            hub=self.hub,
            partition=held.partition,
            reason=reason,
            begin_sequence=held.begin_sequence,
            last_sequence=held.last_sequence,
        )


def _is_after_all(time: datetime, position: Position, held: PartitionProperties) -> bool:
    last = held.last_enqueued_time
    return held.is_empty or last is None or last < time or (last == time and not position.inclusive)
