"""How much a batch reads: up to what is there, within the limits of events and of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from hubline.model.hubs import PartitionProperties
from hubline.spark.options import Options
from hubline.spark.source.hub_monitor import HubMonitor
from hubline.spark.source.offsets import Entry
from hubline.spark.source.position_lookup import Places
from hubline.spark.source.task_packing import allot

# How large events are is looked up again after this long, where the hub does not say.
SAMPLE_SECONDS: Final = 60.0


class RateLimit:
    """Counts the events that the next batch reads of each partition. Lives on the loop of the planner."""

    def __init__(self, options: Options, places: Places, monitor: HubMonitor) -> None:
        self._max_events = options.max_events_per_trigger
        self._max_bytes = options.max_bytes_per_trigger
        self._places = places
        self._monitor = monitor
        self._ends = options.ends
        self._pinned = self._ends
        self._turn = 0
        self._event_bytes: dict[str, tuple[float, float]] = {}

    def pin(self, there: Mapping[str, PartitionProperties]) -> None:
        """From now on nothing is read that comes after this. Ends that were given stay."""
        if self._ends is None:
            self._pinned = {partition: held.last_sequence + 1 for partition, held in there.items()}

    def known_end(self, partition: str, held: PartitionProperties) -> int:
        """Up to where there is something to read, which the lag is measured to."""
        end = held.last_sequence + 1
        return end if self._ends is None else min(end, self._ends.get(partition, 0))

    async def counts(
        self, places: Mapping[str, Entry], there: Mapping[str, PartitionProperties], *, is_limited: bool
    ) -> dict[str, int]:
        """Events to read by partition, from where they stand. Partitions with none may be left out."""
        backlogs = {partition: self._end(partition, place, there) - place.end for partition, place in places.items()}
        if not is_limited:
            return backlogs
        counts = await self._within_limits(backlogs, places)
        self._turn += any(counts.values())  # the next batch begins with another partition
        return counts

    def _end(self, partition: str, place: Entry, there: Mapping[str, PartitionProperties]) -> int:
        end = there[partition].last_sequence + 1
        if self._pinned is not None:
            end = min(end, self._pinned.get(partition, place.end))
        return max(end, place.end)

    async def _within_limits(self, backlogs: Mapping[str, int], places: Mapping[str, Entry]) -> dict[str, int]:
        counts = allot(backlogs, self._max_events, turn=self._turn)
        if self._max_bytes is None or not counts:
            return counts
        sizes = {p: await self._size(p, places[p].end) for p in counts}
        backlog_bytes = {p: max(round(count * sizes[p]), 1) for p, count in counts.items()}
        allotted_bytes = allot(backlog_bytes, self._max_bytes, turn=self._turn)
        return {p: min(counts[p], max(int(count / sizes[p]), 1)) for p, count in allotted_bytes.items()}

    async def _size(self, partition: str, next_sequence: int) -> float:
        """How many bytes an event has, on average."""
        there = (await self._monitor.latest())[partition]
        if there.bytes_count is not None and not there.is_empty:
            return max(there.bytes_count / (there.last_sequence + 1 - there.begin_sequence), 1.0)
        now = asyncio.get_running_loop().time()
        size, sampled_at = self._event_bytes.get(partition, (0.0, -SAMPLE_SECONDS))
        if now - sampled_at >= SAMPLE_SECONDS:
            size = max(await self._places.event_bytes(partition, next_sequence), 1.0)
            self._event_bytes[partition] = (size, now)
        return size
