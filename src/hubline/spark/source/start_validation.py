"""Whether a stream can start where it wants to: what the hub still has, and whether it is still the same hub.

Where it cannot, the option `onDataLoss` decides: the query fails with PositionInvalid, or continues elsewhere. That is
logged, and kept as a gap in the offset of the batch that skips the events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from hubline.errors import HubUnavailable, PositionInvalid
from hubline.hubs.data_loss import sequence_after_data_loss
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position
from hubline.retry import retrying
from hubline.spark.options import Options
from hubline.spark.source.hub_monitor import RETRY, HubMonitor
from hubline.spark.source.offsets import Entry, Gap, StreamOffset
from hubline.spark.source.position_lookup import Places, first_wanted

T = TypeVar("T")


class StartValidation:
    """Checks the places at which a query's partitions stand. Lives on the loop of the planner."""

    def __init__(self, options: Options, places: Places, monitor: HubMonitor) -> None:
        self._options = options
        self._start_positions = options.stream_start
        self._places = places
        self._monitor = monitor

    async def first_entry(self, partition: str) -> Entry:
        """Where a query without offsets starts in a partition."""
        position = self._start_positions.for_partition(partition)
        try:
            return Entry.at(await self._patiently(lambda: self._places.start(partition, position)))
        except PositionInvalid as error:
            next_sequence = self.sequence_after_loss(error)
            return Entry(next_sequence, next_sequence, 0, Gap(error.reason, first_wanted(position)))

    async def validated(
        self, places: Mapping[str, Entry], start: StreamOffset, there: Mapping[str, PartitionProperties]
    ) -> dict[str, Entry]:
        """The places, or those to continue from instead, with the gaps between them. `start` is what was done."""
        is_foreign = self.is_foreign(start)
        return {
            partition: self._valid(
                place, await self._seen(place, there[partition]), is_foreign and partition in start.entries
            )
            for partition, place in places.items()
        }

    def is_foreign(self, offset: StreamOffset) -> bool:
        """Whether it is of another hub, or of this one from before it was re-created. The JVM connector's offsets
        have the name alone."""
        if offset.connectors_hub:
            return offset.connectors_hub.lower() != self._monitor.hub.name.lower()
        return offset.created not in ("", self._monitor.created)

    def require_known(self, start: StreamOffset, partitions: Iterable[str]) -> None:
        """Refuses an offset of partitions that the hub does not have, unless the user accepts data loss."""
        for partition in start.entries.keys() - set(partitions):
            self.sequence_after_loss(self._gone(partition, start.entries[partition].end))

    async def require_own(self, end: StreamOffset) -> bool:
        """Whether a batch is of this hub. One of another is refused, unless the user accepts data loss."""
        if not end.entries or not self.is_foreign(end):
            return True
        partition = next(iter(end.entries))
        sequence = end.entries[partition].start
        there = (await self._monitor.latest()).get(partition)
        if there is None:
            self.sequence_after_loss(self._gone(partition, sequence))
        else:
            self.sequence_after_loss(
                self._places.invalid("foreign", Position.sequence(sequence, inclusive=True), there)
            )
        return False

    def sequence_after_loss(self, error: PositionInvalid) -> int:
        """Where to continue instead. The gap is kept in the offset of the batch that skips it."""
        return sequence_after_data_loss(error, self._options.on_data_loss)

    async def _seen(self, place: Entry, seen: PartitionProperties) -> PartitionProperties:
        """What the partition holds. What was seen a moment ago does not say whether a place is after the end: that
        was looked up since, and events have come in between."""
        if place.end <= seen.last_sequence + 1:
            return seen
        return await self._patiently(lambda: self._places.described(seen.partition))

    def _valid(self, place: Entry, there: PartitionProperties, is_foreign: bool) -> Entry:
        if place.end < min(there.begin_sequence, place.replayed_to):
            # What is to be replayed was handled before it went: nothing is lost.
            kept = min(there.begin_sequence, place.replayed_to)
            place = replace(place, start=kept, end=kept)
        reason = None
        if is_foreign:
            reason = "foreign"
        elif place.end < there.begin_sequence:
            reason = "expired"
        elif place.end > there.last_sequence + 1:
            reason = "beyond"
        if reason is None:
            return place
        position = Position.sequence(place.end, inclusive=True)
        next_sequence = self.sequence_after_loss(self._places.invalid(reason, position, there))
        return Entry(next_sequence, next_sequence, place.epoch, Gap(reason, place.end))

    def _gone(self, partition: str, sequence: int) -> PositionInvalid:
        nothing = PartitionProperties(partition, 0, -1, None, None)
        return self._places.invalid("foreign", Position.sequence(sequence, inclusive=True), nothing)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Again while the hub is out of reach, as long as that may be."""
        return await retrying(call, RETRY, on=HubUnavailable, timeout_seconds=self._options.operation_timeout_seconds)
