"""A transaction of a sink: it begins when it is first used, and is committed or undone by the part that made it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hubline.errors import RowsRejected, SinkError, StoreError, StoreUnavailable
from hubline.model.dead_letters import DeadLetter
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.connection import CommitPlan, FenceState, Parameters, SinkConnection, explained, undone
from hubline.sinks.sql_sink.database import SinkDatabase
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch, Deduplication
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents
from hubline.sinks.sql_sink.row_writer import Rows, RowWriter
from hubline.sql.dialect import Row
from hubline.text import sentences

if TYPE_CHECKING:
    from hubline.sinks.sql_sink.opened_partition import OpenedPartition

_CONTROL = re.compile(
    r"(\s|--[^\n]*\n|/\*.*?\*/)*(BEGIN|START\s+TRANSACTION|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)


class Transaction(ABC):
    """A transaction in the sink's database, for one thread at a time.

    A handler gets it as `tx`; the processor commits it after the handler returns. `SqlSink.transaction` makes one; use
    it as a context manager, which commits at the end and rolls back after an error. After that, every method raises
    SinkError.

    The transaction begins when you first use it, by locking the checkpoints of its partitions. From then on a new owner
    waits for its end, and on SQLite every other writer: keep it short.

    Args:
        database: The sink's database.
        keys: The partitions that it locks.

    Example:
        @processor.on_batch
        def handle(batch, partition, tx):
            tx.execute("UPDATE totals SET events = events + ?", (len(batch),))
    """

    def __init__(self, database: SinkDatabase, keys: Sequence[PartitionKey]) -> None:
        self._database = database
        self._keys = keys
        self._connection: SinkConnection | None = None
        self._is_over = False
        self._rows = RowWriter(database.plans, shown=str(database))

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
    def rejected(self) -> list[Rejected]:
        """The events whose rows the database rejected. None of their rows are written."""
        return self._rows.rejected

    def execute(self, query: str, params: Parameters = ()) -> list[Row]:
        """Runs one SQL statement and returns its rows, if it has any.

        Args:
            query: The statement.
            params: Its values, for the driver's placeholders: `%s` in PostgreSQL, `?` in SQLite.

        Raises:
            SinkError: The statement would begin or end a transaction, or the transaction is over.
            StoreError: The database failed; no event is to blame. If a value or a constraint is to blame, the driver's
                own error is raised, and the transaction can only be undone, or its savepoint.
        """
        if _CONTROL.match(query):
            raise SinkError("hubline begins and ends the transaction. Leave out BEGIN, COMMIT, ROLLBACK and the like.")
        connection = self._begun()
        with explained(connection, None):
            rows = connection.execute(query, params)
        if not connection.is_in_transaction:
            raise SinkError("a statement ended the transaction, which hubline does. Remove that statement.")
        return rows

    def insert(self, rows: Rows, *, row_events: RowEvents | None = None) -> None:
        """Writes rows to the sink's table. Events whose rows the database rejects are added to `rejected`.

        Args:
            rows: An Arrow table or batch, or dictionaries. A column `sequenceNumber` names the event of each row.
            row_events: The event of each row, if no column names it.

        Raises:
            RowsRejected: The database rejects rows, and neither a column nor `row_events` names their events. None of
                them is written.
            SinkError: The columns do not fit the table, or the sink has no table.
        """
        if not len(rows):
            return
        restart = self._restart if self._connection is None else None
        connection = self._begun()
        with explained(connection, self._database.settings.table):
            self._rows.insert(connection, rows, row_events=row_events, restart=restart)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undoes what is done within if it raises, and raises the error. What was done before stays."""
        undo_rows = self._rows.savepoint()
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
            undo_rows()
            raise

    @abstractmethod
    def dead_letter(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Keeps events that failed as dead letters.

        Args:
            dead_letters: Make each with `DeadLetter.of`.
        """

    @abstractmethod
    def resolve_dead_letters(self, partition: OpenedPartition, sequences: RowEvents) -> None:
        """Marks the dead letters that wait for these events as done, before `dead_letter` adds those that failed now.

        There are such after the checkpoint was moved back: the events are replayed, and no redrive must run them too.

        Args:
            partition: Their partition.
            sequences: Their sequence numbers, ascending.
        """

    @abstractmethod
    def record_ids(self, partition: OpenedPartition, deduplicated: DeduplicatedBatch | Deduplication) -> bool:
        """Store the ids of a batch that was deduplicated.

        Args:
            partition: The partition.
            deduplicated: What `OpenedPartition.deduplicate` returned.

        Returns:
            False if another partition has taken one of the ids meanwhile: roll back, and deduplicate the batch again.
        """

    @abstractmethod
    def end_at(self, checkpoint: Checkpoint) -> None:
        """Moves a partition only as far as this, not as far as was planned.

        Args:
            checkpoint: The last event that was handled: after the partition's checkpoint.
        """

    @abstractmethod
    def commit(self) -> None:
        """Commits, or undoes everything and raises."""

    def rollback(self) -> None:
        """Undoes everything. Does not raise."""
        self._is_over = True
        self._undo()

    # What each kind of transaction does in its own way

    @abstractmethod
    def _on_locked(self, connection: SinkConnection, found: Sequence[FenceState]) -> None:
        """Called once the transaction has begun and has locked the checkpoints of its keys, which stand as `found`."""

    def _commit_plan(self) -> CommitPlan:
        """What the transaction ends with."""
        return CommitPlan(self._rows.written, (), ())

    def _on_undone(self) -> None:  # noqa: B027 - nothing, where nothing else is kept
        """Called when everything is undone: the transaction may be used again, from its beginning."""

    # The life of the connection

    def _begun(self) -> SinkConnection:
        """The connection, in the transaction, with its locks."""
        if self._connection is not None:
            if self._connection.is_undone:
                raise undone()
            return self._connection
        if self._is_over:
            # Begun again, nobody would commit it, and it would hold the checkpoint row.
            raise SinkError(
                "the transaction has ended: hubline commits it when the handler returns, and rolls it back "
                "when the handler fails. Use tx before that, and await it in an async handler."
            )
        connection = self._database.borrow()
        self._connection = connection
        try:
            with explained(connection, None):
                self._on_locked(connection, connection.begin(self._keys))
        except BaseException:
            self._undo()
            raise
        return connection

    def _restart(self, connection: SinkConnection) -> None:
        """Begins again with the same connection, where nothing is in the transaction that has to stay."""
        try:
            self._on_locked(connection, connection.begin_again(self._keys))
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        """Like a rollback, and the transaction may be used again, from its beginning."""
        self._rows.clear()
        self._on_undone()
        self._database.plans.forget()  # whatever went wrong, the table may be another one by now
        if (connection := self._connection) is None:
            return
        try:
            connection.rollback()
        except Exception:  # noqa: BLE001 - a connection that is gone rolls back by itself
            self._end(connection, is_usable=False)
        else:
            self._end(connection, is_usable=True)

    def _commit(self, connection: SinkConnection) -> StoreError | None:
        """Step 6. Returns what went wrong where that leaves open whether it took effect."""
        failure: StoreError | None
        try:
            connection.commit(self._commit_plan())
        except Exception as error:  # noqa: BLE001 - judged here, and raised unless it leaves the outcome open
            failure = connection.explain(error, self._database.settings.table)
            if not connection.is_commit_unknown:
                # Dying here leaves nothing: the database answered, and the answer was no.
                if connection.is_rejection(error):
                    problem = f"{self._database} refuses the commit: {error}"
                    fix = "fix the rows, or the constraint that is checked at the commit"
                    raise RowsRejected(sentences(problem, fix), table=str(self._database.settings.table)) from None
                raise (failure or error) from None
            self._is_over = True
            self._end(connection, is_usable=False)
            return failure or StoreUnavailable(sentences(str(error), "try again"))
        self._is_over = True
        self._end(connection, is_usable=True)
        return None

    def _end(self, connection: SinkConnection, *, is_usable: bool) -> None:
        self._connection = None
        if is_usable:
            self._database.pool.give_back(connection)
        else:
            self._database.pool.discard(connection)
