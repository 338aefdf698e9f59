"""Stream reads: what Spark calls, translated to the planner on the driver and to the worker in a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from hubline.spark.options import Options
from hubline.spark.schema import LOOKBACK_SCHEMA, SOURCE_SCHEMA, Layout, require_schema
from hubline.spark.sessions.parallelism import task_count
from hubline.spark.source.batch_reader import RangesInput
from hubline.spark.source.offsets import StreamOffset
from hubline.spark.source.stream_planner import Planner, exit_on_sigterm, ignore_sigterm
from hubline.spark.source.task_packing import pack
from hubline.spark.tasks.range_reader import read_ranges


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a hub as a stream. Made and pickled in several processes: the one that is asked first starts a planner."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Called once in the life of a query, before its first batch."""
        return self._started().initial_offset().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Called at every trigger, a hundred times a second where there is none. All up to ``start`` is done then."""
        before = StreamOffset.from_json(start)
        after = self._started().next_offset(before, is_limited=not isinstance(limit, ReadAllAvailable))
        # Nothing new is `start` to the letter, whoever wrote it.
        return start if after is before else after.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_events_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For Spark's progress: less the end of the batch, it is the lag."""
        return {partition: {"to": end} for partition, end in self._started().latest().items()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._started().pin()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called for every batch, also for one that was planned before a crash: ``end`` alone says what it reads."""
        if start == end:
            return []
        planned = StreamOffset.from_json(end)
        ranges = self._started().ranges(StreamOffset.from_json(start), planned)
        max_records = self._options.max_records_per_partition if planned.is_split else None
        packed = pack(ranges, tasks=task_count(self._options), max_records=max_records)
        return [RangesInput(one) for one in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in the task."""
        assert isinstance(partition, RangesInput)  # noqa: S101 - Spark gives back what partitions() gave it
        return read_ranges(self._options, partition.ranges, Layout(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes one batch late. ``latestOffset`` hears earlier that a batch is done."""

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        if planner is not None:
            ignore_sigterm()
            self._end(planner)

    def _end(self, planner: Planner) -> None:
        planner.stop()

    def _started(self) -> Planner:
        if self._planner is None:
            has_lookback = self._options.lookback_seconds is not None
            require_schema(self._schema, LOOKBACK_SCHEMA if has_lookback else SOURCE_SCHEMA)
            exit_on_sigterm()
            self._planner = Planner(self._options)
        return self._planner
