"""Stream reads: what Spark calls, translated to the planner on the driver and to the worker in a task.

One process of Spark's keeps the planner for the life of a query. Spark calls in one thread; the planner's event loop
runs in another. Nothing is started before the first call: the objects that Spark pickles around hold options only.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from hubline.coordination.control_loop import ControlLoop
from hubline.coordination.snapshot import Wait
from hubline.spark.arrival import Travelling
from hubline.spark.arrow_columns import Layout
from hubline.spark.compatibility import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from hubline.spark.options import Options
from hubline.spark.schema import LOOKBACK_SCHEMA, SOURCE_SCHEMA, require_schema
from hubline.spark.sessions.parallelism import task_count
from hubline.spark.source.batch_reader import RangesInput
from hubline.spark.source.offsets import StreamOffset
from hubline.spark.source.stream_planner import StreamPlanner, start_planner
from hubline.spark.source.task_packing import pack
from hubline.spark.tasks.range_reader import read_ranges

T = TypeVar("T")


class StreamReader(Travelling, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a hub as a stream. Made and pickled in several processes: the one that is asked first starts a planner."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._control: ControlLoop | None = None
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_control": None, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Called once in the life of a query, before its first batch."""
        return self._run(self._started().initial_offset()).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Called at every trigger, a hundred times a second where there is none. All up to ``start`` is done then."""
        before = StreamOffset.from_json(start)
        is_limited = not isinstance(limit, ReadAllAvailable)
        after = self._run(self._started().next_offset(before, is_limited=is_limited))
        # Where nothing is new, the answer is exactly `start`, no matter who wrote it.
        return start if after is before else after.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_events_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For Spark's progress: less the end of the batch, it is the lag."""
        return {partition: {"to": end} for partition, end in self._run(self._started().latest()).items()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._run(self._started().pin())

    def settle(self) -> None:
        """Called by `OlderReader`, before a batch that reads all that is there."""
        self._run(self._started().settle())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Called for every batch, also for one that was planned before a crash: ``end`` alone says what it reads."""
        if start == end:
            return []
        planned = StreamOffset.from_json(end)
        ranges = self._run(self._started().ranges(StreamOffset.from_json(start), planned))
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

    def _end(self, planner: StreamPlanner) -> None:
        self._run(planner.stop())
        self._close_loop()

    def _waits(self, wait: Wait) -> None:
        """The query waits for partitions that somebody else owns. Called on the planner's event loop."""

    def _started(self) -> StreamPlanner:
        if self._planner is None:
            has_lookback = self._options.lookback_seconds is not None
            require_schema(self._schema, LOOKBACK_SCHEMA if has_lookback else SOURCE_SCHEMA)
            exit_on_sigterm()
            self._control = ControlLoop(in_thread=True)
            try:
                self._planner = self._run(start_planner(self._options, on_wait=self._waits))
            except BaseException:
                self._close_loop()
                raise
        return self._planner

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        assert self._control is not None  # noqa: S101 - a planner has been started on it
        return self._control.run(call)

    def _close_loop(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            asyncio.run(control.close())


def exit_on_sigterm() -> None:
    """Lets Spark's way to end a query run what is to be done at its end: it sends a signal, and calls nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def ignore_sigterm() -> None:
    """From the beginning of the end: a signal that comes now must not cut it short."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(*_: object) -> None:
    # Spark sends it twice: the second one must not end what the first one began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
