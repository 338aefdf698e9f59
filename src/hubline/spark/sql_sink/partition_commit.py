"""Commits in tasks: each writes the partitions whose rows it read, one transaction for each.

Spark runs a task again after a failure, and sometimes two copies at once. What such a second attempt commits is right,
too: whichever comes later finds the partition done.

Tasks read and are handed the rows without what only dead letters need of an event: body, properties and so on cost
Spark as much as the rows. A partition that has a dead letter after all is not committed then, and its rows are read and
handed over once more, with their events. Dying in between leaves partitions that are done and others that are not
begun, as any crash of a batch does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from hubline.errors import SinkError
from hubline.model.ownership import Checkpoint
from hubline.sinks import SqlSink
from hubline.spark.arrow_columns import plain
from hubline.spark.session_settings import temporary_settings
from hubline.spark.sql_sink.batch_rows import OFFSET, PARTITION, SEQUENCE, by_partition
from hubline.spark.sql_sink.batch_target import BatchTarget, EventsMissing, Written
from hubline.spark.tasks.gc_tuning import freeze_loaded_modules

# Rows that a task's worker gets at once. Of the largest events so many are 256 MiB: so Spark need not ask at every row
# how many bytes there are by now, which takes longer than to write the row.
_HANDED_OVER: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}

# A row for each partition that a task had; without counts where it needs the events.
_DONE: Final = pa.schema(
    [pa.field(PARTITION, pa.string()), *(pa.field(each.name, pa.int64()) for each in fields(Written))]
)
_DONE_DDL: Final = ", ".join([f"{PARTITION} string", *(f"{each.name} long" for each in fields(Written))])


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """What a task does with its rows. Pickled with each task.

    Attributes:
        target: Where they go.
        names: The names of the rows' columns.
        has_offsets: Whether the rows' offsets are those of their events.
        has_events: Whether rows come with all that a dead letter keeps; without, a partition that has one is not
            written.
    """

    target: BatchTarget
    names: Sequence[str]
    has_offsets: bool = True
    has_events: bool = True

    def in_tasks(self, frame: DataFrame) -> tuple[dict[str, Written], list[str]]:
        """Has each task commit its rows: what was written of each partition, and those that need their events."""
        if any("." in name or "`" in name for name in self.names):
            # Spark hands columns over by names that are not quoted, and would look for what is behind the dot.
            frame = frame.toDF(*map(str, range(len(self.names))))
        with temporary_settings(frame.sparkSession, _HANDED_OVER):
            answers = frame.mapInArrow(self, _DONE_DDL).collect()
        partitions = [partition for partition, *_ in answers]
        if len(set(partitions)) < len(partitions):
            raise SinkError(
                "rows of one partition came to several tasks, and the first of them committed the whole range: "
                f"the query changed the column {PARTITION}, or hubline has a bug. Keep the column unchanged. If "
                "it is, let the driver commit, SqlBatchWriter(..., commit_by='batch'), and report the query."
            )
        done = {partition: Written(*counts) for partition, *counts in answers if None not in counts}
        return done, [partition for partition, *_ in answers if partition not in done]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handed = list(batches)
        if not handed:
            return
        rows = plain(pa.Table.from_batches(handed)).combine_chunks()
        parts = by_partition(rows.rename_columns(list(self.names)))
        # Side by side: a commit mostly waits, for the server and its disk.
        with ThreadPoolExecutor(self.target.sink.max_connections) as threads:
            yield from threads.map(self._answer, parts)
        freeze_loaded_modules()

    def _answer(self, part: tuple[str, pa.Table]) -> pa.RecordBatch:
        partition, rows = part
        try:
            counts = astuple(self.commit(partition, rows))
        except EventsMissing:
            counts = (None,) * len(fields(Written))
        return pa.RecordBatch.from_arrays([[value] for value in (partition, *counts)], schema=_DONE)

    def commit(self, partition: str, rows: pa.Table | None) -> Written:
        """Writes what is not there yet, and moves the partition."""
        target, rules = self.target, self.target.rules
        entry = rules.entries.get(partition)
        if entry is None:
            raise SinkError(
                f"a row is of partition {partition!r}, which the batch does not read. Keep the column "
                f"{PARTITION} unchanged."
            )
        key = target.group.partition(partition)
        if rows is not None:
            rules.require_read(partition, rows)

        def attempt(sink: SqlSink) -> Written:
            opened = sink.join(key, entry.epoch)
            rules.require_forward(opened)
            if rules.is_done(opened):
                return Written()
            rules.require_next(opened)
            checkpoint = Checkpoint(key, self._offset_of(entry.end - 1, rows), entry.end - 1)
            with opened.transaction(checkpoint) as transaction:
                if rows is None:
                    transaction.resolve_dead_letters(opened, rules.handled(opened))
                    return Written()
                missing = rules.missing_rows(opened, rows)
                return target.write(transaction, {partition: opened}, missing, has_events=self.has_events)

        return target.persist(attempt, what=key)

    def _offset_of(self, sequence: int, rows: pa.Table | None) -> str:
        """Of the range's last event, if the query kept that; else empty, and the sequence number has to do."""
        if rows is None or not self.has_offsets or OFFSET not in rows.column_names:
            return ""
        last = rows.select([OFFSET, SEQUENCE]).slice(len(rows) - 1).to_pylist()[0]
        return last[OFFSET] or "" if last[SEQUENCE] == sequence else ""
