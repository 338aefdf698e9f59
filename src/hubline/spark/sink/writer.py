"""The sink: writes DataFrames to a hub, in batches and streams.

Spark makes a writer on the driver, pickles it, and calls ``write`` once in each task; a task that fails is retried,
and an attempt that Spark has given up may continue for a while. What was sent stays sent: every event arrives at least
once, with the same id each time, and within a partition of the hub none stands before one that came earlier in its task
(see :mod:`hubline.spark.sink.partition_lanes`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hubline.errors import ConfigError
from hubline.producer.lanes import Piece
from hubline.producer.routing import parts_of, taken
from hubline.spark.arrival import Travelling
from hubline.spark.compatibility import DataSourceStreamArrowWriter
from hubline.spark.options import Options
from hubline.spark.sink.partition_lanes import Publishing
from hubline.spark.sink.row_layout import Outgoing, RowLayout
from hubline.spark.tasks.event_loop import run

log = logging.getLogger("hubline.spark")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task sent."""

    rows: int


def batch_writer(options: Options, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``."""
    if overwrite:
        raise ConfigError('events can only be added to a hub. Write with .mode("append").')
    return BatchWriter(options, schema)


def stream_writer(options: Options, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream``."""
    if overwrite:
        raise ConfigError(
            'events can only be added to a hub. Write with .outputMode("append"), or each batch by foreachBatch.'
        )
    return StreamWriter(options, schema)


class BatchWriter(Travelling, DataSourceArrowWriter):
    """Sends the rows of a DataFrame. Nothing is left to do at the commit, and nothing can be taken back at an abort."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._layout = RowLayout(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return publish(self._options, self._layout, iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_of_abort(self._options, messages)


class StreamWriter(Travelling, DataSourceStreamArrowWriter):
    """The same for each micro-batch. One that failed is replayed after a restart, with the same events and ids."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._layout = RowLayout(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return publish(self._options, self._layout, iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        _tell_of_abort(self._options, messages)


def publish(options: Options, layout: RowLayout, batches: Iterator[pa.RecordBatch]) -> Written:
    """Sends a task's rows, and returns once the hub has kept all of them."""
    publishing = Publishing(options.hub, outage_seconds=options.operation_timeout_seconds)
    partition_ids: tuple[str, ...] = ()
    count = 0
    try:
        for batch in batches:
            # A task without rows, of which Spark has many, connects to nothing.
            partition_ids = partition_ids or run(publishing.open())
            outgoing = layout.outgoing(batch, partition_ids, first_row=count)
            run(publishing.put(list(_pieces(outgoing, partition_ids, count, publishing))))
            count += len(batch)
        # Dying here has sent everything and reported nothing: the next attempt sends it again, with the same ids.
        run(publishing.finish())
    finally:
        run(publishing.close())
    return Written(count)


def _pieces(
    outgoing: Outgoing, partition_ids: Sequence[str], first_row: int, publishing: Publishing
) -> Iterator[Piece]:
    """The events by the partition they go to, in order."""
    for partition, rows in parts_of(outgoing.targets, partition_ids):
        events = taken(outgoing.events, rows)
        yield Piece(events, first_row + rows, int(events.nbytes), partition, publishing)


def _tell_of_abort(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    ended = [message for message in messages if isinstance(message, Written)]
    log.warning(
        "write_aborted hub=%s tasks_ended=%d rows_sent=%d (rows that were sent stay in the hub)",
        options.hub,
        len(ended),
        sum(message.rows for message in ended),
    )
