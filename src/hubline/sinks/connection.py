"""A connection of a sink: what both databases do, and what each does in its own way.

All of this is synchronous; a connection is used by one thread at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from hubline.errors import SinkError, StoreError
from hubline.model import Checkpoint, DeadLetter, GroupKey, PartitionKey
from hubline.sinks.letters import LetterRow
from hubline.sinks.repeats import Marks
from hubline.sinks.tables import Column, Plan, TableName
from hubline.stores.fencing import NOBODY
from hubline.stores.sql.database import Connection, Database, Row, Statement
from hubline.stores.sql.queries import Queries
from hubline.stores.sql.records import read_checkpoint
from hubline.stores.sql.store import of_checkpoint, of_group, of_partition, take_fence

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


class SinkConnection(ABC):
    """One connection. What it raises of the driver's, :meth:`explain` turns into what a caller can act on."""

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

    def lock_checkpoint(self, key: PartitionKey) -> tuple[int, Checkpoint | None]:
        """Who holds the fence, and where the checkpoint stands: nobody else can change either any more."""
        rows = self._connection.read(Statement(self.queries.lock_checkpoint, of_partition(key)))
        return read_checkpoint(key, rows[0]) if rows else (NOBODY, None)

    def advance(self, checkpoint: Checkpoint, *, epoch: int) -> bool:
        """Moves the checkpoint forward; False if the epoch does not hold it, or it is as far already."""
        params = {**of_checkpoint(checkpoint.key, checkpoint), "epoch": epoch}
        return bool(self._connection.read(Statement(self.queries.update_checkpoint, params)))

    # Transactions

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @property
    @abstractmethod
    def is_in_transaction(self) -> bool: ...

    @property
    @abstractmethod
    def is_commit_unknown(self) -> bool:
        """After a commit that failed: whether it may have taken effect all the same."""

    @abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Whether a value, or the row it is in, is to blame for a driver's error."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What fails in it is undone; what came before it in the transaction stays."""
        self._statement("SAVEPOINT hubline")
        try:
            yield
        except BaseException:
            self._forget_undone()
            if self.is_in_transaction:  # else the database itself undid everything, or is gone
                self._statement("ROLLBACK TO SAVEPOINT hubline")
                self._statement("RELEASE SAVEPOINT hubline")
            raise
        self._statement("RELEASE SAVEPOINT hubline")

    def _forget_undone(self) -> None:  # noqa: B027 - nothing, where nothing is kept
        """What was made in the transaction may be gone with what is undone now."""

    @abstractmethod
    def execute(self, query: str, params: Parameters) -> list[Row]:
        """A person's own statement, one, with the driver's own placeholders."""

    # Rows

    @abstractmethod
    def columns_of(self, table: TableName) -> list[Column]:
        """The columns that can be written; none if there is no such table."""

    @abstractmethod
    def create_table(self, table: TableName, schema: pa.Schema, *, key: tuple[str, ...]) -> None:
        """Makes the table of a schema, unless it is there by now. In a transaction, beside others that do so too."""

    def prepare(self, plan: Plan) -> None:  # noqa: B027 - nothing, where nothing is needed
        """What :meth:`write` needs in its transaction. Called before the savepoints in which it writes."""

    @abstractmethod
    def write(self, plan: Plan, rows: pa.Table) -> None:
        """Writes rows that were fitted, all or none of them. Raises Refusal where a row is to blame."""

    def is_as_planned(self, plan: Plan) -> bool:
        """Whether the table is still what it was when the rows were compared with it.

        Asked after writing to it, when nobody can alter it any more: another type of the same width would take the
        bytes, and make other values of them.
        """
        return self.shape_of(plan.table) == plan.shape

    def shape_of(self, table: TableName) -> object:  # noqa: ARG002 - of no use where types cannot be altered
        """What changes with the columns and types of a table; asked with every commit, and cheap."""
        return None

    # Dead letters

    @abstractmethod
    def write_letters(self, rows: Sequence[LetterRow]) -> None:
        """Adds letters of events that have none."""

    def waiting_keys(self, key: PartitionKey) -> set[str]:
        """The partition keys that have a letter waiting."""
        rows = self._connection.read(Statement(self.queries.waiting_keys, of_partition(key)))
        return {str(partition_key) for (partition_key,) in rows}

    def last_letter(self, key: PartitionKey) -> int:
        """The newest event of the partition that has a letter, whatever became of it; -1 if there is none."""
        ((sequence,),) = self._connection.read(Statement(self.queries.last_letter, of_partition(key)))
        return sequence if isinstance(sequence, int) else -1

    def remove_letter(self, key: PartitionKey, sequence: int) -> None:
        params = {**of_partition(key), "sequence_number": sequence}
        self._connection.read(Statement(self.queries.remove_letter, params))

    def add_letters(self, letters: Iterable[DeadLetter], *, keep_body: bool) -> None:
        self.write_letters([LetterRow.of(letter, keep_body=keep_body) for letter in letters])

    # Ids of events that came from an earlier stage

    def read_marks(self, key: PartitionKey) -> Marks:
        rows: Any = self._connection.read(Statement(self.queries.read_origins, of_partition(key)))
        return {origin: (sequence, index) for origin, sequence, index in rows}

    def write_marks(self, key: PartitionKey, marks: Marks) -> None:
        for origin, (sequence, index) in marks.items():
            params = {**of_partition(key), "origin": origin, "sequence_number": sequence, "output_index": index}
            self._connection.read(Statement(self.queries.write_origin, params))

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
