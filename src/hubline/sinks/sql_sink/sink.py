"""Exactly once into a SQL database: rows, dead letters and the checkpoint in one transaction.

A partition is opened by taking its fence: the epoch in its checkpoint row, in the sink's own database. What then
happens for each batch, and what is left behind if it dies there:

    1. begin
    2. lock        the checkpoint row; rejected unless this epoch holds it and it stands where this writer left it
    3. rows        by COPY, or one prepared statement; those that the database refuses are found and left out
    4. letters     of the events that failed
    5. checkpoint  moves forward to the last event of the batch
    6. commit      until its answer has come, nobody knows; the fence, taken again, tells

PostgreSQL hears of 1 and 2 in one message, and of 5 and 6 in another. Dying at 1 to 5 leaves nothing: the next owner
starts from the old checkpoint. Dying at 6 leaves all of it or nothing, and the checkpoint row says which. A former
owner that wakes up finds another epoch at 2; one that was past 2 holds the row, and the new owner's fence waits for
the end of that transaction, and then starts after it.

Everything here is synchronous. A sink may be used from many threads, a partition from one at a time. A sink can be
pickled: its connections stay behind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa

from hubline.addresses.store_address import PostgresAddress, SqliteAddress, parse_store
from hubline.errors import ConfigError, Fenced, RowsRejected, SinkError, StoreError, StoreUnavailable
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import EventBatch
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.connection import CommitPlan, Parameters, SinkConnection, altered, undone
from hubline.sinks.sql_sink.deduplication import (
    DeduplicatedBatch,
    Deduplication,
    HighWaterMarks,
    Repeats,
    deduplicate_known,
    deduplicate_ordered,
    ids_in,
)
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents
from hubline.sinks.sql_sink.table_schema import (
    SEQUENCE_COLUMN,
    Column,
    Plan,
    Rejection,
    TableName,
    checked_name,
    creatable,
    names_in,
    plan_for,
    require_fit,
    tabled,
)
from hubline.sql.dialect import Row
from hubline.sql.fence import fenced
from hubline.sql.pool import SqlPool

TRANSACTION_SECONDS_MAX = 60
"""How long a statement, or a pause between two, may hold the checkpoint row: a new owner waits for its end."""

OVERDUE = 2.0
"""A transaction that takes so many times its bound hangs on a server that answers nothing any more."""

IDS_KEPT_SECONDS = 7 * 86_400.0
"""As long as a hub keeps events by its longest usual retention: what is older cannot be published again."""

IDS_FORGOTTEN_EVERY_SECONDS = 60.0
"""Old ids are removed so often, by whoever commits: seldom enough to cost nothing."""

PLANS_MAX = 100
"""Handlers return rows of one schema or of a few; one that makes up columns must not fill the memory."""

CONNECTIONS_MAX = 4
"""Four writers use up two cores of a server already; SQLite has one writer at a time in any case."""

SETTLE_ATTEMPTS_MAX = 3
SETTLE_SECONDS = 0.2
"""Tries to learn what became of a commit without an answer, before that is left to the next opening; and the pauses."""

Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
"""Rows for the sink: Arrow columns, or dictionaries."""


Chunk: TypeAlias = tuple[pa.Table, RowEvents | None]
"""Rows of one schema, and the unit of each where that was told."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a sink was made with."""

    address: PostgresAddress | SqliteAddress
    table: TableName | None
    key: tuple[str, ...]
    create: bool
    keep_dead_letter_bodies: bool
    drop_duplicates: Repeats | None
    duplicate_window_seconds: float
    max_connections: int
    transaction_timeout_seconds: int


class SqlSink:
    """Where results go: a table of a database, ``sqlite:///PATH`` or ``postgresql://...``.

    Rows are inserted; with ``key``, the columns of a unique index, they are inserted or updated. Without a ``table``,
    handlers write by their own SQL. ``create`` makes the table of the first rows' columns if it is missing.
    ``keep_dead_letter_bodies`` keeps the bodies of dead letters, since hubs forget. ``drop_duplicates`` leaves out
    events that an earlier stage published twice: ``"ordered"`` or ``"shuffled"``
    (:class:`.deduplication.Repeats`).
    """

    def __init__(
        self,
        url: str,
        *,
        table: str | None = None,
        key: str | Sequence[str] = (),
        create: bool = False,
        keep_dead_letter_bodies: bool = True,
        drop_duplicates: Repeats | str | None = None,
        duplicate_window_seconds: float = IDS_KEPT_SECONDS,
        max_connections: int = CONNECTIONS_MAX,
        transaction_timeout_seconds: int = TRANSACTION_SECONDS_MAX,
    ) -> None:
        address = parse_store(url)
        if not isinstance(address, (PostgresAddress, SqliteAddress)):
            raise ConfigError("a sink is a SQL database: give it as sqlite:///PATH or postgresql://...")
        if max_connections < 1 or transaction_timeout_seconds < 1:
            raise ConfigError("max_connections and transaction_timeout_seconds are at least 1")
        keys = (key,) if isinstance(key, str) else tuple(key)
        if (keys or create) and table is None:
            raise ConfigError("key and create are about the table: name one, for instance table='readings'")
        self._setup(
            _Settings(
                address,
                None if table is None else TableName.parse(table),
                tuple(checked_name("column", name) for name in keys),
                create,
                keep_dead_letter_bodies,
                _repeats(drop_duplicates),
                duplicate_window_seconds,
                1 if isinstance(address, SqliteAddress) else max_connections,
                transaction_timeout_seconds,
            )
        )

    def _setup(self, settings: _Settings) -> None:
        self._settings = settings
        self.pool: SqlPool[SinkConnection] = SqlPool(
            self._connect,
            shown=repr(self),
            max_connections=settings.max_connections,
            call_seconds_max=OVERDUE * settings.transaction_timeout_seconds,
        )
        self._plans: Mapping[pa.Schema, Plan] = {}

    def __getstate__(self) -> _Settings:
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        self._setup(settings)

    def __repr__(self) -> str:
        into = f", table={self._settings.table}" if self._settings.table else ""
        return f"SqlSink({self._settings.address}{into})"

    @property
    def address(self) -> PostgresAddress | SqliteAddress:
        """The database, of the rows and of all that is kept beside them."""
        return self._settings.address

    @property
    def settings(self) -> Hashable:
        """Equal for sinks that do the same."""
        return self._settings

    @property
    def table(self) -> TableName | None:
        return self._settings.table

    @property
    def max_connections(self) -> int:
        """How many transactions there are at a time: one in SQLite."""
        return self._settings.max_connections

    @property
    def call_seconds_max(self) -> float:
        """How long a transaction may take at most, whatever it does."""
        return OVERDUE * self._settings.transaction_timeout_seconds

    @property
    def transaction_timeout_seconds(self) -> int:
        """How long a statement, or a pause between two, may take."""
        return self._settings.transaction_timeout_seconds

    @property
    def replaces_rows(self) -> bool:
        """Whether a row takes the place of the one with its key."""
        return bool(self._settings.key)

    @property
    def drop_duplicates(self) -> Repeats | None:
        return self._settings.drop_duplicates

    @property
    def duplicate_window_seconds(self) -> float:
        return self._settings.duplicate_window_seconds

    @property
    def keep_dead_letter_bodies(self) -> bool:
        return self._settings.keep_dead_letter_bodies

    def open(self, key: PartitionKey, epoch: int) -> OpenedPartition:
        """Takes the partition for this epoch; ``checkpoint`` of what is returned tells where to start.

        Raises Fenced if a higher epoch holds it.
        """
        with self.connection() as connection:
            connection.end_stalled(key, seconds_max=self._settings.transaction_timeout_seconds)
            return self._opened(connection, key, epoch, connection.take_fence(key, epoch))

    def join(self, key: PartitionKey, epoch: int) -> OpenedPartition:
        """Opens the partition under the epoch that holds it now, or under this one if that is lower.

        For writers of whom several may be at work, and who tell by the checkpoint alone what is left to do. Raises
        Fenced where a higher epoch takes it in between.
        """
        with self.connection() as connection:
            connection.end_stalled(key, seconds_max=self._settings.transaction_timeout_seconds)
            held_epoch, checkpoint = connection.read_fence(key)
            if held_epoch >= epoch:
                # Read after the checkpoint: whoever moves both in between is noticed when the row is locked.
                return self._opened(connection, key, held_epoch, checkpoint)
        return self.open(key, epoch)

    def _opened(
        self, connection: SinkConnection, key: PartitionKey, epoch: int, checkpoint: Checkpoint | None
    ) -> OpenedPartition:
        partition = OpenedPartition(self, key, epoch, checkpoint)
        if self._settings.drop_duplicates is Repeats.ORDERED:
            partition.marks = connection.read_marks(key)
        return partition

    def check(self, schema: pa.Schema) -> str | None:
        """Compares rows of a schema with the table: None if they fit, or the statement that will make the table.

        Raises SinkError that shows both where they do not fit, where the table is missing and not to be made, where no
        unique index matches the key, or where the user may not write to it. Nothing is changed.
        """
        with self.connection() as connection:
            plan = self._planned(connection, schema)
            if plan is None:
                return connection.creation(self._required_table(), self._creatable(schema), key=self._settings.key)
            connection.explain_insert(plan)
        return None

    def transaction(self, moves: Iterable[Move]) -> Transaction:
        """One that moves several partitions at once, which this sink opened."""
        return Transaction(self, moves)

    def close(self) -> None:
        """Ends the connections that are idle. The sink can be used again: it opens new ones."""
        self.pool.close()

    @contextmanager
    def connection(self) -> Iterator[SinkConnection]:
        """A connection outside of any partition's transaction. What its driver raises becomes a StoreError."""
        with (
            self.pool.connection(wait_seconds=self._settings.transaction_timeout_seconds) as connection,
            explained(connection, self.table),
        ):
            yield connection

    def plan(self, connection: SinkConnection, schema: pa.Schema) -> Plan:
        """How rows of a schema go into the table. Raises SinkError that shows both where they do not.

        A table that is missing is made, if that was asked for, in the transaction that the connection is in.
        """
        if (known := self._plans.get(schema)) is not None and connection.is_current(known):
            return known
        if (plan := self._planned(connection, schema)) is None:
            table = self._required_table()
            connection.create_table(table, self._creatable(schema), key=self._settings.key)
            plan = self._planned(connection, schema)
            assert plan is not None  # noqa: S101 (it was just made, in this transaction)
            return plan  # not kept: it may yet be undone
        others = self._plans if len(self._plans) < PLANS_MAX else {}
        self._plans = {**others, schema: plan}
        return plan

    def _planned(self, connection: SinkConnection, schema: pa.Schema) -> Plan | None:
        """How the rows go into the table; None if it is still to be made."""
        table = self._required_table()
        shape = connection.shape_of(table)  # before the columns: altered in between, it is found out at the commit
        columns = connection.columns_of(table)
        if columns:
            return plan_for(table, columns, schema, key=self._settings.key, shape=shape)
        if self._settings.create:
            return None
        raise SinkError(
            f"there is no table {table}: create it, or open the sink with create=True. The rows have "
            f"{', '.join(f'{field.name} {field.type}' for field in schema)}",
            table=str(table),
        )

    def _creatable(self, schema: pa.Schema) -> pa.Schema:
        return creatable(self._required_table(), schema, key=self._settings.key)

    def columns(self, connection: SinkConnection) -> list[Column]:
        """The columns of the table; none while it is still to be made."""
        return connection.columns_of(self._required_table())

    def pause(self, seconds: float) -> None:
        """Waits for the database to come back."""
        time.sleep(seconds)

    def forget_plans(self) -> None:
        """The table may be another one by now."""
        self._plans = {}

    def _required_table(self) -> TableName:
        if self._settings.table is None:
            raise SinkError("rows need a table: name it when the sink is made, or write by tx.execute")
        return self._settings.table

    def _connect(self) -> SinkConnection:
        """Drivers are loaded when they are needed: SQLite must not cost PostgreSQL's."""
        match self._settings.address:
            case PostgresAddress(conninfo):
                from hubline.sinks.sql_sink.postgres import PostgresSinkConnection

                return PostgresSinkConnection.connect(conninfo, seconds_max=self._settings.transaction_timeout_seconds)
            case SqliteAddress(path):
                from hubline.sinks.sql_sink.sqlite import SqliteSinkConnection

                return SqliteSinkConnection.connect(path)


class OpenedPartition:
    """A partition that was opened for an epoch. ``checkpoint`` is where it stands; None if nothing is done yet.

    After an error it is opened anew: only the checkpoint row knows what took effect.
    """

    def __init__(self, sink: SqlSink, key: PartitionKey, epoch: int, checkpoint: Checkpoint | None) -> None:
        self.sink = sink
        self.key = key
        self.epoch = epoch
        self.checkpoint = checkpoint
        self.marks: HighWaterMarks = {}
        self.ids_forgotten_at = 0.0
        self.last_letter: int | None = None  # of those that were there before this opening; None until it matters

    def require_held(self) -> None:
        """Raises Fenced if another epoch holds the partition: that of a new owner, or of who set its checkpoint."""
        with self.sink.connection() as connection:
            held_epoch, _ = connection.read_fence(self.key)
        if held_epoch != self.epoch:
            raise fenced(self.key, epoch=self.epoch, held_epoch=held_epoch)

    def waiting_keys(self) -> set[str]:
        """The partition keys that have a dead letter waiting, of events before this place.

        Letters of later events are there when the checkpoint was set back: those events come again, in their turn.
        """
        if self.checkpoint is None:
            return set()
        with self.sink.connection() as connection:
            return connection.waiting_keys(self.key, last_sequence=self.checkpoint.sequence_number)

    def deduplicate(self, batch: EventBatch) -> DeduplicatedBatch:
        """The batch without the events that the sink has already; give what it returns to ``remember``."""
        return DeduplicatedBatch.of(batch, self.deduplicate_events(batch.arrow.column("properties")))

    def deduplicate_events(self, properties: pa.MapArray) -> Deduplication:
        """Which events the sink does not have, by their properties, in order; for ``remember``, too."""
        how = self.sink.drop_duplicates
        if how is Repeats.ORDERED and len(properties):
            return deduplicate_ordered(properties, self.marks)
        ids = ids_in(properties) if how is Repeats.SHUFFLED else [None] * len(properties)
        if not (given := [one for one in ids if one is not None]):
            return Deduplication(np.ones(len(ids), np.bool_), {})
        with self.sink.connection() as connection:
            return deduplicate_known(ids, connection.known_ids(self.key.group_key, given))

    def transaction(self, checkpoint: Checkpoint) -> Transaction:
        """One that moves the partition to ``checkpoint``. Nothing is begun before it is used or committed."""
        return Transaction(self.sink, [Move(self, checkpoint)])

    def commit(
        self, checkpoint: Checkpoint, rows: Rows | None = None, *, dead_letters: Sequence[DeadLetter] = ()
    ) -> list[Rejected]:
        """Writes rows, dead letters and checkpoint in one transaction. Returns the events whose rows were rejected.

        To make dead letters of rejected events in the same transaction, use `transaction`.

        Args:
            checkpoint: The new checkpoint of the partition.
            rows: The rows. A column `sequenceNumber` names the event of each.
            dead_letters: The events that failed.

        Raises:
            RowsRejected: The database rejects rows that have no column `sequenceNumber`.
        """
        with self.transaction(checkpoint) as transaction:
            if rows is not None:
                transaction.insert(rows)
            transaction.dead_letter(dead_letters)
        return transaction.rejected


@dataclass(frozen=True, slots=True)
class Move:
    """How far a transaction brings a partition."""

    partition: OpenedPartition
    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        known = self.partition.checkpoint
        if known is not None and self.checkpoint.sequence_number <= known.sequence_number:
            raise SinkError(
                f"the sink has partition {self.partition.key} up to {known.sequence_number} already, and events up to "
                f"{self.checkpoint.sequence_number} would be written twice: set the checkpoint back to have them again"
            )

    def check(self, held_epoch: int, stored: Checkpoint | None) -> None:
        """Raises Fenced unless the partition is this one's epoch's, and stands where it was left."""
        partition = self.partition
        if held_epoch != partition.epoch:
            raise fenced(partition.key, epoch=partition.epoch, held_epoch=held_epoch)
        if _sequence(stored) != _sequence(partition.checkpoint):
            raise Fenced(
                f"the checkpoint of {partition.key} is at {_sequence(stored)} and not at "
                f"{_sequence(partition.checkpoint)}, where it was left: another writer uses epoch {partition.epoch}",
                partition=partition.key.partition,
                epoch=partition.epoch,
                held_epoch=held_epoch,
            )


class Transaction:
    """What is done in the database for one batch of one partition, or of several at once.

    It begins when it is first used, by locking the partition's checkpoint: from then on it is in the way of a new
    owner, and on SQLite of every writer, so be short. Whoever made it commits it or rolls it back; as a context
    manager it does so by itself. After that it takes nothing more: a SinkError is raised.
    """

    def __init__(self, sink: SqlSink, moves: Iterable[Move]) -> None:
        # Always in the same order: transactions that overlap wait for each other, and never in a circle.
        self._moves = sorted(moves, key=lambda move: move.partition.key)
        self._sink = sink
        self._connection: SinkConnection | None = None
        self._is_over = False
        self._written: list[Plan] = []
        self._deduplicated: list[tuple[OpenedPartition, DeduplicatedBatch | Deduplication]] = []
        self.rejected: list[Rejected] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.rollback()

    @property
    def sink(self) -> SqlSink:
        return self._sink

    def execute(self, query: str, params: Parameters = ()) -> list[Row]:
        """One statement of one's own; its rows, if it has any. Placeholders are the driver's: ``%s``, or ``?``.

        A value or constraint that the database refuses raises the driver's own error, and the transaction can only be
        undone then; any other trouble is a StoreError, for which no event is to blame.
        """
        if _CONTROL.match(query):
            raise SinkError("the transaction begins and ends by itself: leave out BEGIN, COMMIT, ROLLBACK and the like")
        connection = self._begun()
        with explained(connection, None):
            rows = connection.execute(query, params)
        if not connection.is_in_transaction:
            raise SinkError("a statement ended the transaction: leave that to the sink")
        return rows

    def insert(self, rows: Rows, *, row_events: RowEvents | None = None) -> None:
        """Writes rows to the sink's table; events whose rows the database refuses are added to ``rejected``.

        A column ``sequenceNumber`` names the event of each row, or ``row_events`` does. Otherwise the rows stand or
        fall together: RowsRejected is raised, and none of them is written.
        """
        if not len(rows):
            return
        is_first = self._connection is None
        connection = self._begun()
        rejected: list[Rejected] = []
        with explained(connection, self._sink.table):
            if isinstance(rows, pa.RecordBatch):
                lots: list[Chunk] = [(pa.Table.from_batches([rows]), row_events)]
            elif isinstance(rows, pa.Table):
                lots = [(rows, row_events)]
            else:
                lots, rejected = self._tabled(connection, rows, row_events)
            is_traced = row_events is not None or any(SEQUENCE_COLUMN in table.column_names for table, _ in lots)
            for table, told in lots:
                known = _known_units(table) if told is None else told
                rejected += self._place(connection, *_in_order(table, known), is_first=is_first)
                is_first = False
        if rejected and not is_traced:
            raise RowsRejected(
                f"{self._sink!r} refuses rows: {rejected[0].kind}: {rejected[0].reason}. Give them a column "
                f"{SEQUENCE_COLUMN!r}, and the events to blame are found",
                table=str(self._sink.table),
            )
        self.rejected += rejected

    def mark_handled(self, partition: OpenedPartition, sequences: RowEvents) -> None:
        """Tells which events this is about, in order; those that fail are given to :meth:`dead_letter` after it.

        After the checkpoint was set back, events may come again of which letters wait: these are answered now, and no
        redrive must run them once more.
        """
        if not len(sequences):
            return
        connection, first, last = self._begun(), int(sequences[0]), int(sequences[-1])
        with explained(connection, None):
            if first <= self._last_letter(connection, partition.key):
                waiting = connection.waiting_letters(partition.key, first_sequence=first, last_sequence=last)
                for sequence in np.intersect1d(waiting, sequences).tolist():
                    connection.settle_letter(partition.key, int(sequence))

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        """Keeps events that failed. One that failed before, when its checkpoint was set back, has one letter: this."""
        if not letters:
            return
        connection = self._begun()
        with explained(connection, None):
            for letter in letters:
                if letter.event.sequence_number <= self._last_letter(connection, letter.key):
                    connection.remove_letter(letter.key, letter.event.sequence_number)
            connection.add_letters(letters, keep_dead_letter_bodies=self._sink.keep_dead_letter_bodies)

    def record_ids(self, partition: OpenedPartition, deduplicated: DeduplicatedBatch | Deduplication) -> bool:
        """Keeps the ids of a batch that was deduplicated; False if another partition has taken one of them meanwhile.

        Then everything is to be undone, and the batch deduplicated again.
        """
        self._deduplicated.append((partition, deduplicated))
        if not deduplicated.ids:
            return True  # marks are written with the commit
        connection, group = self._begun(), partition.key.group_key
        with explained(connection, None):
            if connection.add_ids(group, deduplicated.ids) < len(deduplicated.ids):
                return False
            if time.monotonic() - partition.ids_forgotten_at > IDS_FORGOTTEN_EVERY_SECONDS:
                connection.forget_ids(group, age_seconds_max=self._sink.duplicate_window_seconds)
                partition.ids_forgotten_at = time.monotonic()
        return True

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What fails within is undone, and raised all the same; what came before stays."""
        refused_count, written_count = len(self.rejected), len(self._written)
        if (connection := self._connection) is None:
            try:
                yield
            except BaseException:
                self._undo()  # it may have begun within
                raise
            return
        try:
            with explained(connection, None), connection.savepoint():
                yield
        except BaseException:
            del self.rejected[refused_count:], self._written[written_count:]
            raise

    def commit(self) -> None:
        """Steps 5 and 6. Where the answer to 6 is lost, finds out what happened.

        Raises StoreUnavailable if the transaction did not take effect, or if that cannot be found out now.
        """
        try:
            failure = self._commit(self._begun())
        except BaseException:
            self.rollback()
            raise
        if failure is not None:
            for move in self._moves:
                self._settle(move, failure)
        for move in self._moves:
            move.partition.checkpoint = move.checkpoint
        for partition, deduplicated in self._deduplicated:
            partition.marks = {**partition.marks, **deduplicated.marks}

    def rollback(self) -> None:
        """Undoes everything; never raises."""
        self._is_over = True
        self._undo()

    def _undo(self) -> None:
        """As a rollback, and the transaction may be used again, from its beginning."""
        self.rejected.clear()
        self._written.clear()
        self._deduplicated.clear()
        self._sink.forget_plans()  # whatever went wrong, the table may be another one by now
        if (connection := self._connection) is None:
            return
        try:
            connection.rollback()
        except Exception:  # noqa: BLE001 - a connection that is gone rolls back by itself
            self._end(connection, is_usable=False)
        else:
            self._end(connection, is_usable=True)

    def _begun(self) -> SinkConnection:
        """Steps 1 and 2, unless they are done."""
        if self._connection is not None:
            if self._connection.is_undone:
                raise undone()
            return self._connection
        if self._is_over:
            # Begun anew it would be nobody's to commit, and would hold the checkpoint row.
            raise SinkError(
                "the transaction has ended: it is committed when the handler returns, and undone when it fails. Use tx "
                "before that; an async handler awaits it"
            )
        connection = self._sink.pool.borrow(wait_seconds=self._sink.transaction_timeout_seconds)
        self._connection = connection
        try:
            with explained(connection, None):
                self._lock(connection)
        except BaseException:
            self._undo()
            raise
        return connection

    def _begin_anew(self, connection: SinkConnection) -> None:
        """With the same connection, where nothing is in the transaction that has to stay."""
        try:
            self._lock(connection, is_anew=True)
        except BaseException:
            self._undo()
            raise

    def _lock(self, connection: SinkConnection, *, is_anew: bool = False) -> None:
        keys = [move.partition.key for move in self._moves]
        found = connection.begin_anew(keys) if is_anew else connection.begin(keys)
        for move, held in zip(self._moves, found, strict=True):
            move.check(*held)

    def _last_letter(self, connection: SinkConnection, key: PartitionKey) -> int:
        for move in self._moves:
            if move.partition.key == key:
                if move.partition.last_letter is None:
                    move.partition.last_letter = connection.last_letter(key)
                return move.partition.last_letter
        raise SinkError(f"a dead letter of {key} does not belong into a transaction of other partitions")

    def _tabled(
        self, connection: SinkConnection, records: Sequence[Mapping[str, Any]], row_events: RowEvents | None
    ) -> tuple[list[Chunk], list[Rejected]]:
        """Dictionaries as columns; where a value does not fit its column, without the unit that has it."""
        columns = self._sink.columns(connection)
        try:
            return [(tabled(records, columns), row_events)], []
        except Rejection as rejection:
            if row_events is None:
                raise RowsRejected(f"the rows do not make columns: {rejection}", table=str(self._sink.table)) from None
        good, rejected = [], []
        for unit in np.unique(row_events):
            places = np.nonzero(row_events == unit)[0].tolist()
            try:
                require_fit(tabled([records[place] for place in places], columns), columns)
                good.append(places)
            except Rejection as rejection:
                rejected.append(Rejected(int(unit), str(rejection), rejection.kind))
        names = names_in(records[place] for places in good for place in places)
        return list(_lots(records, row_events, good, columns, names)), rejected

    def _place(
        self, connection: SinkConnection, rows: pa.Table, row_events: RowEvents, *, is_first: bool
    ) -> list[Rejected]:
        """Step 3."""
        if not len(rows):
            return []
        plan = self._sink.plan(connection, rows.schema)
        try:
            # With nothing before it, what fails is undone by beginning anew: a savepoint would cost every batch.
            with nullcontext() if is_first else connection.savepoint():
                connection.write(plan, rows)
                rejected = []
        except Rejection as rejection:
            if is_first:
                self._begin_anew(connection)
                plan = self._sink.plan(connection, rows.schema)  # a table that was made is to be made again
            rejected = connection.write_skipping_rejected(plan, rows, row_events, rejection)
            if rejected and connection.shape_of(plan.table) != plan.shape:
                raise altered(plan.table) from None  # now: what is rejected may be undone, and no commit asks
        self._written.append(plan)
        return rejected

    def _ending(self) -> CommitPlan:
        """Step 5."""
        return CommitPlan(
            self._written,
            [(partition.key, deduplicated.marks) for partition, deduplicated in self._deduplicated],
            [(move.checkpoint, move.partition.epoch) for move in self._moves],
        )

    def _commit(self, connection: SinkConnection) -> StoreError | None:
        """Step 6. Returns what went wrong where that leaves open whether it took effect."""
        failure: StoreError | None
        try:
            connection.commit(self._ending())
        except Exception as error:  # noqa: BLE001 - judged here, and raised unless it leaves the outcome open
            failure = connection.explain(error, self._sink.table)
            if not connection.is_commit_unknown:
                # Dying here leaves nothing: the database answered, and the answer was no.
                if connection.is_rejection(error):
                    raise RowsRejected(
                        f"{self._sink!r} refuses the commit: {error}", table=str(self._sink.table)
                    ) from None
                raise (failure or error) from None
            self._is_over = True
            self._end(connection, is_usable=False)
            return failure or StoreUnavailable(str(error))
        self._is_over = True
        self._end(connection, is_usable=True)
        return None

    def _settle(self, move: Move, failure: StoreError) -> None:
        """Learns what became of a commit without an answer, by taking the fence again.

        That waits for the lost transaction, should it still be going on, and then shows what it left.
        """
        partition = move.partition
        for attempt in range(SETTLE_ATTEMPTS_MAX):
            try:
                with self._sink.connection() as connection:
                    stored = connection.take_fence(partition.key, partition.epoch)
            except StoreUnavailable:
                self._sink.pause(SETTLE_SECONDS * 2**attempt)
                continue
            if _sequence(stored) == move.checkpoint.sequence_number:
                return
            raise StoreUnavailable(f"the commit of {partition.key} did not take effect: {failure}")
        raise StoreUnavailable(
            f"whether the commit of {partition.key} took effect shows at the next opening: {failure}"
        )

    def _end(self, connection: SinkConnection, *, is_usable: bool) -> None:
        self._connection = None
        if is_usable:
            self._sink.pool.give_back(connection)
        else:
            self._sink.pool.discard(connection)


_CONTROL = re.compile(
    r"(\s|--[^\n]*\n|/\*.*?\*/)*(BEGIN|START\s+TRANSACTION|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)


@contextmanager
def explained(connection: SinkConnection, table: TableName | None) -> Iterator[None]:
    """What a driver raises within becomes a StoreError, except where a value is to blame."""
    failure: StoreError | None = None
    try:
        yield
    except Exception as error:
        if not connection.is_rejection(error):
            failure = connection.explain(error, table)
        if failure is None:
            raise
    if failure is not None:
        # Raised out here: chained to the driver's error, a traceback would print whatever that one holds.
        raise failure


def _repeats(choice: Repeats | str | None) -> Repeats | None:
    try:
        return None if choice is None else Repeats(choice)
    except ValueError:
        raise ConfigError(f"drop_duplicates is {' or '.join(Repeats)}, and not {choice!r}") from None


def _sequence(checkpoint: Checkpoint | None) -> int | None:
    return None if checkpoint is None else checkpoint.sequence_number


def _known_units(rows: pa.Table) -> RowEvents:
    return _sequences(rows) if SEQUENCE_COLUMN in rows.column_names else np.zeros(len(rows), np.int64)


def _sequences(rows: pa.Table) -> RowEvents:
    column = rows.column(SEQUENCE_COLUMN)
    if column.null_count or not pa.types.is_integer(column.type):
        raise SinkError(f"the rows' column {SEQUENCE_COLUMN!r} tells of which event each came: a whole number in each")
    return np.asarray(column.cast(pa.int64()).combine_chunks().to_numpy(zero_copy_only=False), np.int64)


def _lots(
    records: Sequence[Mapping[str, Any]],
    row_events: RowEvents,
    good: list[list[int]],
    columns: Sequence[Column],
    names: Sequence[str],
) -> Iterator[Chunk]:
    """The records of events, by their places, in as few chunks as make columns: 1 and 'a' need two.

    All have the same columns: whether a field that is missing is null, or what the table has in its place, does not
    depend on the types of others.
    """
    if not good:
        return
    places = [place for unit in good for place in unit]
    try:
        yield tabled([records[place] for place in places], columns, names), row_events[places]
    except Rejection:
        half = len(good) // 2
        yield from _lots(records, row_events, good[:half], columns, names)
        yield from _lots(records, row_events, good[half:], columns, names)


def _in_order(rows: pa.Table, row_events: RowEvents) -> tuple[pa.Table, RowEvents]:
    """Rows in the order of their events, which is the order in which they count."""
    if len(row_events) < 2 or bool(np.all(row_events[:-1] <= row_events[1:])):
        return rows, row_events
    order = np.argsort(row_events, kind="stable")
    return rows.take(pa.array(order)), row_events[order]
