"""Where a partition stands that a query has just come to own: its fence, its checkpoint, and the place after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from hubline.errors import PositionInvalid
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position, PositionKind, StartPositions
from hubline.spark.source.checkpoint_writer import CheckpointWriter
from hubline.spark.source.held_partition import HeldPartition
from hubline.spark.source.offsets import Gap
from hubline.spark.source.position_lookup import Places, first_wanted

log = logging.getLogger("hubline.spark")

SequenceAfterLoss = Callable[[PositionInvalid], int]
"""Where reading continues instead of at an invalid position; raises it if the user chose that."""


class PartitionOpener:
    """Opens partitions, as the options of one query say.

    Args:
        writer: Has the store.
        places: Looks positions up in the hub.
        start: Where partitions without a checkpoint start.
        lookback_seconds: How much before the checkpoint is replayed. None replays nothing.
        known_at_start: The partitions that the hub had when the query started.
        sequence_after_loss: Where reading continues instead of at an invalid position.
        now: The time, as the hub has it.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        places: Places,
        *,
        start: StartPositions,
        lookback_seconds: float | None,
        known_at_start: frozenset[str],
        sequence_after_loss: SequenceAfterLoss,
        now: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._places = places
        self._start = start
        self._lookback_seconds = lookback_seconds
        self._known_at_start = known_at_start
        self._sequence_after_loss = sequence_after_loss
        self._now = now

    async def find_place(self, held: HeldPartition) -> None:
        """From the fence to the place. Raises HublineError where the store or the hub cannot be reached."""
        checkpoint = await self._writer.fence(held)
        if checkpoint is None:
            place = await self._first_place(held)
        else:
            held.stored_next = checkpoint.sequence_number + 1
            place = await self._place_after(held, checkpoint)
        held.lookback_next = await self._lookback_place(held.partition, place)
        held.next_sequence = place
        # A gap counts when the batch that tells of it is done: dying before, it is found again.
        known = place if held.gap is None else min(held.gap.next_sequence, place)
        held.done_next = held.checkpointed_next = known
        log.info("opened partition=%s epoch=%d next=%d from=%d", held.partition, held.epoch, place, held.lookback_next)

    async def _lookback_place(self, partition: str, place: int) -> int:
        """The first event of the last so many hours; the place itself if nothing before it is to be replayed."""
        if self._lookback_seconds is None:
            return place
        first = Position.enqueued(_ago(self._now(), self._lookback_seconds), inclusive=True)
        return min(place, await self._places.start(partition, first))

    async def _place_after(self, held: HeldPartition, checkpoint: Checkpoint) -> int:
        try:
            return await self._places.resume(held.partition, checkpoint)
        except PositionInvalid as error:
            held.gap = Gap(error.reason, checkpoint.sequence_number + 1)
            return self._sequence_after_loss(error)

    async def _first_place(self, held: HeldPartition) -> int:
        """Of a partition without a checkpoint. One that was added since the query runs starts at its beginning."""
        is_new = held.partition not in self._known_at_start
        now = datetime.fromtimestamp(self._now(), UTC)
        start = Position.earliest() if is_new else self._start.for_partition(held.partition, now=now)
        try:
            place = await self._places.start(held.partition, start)
        except PositionInvalid as error:
            held.gap = Gap(error.reason, first_wanted(start))
            return self._sequence_after_loss(error)
        looks_back = self._lookback_seconds is not None
        if start == Position.latest() or (start.kind is PositionKind.ENQUEUED and looks_back):
            # After a crash before the first batch, "the end" would be further on, and so would be "an hour ago". A
            # replay makes that a long time, and what lies between would pass for handled.
            await self._writer.write_start(held, place)
        return place


def _ago(now: float, seconds: float) -> datetime:
    """So long before now, or as long ago as times go."""
    return datetime.fromtimestamp(max(now - seconds, 0.0), UTC)
