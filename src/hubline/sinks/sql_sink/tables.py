"""The tables of a database, as one of its connections sees them: columns, creation, reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from hubline.sinks.sql_sink.table_schema import Column, TableName, Target, family, quoted, read_array
from hubline.sql.dialect import Connection


class Tables(ABC):
    """What each database tells of its tables in its own way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @abstractmethod
    def columns(self, table: TableName, *, and_generated: bool = False) -> list[Column]:
        """The columns that can be written, and those that the database makes itself; none if there is no such table."""

    @abstractmethod
    def shape(self, table: TableName) -> str | None:
        """What changes with the columns and types of a table, as rows are compared with them; None without a table."""

    def create(self, table: TableName, schema: pa.Schema, *, key: tuple[str, ...]) -> None:
        """Makes the table of a schema, unless it is there by now. In a transaction, beside others that do so too."""
        self._rows(self.creation(table, schema, key=key))

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

    def read(self, table: TableName, *, max_rows: int) -> pa.Table:
        """Rows of a table, with types by its columns and not by what is in them. Raises SinkError for other values."""
        columns = self.columns(table, and_generated=True)
        kinds = [self._read_as(column) for column in columns]
        chosen = [
            f"CAST({quoted(column.name)} AS text)" if kind == "text" else quoted(column.name)
            for column, kind in zip(columns, kinds, strict=True)
        ]
        rows: list[Any] = self._rows(f"SELECT {', '.join(chosen)} FROM {table.quoted} LIMIT {max_rows}")  # noqa: S608 - names are quoted
        values = zip(*rows, strict=True) if rows else [()] * len(columns)
        arrays = [read_array(*each, table=table) for each in zip(columns, kinds, values, strict=True)]
        return pa.Table.from_arrays(arrays, names=[column.name for column in columns])

    @abstractmethod
    def _rows(self, query: str) -> list[Any]:
        """Runs a statement without values, whatever characters are in it."""

    @abstractmethod
    def _read_as(self, column: Column) -> Target:
        """The type that a column is read as; text where there is no better; as is where the database tells none."""

    @abstractmethod
    def _created_as(self, kind: str) -> str:
        """The type of a column for a family of Arrow types."""
