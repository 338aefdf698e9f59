"""Exactly once from a stream into SQL: ``df.writeStream.foreachBatch(SqlSink(...))``.

By partition, each task commits its own partitions; that needs rows that are still where they were read. By batch, the
driver collects the rows of any query and commits all partitions at once.

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

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from hubline.sinks.sql import Move, SinkPartition, Transaction
from hubline.sinks.sql import SqlSink as Database
from hubline.sinks.tracing import Refused, Units
from hubline.spark.columns import SOURCE_SCHEMA
from hubline.spark.microbatch import MicroBatch
from hubline.spark.offsets import Entry
from hubline.spark.parsing import ERROR_COLUMN

FENCE_ATTEMPTS_MAX: Final = 5
"""A partition changes hands seldom: being overtaken so often in a row is a fault."""

_PARTITION: Final = "partition"
_SEQUENCE: Final = "sequenceNumber"
_OFFSET: Final = "offset"
_DONE: Final = pa.schema([pa.field(_PARTITION, pa.string())])
_DONE_DDL: Final = f"{_PARTITION} string"
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


class By(enum.StrEnum):
    """What one transaction of a sink holds."""

    PARTITION = "partition"
    """The rows of one partition, committed by the task that read them: parallel, for queries that move no rows."""
    BATCH = "batch"
    """All rows of a micro-batch, committed by the driver: for every query whose results fit into its memory."""


class SqlSink:
    """Writes the rows of a query, its dead letters, and how far it has come, in one transaction.

        sink = SqlSink("postgresql://...", table="readings", hub="env:TELEMETRY", group="store")
        parse_json(events, "device string, celsius double").writeStream.foreachBatch(sink).start()

    ``by`` says whose rows one transaction holds: ``"partition"`` (each task commits its own) or ``"batch"`` (the driver
    commits all). The query must keep the columns ``partition`` and ``sequenceNumber`` of its events; by batch it need
    not, unless it has dead letters. Rows with an ``_error`` are dead letters, with as much of the event as the query
    kept. The columns of an event are not written, unless the table has them. ``key``, ``create`` and ``keep_body`` are
    those of :class:`hubline.SqlSink`.
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
        by: str = By.PARTITION,
    ) -> None:
        if by not in list(By):
            raise ConfigError(f"by is 'partition' or 'batch', and not {by!r}")
        validate_group_name(group)
        opened = open_hub(parse_hub(hub))
        self._group = GroupKey(opened.namespace, opened.name, group)
        self._by = By(by)
        self._database = Database(url, table=table, key=key, create=create, keep_body=keep_body)

    def __repr__(self) -> str:
        return f"SqlSink({self._database!r}, {self._group})"

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        """What ``foreachBatch`` calls."""
        batch = MicroBatch.of(frame)
        commits = _Commits(self._database, self._group, batch.offset.entries, batch.jumped)
        if self._by is By.BATCH:
            # Collected even where the database has it all: Spark counts on every task of a query with state.
            commits.commit_all(sorted(batch.moved), frame.toArrow())
            return
        _require_columns(frame)
        if not batch.is_narrow:
            raise ConfigError(
                "the query moves rows between tasks (a join, an aggregate, a repartition), or splits ranges (option "
                "split_events): then no task has all rows of a partition, and none can commit them. Let the driver do "
                "so: SqlSink(..., by='batch')"
            )
        done = frame.mapInArrow(commits, _DONE_DDL).collect()
        # Those of which the query kept no row: nobody has moved their checkpoints.
        for partition in sorted(batch.moved - {row[_PARTITION] for row in done}):
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
            for partition, parts in rows.items():
                self.commit(partition, parts)
        finally:
            self.database.close()
        yield pa.RecordBatch.from_arrays([list(rows)], schema=_DONE)

    def commit(self, partition: str, batches: Sequence[pa.RecordBatch]) -> None:
        """Writes what is not there yet, and moves the partition."""
        entry = self.entries.get(partition)
        if entry is None:
            raise SinkError(
                f"a row is of partition {partition!r}, which the batch does not read: keep the column as it is"
            )
        key = self.group.partition(partition)

        def attempt() -> None:
            opened = self._opened(key, entry.epoch)
            rows = self._missing(opened, batches)
            if rows is not None:
                checkpoint = Checkpoint(key, _offset_of(entry.end - 1, batches), entry.end - 1)
                with opened.transaction(checkpoint) as transaction:
                    if rows:
                        _write(transaction, self.database, self.group, pa.Table.from_batches(rows))

        _persist(attempt, what=key)

    def commit_all(self, partitions: Sequence[str], rows: pa.Table) -> None:
        """Writes the rows and moves all partitions, or nothing if that is done."""
        keys = {partition: self.group.partition(partition) for partition in partitions}

        def attempt() -> None:
            opened = {
                partition: self._opened(keys[partition], self.entries[partition].epoch) for partition in partitions
            }
            pending = [partition for partition in partitions if not self._is_done(opened[partition])]
            if not pending:
                return
            if len(pending) < len(partitions) or any(self._is_begun(each) for each in opened.values()):
                raise SinkError(
                    f"{self.database!r} has a part of this batch already, which another application wrote: rows of a "
                    "query that moves them cannot be told apart. Give each application a consumer group of its own"
                )
            for each in opened.values():
                self._require_next(each)
            moves = [Move(opened[each], Checkpoint(keys[each], "", self.entries[each].end - 1)) for each in partitions]
            with self.database.transaction(moves) as transaction:
                _write(transaction, self.database, self.group, rows)

        _persist(attempt, what=self.group)

    def _opened(self, key: PartitionKey, epoch: int) -> SinkPartition:
        """The partition, under the epoch that holds it now. Raises Fenced where that is raised in between."""
        with self.database.connection() as connection:
            held_epoch, _ = connection.read_fence(key)
        return self.database.open(key, max(held_epoch, epoch))

    def _missing(self, opened: SinkPartition, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
        """The rows that the database does not have; None if it has the whole range."""
        if self._is_done(opened):
            return None
        self._require_next(opened)
        if not self._is_begun(opened):
            return list(batches)
        done = _last_sequence(opened)
        return [batch.filter(pc.greater(batch.column(_SEQUENCE), done)) for batch in batches]

    def _is_done(self, opened: SinkPartition) -> bool:
        done = _last_sequence(opened)
        return done is not None and done >= self.entries[opened.key.partition].end - 1

    def _is_begun(self, opened: SinkPartition) -> bool:
        done = _last_sequence(opened)
        return done is not None and done >= self.entries[opened.key.partition].start

    def _require_next(self, opened: SinkPartition) -> None:
        """Refuses a range that does not begin where the database ends, unless the source itself jumped there."""
        done, start = _last_sequence(opened), self.entries[opened.key.partition].start
        if done is not None and done < start - 1 and opened.key.partition not in self.jumped:
            raise SinkError(
                f"{self.database!r} has {opened.key} up to sequence number {done}, and the batch starts at "
                f"{start}: what lies between would be lost. The query's checkpoint folder is of another sink: "
                "start with a new folder, or set the checkpoint with 'hubline checkpoints set'"
            )


def _persist(attempt: Callable[[], None], *, what: GroupKey | PartitionKey) -> None:
    """Tries again where a partition was taken or moved since it was opened: what its row says now counts."""
    for _ in range(FENCE_ATTEMPTS_MAX):
        try:
            attempt()
        except Fenced:
            continue
        return
    raise SinkError(f"{what} changed hands {FENCE_ATTEMPTS_MAX} times while a batch was being written")


def _last_sequence(opened: SinkPartition) -> int | None:
    return opened.checkpoint.last_sequence if opened.checkpoint else None


def _offset_of(sequence: int, batches: Sequence[pa.RecordBatch]) -> str:
    """The offset of the range's last event, if the query kept that; else empty, and the sequence number has to do."""
    if not batches or not len(batches[-1]) or _OFFSET not in batches[-1].schema.names:
        return ""
    last = batches[-1].select([_OFFSET, _SEQUENCE]).slice(len(batches[-1]) - 1).to_pylist()[0]
    return last[_OFFSET] or "" if last[_SEQUENCE] == sequence else ""


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each partition, in their order. Tasks read one partition after the other: mostly there is one."""
    partitions = batch.column(_PARTITION)
    for partition in pc.unique(partitions).to_pylist():
        if partition is None:
            raise SinkError("a row has no partition: keep the columns partition and sequenceNumber as they were")
        yield partition, batch.filter(pc.equal(partitions, partition))


def _write(transaction: Transaction, database: Database, group: GroupKey, rows: pa.Table) -> None:
    """The rows, and letters for those that are none."""
    failed = _failed(rows)
    good = rows.filter(pc.invert(failed))
    units = _units(good)
    transaction.insert(good.select(_columns(database, good)), units=units)
    letters = [
        _letter(group, row, kind="rejected", why=str(row[ERROR_COLUMN]), stage=Stage.QUERY)
        for row in _events(rows.filter(failed))
    ]
    if units is not None:
        letters += _refused_letters(group, good, units, transaction.refused)
    transaction.dead_letter(letters)


def _units(rows: pa.Table) -> Units | None:
    """A number for each event, by which one that is refused is told from the others; None where they are not known."""
    if not {_PARTITION, _SEQUENCE} <= set(rows.column_names):
        return None
    sequences: Units = rows.column(_SEQUENCE).to_numpy()
    partitions = rows.column(_PARTITION).combine_chunks().dictionary_encode()
    if len(partitions.dictionary) <= 1:
        return sequences
    places = np.stack([partitions.indices.to_numpy().astype(np.int64), sequences])
    return np.unique(places, axis=1, return_inverse=True)[1].astype(np.int64).reshape(-1)


def _failed(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows are dead letters."""
    if ERROR_COLUMN not in rows.column_names:
        return pa.chunked_array([np.zeros(len(rows), np.bool_)])
    return rows.column(ERROR_COLUMN).is_valid()


def _columns(database: Database, rows: pa.Table) -> list[str]:
    """The columns to write: the query's own, and those of events that the table has."""
    with database.connection() as connection:
        of_table = {column.name for column in database.columns(connection)}
    unwritten = {ERROR_COLUMN} | (set(SOURCE_SCHEMA.names) - of_table)
    return [name for name in rows.column_names if name not in unwritten]


def _refused_letters(group: GroupKey, rows: pa.Table, units: Units, refused: Sequence[Refused]) -> list[DeadLetter]:
    """Of the events whose rows the database does not take."""
    letters = []
    for each in refused:
        (row,) = rows.slice(int(np.argmax(units == each.unit)), 1).to_pylist()
        letters.append(_letter(group, row, kind=each.kind, why=each.reason, stage=Stage.SINK))
    return letters


def _events(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The first row of each event: it gets one letter, however many rows the query made of it."""
    if len(rows) and not {_PARTITION, _SEQUENCE} <= set(rows.column_names):
        raise ConfigError(
            f"rows with an {ERROR_COLUMN} need the columns {_PARTITION} and {_SEQUENCE} of their events: keep them"
        )
    known: set[tuple[str, int]] = set()
    for row in rows.to_pylist():
        place = row[_PARTITION], row[_SEQUENCE]
        if place not in known:
            known.add(place)
            yield row


def _letter(group: GroupKey, row: Mapping[str, Any], *, kind: str, why: str, stage: Stage) -> DeadLetter:
    """Of what the query kept of the event."""
    key = group.partition(row[_PARTITION])
    body = row.get("body")
    event = Event(
        body if isinstance(body, bytes) else b"",
        key.partition,
        row.get(_OFFSET) or "",
        row[_SEQUENCE],
        row.get("enqueuedTime") or _NO_TIME,
        row.get("partitionKey"),
        dict(row.get("properties") or ()),
    )
    return DeadLetter(
        key, event, kind, why, traceback="", attempts=1, stage=stage, is_body_kept=isinstance(body, bytes)
    )
