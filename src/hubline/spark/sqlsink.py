"""Exactly once from a stream into SQL: ``df.writeStream.foreachBatch(SqlSink(...))``.

Spark runs a batch again after a crash, a task again after a failure, and sometimes two copies of a task at once. Each
writes here what the database does not have yet, and nothing else: the partition's checkpoint row is locked, the range
of the batch is compared with it, and rows, dead letters and the new checkpoint commit together.

    checkpoint >= end of the range      done already, by an earlier run of this batch: nothing is written
    within the range                    another application did a part: only the rest is written
    just before the range               the usual case
    before that                         an error: what lies between would be lost

So what a zombie commits is right, too: whoever comes after it finds it done. A batch that is replayed carries the
epochs of the driver that died; it goes on under the present ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from hubline.config import DEFAULT_GROUP, parse_hub, validate_group_name
from hubline.connect import open_hub
from hubline.errors import ConfigError, Fenced, SinkError
from hubline.model import Checkpoint, DeadLetter, Event, GroupKey, PartitionKey, Stage
from hubline.sinks.sql import SinkPartition
from hubline.sinks.sql import SqlSink as Database
from hubline.sinks.tracing import Refused
from hubline.spark.microbatch import MicroBatch
from hubline.spark.offsets import Entry
from hubline.spark.parsing import ERROR_COLUMN, results_of

FENCE_ATTEMPTS_MAX: Final = 5
"""A partition changes hands seldom: being overtaken so often in a row is a fault."""

_PARTITION: Final = "partition"
_SEQUENCE: Final = "sequenceNumber"
_DONE: Final = pa.schema(
    [pa.field("partition", pa.string()), pa.field("rows", pa.int64()), pa.field("letters", pa.int64())]
)
_DONE_DDL: Final = "partition string, rows long, letters long"
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SqlSink:
    """Writes the rows of a query, its dead letters, and how far it has come, in one transaction for each partition.

        sink = SqlSink("postgresql://...", table="readings", hub="env:TELEMETRY", group="store")
        parse_json(events, "device string, celsius double").writeStream.foreachBatch(sink).start()

    The query must keep the columns ``partition`` and ``sequenceNumber`` of its events. Rows with an ``_error`` are dead
    letters, with as much of the event as the query kept. The columns of an event are not written, unless the
    table has them. ``key``, ``create`` and ``keep_body`` are those of :class:`hubline.SqlSink`.
    """

    def __init__(
        self,
        url: str,
        *,
        hub: str,
        group: str = DEFAULT_GROUP,
        table: str,
        key: str | Sequence[str] = (),
        create: bool = False,
        keep_body: bool = True,
    ) -> None:
        validate_group_name(group)
        opened = open_hub(parse_hub(hub))
        self._group = GroupKey(opened.namespace, opened.name, group)
        self._database = Database(url, table=table, key=key, create=create, keep_body=keep_body)

    def __repr__(self) -> str:
        return f"SqlSink({self._database!r}, {self._group})"

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        """What ``foreachBatch`` calls."""
        batch = MicroBatch.of(frame)
        _require_columns(frame)
        if not batch.is_narrow:
            raise ConfigError(
                "the query moves rows between tasks (a join, an aggregate, a repartition): then no task has all rows "
                "of a partition, and none can commit them. Write them by batch"
            )
        commits = _Commits(self._database, self._group, batch.offset.entries, batch.jumped)
        done = frame.mapInArrow(commits, _DONE_DDL).collect()
        # Those of which the query kept no row: nobody has moved their checkpoints.
        for partition in sorted(batch.moved - {row["partition"] for row in done}):
            commits.commit(partition, [])


def _require_columns(frame: DataFrame) -> None:
    if missing := [name for name in (_PARTITION, _SEQUENCE) if name not in frame.columns]:
        raise ConfigError(
            f"the query dropped the column {missing[0]!r}, which tells what its rows were made of: keep it. "
            f"It has {', '.join(frame.columns)}"
        )


@dataclass(frozen=True, slots=True)
class _Commits:
    """What a task does with its rows. Pickled with each task; its database's connections stay behind."""

    database: Database
    group: GroupKey
    entries: Mapping[str, Entry]
    jumped: frozenset[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: dict[str, list[pa.RecordBatch]] = {}
        for batch in batches:
            for partition, part in _by_partition(batch):
                rows.setdefault(partition, []).append(part)
        try:
            done = [(partition, *self.commit(partition, parts)) for partition, parts in rows.items()]
        finally:
            self.database.close()
        yield pa.RecordBatch.from_arrays(
            [list(column) for column in zip(*done, strict=True)] or [[], [], []], schema=_DONE
        )

    def commit(self, partition: str, batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
        """Writes what is not there yet. Returns how many rows and letters that were."""
        entry = self.entries.get(partition)
        if entry is None:
            raise SinkError(
                f"a row is of partition {partition!r}, which the batch does not read: keep the column as it is"
            )
        key = self.group.partition(partition)
        for _ in range(FENCE_ATTEMPTS_MAX):
            opened = self._opened(key, entry.epoch)
            rows = self._missing(opened, entry, batches)
            if rows is None:
                return 0, 0
            try:
                return _written(opened, Checkpoint(key, "", entry.end - 1), rows)
            except Fenced:
                continue  # taken or moved since it was opened: what it says now counts
        raise SinkError(
            f"{key} changed hands {FENCE_ATTEMPTS_MAX} times while a batch was being written: the query tries again"
        )

    def _opened(self, key: PartitionKey, epoch: int) -> SinkPartition:
        """The partition, under the epoch that holds it now."""
        for _ in range(FENCE_ATTEMPTS_MAX):
            with self.database.connection() as connection:
                held_epoch, _ = connection.lock_checkpoint(key)
            try:
                return self.database.open(key, max(held_epoch, epoch))
            except Fenced:
                continue  # raised in between
        raise SinkError(f"the fence of {key} moved {FENCE_ATTEMPTS_MAX} times while it was being taken")

    def _missing(
        self, opened: SinkPartition, entry: Entry, batches: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch] | None:
        """The rows that the database does not have; None if it has the whole range."""
        done = opened.checkpoint.last_sequence if opened.checkpoint else None
        if done is None:
            return list(batches)
        if done >= entry.end - 1:
            return None
        if done < entry.start - 1 and opened.key.partition not in self.jumped:
            raise SinkError(
                f"{self.database!r} has {opened.key} up to sequence number {done}, and the batch starts at "
                f"{entry.start}: what lies between would be lost. The query's checkpoint folder is of another sink: "
                "start with a new folder, or set the checkpoint with 'hubline checkpoints set'"
            )
        if done < entry.start:
            return list(batches)
        return [batch.filter(pc.greater(batch.column(_SEQUENCE), done)) for batch in batches]


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each partition, in their order. Tasks read one partition after the other: mostly there is one."""
    partitions = batch.column(_PARTITION)
    for partition in pc.unique(partitions).to_pylist():
        if partition is None:
            raise SinkError("a row has no partition: keep the columns partition and sequenceNumber as they were")
        yield partition, batch.filter(pc.equal(partitions, partition))


def _written(opened: SinkPartition, checkpoint: Checkpoint, batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    """One transaction: the rows, the letters of those that are none, and the checkpoint."""
    rows_count, letters = 0, list[DeadLetter]()
    with opened.transaction(checkpoint) as transaction:
        if batches:
            rows = pa.Table.from_batches(batches)
            failed = _failed(rows)
            good = rows.filter(pc.invert(failed))
            transaction.insert(good.select(_columns(opened, good)), units=good.column(_SEQUENCE).to_numpy())
            letters = _letters(opened.key, rows.filter(failed)) + _refused_letters(
                opened.key, good, transaction.refused
            )
            transaction.dead_letter(letters)
            rows_count = len(rows) - len(letters)
    return rows_count, len(letters)


def _failed(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are dead letters."""
    if ERROR_COLUMN not in rows.column_names:
        return pa.chunked_array([np.zeros(len(rows), np.bool_)])
    return rows.column(ERROR_COLUMN).is_valid()


def _columns(opened: SinkPartition, rows: pa.Table) -> list[str]:
    """The columns to write: the query's own, and those of events that the table has."""
    with opened.sink.connection() as connection:
        of_table = {column.name for column in opened.sink.columns(connection)}
    own = results_of(rows.column_names)
    return [name for name in rows.column_names if name in own or (name in of_table and name != ERROR_COLUMN)]


def _letters(key: PartitionKey, failed: pa.Table) -> list[DeadLetter]:
    """A letter for each event, however many rows the query made of it."""
    return [
        _letter(key, row, kind="rejected", why=str(row[ERROR_COLUMN]), stage=Stage.QUERY) for row in _events(failed)
    ]


def _refused_letters(key: PartitionKey, rows: pa.Table, refused: Sequence[Refused]) -> list[DeadLetter]:
    """Of the events whose rows the database does not take."""
    if not refused:
        return []
    reasons = {each.unit: each for each in refused}
    theirs = rows.filter(pc.is_in(rows.column(_SEQUENCE), value_set=pa.array(list(reasons), pa.int64())))
    return [
        _letter(key, row, kind=reason.kind, why=reason.reason, stage=Stage.SINK)
        for row in _events(theirs)
        for reason in [reasons[row[_SEQUENCE]]]
    ]


def _events(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The first row of each event."""
    known: set[int] = set()
    for row in rows.to_pylist():
        if row[_SEQUENCE] not in known:
            known.add(row[_SEQUENCE])
            yield row


def _letter(key: PartitionKey, row: Mapping[str, Any], *, kind: str, why: str, stage: Stage) -> DeadLetter:
    """Of what the query kept of the event."""
    body = row.get("body")
    event = Event(
        body if isinstance(body, bytes) else b"",
        key.partition,
        row.get("offset") or "",
        row[_SEQUENCE],
        row.get("enqueuedTime") or _NO_TIME,
        row.get("partitionKey"),
        dict(row.get("properties") or ()),
    )
    return DeadLetter(
        key, event, kind, why, traceback="", attempts=1, stage=stage, is_body_kept=isinstance(body, bytes)
    )
