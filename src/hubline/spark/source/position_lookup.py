"""Positions as sequence numbers: what people say becomes where a range starts and ends.

Every position is looked up in the hub as it is now. One that the hub no longer holds, or that is another hub's, is
PositionInvalid; nothing is skipped in silence.
"""

from __future__ import annotations

from typing import Final

from hubline.errors import HubUnavailable, PositionInvalid
from hubline.hubs.hub_calls import describe_partition, within
from hubline.hubs.position_check import PositionCheck
from hubline.model.events import EventBatch
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position, PositionKind
from hubline.ports import Hub

LOOKUPS_AT_ONCE: Final = 32
"""Partitions whose positions are looked up at once: some hundred answers of a management link fit into a second."""

SAMPLE_COUNT: Final = 100
"""Events that tell how large the others are."""

_FIX: Final = "Choose another start, or set the option onDataLoss (on_data_loss in a pipeline) to earliest or latest."


class Places:
    """Looks up places in the partitions of one hub, as one consumer group. Every call is bounded in time."""

    def __init__(self, hub: Hub, *, group: str, seconds_max: float) -> None:
        self._hub = hub
        self._check = PositionCheck(hub.name, fix=_FIX)
        self._group = group
        self._seconds_max = seconds_max

    async def hub(self) -> HubProperties:
        return await within(self._seconds_max, self._hub.describe(), what="describe itself")

    async def described(self, partition: str) -> PartitionProperties:
        return await describe_partition(self._hub, partition, timeout_seconds=self._seconds_max)

    async def start(self, partition: str, position: Position) -> int:
        """The sequence number of the first event from a position on; of the next to come, if there is none yet."""
        there = await self.described(partition)
        known = self._check.known_sequence(position, there)
        return (await self._first(partition, position)).first_sequence if known is None else known

    async def end(self, partition: str, position: Position) -> int:
        """Where a range ends that stops before the event at a position, or after it if the position is inclusive.

        Beyond the last event it ends with that; there is no more to read now.
        """
        there = await self.described(partition)
        if isinstance(position.value, int):
            end = position.value + (1 if position.inclusive else 0)
            return min(max(end, there.begin_sequence), there.last_sequence + 1)
        if position.kind in (PositionKind.EARLIEST, PositionKind.LATEST):
            return await self.start(partition, Position(position.kind))
        # Up to there, and without it: what comes first is where one starts that is not to miss it.
        opposite = Position(position.kind, position.value, inclusive=not position.inclusive)
        return await self.start(partition, opposite)

    async def resume(self, partition: str, checkpoint: Checkpoint) -> int:
        """The sequence number after a checkpoint, once it is certain that it is this hub's."""
        there = await self.described(partition)
        after = checkpoint.sequence_number + 1
        start = self._check.checked_sequence(after, checkpoint.resume, there)
        # Without an offset (the SQL sink knows none of an event that its query left out) there is nothing to compare.
        if checkpoint.sequence_number < 0 or checkpoint.offset in ("", there.last_offset):
            return start
        if after == there.last_sequence + 1:
            raise self.invalid("foreign", checkpoint.resume, there)
        # Offsets tell hubs apart where sequence numbers do not: it is opened by the one, and compared by the other.
        if (await self._first(partition, checkpoint.resume)).first_sequence != after:
            raise self.invalid("foreign", checkpoint.resume, there)
        return start

    async def offset_of(self, partition: str, sequence: int) -> str:
        """The offset of an event: checkpoints carry it, for those who resume by it."""
        there = await self.described(partition)
        if sequence == there.last_sequence and there.last_offset is not None:
            return there.last_offset
        return (await self._first(partition, Position.sequence(sequence, inclusive=True))).last_offset

    async def event_bytes(self, partition: str, sequence: int) -> float:
        """How large events are from there on, on average."""
        batch = await self._first(partition, Position.sequence(sequence, inclusive=True), max_count=SAMPLE_COUNT)
        return batch.nbytes / len(batch)

    def invalid(self, reason: str, position: Position, there: PartitionProperties) -> PositionInvalid:
        return self._check.invalid(reason, position, there)

    async def _first(self, partition: str, position: Position, *, max_count: int = 1) -> EventBatch:
        """The first events from a position on, which are there."""
        opening = self._hub.open_receiver(partition, group=self._group, position=position)
        receiver = await within(self._seconds_max, opening, what=f"open partition {partition}")
        try:
            batch = await receiver.receive(max_count=max_count, wait_seconds=self._seconds_max)
        finally:
            await receiver.close()
        if not len(batch):
            raise HubUnavailable(
                f"partition {partition} of hub {self._hub.name} should have events from {position} on, but sent "
                f"none within {self._seconds_max:g} s. Try again.",
                hub=self._hub.name,
                partition=partition,
            )
        return batch


def first_wanted(position: Position) -> int:
    """The first event that a position asks for, if it tells by sequence number; else 0, the first there ever was."""
    if not isinstance(position.value, int):
        return 0
    return max(position.value if position.inclusive else position.value + 1, 0)
