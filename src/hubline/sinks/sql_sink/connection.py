"""A connection of a sink: what both databases do, and what each does in its own way.

All of this is synchronous; a connection is used by one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from hubline.errors import SinkError, StoreError
from hubline.model.dead_letters import DeadLetter
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.deduplication import HighWaterMarks, IdTable
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents, insert_skipping_rejected
from hubline.sinks.sql_sink.table_schema import InsertPlan, Rejection, TableName, insertion
from hubline.sinks.sql_sink.tables import Tables
from hubline.sql.checkpoint_rows import of_checkpoint, of_partition, read_checkpoint
from hubline.sql.dead_letter_table import DeadLetterRow, DeadLetterTable
from hubline.sql.dialect import Connection, Database, Dialect, Row, Statement
from hubline.sql.fence import NOBODY, take_fence
from hubline.sql.queries import Queries

Parameters = Sequence[Any] | Mapping[str, Any]
"""Values for a person's own statement, of any type that the driver takes."""


FenceState: TypeAlias = tuple[int, Checkpoint | None]
"""Which epoch holds a partition's fence, and where its checkpoint stands."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What a transaction ends with: what must still hold, and what takes effect with its commit."""

    written: Sequence[InsertPlan]
    """How rows were written: their tables must still be what they were compared with. Nobody can alter them any more,
    and another type of the same width would have taken the bytes, and made other values of them."""
    marks: Sequence[tuple[PartitionKey, HighWaterMarks]]
    checkpoints: Sequence[tuple[Checkpoint, int]]
    """How far each partition comes, and the epoch that holds it."""


class SinkConnection(ABC):
    """One connection. What it raises of the driver's, :meth:`explain` turns into what a caller can act on."""

    dialect: ClassVar[Dialect]
    queries: ClassVar[Queries]
    tables: Tables

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection
        self.dead_letters = DeadLetterTable(connection, self.queries)
        self.ids = IdTable(connection, self.queries)

    # The partition's checkpoint, which is its fence

    def take_fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        """By itself, in a transaction of one statement. Waits for one that holds the row, and sees what it left."""
        return take_fence(self._connection, self.queries, key, epoch=epoch)

    def end_stalled(self, key: PartitionKey, *, seconds_max: float) -> None:  # noqa: B027 - nothing, where it cannot be
        """Ends a transaction that has held the checkpoint row for longer than any may: its owner does not continue."""

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

    def begin_again(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        """Undoes the transaction, in which a row was rejected and nothing else went wrong, and begins another."""
        self.rollback()
        return self.begin(keys)

    @abstractmethod
    def commit(self, plan: CommitPlan) -> None:
        """Commits, if all of the plan holds; else raises SinkError, and the transaction is still to be rolled back.

        PostgreSQL gets this in one message: this process may be frozen at any moment, and what it has not said by
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

    def explain_insert(self, plan: InsertPlan) -> None:
        """Has the database look at an insertion without doing it. What it would say to rows, it says now."""
        nothing = ", ".join("NULL" for _ in plan.names)
        self._statement(f"EXPLAIN {insertion(plan, f'VALUES ({nothing})')}")

    @abstractmethod
    def write(self, plan: InsertPlan, rows: pa.Table) -> None:
        """Writes rows, all of them. Raises Rejection where one is to blame: then there is some of it to undo."""

    def write_skipping_rejected(
        self, plan: InsertPlan, rows: pa.Table, row_events: RowEvents, rejection: Rejection
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

    def is_current(self, plan: InsertPlan) -> bool:  # noqa: ARG002 - a round trip for each batch: the commit finds out
        """Within a transaction: whether a plan still fits its table, where that is known before rows are written."""
        return True

    # Dead letters

    @abstractmethod
    def write_dead_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        """Adds dead letters of events that have none."""

    def add_dead_letters(self, dead_letters: Iterable[DeadLetter], *, keep_bodies: bool) -> None:
        self.write_dead_letters([DeadLetterRow.of(each, keep_body=keep_bodies) for each in dead_letters])

    # The ending of a transaction

    def _markings(self, plan: CommitPlan) -> Iterator[Statement]:
        for key, marks in plan.marks:
            yield from self.ids.mark_statements(key, marks)

    def _advances(self, plan: CommitPlan) -> Iterator[Statement]:
        """Each gives a row; none where the epoch does not hold the checkpoint, or it is as far already."""
        for checkpoint, epoch in plan.checkpoints:
            params = {**of_checkpoint(checkpoint.key, checkpoint), "epoch": epoch}
            yield Statement(self.queries.update_checkpoint, params)

    # Its life

    def explain(self, error: Exception, table: TableName | None) -> StoreError | None:
        """What a driver's error means for a caller, with what to do about it; None if it is not one."""
        if table is not None and (reason := self._table_trouble(error)) is not None:
            return SinkError(f"table {table} cannot take the rows: {reason}", table=str(table))
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
    """A table is not what it was when rows were compared with it. Nothing was written; another attempt compares them
    again."""


def altered(table: TableName) -> Altered:
    return Altered(
        f"table {table} was altered while rows were being written. Nothing was written. hubline tries again.",
        table=str(table),
    )


def undone() -> SinkError:
    return SinkError(
        "the database undid the whole transaction when it rejected a value: nothing was written. "
        "Remove ON CONFLICT ROLLBACK from the table's constraints, and replace RAISE(ROLLBACK, ...) in "
        "its triggers by RAISE(ABORT, ...)."
    )


def checkpoint_gone() -> SinkError:
    return SinkError(
        "a statement of this transaction deleted its checkpoint row. Nothing was written. Remove "
        "statements that change the tables hubline_*."
    )


@contextmanager
def explained(connection: SinkConnection, table: TableName | None) -> Iterator[None]:
    """Turns what a driver raises within into a StoreError, except where a value is to blame."""
    try:
        yield
    except Exception as error:
        failure = None if connection.is_rejection(error) else connection.explain(error, table)
        if failure is None:
            raise
        # With the driver's error before it, a traceback would print whatever that one holds.
        raise failure from None
