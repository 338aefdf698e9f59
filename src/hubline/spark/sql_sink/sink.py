"""Exactly once from a stream into SQL: `SqlBatchWriter(...).write_stream(rows, checkpoint_location=...)`.

By partition, each task commits its own partitions; that needs rows that are still where they were read. By batch, the
driver collects the rows of any query and commits all partitions at once.

Spark runs a batch again after a crash. Each run writes here what the database does not have yet, and nothing else: the
partition's checkpoint row is locked, the range of the batch is compared with it (range_rules), and rows, dead letters
and the new checkpoint commit together. A batch that is replayed carries the epochs of the driver that died; it runs
under the present ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's users have it)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import PositiveSeconds
from hubline.errors import ConfigError
from hubline.sinks import DropDuplicates, SqlSink
from hubline.sinks.sql_sink.settings import DUPLICATE_WINDOW_SECONDS
from hubline.spark.arrow_columns import plain
from hubline.spark.checkpoint_location import CheckpointLocation
from hubline.spark.compatibility import arrow_schema, arrow_type
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.query_plan import QueryPlan
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.sessions.remote import is_remote
from hubline.spark.sql_sink.batch_commit import BatchCommit
from hubline.spark.sql_sink.batch_rows import OFFSET, PARTITION, PROPERTIES, SEQUENCE
from hubline.spark.sql_sink.batch_target import BatchTarget, Written
from hubline.spark.sql_sink.micro_batch import MicroBatch, QueryShape, require_one_hub
from hubline.spark.sql_sink.named_sink import NamedSink
from hubline.spark.sql_sink.partition_commit import PartitionCommit
from hubline.spark.sql_sink.range_rules import RangeRules
from hubline.spark.tasks.databases import shared_sink

_EVENT_COLUMNS: Final = (PARTITION, SEQUENCE, OFFSET, PROPERTIES)
"""The columns by which the sink knows the events that rows were made of."""

CommitBy = Literal["partition", "batch"]
"""What one transaction holds.

`"partition"`: the rows of one partition, committed by the task that read them. Tasks commit in parallel, and the query
must not move rows between tasks. `"batch"`: all rows of a micro-batch, committed by the driver, for every query whose
results fit into its memory.
"""


class SqlBatchWriter:
    """Write a stream into a table, exactly once: rows, dead letters and the checkpoint commit in one transaction.

    It works in classic sessions and over Spark Connect. Rows with an `_error` become dead letters, with as much of the
    event as the query kept. The columns of an event are not written, unless the table has them.

        sink = SqlBatchWriter("env:DATABASE", table="readings")
        rows = parse_json(events, "device string, celsius double")
        sink.write_stream(rows, checkpoint_location="./checkpoints/readings").start()

    Args:
        url: The database, `sqlite:///PATH` or `postgresql://...`; `env:NAME` and `file:PATH` work, too.
        table: The table to write to.
        upsert_key: The columns of a unique index: a row replaces the one that has the same values there. Default: none,
            rows are inserted.
        create_table: Create the table from the columns of the query if it is missing. Default: False.
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

    @checked
    def __init__(
        self,
        url: str,
        *,
        table: str,
        upsert_key: str | Sequence[str] = (),
        create_table: bool = False,
        keep_dead_letter_bodies: bool = True,
        drop_duplicates: DropDuplicates = "off",
        duplicate_window_seconds: PositiveSeconds = DUPLICATE_WINDOW_SECONDS,
        commit_by: CommitBy = "partition",
        on_commit: Callable[[int, Written], None] | None = None,
    ) -> None:
        self._commit_by: CommitBy = commit_by
        self._on_commit = on_commit
        # Dead letters mostly come in swarms: after a batch that had some, the next one comes with events at once.
        self._expects_dead_letters = False
        self._url = url
        self._settings: dict[str, Any] = {
            "table": table,
            "upsert_key": upsert_key,
            "create_table": create_table,
            "keep_dead_letter_bodies": keep_dead_letter_bodies,
            "drop_duplicates": drop_duplicates,
            "duplicate_window_seconds": duplicate_window_seconds,
        }
        self._sink = SqlSink(url, **self._settings)

    def __repr__(self) -> str:
        return f"{self._sink!r} by {self._commit_by}"

    def check(self, schema: StructType) -> str | None:
        """Compare a query's columns with the table, before the query starts. Changes nothing.

        Args:
            schema: The query's, `df.schema`.

        Returns:
            None if they fit; the statement that will create the table if that is missing and may be created.

        Raises:
            ConfigError: If the query does not have the columns that it must keep.
            SinkError: If the table does not take the query's columns, or may not be written.
        """
        self._require_columns(schema)
        with shared_sink(self._sink) as sink:
            names = columns_to_write(sink, schema.names)
            return sink.check(arrow_schema(StructType([schema[name] for name in names])))

    def check_query(self, frame: DataFrame) -> None:
        """Check a query before it starts, as its batches are checked later.

        Args:
            frame: The query's.

        Raises:
            ConfigError: If it reads hubs several times, or overwrites a column by which the sink knows events.
        """
        plan = QueryPlan.of(frame)
        require_one_hub(plan)
        self._require_own(frame.columns, plan.computed(_EVENT_COLUMNS))

    def write_stream(
        self, frame: DataFrame, *, checkpoint_location: str, optional: Sequence[str] = ()
    ) -> DataStreamWriter:
        """Write a stream into the table: in classic sessions, and over Spark Connect.

            sink = SqlBatchWriter("env:DATABASE", table="readings")
            sink.write_stream(rows, checkpoint_location="/data/checkpoints/readings").start()

        A query of which Spark's `EXPLAIN` does not prove that rows stay in the task that read them is committed by the
        driver, as with `commit_by="batch"`.

        Args:
            frame: The rows, of a query that reads one hub.
            checkpoint_location: The query's checkpoint location, a path that the driver can read.
            optional: Columns to leave out where the table has none of their names. Default: none.

        Returns:
            Spark's writer with its function and checkpoint location. Set a trigger and a name, and start it.

        Raises:
            ConfigError: If the query does not have the columns that it must keep, reads hubs several times, or
                computes a column by which events are known. Over Spark Connect, if the address has a password in it.
        """
        plan = QueryPlan.of(frame)
        require_one_hub(plan)
        self._require_columns(frame.schema)
        shape = QueryShape.of(plan, _EVENT_COLUMNS)
        self._require_own(shape.columns, set(shape.computed))
        _require_apart(frame)
        writer = self._sent() if is_remote(frame.sparkSession) else self
        batches = StreamedBatches(writer, CheckpointLocation(checkpoint_location), shape, tuple(optional))
        return frame.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint_location)

    def _sent(self) -> SqlBatchWriter:
        """A copy that can be sent to a server: with the name of the address, and not what it names."""
        sent = copy(self)
        sent.__dict__.update(_sink=NamedSink(self._url, **self._settings), _url="")
        return sent

    def write(
        self, frame: DataFrame, batch_id: int, batch: MicroBatch, names: Sequence[str], optional: Sequence[str] = ()
    ) -> Written:
        """Writes a micro-batch, in the process that Spark calls for it.

        Args:
            frame: The rows.
            batch_id: Spark's number of the batch.
            batch: What the query's log says of it.
            names: The columns of the rows.
            optional: Those to leave out where the table has none of their names.
        """
        with shared_sink(self._sink) as sink:
            target = BatchTarget(
                self._sink,
                columns_to_write(sink, names, optional),
                batch.group,
                RangeRules(batch.offset.entries, batch.gaps),
            )
        if self._commit_by == "partition" and batch.is_narrow:
            written = self._commit_in_tasks(frame, names, batch, target)
        else:
            # Collected even where the database has it all: Spark counts on every task of a query with state.
            rows, moved, commit = plain(frame.toArrow()), sorted(batch.moved), BatchCommit(target)
            if batch.state_of is None:
                written = commit.commit_all(moved, rows)
            else:
                written = commit.commit_state(batch.state_of, batch_id, moved, rows)
        if self._on_commit is not None:
            self._on_commit(batch_id, written)
        return written

    def _commit_in_tasks(
        self, frame: DataFrame, names: Sequence[str], batch: MicroBatch, target: BatchTarget
    ) -> Written:
        commits = PartitionCommit(target, names, has_offsets=OFFSET not in batch.computed)
        done = self._done_in_tasks(frame, commits)
        self._expects_dead_letters = any(written.dead_letters for written in done.values())
        # Partitions of which the query kept no row: no task has moved their checkpoints.
        for partition in sorted(batch.moved - set(done)):
            commits.commit(partition, None)
        return sum(done.values(), Written())

    def _done_in_tasks(self, frame: DataFrame, commits: PartitionCommit) -> dict[str, Written]:
        """What was written of each partition that has rows: without their events, if none of them is a dead letter."""
        unread = self._columns_of_dead_letters(commits.names, commits.target.columns)
        if self._expects_dead_letters or not unread:
            return commits.in_tasks(frame)[0]
        names = [name for name in commits.names if name not in unread]
        done, needing_events = replace(commits, names=names, has_events=False).in_tasks(frame.drop(*unread))
        if needing_events:
            # After a crash here, Spark repeats the batch: the partitions that are done are skipped, the others begin.
            done |= commits.in_tasks(frame.where(F.col(PARTITION).isin(needing_events)))[0]
        return done

    def _require_own(self, names: Sequence[str], overwritten: set[str]) -> None:
        """An offset of the query's own is the table's alone: the sequence number has to do for the checkpoint."""
        known_by = {PARTITION, SEQUENCE} if {PARTITION, SEQUENCE} <= set(names) else set()
        if self._sink.drop_duplicates != "off":
            known_by.add(PROPERTIES)
        if wrong := sorted(known_by & overwritten):
            raise ConfigError(
                f"the query computes the column {wrong[0]!r}, which must say of which events its rows are. Keep "
                "the column of the events, and give yours another name."
            )

    def _columns_of_dead_letters(self, names: Sequence[str], written: Sequence[str]) -> list[str]:
        """The columns of events that only dead letters need."""
        needed = {PARTITION, SEQUENCE, OFFSET, *written}
        if self._sink.drop_duplicates != "off":
            needed.add(PROPERTIES)
        return [name for name in names if name in SOURCE_SCHEMA.names and name not in needed]

    def _require_columns(self, schema: StructType) -> None:
        names = schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"the query has two columns {twice[0]!r}. Drop or rename one.")
        for each in schema:
            _require_arrow(each)
        required = [PARTITION, SEQUENCE] if self._commit_by == "partition" else []
        if self._sink.drop_duplicates != "off":
            required = [PARTITION, SEQUENCE, PROPERTIES]
        if missing := [name for name in required if name not in schema.names]:
            of_many = (
                "; of rows that are made of many events, let the driver commit: SqlBatchWriter(..., commit_by='batch')"
            )
            raise ConfigError(
                f"the query dropped the column {missing[0]!r}, which says of which events its rows are. Keep "
                f"it{of_many if self._commit_by == 'partition' else ''}. It has {', '.join(schema.names)}."
            )
        for name in required:
            kind, own = schema[name].dataType.simpleString(), SOURCE_SCHEMA[name].dataType.simpleString()
            if kind != own:
                raise ConfigError(
                    f"the query changed the column {name!r} from {own} to {kind}, but it says of which events its "
                    "rows are. Keep it unchanged, and give your column another name."
                )


@dataclass(frozen=True, slots=True)
class StreamedBatches:
    """The function of `foreachBatch`. Over Spark Connect it is pickled, and called in a process of the server's."""

    writer: SqlBatchWriter
    location: CheckpointLocation
    shape: QueryShape
    optional: tuple[str, ...]

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        read = self.location.reader(frame.sparkSession)
        batch = MicroBatch.logged(self.location, read, batch_id, self.shape)
        self.writer.write(frame, batch_id, batch, self.shape.columns, self.optional)


def _require_arrow(column: StructField) -> None:
    """Refuses what cannot be handed to Python, such as most intervals: tasks would fail by a KeyError."""
    try:
        arrow_type(column.dataType)
        return
    except PySparkTypeError:
        kind = column.dataType.simpleString()
    raise ConfigError(f"the column {column.name!r} is {kind}, which no table takes. Cast it to a number or to string.")


def _require_apart(frame: DataFrame) -> None:
    """Refuses columns that Spark takes for one another: it would hand over neither, or drop both."""
    first: dict[str, str] = {}
    for name in frame.columns:
        other = first.setdefault(name.lower(), name)
        if other != name and frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
            raise ConfigError(
                f"the query has columns {other!r} and {name!r}, which Spark cannot distinguish. Rename one, or "
                "set spark.sql.caseSensitive=true."
            )


def columns_to_write(sink: SqlSink, names: Sequence[str], optional: Sequence[str] = ()) -> list[str]:
    """The columns to write: the query's own, and those that are optional, as events' are, which the table has."""
    of_table = {column.name for column in sink.database.columns()}
    unwritten = {ERROR_COLUMN} | ({*SOURCE_SCHEMA.names, *optional} - of_table)
    return [name for name in names if name not in unwritten]
