"""Exactly once from a stream into SQL: ``df.writeStream.foreachBatch(SqlBatchWriter(...))``.

By partition, each task commits its own partitions; that needs rows that are still where they were read. By batch, the
driver collects the rows of any query and commits all partitions at once.

Spark runs a batch again after a crash, a task again after a failure, and sometimes two copies of a task at once. Each
writes here what the database does not have yet, and nothing else: the partition's checkpoint row is locked, the range
of the batch is compared with it, and rows, dead letters and the new checkpoint commit together.

    checkpoint >= end of the range      done already, by an earlier run of this batch: nothing is written
    within the range                    another application did a part: only the rest is written
    just before the range               the usual case
    before that                         an error: what lies between would be lost; unless the source jumped there, by
                                        the user's choice, over events that are gone
    after it, by a jump back            an error: the hub is another one, whose numbers come again

So what a zombie commits is right, too: whoever comes after it finds it done. A batch that is replayed carries the
epochs of the driver that died; it goes on under the present ones.

A query with state gives rows of earlier events, also in batches that read nothing, which Spark runs when a watermark
has ended windows. Its batches are told by their number: what the query has in the database under this number, or a
later one, is done.

By partition, tasks are handed the rows without the columns that only dead letters need of an event: body, properties
and so on cost Spark as much as the rows. A partition that has a dead letter after all is not committed then, and its
rows are read and handed over once more, with their events. Dying in between leaves partitions that are done and others
that are not begun, as any crash of a batch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's users have it)
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructField, StructType

from hubline.addresses.choices import choice_of
from hubline.addresses.store_address import PostgresAddress, SqliteAddress
from hubline.errors import ConfigError, Fenced, RowsRejected, SinkError
from hubline.hubs.position_check import OF_ANOTHER_HUB
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks import Move, OpenedPartition, Rejected, Repeats, Transaction
from hubline.sinks import SqlSink as Database
from hubline.sinks.sql_sink.connection import Altered
from hubline.sinks.sql_sink.deduplication import Deduplication, Flags
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.sinks.sql_sink.sink import IDS_KEPT_SECONDS
from hubline.spark.dead_letter_rows import letter_of, letter_rows
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.schema import SOURCE_SCHEMA, plain
from hubline.spark.source.offsets import Entry, Gap
from hubline.spark.sql_sink.column_lineage import BatchLineage, overwritten_columns
from hubline.spark.sql_sink.micro_batch import MicroBatch, analyzed, require_one_hub
from hubline.spark.tasks.databases import lent
from hubline.spark.tasks.gc_tuning import freeze_loaded_modules

FENCE_ATTEMPTS_MAX: Final = 5
"""A partition changes hands seldom: being overtaken so often in a row is a fault."""

# Rows that a task's worker gets at once. Of the largest events so many are 256 MiB: so Spark need not ask at every row
# how many bytes there are by now, which takes longer than to write the row.
_HANDED_OVER: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}

_PARTITION: Final = "partition"
_SEQUENCE: Final = "sequenceNumber"
_OFFSET: Final = "offset"
_PROPERTIES: Final = "properties"
_ORIGINS: Final = (_PARTITION, _SEQUENCE, _OFFSET, _PROPERTIES)
# Where the number of the last batch of a query with state is kept. Nobody takes it from its query.
_STATE: Final = "state"
_STATE_EPOCH: Final = 1

_NONE: Final[RowEvents] = np.empty(0, np.int64)

T = TypeVar("T")

# The last batch that a run of a query has written, for each database.
_last_written: dict[tuple[str, PostgresAddress | SqliteAddress], int] = {}


CommitBy = Literal["partition", "batch"]
"""What one transaction holds.

`"partition"`: the rows of one partition, committed by the task that read them. Tasks commit in parallel, and the query
must not move rows between tasks. `"batch"`: all rows of a micro-batch, committed by the driver, for every query whose
results fit into its memory.
"""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of a micro-batch; less than the batch has, where an earlier run of it had written some."""

    rows: int = 0
    dead_letters: int = 0
    duplicates: int = 0
    """Events that were left out, because an earlier stage had published them before."""

    def __add__(self, other: Written) -> Written:
        return Written(
            self.rows + other.rows, self.dead_letters + other.dead_letters, self.duplicates + other.duplicates
        )


# A row for each partition that a task had; without counts where it needs the events.
_DONE: Final = pa.schema(
    [
        pa.field(_PARTITION, pa.string()),
        *(pa.field(name, pa.int64()) for name in ("rows", "dead_letters", "duplicates")),
    ]
)
_DONE_DDL: Final = f"{_PARTITION} string, rows long, dead_letters long, duplicates long"


class SqlBatchWriter:
    """Write a stream into a table, exactly once: rows, dead letters and the checkpoint commit in one transaction.

    Pass it to `foreachBatch`. Rows with an `_error` become dead letters, with as much of the event as the query kept.
    The columns of an event are not written, unless the table has them.

        sink = SqlBatchWriter("postgresql://...", table="readings")
        parse_json(events, "device string, celsius double").writeStream.foreachBatch(sink).start()

    Args:
        url: The database, `sqlite:///PATH` or `postgresql://...`; `env:NAME` and `file:PATH` work, too.
        table: The table to write to.
        key: The columns of a unique index: a row replaces the one that has the same values there. Default: none, rows
            are inserted.
        create: Create the table from the columns of the query if it is missing. Default: False.
        keep_dead_letter_bodies: Keep the body of each dead letter, since hubs remove events. Default: True.
        drop_duplicates: How events are known that an earlier stage published twice, as in `hubline.SqlSink`. The query
            must keep the columns `partition`, `sequenceNumber` and `properties`. Default: none are dropped.
        duplicate_window_seconds: How long ids are kept, as in `hubline.SqlSink`. Default: 7 days.
        commit_by: `"partition"`: each task commits the partitions that it read, in parallel. The query must keep the
            columns `partition` and `sequenceNumber`, and must not move rows between tasks. `"batch"`: the driver
            collects and commits all rows of a micro-batch, for every query whose results fit into its memory.
            Default: `"partition"`.
        on_commit: Called in the driver after each micro-batch, with its number and what was written.

    Raises:
        ConfigError: If an argument is not valid, or a query does not have the columns that it must keep.
        SinkError: If the table does not fit the query, or the batch does not follow what the database has.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str,
        key: str | Sequence[str] = (),
        create: bool = False,
        keep_dead_letter_bodies: bool = True,
        drop_duplicates: Repeats | str | None = None,
        duplicate_window_seconds: float = IDS_KEPT_SECONDS,
        commit_by: CommitBy = "partition",
        on_commit: Callable[[int, Written], None] | None = None,
    ) -> None:
        self._commit_by: CommitBy = choice_of(commit_by, get_args(CommitBy), option="commit_by")
        self._on_commit = on_commit
        # Letters mostly come in swarms: after a batch that had some, the next one is handed over with events at once.
        self._expects_letters = False
        self._lineage = BatchLineage(_ORIGINS)
        self._database = Database(
            url,
            table=table,
            key=key,
            create=create,
            keep_dead_letter_bodies=keep_dead_letter_bodies,
            drop_duplicates=drop_duplicates,
            duplicate_window_seconds=duplicate_window_seconds,
        )

    def __repr__(self) -> str:
        return f"{self._database!r} by {self._commit_by}"

    def check(self, schema: StructType) -> str | None:
        """Compares a query's columns with the table, before it starts; None if they fit.

        Where the table is missing and to be created, returns the statement that will do so. Raises ConfigError or
        SinkError where the query could not be written. Nothing is changed.
        """
        self._require_columns(schema)
        with lent(self._database) as database:
            names = _columns(database, schema.names)
            return database.check(to_arrow_schema(StructType([schema[name] for name in names]), timezone="UTC"))

    def check_query(self, frame: DataFrame) -> None:
        """Raises ConfigError where a stream reads hubs several times, or makes a column by which the sink knows events.

        What its batches would be refused for, before it starts.
        """
        plan = analyzed(frame)
        require_one_hub(plan)
        self._require_own(frame.columns, overwritten_columns(plan, _ORIGINS))

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """What ``foreachBatch`` calls."""
        self.write(frame, batch_id, MicroBatch.of(frame))

    def write(self, frame: DataFrame, batch_id: int, batch: MicroBatch, *, optional: Sequence[str] = ()) -> None:
        """The same for who has looked at the batch already, and knows columns to leave out where the table has none."""
        self._require_columns(frame.schema)
        writing = batch.run_id, self._database.address
        if _last_written.get(writing) == batch_id:
            raise ConfigError(
                f"batch {batch_id} is written to {self._database.address} already, and its checkpoints with it: these "
                "rows would pass for written. Give the sink all rows of a batch at once; what goes to another table "
                "needs a query of its own, in a consumer group of its own"
            )
        made = self._lineage.overwritten_in(frame, batch.run_id)
        self._require_own(frame.columns, made)
        with lent(self._database) as database:
            columns = _columns(database, frame.columns, optional)
        commits = _Commits(
            self._database, columns, batch.group, batch.offset.entries, batch.gaps, has_offsets=_OFFSET not in made
        )
        if self._commit_by == "batch":
            # Collected even where the database has it all: Spark counts on every task of a query with state.
            rows, moved = plain(frame.toArrow()), sorted(batch.moved)
            if batch.state_of is None:
                written = commits.commit_all(moved, rows)
            else:
                written = commits.commit_state(batch.state_of, batch_id, moved, rows)
        else:
            written = self._commit_in_tasks(frame, batch, commits)
        _last_written[writing] = batch_id
        if self._on_commit is not None:
            self._on_commit(batch_id, written)

    def _commit_in_tasks(self, frame: DataFrame, batch: MicroBatch, commits: _Commits) -> Written:
        if not batch.is_narrow:
            raise ConfigError(
                "the query moves rows between tasks (a join, a union, an aggregate, a repartition), has had them "
                "elsewhere (in the driver, in a checkpoint of a frame), or splits ranges "
                "(option maxRecordsPerPartition): then no task has all rows of a partition, and none can commit "
                "them. Let the driver do so: SqlBatchWriter(..., commit_by='batch')"
            )
        _require_apart(frame)
        done = self._done_in_tasks(frame, commits)
        self._expects_letters = any(written.dead_letters for written in done.values())
        # Those of which the query kept no row: nobody has moved their checkpoints.
        for partition in sorted(batch.moved - set(done)):
            commits.commit(partition, None)
        return sum(done.values(), Written())

    def _done_in_tasks(self, frame: DataFrame, commits: _Commits) -> dict[str, Written]:
        """What was written of each partition that has rows: without their events, if none of them is a dead letter."""
        of_letters = self._columns_of_letters(frame.columns, commits.columns)
        if self._expects_letters or not of_letters:
            return commits.in_tasks(frame)[0]
        done, lettered = replace(commits, has_events=False).in_tasks(frame.drop(*of_letters))
        if lettered:
            # Dying here, the batch comes again: what is done is found done, and the others are not begun.
            done |= commits.in_tasks(frame.where(F.col(_PARTITION).isin(lettered)))[0]
        return done

    def _require_own(self, names: Sequence[str], made: set[str]) -> None:
        """An offset of the query's own is the table's alone: the sequence number has to do for the checkpoint."""
        known_by = {_PARTITION, _SEQUENCE} if {_PARTITION, _SEQUENCE} <= set(names) else set()
        if self._database.drop_duplicates is not None:
            known_by.add(_PROPERTIES)
        if wrong := sorted(known_by & made):
            raise ConfigError(
                f"the query makes the column {wrong[0]!r} itself, which tells what its rows were made of: keep that of "
                "the events, and give what you make another name"
            )

    def _columns_of_letters(self, names: Sequence[str], written: Sequence[str]) -> list[str]:
        """The columns of events that only dead letters need."""
        needed = {_PARTITION, _SEQUENCE, _OFFSET, *written}
        if self._database.drop_duplicates is not None:
            needed.add(_PROPERTIES)
        return [name for name in names if name in SOURCE_SCHEMA.names and name not in needed]

    def _require_columns(self, schema: StructType) -> None:
        names = schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"the query has two columns {twice[0]!r}: drop or rename one")
        for each in schema:
            _require_arrow(each)
        required = [_PARTITION, _SEQUENCE] if self._commit_by == "partition" else []
        if self._database.drop_duplicates is not None:
            required = [_PARTITION, _SEQUENCE, _PROPERTIES]
        if missing := [name for name in required if name not in schema.names]:
            of_many = (
                "; of rows that are made of many events, let the driver commit: SqlBatchWriter(..., commit_by='batch')"
            )
            raise ConfigError(
                f"the query dropped the column {missing[0]!r}, which tells what its rows were made of: keep it"
                f"{of_many if self._commit_by == 'partition' else ''}. It has {', '.join(schema.names)}"
            )
        for name in required:
            kind, own = schema[name].dataType.simpleString(), SOURCE_SCHEMA[name].dataType.simpleString()
            if kind != own:
                raise ConfigError(
                    f"the query made {kind} of the column {name!r}, which is {own} and tells what its rows were made "
                    "of: keep it as it is, and give what you make of it another name"
                )


def _require_arrow(column: StructField) -> None:
    """Refuses what cannot be handed to Python, such as most intervals: tasks would fail by a KeyError."""
    try:
        to_arrow_type(column.dataType, timezone="UTC")
        return
    except PySparkTypeError:
        kind = column.dataType.simpleString()
    raise ConfigError(f"the column {column.name!r} is {kind}, which no table takes: cast it, to a number or to string")


def _require_apart(frame: DataFrame) -> None:
    """Refuses columns that Spark takes for one another: it would hand over neither, or drop both."""
    first: dict[str, str] = {}
    for name in frame.columns:
        other = first.setdefault(name.lower(), name)
        if other != name and frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
            raise ConfigError(
                f"the query has columns {other!r} and {name!r}, which Spark does not tell apart: rename one, or set "
                "spark.sql.caseSensitive=true"
            )


@dataclass(frozen=True, slots=True)
class _Commits:
    """What a task does with its rows. Pickled with each task; its database's connections stay behind."""

    database: Database
    columns: Sequence[str]
    """Those to write, looked up once for a batch: a table that gets another meanwhile gets its values with the next."""
    group: GroupKey
    entries: Mapping[str, Entry]
    gaps: Mapping[str, Gap]
    has_offsets: bool = True
    """Whether the rows' offsets are those of their events."""
    has_events: bool = True
    """Whether rows come with all that a dead letter keeps; without, a partition that has one is not written."""
    names: Sequence[str] = ()
    """The names of the rows' columns, where they come under others."""

    def in_tasks(self, frame: DataFrame) -> tuple[dict[str, Written], list[str]]:
        """Has each task commit its rows: what was written of each partition, and those that need their events."""
        commits = self
        if any("." in name or "`" in name for name in frame.columns):
            # Spark hands columns over by names that are not quoted, and would look for what is behind the dot.
            commits = replace(self, names=frame.columns)
            frame = frame.toDF(*map(str, range(len(frame.columns))))
        with _settings(frame.sparkSession, _HANDED_OVER):
            answers = frame.mapInArrow(commits, _DONE_DDL).collect()
        partitions = [partition for partition, *_ in answers]
        if len(set(partitions)) < len(partitions):
            raise SinkError(
                "rows of one partition came to several tasks, and the first of them committed the whole range: the "
                f"query gave rows another {_PARTITION} than their events have (keep the column as it is), or this is "
                "a bug (please report the query, and let the driver commit: SqlBatchWriter(..., commit_by='batch'))"
            )
        done = {partition: Written(*counts) for partition, *counts in answers if None not in counts}
        return done, [partition for partition, *_ in answers if partition not in done]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        handed = list(batches)
        if not handed:
            return
        rows = plain(pa.Table.from_batches(handed)).combine_chunks()
        parts = _by_partition(rows.rename_columns(self.names) if self.names else rows)
        # Side by side: a commit mostly waits, for the server and its disk.
        with ThreadPoolExecutor(self.database.max_connections) as threads:
            yield from threads.map(self._answer, parts)
        freeze_loaded_modules()

    def _answer(self, part: tuple[str, pa.Table]) -> pa.RecordBatch:
        partition, rows = part
        try:
            counts = astuple(self.commit(partition, rows))
        except _EventNeeded:
            counts = (None,) * len(fields(Written))
        return pa.RecordBatch.from_arrays([[value] for value in (partition, *counts)], schema=_DONE)

    def commit(self, partition: str, rows: pa.Table | None) -> Written:
        """Writes what is not there yet, and moves the partition."""
        entry = self.entries.get(partition)
        if entry is None:
            raise SinkError(
                f"a row is of partition {partition!r}, which the batch does not read: keep the column as it is"
            )
        key = self.group.partition(partition)
        if rows is not None:
            _require_read(partition, entry, rows)

        def attempt(database: Database) -> Written:
            opened = database.join(key, entry.epoch)
            self._require_forward(opened)
            if self._is_done(opened):
                return Written()
            self._require_next(opened)
            checkpoint = Checkpoint(key, self._offset_of(entry.end - 1, rows), entry.end - 1)
            with opened.transaction(checkpoint) as transaction:
                if rows is None:
                    transaction.mark_handled(opened, self._handled(opened))
                    return Written()
                return self._write(transaction, {partition: opened}, self._missing(opened, rows))

        return self._persist(attempt, what=key)

    def commit_all(self, partitions: Sequence[str], rows: pa.Table) -> Written:
        """Writes the rows and moves all partitions, or nothing if that is done."""

        def attempt(database: Database) -> Written:
            opened = self._joined(database, partitions)
            pending = [partition for partition in opened if not self._is_done(opened[partition])]
            if not pending:
                return Written()
            if len(pending) < len(opened) or any(self._is_begun(each) for each in opened.values()):
                raise SinkError(
                    f"{database!r} has a part of this batch already, which another application wrote: rows of a "
                    "query that moves them cannot be told apart. Give each application a consumer group of its own"
                )
            with database.transaction(self._moves(opened)) as transaction:
                return self._write(transaction, opened, rows)

        return self._persist(attempt, what=self.group)

    def commit_state(self, query_id: str, batch_id: int, partitions: Sequence[str], rows: pa.Table) -> Written:
        """The same for a query with state, whose rows come of earlier events, too, such as windows that are over.

        There may be no event in its batch, and no range tells whether that is done; the number of the batch does. It is
        kept as the checkpoint of a partition would be, in a group of the query's own.
        """
        key = replace(self.group, group=f"{self.group.group}#{query_id}").partition(_STATE)

        def attempt(database: Database) -> Written:
            state = database.join(key, _STATE_EPOCH)
            done = _last_sequence(state)
            if done is not None and done >= batch_id:
                return Written()
            opened = self._joined(database, partitions)
            is_begun = any(self._is_begun(each) for each in opened.values())
            if is_begun and not database.replaces_rows:
                raise SinkError(
                    f"{database!r} has events of this batch already, which another application wrote, or a query with "
                    "another checkpoint folder. What came of their state cannot be told from what comes now: go on "
                    "with that folder, or begin anew, with a consumer group and a table of their own"
                )
            opened = {each: partition for each, partition in opened.items() if not self._is_done(partition)}
            if not (opened or len(rows)):
                return Written()
            moves = [*self._moves(opened), Move(state, Checkpoint(key, "", batch_id))]
            with database.transaction(moves) as transaction:
                return self._write(transaction, opened, rows)

        return self._persist(attempt, what=key)

    def _joined(self, database: Database, partitions: Sequence[str]) -> dict[str, OpenedPartition]:
        """The partitions, opened; those that have had an event."""
        keys = {partition: self.group.partition(partition) for partition in partitions}
        opened = {each: database.join(keys[each], self.entries[each].epoch) for each in partitions}
        for each in opened.values():
            self._require_forward(each)
        return {each: partition for each, partition in opened.items() if self.entries[each].end > 0}

    def _moves(self, opened: Mapping[str, OpenedPartition]) -> list[Move]:
        """All of them to the end of the batch."""
        for each in opened.values():
            self._require_next(each)
        ends = {each: self.entries[each].end for each in opened}
        return [Move(opened[each], Checkpoint(opened[each].key, "", end - 1)) for each, end in ends.items()]

    def _persist(self, attempt: Callable[[Database], T], *, what: GroupKey | PartitionKey) -> T:
        """Tries again where a partition was taken or moved since it was opened: what its row says now counts.

        So, too, where the table was altered, which may be harmless: each process finds that out for itself, and would
        fail the query once. And where a commit was rejected: now that it is known that constraints wait for it, the
        rows are tried one by one.
        """
        with lent(self.database) as database:
            for number in range(FENCE_ATTEMPTS_MAX):
                try:
                    return attempt(database)
                except (Fenced, _Overtaken):
                    continue
                except Altered:
                    if number == FENCE_ATTEMPTS_MAX - 1:
                        raise
                except RowsRejected:
                    if number > 0:
                        raise
        raise SinkError(f"{what} changed hands {FENCE_ATTEMPTS_MAX} times while a batch was being written")

    def _missing(self, opened: OpenedPartition, rows: pa.Table) -> pa.Table:
        """The rows that the database does not have: neither by its checkpoint, nor as the source knows."""
        first = self._first(opened)
        if first <= self.entries[opened.key.partition].start:
            return rows
        return rows.filter(pc.greater_equal(rows.column(_SEQUENCE), first))

    def _write(self, transaction: Transaction, opened: Mapping[str, OpenedPartition], rows: pa.Table) -> Written:
        """The rows of these partitions without duplicates, and letters for those that are none."""
        fresh = _Fresh(rows)
        if self.database.drop_duplicates is not None:
            fresh = _Fresh.of({each: (partition, self._first(partition)) for each, partition in opened.items()}, rows)
        failed = _failed(fresh.rows)
        good = _kept(fresh.rows, ~failed)
        row_events = _units(good)
        self._require_events(needed=bool(failed.any()))
        transaction.insert(good.select(self.columns), row_events=row_events)
        self._require_events(needed=bool(transaction.rejected))
        letters = [
            letter_of(self.group, row, kind="rejected", why=str(row[ERROR_COLUMN]), stage=Stage.QUERY)
            for row in _events(_kept(fresh.rows, failed))
        ]
        rows_count = len(good)
        if row_events is not None:
            letters += _refused_letters(self.group, good, row_events, transaction.rejected)
            rows_count -= int(np.isin(row_events, [each.event for each in transaction.rejected]).sum())
        for each in opened.values():
            transaction.mark_handled(each, self._handled(each, fresh.duplicates.get(each.key.partition, _NONE)))
        transaction.dead_letter(letters)
        for partition, deduplication in fresh.deduplications:
            if not transaction.record_ids(partition, deduplication):
                raise _Overtaken
        return Written(rows_count, len(letters), sum(map(len, fresh.duplicates.values())))

    def _offset_of(self, sequence: int, rows: pa.Table | None) -> str:
        """Of the range's last event, if the query kept that; else empty, and the sequence number has to do."""
        if rows is None or not self.has_offsets or _OFFSET not in rows.column_names:
            return ""
        last = rows.select([_OFFSET, _SEQUENCE]).slice(len(rows) - 1).to_pylist()[0]
        return last[_OFFSET] or "" if last[_SEQUENCE] == sequence else ""

    def _require_events(self, *, needed: bool) -> None:
        if needed and not self.has_events:
            raise _EventNeeded

    def _handled(self, opened: OpenedPartition, duplicates: RowEvents = _NONE) -> RowEvents:
        """The events that this is about: all of the range that the database did not have, also without a row."""
        sequences = np.arange(self._first(opened), self.entries[opened.key.partition].end)
        return np.setdiff1d(sequences, duplicates, assume_unique=True)

    def _first(self, opened: OpenedPartition) -> int:
        """The first event of the range that the database does not have, and the source did not hand over before."""
        done = _last_sequence(opened)
        return max(self.entries[opened.key.partition].new_start, -1 if done is None else done + 1)

    def _is_done(self, opened: OpenedPartition) -> bool:
        done, end = _last_sequence(opened), self.entries[opened.key.partition].end
        return end == 0 or (done is not None and done >= end - 1)  # before the very first event there is nothing to do

    def _is_begun(self, opened: OpenedPartition) -> bool:
        done = _last_sequence(opened)
        return done is not None and done >= self.entries[opened.key.partition].new_start

    def _require_forward(self, opened: OpenedPartition) -> None:
        """Refuses what lies behind a jump back: the hub was made anew, or lost its newest events. What the database
        has is of the hub before, and numbers that come again would pass for done."""
        partition, done = opened.key.partition, _last_sequence(opened)
        gap, start = self.gaps.get(partition), self.entries[partition].start
        if gap is not None and done is not None and start < gap.next_sequence <= done + 1:
            raise SinkError(
                f"{opened.sink!r} has {opened.key} up to sequence number {done}, and the hub now begins again at "
                f"{start}: {OF_ANOTHER_HUB}, and the checkpoint of a table does not move back. To read this hub from "
                "its start, reset the checkpoint with 'hubline checkpoints reset'"
            )

    def _require_next(self, opened: OpenedPartition) -> None:
        """Refuses a range that does not begin where the database ends, unless the source itself jumped there."""
        done, start = _last_sequence(opened), self.entries[opened.key.partition].new_start
        if done is not None and done < start - 1 and opened.key.partition not in self.gaps:
            raise SinkError(
                f"{opened.sink!r} has {opened.key} up to sequence number {done}, and the batch starts at "
                f"{start}: what lies between would be lost. The query's checkpoint folder is of another sink: "
                "start with a new folder, or set the checkpoint with 'hubline checkpoints set'"
            )


class _Overtaken(Exception):
    """Another partition took an id of this batch, meanwhile."""


class _EventNeeded(Exception):
    """A row is a dead letter, and came without its event: nothing is written."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Rows of events that the database does not have, and what it has to remember of them."""

    rows: pa.Table
    deduplications: tuple[tuple[OpenedPartition, Deduplication], ...] = ()
    duplicates: Mapping[str, RowEvents] = field(default_factory=dict)
    """The events of each partition that were left out."""

    @classmethod
    def of(cls, opened: Mapping[str, tuple[OpenedPartition, int]], rows: pa.Table) -> _Fresh:
        """By partitions and the first event of each that the batch reads.

        Rows of earlier events come of a query's state, late: what is remembered of those that came after them says
        nothing of them, and all of these rows are kept.
        """
        kept, deduplications, duplicates = [rows.slice(0, 0)], [], {}
        for partition, part in _by_partition(rows):
            if partition not in opened:
                kept.append(part)
                continue
            sink_partition, first = opened[partition]
            is_late = part.column(_SEQUENCE).to_numpy() < first
            if is_late.any():
                kept.append(part.filter(pa.array(is_late)))
                part = part.filter(pa.array(~is_late))  # noqa: PLW2901 (the rest of it)
            # Once for each event, however many rows the query made of it.
            sequences, firsts, events = _distinct(part.column(_SEQUENCE).to_numpy())
            properties = part.column(_PROPERTIES)
            if not np.array_equal(firsts, np.arange(len(part))):
                properties = properties.take(pa.array(firsts))
            deduplication = sink_partition.deduplicate_events(properties.combine_chunks())
            kept.append(_kept(part, deduplication.is_fresh[events]))
            deduplications.append((sink_partition, deduplication))
            duplicates[partition] = sequences[~deduplication.is_fresh]
        return cls(pa.concat_tables(kept), tuple(deduplications), duplicates)


def _distinct(sequences: RowEvents) -> tuple[RowEvents, RowEvents, RowEvents]:
    """The events, rising, where each has its first row, and which event each row is of."""
    if (np.diff(sequences) > 0).all():  # the common case, without sorting
        rows = np.arange(len(sequences))
        return sequences, rows, rows
    return np.unique(sequences, return_index=True, return_inverse=True)


def _require_read(partition: str, entry: Entry, rows: pa.Table) -> None:
    """Refuses rows of events that the batch did not read: a function over whole rows may give any number."""
    sequences = rows.column(_SEQUENCE).to_numpy()
    strange = sequences[(sequences < entry.start) | (sequences >= entry.end)]
    if len(strange):
        raise SinkError(
            f"a row is of event {strange[0]} of partition {partition}, of which the batch reads {entry.start} to "
            f"{entry.end - 1}: keep the columns {_PARTITION} and {_SEQUENCE} of the events as they are"
        )


def _last_sequence(opened: OpenedPartition) -> int | None:
    return opened.checkpoint.last_sequence if opened.checkpoint else None


@contextmanager
def _settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Within it a session has these settings. That of a batch is its query's own: no other query sees them."""
    before = {name: str(session.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def _by_partition(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, in their order. Tasks read one partition after the other: mostly they are slices."""
    runs = pc.run_end_encode(rows.column(_PARTITION).combine_chunks())
    partitions, ends = runs.values.to_pylist(), [0, *runs.run_ends.to_pylist()]
    if None in partitions or rows.column(_SEQUENCE).null_count:
        raise SinkError("a row has no partition, or no sequenceNumber: keep these columns as they were")
    if len(set(partitions)) == len(partitions):
        for partition, (start, end) in zip(partitions, pairwise(ends), strict=True):
            yield partition, rows.slice(start, end - start)
    else:
        for partition in dict.fromkeys(partitions):
            yield partition, rows.filter(pc.equal(rows.column(_PARTITION), partition))


def _units(rows: pa.Table) -> RowEvents | None:
    """A number for each event, by which one that is rejected is told from the others; None where they are not known."""
    if not {_PARTITION, _SEQUENCE} <= set(rows.column_names) or rows.column(_SEQUENCE).null_count:
        return None
    sequences: RowEvents = rows.column(_SEQUENCE).to_numpy()
    partitions = rows.column(_PARTITION).combine_chunks().dictionary_encode()
    if len(partitions.dictionary) <= 1:
        return sequences
    places = np.stack([partitions.indices.to_numpy().astype(np.int64), sequences])
    return np.unique(places, axis=1, return_inverse=True)[1].astype(np.int64).reshape(-1)


def _kept(rows: pa.Table, where: Flags) -> pa.Table:
    """The rows in question; mostly that is all of them, and nothing is copied."""
    return rows if where.all() else rows.filter(pa.array(where))


def _failed(rows: pa.Table) -> Flags:
    """Which rows are dead letters."""
    if ERROR_COLUMN not in rows.column_names:
        return np.zeros(len(rows), np.bool_)
    failed: Flags = rows.column(ERROR_COLUMN).is_valid().to_numpy()
    return failed


def _columns(database: Database, names: Sequence[str], optional: Sequence[str] = ()) -> list[str]:
    """The columns to write: the query's own, and those that are optional, as events' are, which the table has."""
    with database.connection() as connection:
        of_table = {column.name for column in database.columns(connection)}
    unwritten = {ERROR_COLUMN} | ({*SOURCE_SCHEMA.names, *optional} - of_table)
    return [name for name in names if name not in unwritten]


def _refused_letters(
    group: GroupKey, rows: pa.Table, row_events: RowEvents, rejected: Sequence[Rejected]
) -> list[DeadLetter]:
    """Of the events whose rows the database does not take."""
    letters = []
    for each in rejected:
        (row,) = letter_rows(rows.slice(int(np.argmax(row_events == each.event)), 1))
        letters.append(letter_of(group, row, kind=each.kind, why=each.reason, stage=Stage.SINK))
    return letters


def _events(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The first row of each event: it gets one letter, however many rows the query made of it."""
    known: set[tuple[str, int]] = set()
    for row in letter_rows(rows):
        place = row[_PARTITION], row[_SEQUENCE]
        if place not in known:
            known.add(place)
            yield row
