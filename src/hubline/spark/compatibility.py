"""What differs between the versions of Spark that hubline works with. No other module asks for a version.

hubline is written for the newest. In place of what an older one lacks, there is something here that does the same:

| since | what | before |
|---|---|---|
| 4.2 | stream readers know where a batch starts, its limit and trigger, and say where the hub ends | `OlderReader` |
| 4.2 | Spark's Arrow schemas take the name of a time zone | `arrow_schema`, `arrow_type` |
| 4.1 | streams are written by Arrow batches | `DataSourceStreamArrowWriter` |
| 4.1 | filters are pushed down | nothing: Spark applies all filters itself (filter_pushdown.py) |
| 4.1 | classes of the engine are in packages of their own | `CHECKPOINT_FILES` |
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import pyspark.sql.datasource as spark_api
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import DataType, StructType
from pyspark.version import __version__ as SPARK_VERSION  # noqa: N812 - a constant

from hubline.errors import ConfigError
from hubline.spark.arrival import Travelling
from hubline.spark.source.offsets import ENDS_KEY, HUB_KEY
from hubline.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CHECKPOINT_FILES",
    "HAS_READ_LIMITS",
    "MICRO_BATCHES",
    "SPARK_VERSION",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "arrow_type",
    "for_this_spark",
]

log = logging.getLogger("hubline.spark")

# By what is there, and not by the version: vendors bring parts of newer versions into their own.
HAS_READ_LIMITS: Final = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    if HAS_READ_LIMITS:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    else:

        class ReadLimit:
            """How much a batch may take."""

        class ReadAllAvailable(ReadLimit):
            """All that is there."""

        class ReadMaxRows(ReadLimit):
            """At most so many events."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            """A reader that is notified of the trigger."""

    if hasattr(spark_api, "DataSourceStreamArrowWriter"):
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A writer of streams to which Spark gives Arrow batches, as it does to any writer of the second kind."""


# Java ---------------------------------------------------------------------------------------------------------------

_ENGINE: Final = "org.apache.spark.sql.execution.streaming"
_IS_4_0: Final = SPARK_VERSION.startswith("4.0.")

CHECKPOINT_FILES: Final = f"{_ENGINE}.{'' if _IS_4_0 else 'checkpointing.'}FileSystemBasedCheckpointFileManager"
"""Spark's class that writes checkpoints by one call of the file system for each file."""
MICRO_BATCHES: Final = f"{_ENGINE}.{'' if _IS_4_0 else 'runtime.'}MicroBatchExecution"
"""Spark's class that runs streams."""


# Arrow --------------------------------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as Spark has them in Arrow, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_in_utc(to_arrow_schema))


def arrow_type(kind: DataType) -> pa.DataType:
    """The type as Spark has it in Arrow, with times in UTC. Raises PySparkTypeError if it has none."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, **_in_utc(to_arrow_type))


def _in_utc(function: Callable[..., object]) -> dict[str, Any]:
    return {"timezone": "UTC"} if "timezone" in inspect.signature(function).parameters else {"timestamp_utc": True}


# Streams ------------------------------------------------------------------------------------------------------------

WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class PlansBatches(Protocol):
    """A stream reader as Spark 4.2 calls it, and a call for those before it."""

    def initialOffset(self) -> dict[str, Any]: ...
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def getDefaultReadLimit(self) -> ReadLimit: ...
    def reportLatestOffset(self) -> dict[str, Any] | None: ...
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[Any]: ...
    def stop(self) -> None: ...

    def settle(self) -> None:
        """Waits until it owns its share of the partitions, and knows where they end now."""


def for_this_spark(
    reader: DataSourceStreamReader, *, limits_first_batch: bool, is_ended_by_batches: bool = True
) -> DataSourceStreamReader:
    """The reader, as this version of Spark calls it.

    ``is_ended_by_batches`` is false if its trigger is known not to be availableNow.
    """
    if HAS_READ_LIMITS:
        return reader
    older = cast("PlansBatches", reader)
    return OlderReader(older, limits_first_batch=limits_first_batch, is_ended_by_batches=is_ended_by_batches)


class OlderReader(Travelling, DataSourceStreamReader):
    """Gives a reader the calls of Spark 4.2, where Spark 4.0 and 4.1 make theirs.

    These two ask for the end of the next batch without saying where it starts or how much it may take. They name the
    place by `partitions(start, end)`: for each batch, and at a restart with twice the end of the newest one.

    With the trigger availableNow they run one batch, whatever is left, and do not tell. A limited batch would end such
    a query early, with success. So the first batch that a process plans takes all that is there, unless an option says
    that the trigger is another one (ADR 0036). A query that asks a second time has another trigger: from then on the
    limits count. If a query ends after the batch that was interrupted, and is repeated, what is left is logged.
    """

    def __init__(self, reader: PlansBatches, *, limits_first_batch: bool, is_ended_by_batches: bool) -> None:
        self._reader = reader
        self._limits_first_batch = limits_first_batch
        self._is_ended_by_batches = is_ended_by_batches
        self._end: dict[str, Any] | None = None
        self._has_planned = False
        self._has_all = False
        self._batches = 0

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as it was before 4.2
        """Called at every trigger. What was planned or named before is done then: a batch that fails ends the query."""
        start = self._end if self._end is not None else self._reader.initialOffset()
        takes_all = not (self._has_planned or self._batches or self._limits_first_batch)
        if takes_all:
            self._reader.settle()
        limit = ReadAllAvailable() if takes_all else self._reader.getDefaultReadLimit()
        end = self._reader.latestOffset(start, limit)
        if end is not start:
            end = {**end, HUB_KEY: {**end[HUB_KEY], ENDS_KEY: self._ends()}}
        self._has_planned, self._has_all, self._end = True, takes_all, end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._has_planned and start == end != self._end:
            raise ConfigError(
                f"with {WRAPPER}, Spark {SPARK_VERSION} plans a batch before it says where the query stands, and "
                "events would come twice. Set it to false: hubline reads all that is there without it."
            )
        self._batches += start != end
        self._end = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing, as for any version."""

    def stop(self) -> None:
        try:
            self._log_what_is_left()
        finally:
            self._reader.stop()

    def _log_what_is_left(self) -> None:
        if self._batches != 1 or self._has_all or self._end is None or not self._is_ended_by_batches:
            return
        ends = self._ends()
        left = sum(
            max(end - self._end[partition]["to"], 0) for partition, end in ends.items() if partition in self._end
        )
        if left:
            log.warning(
                "events_left count=%d (Spark %s ended the query after one batch. With the trigger availableNow it runs "
                "no second one: start the query again to read %s)",
                left,
                SPARK_VERSION,
                counted(left, "event"),
            )

    def _ends(self) -> dict[str, int]:
        latest = self._reader.reportLatestOffset() or {}
        return {partition: entry["to"] for partition, entry in latest.items()}
