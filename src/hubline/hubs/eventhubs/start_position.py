"""Where a receiver starts: as a selector for the service, and as what its first event has to be.

The service answers a position whose events it no longer holds with the oldest it has, in silence. So whatever can be
known beforehand is checked against the partition's properties, and the rest against the first event that comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from hubline.amqp import service_names
from hubline.errors import PositionInvalid
from hubline.hubs.position_check import PositionCheck
from hubline.model.events import EventBatch
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position, PositionKind

_SEQUENCE: Final = f"amqp.annotation.{service_names.SEQUENCE_NUMBER}"
_OFFSET: Final = f"amqp.annotation.{service_names.OFFSET}"
_ENQUEUED: Final = f"amqp.annotation.{service_names.ENQUEUED_TIME}"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

START_OFFSET: Final = "-1"
# Numbers, or numbers with colons. Anything else is not an offset, and might say something else inside of a selector.
_OFFSET_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start. ``next_sequence`` or ``offset`` are those that the first event has to have, if known.

    ``skips_first`` says that the first event is there to prove that nothing is missing, and not to be given out.
    """

    selector: str
    next_sequence: int | None = None
    offset: str | None = None
    skips_first: bool = False

    @classmethod
    def at_sequence(cls, next_sequence: int) -> Start:
        return cls(f"{_SEQUENCE} > '{next_sequence - 1}'", next_sequence)

    @classmethod
    def earliest(cls) -> Start:
        return cls(f"{_OFFSET} > '{START_OFFSET}'")


class Progress:
    """How far a receiver has come: what arrives is checked to follow what came before it.

    ``start`` is where a new link starts. ``failed`` is set once events are missing, or are another hub's.
    """

    def __init__(self, hub: str, position: Position, there: PartitionProperties) -> None:
        self._check = PositionCheck(hub)
        self._position = position
        self._there = there
        self.start = resolve(self._check, position, there)
        self.last_sequence = there.last_sequence
        """The newest sequence number that is known of."""
        self.missing_from: int | None = None
        """Events from here on did not come, and later ones did: :meth:`explain` tells what it means."""
        self.failed: PositionInvalid | None = None

    @property
    def is_proven(self) -> bool:
        """Whether it is known that the position is this partition's, as far as it can be."""
        return self.start.offset is None

    def after(self, offset: str, there: PartitionProperties) -> Progress:
        """For another link after the event of this offset. The hub may have been re-created since it came."""
        return Progress(self._check.hub, Position.offset(offset), there)

    def take(self, batch: EventBatch) -> EventBatch:
        """The events of the batch that are new."""
        first, last = batch.first_sequence, batch.last_sequence
        start = self.start
        self.start = Start.at_sequence(max(last + 1, start.next_sequence or 0))
        self.last_sequence = max(self.last_sequence, last)
        if start.offset is not None:
            if batch[0].offset != start.offset:
                self.refuse("expired" if first <= self._there.begin_sequence else "foreign")
            return batch.slice(1 if start.skips_first else 0)
        if start.next_sequence is None or first == start.next_sequence:
            return batch
        if first < start.next_sequence:
            return batch.slice(min(start.next_sequence - first, len(batch)))
        if self.missing_from is None:
            self.missing_from = start.next_sequence
        return batch

    def refuse(self, reason: str) -> PositionInvalid:
        self.failed = self._check.invalid(reason, self._position, self._there)
        return self.failed

    def explain(self, there: PartitionProperties) -> None:
        """Numbers may be missing in a hub that keeps only the newest event of each key; or retention was faster."""
        missing_from, self.missing_from = self.missing_from, None
        if missing_from is not None and there.begin_sequence > missing_from:
            position = Position.sequence(missing_from, inclusive=True)
            self.failed = self._check.invalid("expired", position, there)


def resolve(check: PositionCheck, position: Position, there: PartitionProperties) -> Start:
    """How to ask the service for the position. Raises PositionInvalid if the partition does not reach there."""
    value = position.value
    if position.kind is PositionKind.EARLIEST or value == START_OFFSET:
        return Start.earliest()
    if isinstance(value, datetime):
        return _at_time(value, inclusive=position.inclusive)
    next_sequence = check.known_sequence(position, there)
    if next_sequence is not None:
        return Start.at_sequence(next_sequence)
    assert isinstance(value, str)  # noqa: S101  (the only kind left)
    return _at_offset(check, position, value, there)


def _at_time(time: datetime, *, inclusive: bool) -> Start:
    """The service keeps time in milliseconds: the first that counts, or the last that does not."""
    milliseconds, rest = divmod(time - _EPOCH, _MILLISECOND)
    if inclusive:
        return Start(f"{_ENQUEUED} >= '{milliseconds + (1 if rest else 0)}'")
    return Start(f"{_ENQUEUED} > '{milliseconds}'")


def _at_offset(check: PositionCheck, position: Position, offset: str, there: PartitionProperties) -> Start:
    """Offsets are opaque: the event that has it is asked for too, to see that it is there."""
    if offset == there.last_offset and there.is_empty:
        return Start.at_sequence(there.last_sequence + 1)
    if not _OFFSET_PATTERN.fullmatch(offset) or there.last_sequence < 0:
        raise check.invalid("foreign", position, there)
    if there.is_empty:
        raise check.invalid("expired", position, there)
    return Start(f"{_OFFSET} >= '{offset}'", offset=offset, skips_first=not position.inclusive)
