"""Rows into SQLite: one prepared statement, run for each row by the driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from hubline.model.keys import PartitionKey
from hubline.sinks.sql_sink.connection import (
    CommitPlan,
    FenceState,
    Parameters,
    SinkConnection,
    checkpoint_gone,
)
from hubline.sinks.sql_sink.sqlite_tables import SqliteTables
from hubline.sinks.sql_sink.table_schema import InsertPlan, Rejection, insertion
from hubline.sql.dead_letter_table import COLUMNS, DeadLetterRow, micros
from hubline.sql.dialect import Row
from hubline.sql.driver_errors import call_explained
from hubline.sql.sqlite import DIALECT, NOW, QUERIES, SqliteConnection, SqliteDatabase
from hubline.text import sentences

_INSERT_DEAD_LETTER = (
    f"INSERT INTO hubline_dead_letter ({', '.join(COLUMNS)}, failed_at) "  # noqa: S608 - constants
    f"VALUES ({', '.join('?' * len(COLUMNS))}, {NOW})"
)


_REFUSALS = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeError)


class SqliteSinkConnection(SinkConnection):
    """A :class:`~hubline.sinks.sql_sink.connection.SinkConnection` of SQLite."""

    dialect = DIALECT
    queries = QUERIES

    def __init__(self, database: SqliteDatabase, connection: SqliteConnection) -> None:
        self.tables = SqliteTables(connection)
        super().__init__(database, connection)
        self._driver = connection.driver

    @classmethod
    def connect(cls, path: Path) -> Self:
        database = SqliteDatabase(path)
        return cls(database, call_explained(database.connect, database.explain))

    @property
    def is_commit_unknown(self) -> bool:
        return not self.is_in_transaction  # still in it, it was not committed

    def is_rejection(self, error: Exception) -> bool:
        return isinstance(error, _REFUSALS)

    @property
    def is_in_transaction(self) -> bool:
        return self._driver.in_transaction

    @property
    def is_undone(self) -> bool:
        return not self.is_in_transaction

    def begin(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        # IMMEDIATE: one that starts by reading fails at its first write if another one wrote meanwhile.
        self._statement("BEGIN IMMEDIATE")
        return [self._held(key, self.queries.lock_checkpoint) for key in keys]

    def commit(self, plan: CommitPlan) -> None:
        for marking in self._markings(plan):
            self._connection.read(marking)
        if not all(self._connection.read(advance) for advance in self._advances(plan)):
            raise checkpoint_gone()
        self._statement("COMMIT")

    def rollback(self) -> None:
        if self.is_in_transaction:
            self._statement("ROLLBACK")

    def execute(self, query: str, params: Parameters) -> list[Row]:
        return self._driver.execute(query, params).fetchall()

    def is_current(self, plan: InsertPlan) -> bool:
        # Nobody can alter the table before this transaction ends. Of one that is gone, the insertion tells.
        return self.tables.shape(plan.table) in (plan.shape, None)

    def write(self, plan: InsertPlan, rows: pa.Table) -> None:
        rows, count = plan.fitted(rows), 0
        _require_key(plan, rows)

        def records() -> Iterator[tuple[object, ...]]:
            nonlocal count
            for record in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                count += 1
                yield record

        places = ", ".join("?" * len(plan.names))
        try:
            self._driver.executemany(insertion(plan, f"VALUES ({places})"), records())
        except _REFUSALS as error:
            raise Rejection(str(error), kind=type(error).__name__, row=count - 1 if count else None) from None

    def write_dead_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        records = (tuple(micros(v) if isinstance(v, datetime) else v for v in row) for row in rows)
        self._driver.executemany(_INSERT_DEAD_LETTER, records)

    def _statement(self, text: str) -> None:
        self._driver.execute(text)

    def _table_trouble(self, error: Exception) -> str | None:
        if not isinstance(error, sqlite3.OperationalError):
            return None
        text = str(error)
        for words, (problem, fix) in _TABLE_TROUBLES.items():
            if words in text:
                return sentences(f"{problem} ({text})", fix)
        return None


def _require_key(plan: InsertPlan, rows: pa.Table) -> None:
    """Refuses a null for which SQLite would make up a number, as it does in an INTEGER PRIMARY KEY: a later row with
    that number would take its place."""
    if len(plan.key) != 1 or not rows.column(plan.key[0]).null_count:
        return
    (column,) = (column for column in plan.columns if column.name == plan.key[0])
    if column.is_numbered:
        row = pc.index(rows.column(column.name).is_null(), value=True).as_py()
        raise Rejection(f"the key {column.name!r} is null", kind=sqlite3.IntegrityError.__name__, row=row)


# SQLite has one code for all of these.
_COLUMN_MISSING = "a column is missing, because the table was altered"
_START_AGAIN = "add it again, or start the program again"
_TABLE_TROUBLES = {
    "no such table": ("there is no such table", "create it, or open the sink with create_table=True"),
    "has no column named": (_COLUMN_MISSING, _START_AGAIN),
    "no such column": (_COLUMN_MISSING, _START_AGAIN),
    "ON CONFLICT clause does not match": ("no unique index matches the key", "create one on exactly these columns"),
    "cannot modify": ("it is a view", "use a table"),
    "may not be modified": ("it is a table of SQLite's own", "use another table"),
}
