"""Batch reads: what the hub holds between two positions or times.

The ranges are found when Spark plans the query, in a process of its own, and read by its tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hubline.adapters import open_hub
from hubline.concurrency import map_bounded
from hubline.errors import PositionInvalid
from hubline.hubs.data_loss import sequence_after_data_loss
from hubline.model.positions import Position
from hubline.spark.arrival import Travelling
from hubline.spark.arrow_columns import Layout
from hubline.spark.options import Options
from hubline.spark.sessions.parallelism import task_count
from hubline.spark.source.offsets import Range, in_order
from hubline.spark.source.position_lookup import LOOKUPS_AT_ONCE, Places
from hubline.spark.source.task_packing import pack
from hubline.spark.tasks.range_reader import read_ranges

# The service's clock may step back a little when a partition moves to another machine. Spark applies the filter itself:
# reading this much more on either side only keeps such events.
CLOCK_SLACK: Final = timedelta(minutes=1)
# Queries write the year 1 or 9999 for "ever". Hubs count time from 1970, and Python knows none after its last moment.
_TIME_MIN: Final = datetime.fromtimestamp(0, UTC)
_TIME_MAX: Final = datetime.max.replace(tzinfo=UTC)


class RangesInput(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the query's own filters leave to read. None: no bound; times and numbers are inclusive."""

    partitions: frozenset[str] | None = None
    time_min: datetime | None = None
    time_max: datetime | None = None
    sequence_min: int | None = None
    sequence_max: int | None = None

    def only(self, partitions: Iterable[str]) -> Wanted:
        wanted = frozenset(partitions)
        return replace(self, partitions=wanted if self.partitions is None else wanted & self.partitions)

    def after(self, time: datetime) -> Wanted:
        time = max(_aware(time), _TIME_MIN + CLOCK_SLACK) - CLOCK_SLACK
        return replace(self, time_min=time if self.time_min is None else max(time, self.time_min))

    def before(self, time: datetime) -> Wanted:
        time = min(max(_aware(time), _TIME_MIN), _TIME_MAX - CLOCK_SLACK) + CLOCK_SLACK
        return replace(self, time_max=time if self.time_max is None else min(time, self.time_max))

    def from_sequence(self, number: int) -> Wanted:
        return replace(self, sequence_min=number if self.sequence_min is None else max(number, self.sequence_min))

    def to_sequence(self, number: int) -> Wanted:
        return replace(self, sequence_max=number if self.sequence_max is None else min(number, self.sequence_max))


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class BatchReader(Travelling, DataSourceReader):
    """Reads what the hub holds between two positions. Pickled to every task: options and schema, nothing else."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        """Called once, by the process that plans the query. An empty list would be read as one task without input."""
        ranges = asyncio.run(_planned(self._options, self._wanted))
        packed = pack(ranges, tasks=task_count(self._options), max_records=self._options.max_records_per_partition)
        return [RangesInput(one) for one in packed] or [RangesInput(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesInput)  # noqa: S101 - Spark gives back what partitions() gave it
        return read_ranges(self._options, partition.ranges, Layout(self._schema))


async def _planned(options: Options, wanted: Wanted) -> list[Range]:
    hub = open_hub(options.hub)
    try:
        places = Places(hub, group=options.consumer_group, seconds_max=options.receiver_timeout_seconds)
        there = in_order((await places.hub()).partition_ids)
        options.require_partitions(there)
        chosen = [partition for partition in there if wanted.partitions is None or partition in wanted.partitions]
        ranges = await map_bounded(partial(_range, places, options, wanted), chosen, max_concurrent=LOOKUPS_AT_ONCE)
    finally:
        await hub.close()
    return [found for found in ranges if found.count > 0]


async def _range(places: Places, options: Options, wanted: Wanted, partition: str) -> Range:
    start = await _start(places, options, partition)
    end = await places.end(partition, options.ending_positions.for_partition(partition))
    if wanted.time_min is not None:
        start = max(start, await places.start(partition, Position.enqueued(wanted.time_min)))
    if wanted.time_max is not None:
        end = min(end, await places.end(partition, Position.enqueued(wanted.time_max, inclusive=True)))
    if wanted.sequence_min is not None:
        start = max(start, wanted.sequence_min)
    if wanted.sequence_max is not None:
        end = min(end, wanted.sequence_max + 1)
    return Range(partition, start, max(start, end))


async def _start(places: Places, options: Options, partition: str) -> int:
    try:
        return await places.start(partition, options.batch_start.for_partition(partition))
    except PositionInvalid as error:
        return sequence_after_data_loss(error, options.on_data_loss)
