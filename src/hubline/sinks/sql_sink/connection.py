"""A connection of a sink: what both databases do, and what each does in its own way.

All of this is synchronous; a connection is used by one thread at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from hubline.errors import SinkError, StoreError
from hubline.model.dead_letters import DeadLetter
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.deduplication import HighWaterMarks
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents, insert_skipping_rejected
from hubline.sinks.sql_sink.table_schema import (
    Column,
    Plan,
    Rejection,
    TableName,
    Target,
    family,
    insertion,
    quoted,
    read_array,
)
from hubline.sql.checkpoint_rows import of_checkpoint, of_group, of_partition, read_checkpoint
from hubline.sql.dead_letter_table import DeadLetterRow
from hubline.sql.dialect import Connection, Database, Dialect, Row, Statement
from hubline.sql.fence import NOBODY, take_fence
from hubline.sql.queries import Queries

Parameters = Sequence[Any] | Mapping[str, Any]
"""Values for a person's own statement, of any type that the driver takes."""


Opened = TypeVar("Opened", bound=Connection, covariant=True)


class DatabaseOf(Database, Protocol[Opened]):
    """A database whose connections are of a known kind."""

    def connect(self) -> Opened: ...


def connected(database: DatabaseOf[Opened]) -> Opened:
    """A connection whose schema is current. Raises a StoreError where it cannot be made."""
    try:
        return database.connect()
    except Exception as error:
        failure = database.explain(error)
        if failure is None:
            raise
    # Raised out here: chained to the driver's error, a traceback would print whatever that one holds.
    raise failure


FenceState: TypeAlias = tuple[int, Checkpoint | None]
"""Which epoch holds a partition's fence, and where its checkpoint stands."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What a transaction ends with: what must still hold, and what takes effect with its commit."""

    written: Sequence[Plan]
    """How rows were written: their tables must still be what they were compared with. Nobody can alter them any more,
    and another type of the same width would have taken the bytes, and made other values of them."""
    marks: Sequence[tuple[PartitionKey, HighWaterMarks]]
    checkpoints: Sequence[tuple[Checkpoint, int]]
    """How far each partition comes, and the epoch that holds it."""


class SinkConnection(ABC):
    """One connection. What it raises of the driver's, :meth:`explain` turns into what a caller can act on."""

    dialect: Dialect
    queries: Queries

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    # The partition's checkpoint, which is its fence

    def take_fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        """By itself, in a transaction of one statement. Waits for one that holds the row, and sees what it left."""
        return take_fence(self._connection, self.queries, key, epoch=epoch)

    def end_stalled(self, key: PartitionKey, *, seconds_max: float) -> None:  # noqa: B027 - nothing, where it cannot be
        """Ends a transaction that has held the checkpoint row for longer than any may: its owner does not go on."""

    def read_fence(self, key: PartitionKey) -> FenceState:
        """As it stands; it may be another one a moment later."""
        return self._held(key, self.queries.read_checkpoint)

    def _held(self, key: PartitionKey, query: str) -> FenceState:
        rows = self._connection.read(Statement(query, of_partition(key)))
        return read_checkpoint(key, rows[0]) if rows else (NOBODY, None)

    # Transactions

    @abstractmethod
    def begin(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        """Begins a transaction and locks checkpoints: nobody else can move them or take their fences until its end."""

    def begin_anew(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        """Undoes the transaction, in which a row was rejected and nothing else went wrong, and begins another."""
        self.rollback()
        return self.begin(keys)

    @abstractmethod
    def commit(self, ending: CommitPlan) -> None:
        """Commits, if all of the ending holds; else raises SinkError, and the transaction is still to be rolled back.

        PostgreSQL is told so in one message: this process may be frozen at any moment, and what it has not said by
        then it would say with its locks held.
        """

    @abstractmethod
    def rollback(self) -> None: ...

    @property
    @abstractmethod
    def is_in_transaction(self) -> bool: ...

    @property
    @abstractmethod
    def is_commit_unknown(self) -> bool:
        """After a commit that failed: whether it may have taken effect all the same."""

    @property
    def is_undone(self) -> bool:
        """Whether the database itself ended the transaction and would commit what follows, statement by statement."""
        return False

    @abstractmethod
    def is_rejection(self, error: Exception) -> bool:
        """Whether a value, or the row it is in, is to blame for a driver's error."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What fails in it is undone; what came before it in the transaction stays."""
        self._statement("SAVEPOINT hubline")
        try:
            yield
        except BaseException as error:
            self._forget_undone()
            if self.is_in_transaction:  # else the database itself undid everything, or is gone
                self._undo_savepoint()
            elif self.is_undone and isinstance(error, Rejection):
                raise undone() from None  # with the rows before it, and the next ones would be tried
            raise
        self._statement("RELEASE SAVEPOINT hubline")

    def _undo_savepoint(self) -> None:
        self._statement("ROLLBACK TO SAVEPOINT hubline")
        self._statement("RELEASE SAVEPOINT hubline")

    def _forget_undone(self) -> None:  # noqa: B027 - nothing, where nothing is kept
        """What was made in the transaction may be gone with what is undone now."""

    @abstractmethod
    def execute(self, query: str, params: Parameters) -> list[Row]:
        """A person's own statement, one, with the driver's own placeholders."""

    # Rows

    @abstractmethod
    def columns_of(self, table: TableName, *, and_generated: bool = False) -> list[Column]:
        """The columns that can be written, and those that the database makes itself; none if there is no such table."""

    def read_table(self, table: TableName, *, rows_max: int) -> pa.Table:
        """Rows of a table, with types by its columns and not by what is in them. Raises SinkError for other values."""
        columns = self.columns_of(table, and_generated=True)
        kinds = [self._read_as(column) for column in columns]
        chosen = [
            f"CAST({quoted(column.name)} AS text)" if kind == "text" else quoted(column.name)
            for column, kind in zip(columns, kinds, strict=True)
        ]
        rows: list[Any] = self.execute(f"SELECT {', '.join(chosen)} FROM {table.quoted} LIMIT {rows_max}", ())  # noqa: S608 - names are quoted
        values = zip(*rows, strict=True) if rows else [()] * len(columns)
        arrays = [read_array(*each, table=table) for each in zip(columns, kinds, values, strict=True)]
        return pa.Table.from_arrays(arrays, names=[column.name for column in columns])

    @abstractmethod
    def _read_as(self, column: Column) -> Target:
        """The type that a column is read as; text where there is no better; as is where the database tells none."""

    def create_table(self, table: TableName, schema: pa.Schema, *, key: tuple[str, ...]) -> None:
        """Makes the table of a schema, unless it is there by now. In a transaction, beside others that do so too."""
        self._statement(self.creation(table, schema, key=key))

    def creation(self, table: TableName, schema: pa.Schema, *, key: tuple[str, ...]) -> str:
        """The statement that makes the table of a schema, unless it is there."""
        columns = [f"{quoted(field.name)} {self._created_as(family(field.type))}" for field in schema]
        # SQLite would take rows without a key, each as another one.
        columns = [
            f"{column} NOT NULL" if name in key else column for name, column in zip(schema.names, columns, strict=True)
        ]
        if key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        return f"CREATE TABLE IF NOT EXISTS {table.quoted} ({', '.join(columns)})"

    @abstractmethod
    def _created_as(self, kind: str) -> str:
        """The type of a column for a family of Arrow types."""

    def explain_insert(self, plan: Plan) -> None:
        """Has the database look at an insertion without doing it. What it would say to rows, it says now."""
        nothing = ", ".join("NULL" for _ in plan.names)
        self._statement(f"EXPLAIN {insertion(plan, f'VALUES ({nothing})')}")

    @abstractmethod
    def write(self, plan: Plan, rows: pa.Table) -> None:
        """Writes rows, all of them. Raises Rejection where one is to blame: then there is some of it to undo."""

    def write_skipping_rejected(
        self, plan: Plan, rows: pa.Table, row_events: RowEvents, rejection: Rejection
    ) -> list[Rejected]:
        """Writes the rows of every event that the database takes; returns the others.

        ``rejection`` is what was said to all of them together. What the transaction had before stays.
        """
        known = iter([rejection])

        def attempt(part: pa.Table) -> None:
            if (said := next(known, None)) is not None:
                raise said
            with self.savepoint():
                self.write(plan, part)

        return insert_skipping_rejected(rows, row_events, attempt)

    @abstractmethod
    def shape_of(self, table: TableName) -> str | None:
        """What changes with the columns and types of a table, as rows are compared with them; None without a table."""

    def is_current(self, plan: Plan) -> bool:  # noqa: ARG002 - a round trip for each batch: the commit finds out
        """Within a transaction: whether a plan still fits its table, where that is known before rows are written."""
        return True

    # Dead letters

    @abstractmethod
    def write_dead_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        """Adds letters of events that have none."""

    def waiting_keys(self, key: PartitionKey, *, last_sequence: int) -> set[str]:
        """The partition keys that have a letter waiting, of an event up to this one."""
        params = {**of_partition(key), "last_sequence": last_sequence}
        rows = self._connection.read(Statement(self.queries.waiting_keys, params))
        return {str(partition_key) for (partition_key,) in rows}

    def waiting_letters(self, key: PartitionKey, *, first_sequence: int, last_sequence: int) -> list[int]:
        params = {**of_partition(key), "first_sequence": first_sequence, "last_sequence": last_sequence}
        rows: Any = self._connection.read(Statement(self.queries.waiting_letters, params))
        return [sequence for (sequence,) in rows]

    def settle_letter(self, key: PartitionKey, sequence: int) -> None:
        params = {**of_partition(key), "sequence_number": sequence}
        self._connection.read(Statement(self.queries.settle_letter, params))

    def last_letter(self, key: PartitionKey) -> int:
        """The newest event of the partition that has a letter, whatever became of it; -1 if there is none."""
        ((sequence,),) = self._connection.read(Statement(self.queries.last_letter, of_partition(key)))
        return sequence if isinstance(sequence, int) else -1

    def remove_letter(self, key: PartitionKey, sequence: int) -> None:
        params = {**of_partition(key), "sequence_number": sequence}
        self._connection.read(Statement(self.queries.remove_letter, params))

    def add_letters(self, letters: Iterable[DeadLetter], *, keep_dead_letter_bodies: bool) -> None:
        self.write_dead_letters(
            [DeadLetterRow.of(letter, keep_dead_letter_bodies=keep_dead_letter_bodies) for letter in letters]
        )

    # Ids of events that came from an earlier stage

    def read_marks(self, key: PartitionKey) -> HighWaterMarks:
        rows: Any = self._connection.read(Statement(self.queries.read_origins, of_partition(key)))
        return {origin: (sequence, index) for origin, sequence, index in rows}

    def _markings(self, ending: CommitPlan) -> Iterator[Statement]:
        for key, marks in ending.marks:
            for origin, (sequence, index) in marks.items():
                params = {**of_partition(key), "origin": origin, "sequence_number": sequence, "output_index": index}
                yield Statement(self.queries.write_origin, params)

    def _advances(self, ending: CommitPlan) -> Iterator[Statement]:
        """Each gives a row; none where the epoch does not hold the checkpoint, or it is as far already."""
        for checkpoint, epoch in ending.checkpoints:
            params = {**of_checkpoint(checkpoint.key, checkpoint), "epoch": epoch}
            yield Statement(self.queries.update_checkpoint, params)

    def known_ids(self, group: GroupKey, ids: Sequence[str]) -> set[str]:
        rows = self._connection.read(Statement(self.queries.known_ids, {**of_group(group), "texts": json.dumps(ids)}))
        return {str(known) for (known,) in rows}

    def add_ids(self, group: GroupKey, ids: Sequence[str]) -> int:
        """How many of them were not there yet."""
        params = {**of_group(group), "texts": json.dumps(ids)}
        return len(self._connection.read(Statement(self.queries.add_ids, params)))

    def forget_ids(self, group: GroupKey, *, age_seconds_max: float) -> None:
        params = {**of_group(group), "age_seconds_max": age_seconds_max}
        self._connection.read(Statement(self.queries.forget_ids, params))

    # Life

    def explain(self, error: Exception, table: TableName | None) -> StoreError | None:
        """What a driver's error means for a caller, with what to do about it; None if it is no driver's."""
        if table is not None and (why := self._table_trouble(error)) is not None:
            return SinkError(f"table {table} cannot take the rows: {why}", table=str(table))
        return self._database.explain(error)

    def is_usable(self) -> bool:
        return self._connection.is_usable()

    def cut(self) -> None:
        self._connection.cut()

    def close(self) -> None:
        self._connection.close()

    @abstractmethod
    def _statement(self, text: str) -> None: ...

    @abstractmethod
    def _table_trouble(self, error: Exception) -> str | None:
        """Why the sink's table, rather than the database, is to blame for an error."""


class Altered(SinkError):
    """A table is not what it was when rows were compared with it. Nothing was written; another try compares anew."""


def altered(table: TableName) -> Altered:
    return Altered(f"table {table} was altered: nothing was written", table=str(table))


def undone() -> SinkError:
    return SinkError(
        "the database undid the whole transaction when it rejected a value: nothing was written. Take ON CONFLICT "
        "ROLLBACK from the table's constraints, and make RAISE(ABORT, ...) of its triggers' RAISE(ROLLBACK, ...)"
    )


def checkpoint_gone() -> SinkError:
    return SinkError("a checkpoint row that this transaction had locked is gone: a statement of its own deleted it")
