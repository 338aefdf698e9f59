"""Where a partition is read from: a handler's word, the checkpoint, or the processor's options, in this order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from hubline.hubs.hub_calls import describe_partition, pinned
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position, PositionKind
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.partition_status import PartitionStatus

KeepEnd = Callable[[Checkpoint], Awaitable[None]]
"""Writes a checkpoint."""


class StartingPosition:
    """It lives as long as the lease: "the end" is where it was when the partition was first opened.

    So is "24 hours ago", where checkpoints are kept: a partition that failed before its first one skips nothing.
    Without checkpoints, each opening has its own last 24 hours.
    """

    def __init__(self, status: PartitionStatus, dependencies: PartitionDependencies) -> None:
        self._key = status.key
        self._hub = dependencies.hub
        self._asked = dependencies.start
        self._now = dependencies.now
        self._keeps_checkpoints = dependencies.options.keeps_checkpoints
        self._call_seconds_max = dependencies.options.hub_timeout_seconds
        self._first: Position | None = None

    async def find(
        self, sought: Position | None, checkpoint: Checkpoint | None, keep_end: KeepEnd | None
    ) -> tuple[Position, int | None]:
        """Returns where to start, and the sequence number of the last event before it, if that is known.

        Args:
            sought: What on_assigned asked for.
            checkpoint: The partition's, if it has one.
            keep_end: Writes "the end" down, without which it would be further on after a restart. None if it is not to
                be written.
        """
        if sought is not None:
            start = await self._pinned(sought)
        elif checkpoint is not None:
            return checkpoint.resume, checkpoint.last_sequence
        else:
            if self._first is None or (self._first.kind is PositionKind.ENQUEUED and not self._keeps_checkpoints):
                self._first = await self._first_opening(keep_end)
            start = self._first
        return start, _sequence_before(start)

    async def end(self) -> Checkpoint:
        """The checkpoint of a consumer that has handled all events that the partition holds."""
        end = await describe_partition(self._hub, self._key.partition, timeout_seconds=self._call_seconds_max)
        if end.last_offset is None:
            return Checkpoint.before_first(self._key)
        return Checkpoint(self._key, end.last_offset, end.last_sequence)

    async def _first_opening(self, keep_end: KeepEnd | None) -> Position:
        now = datetime.fromtimestamp(self._now(), UTC)
        asked = self._asked.for_partition(self._key.partition, now=now)
        if asked != Position.latest() or keep_end is None:
            return await self._pinned(asked)
        end = await self.end()
        await keep_end(end)
        return Position.sequence(end.sequence_number)

    async def _pinned(self, position: Position) -> Position:
        return await pinned(self._hub, self._key.partition, position, seconds_max=self._call_seconds_max)


def _sequence_before(position: Position) -> int | None:
    if position.kind is PositionKind.EARLIEST:
        return -1
    if isinstance(position.value, int):
        return position.value - position.inclusive
    return None
