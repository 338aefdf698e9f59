"""Rows into SQLite: one prepared statement, run for each row by the driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
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
    connected,
)
from hubline.sinks.sql_sink.table_schema import Column, Plan, Rejection, TableName, Target, insertion
from hubline.sql.dead_letter_table import COLUMNS, DeadLetterRow, micros
from hubline.sql.dialect import Row
from hubline.sql.sqlite import DIALECT, NOW, QUERIES, SqliteConnection, SqliteDatabase

# SQLite has neither times nor decimals: they are kept as text, which sorts, and which its functions read.
_TIMES: Mapping[str, Target] = dict.fromkeys(("instant", "timestamp", "date", "time"), "text")
_NUMBERS: Mapping[str, Target] = {"integer": "as is", "boolean": "as is", "float": "as is", "decimal": "text"}
_AFFINITIES: Mapping[str, Mapping[str, Target]] = {
    "INTEGER": {"integer": "as is", "boolean": "as is"},
    "TEXT": {"text": "as is", "binary": pa.string(), "decimal": "text", **_TIMES},
    "BLOB": {"binary": "as is", "text": "as is", **_NUMBERS, **_TIMES},
    "REAL": {"float": "as is", "integer": "as is", "decimal": pa.float64()},
    "NUMERIC": {**_NUMBERS, **_TIMES},
}
_READ_AS: Mapping[str, Target] = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64()}
_CREATED_AS = {
    "boolean": "INTEGER",
    "integer": "INTEGER",
    "float": "REAL",
    "decimal": "TEXT",
    "binary": "BLOB",
}  # the others are TEXT

_INSERT_LETTER = (
    f"INSERT INTO hubline_dead_letter ({', '.join(COLUMNS)}, failed_at) "  # noqa: S608 - constants
    f"VALUES ({', '.join('?' * len(COLUMNS))}, {NOW})"
)


_REFUSALS = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeError)


class SqliteSinkConnection(SinkConnection):
    """A :class:`~hubline.sinks.sql_sink.connection.SinkConnection` of SQLite."""

    dialect = DIALECT
    queries = QUERIES

    def __init__(self, database: SqliteDatabase, connection: SqliteConnection) -> None:
        super().__init__(database, connection)
        self._driver = connection.driver

    @classmethod
    def connect(cls, path: Path) -> Self:
        database = SqliteDatabase(path)
        return cls(database, connected(database))

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

    def commit(self, ending: CommitPlan) -> None:
        for marking in self._markings(ending):
            self._connection.read(marking)
        if not all(self._connection.read(advance) for advance in self._advances(ending)):
            raise checkpoint_gone()
        self._statement("COMMIT")

    def rollback(self) -> None:
        if self.is_in_transaction:
            self._statement("ROLLBACK")

    def execute(self, query: str, params: Parameters) -> list[Row]:
        return self._driver.execute(query, params).fetchall()

    def columns_of(self, table: TableName, *, and_generated: bool = False) -> list[Column]:
        rows = self._driver.execute(
            'SELECT name, upper(type), "notnull" AND dflt_value IS NULL, pk FROM pragma_table_xinfo(?, ?) '
            "WHERE hidden = 0 OR (? AND hidden > 1) ORDER BY cid",
            [table.table, table.schema or "main", and_generated],
        ).fetchall()
        # An INTEGER PRIMARY KEY that is not given gets a number of its own.
        keys_count = sum(1 for *_, is_key in rows if is_key)
        return [
            Column(
                name,
                kind,
                _AFFINITIES[_affinity(kind)],
                is_required=bool(is_required) and not is_key,
                is_numbered=kind == "INTEGER" and bool(is_key) and keys_count == 1,
            )
            for name, kind, is_required, is_key in rows
        ]

    def shape_of(self, table: TableName) -> str | None:
        return ", ".join(map(str, self.columns_of(table))) or None

    def is_current(self, plan: Plan) -> bool:
        # Nobody can alter the table before this transaction ends. Of one that is gone, the insertion tells.
        return self.shape_of(plan.table) in (plan.shape, None)

    def _read_as(self, column: Column) -> Target:
        """What is declared as a date, a UUID or JSON is text mostly, though SQLite would have numbers there."""
        kind = column.type_name
        match _affinity(kind):
            case "NUMERIC":
                is_number = any(part in kind for part in ("NUM", "DEC"))
                return pa.float64() if is_number else pa.int64() if "BOOL" in kind else "text"
            case "BLOB":
                return pa.binary() if kind else "as is"
            case affinity:
                return _READ_AS[affinity]

    def _created_as(self, kind: str) -> str:
        return _CREATED_AS.get(kind, "TEXT")

    def write(self, plan: Plan, rows: pa.Table) -> None:
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
        self._driver.executemany(_INSERT_LETTER, records)

    def _statement(self, text: str) -> None:
        self._driver.execute(text)

    def _table_trouble(self, error: Exception) -> str | None:
        if not isinstance(error, sqlite3.OperationalError):
            return None
        text = str(error)
        for words, advice in _TABLE_TROUBLES.items():
            if words in text:
                return f"{advice} ({text})"
        return None


def _require_key(plan: Plan, rows: pa.Table) -> None:
    """Refuses a null for which SQLite would make up a number, as it does in an INTEGER PRIMARY KEY: a later row with
    that number would take its place."""
    if len(plan.key) != 1 or not rows.column(plan.key[0]).null_count:
        return
    (column,) = (column for column in plan.columns if column.name == plan.key[0])
    if column.is_numbered:
        row = pc.index(rows.column(column.name).is_null(), value=True).as_py()
        raise Rejection(f"the key {column.name!r} is null", kind=sqlite3.IntegrityError.__name__, row=row)


# SQLite has one code for all of these.
_TABLE_TROUBLES = {
    "no such table": "there is no such table: create it, or open the sink with create=True",
    "has no column named": "a column is gone: somebody altered the table",
    "no such column": "a column is gone: somebody altered the table",
    "ON CONFLICT clause does not match": "no unique index matches the key: create one on just these columns",
    "cannot modify": "it is a view",
    "may not be modified": "it is a table of SQLite's own",
}


def _affinity(kind: str) -> str:
    """What SQLite makes of a declared type, by its own rules."""
    if "INT" in kind:
        return "INTEGER"
    if any(part in kind for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in kind or not kind:
        return "BLOB"
    if any(part in kind for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"
