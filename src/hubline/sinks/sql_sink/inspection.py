"""A look at a table before anything is written to it. A sink, when it is opened, creates hubline's own tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from hubline.addresses.store_address import PostgresAddress, SqlAddress, SqliteAddress
from hubline.sinks.sql_sink.table_schema import Column, TableName
from hubline.sinks.sql_sink.tables import Tables
from hubline.sql.dialect import Connection, Statement
from hubline.sql.driver_errors import call_explained

Opened = TypeVar("Opened", bound=Connection)


def inspect_table(address: SqlAddress, table: TableName) -> list[Column]:
    """Looks at a table. Changes nothing, and creates no file.

    Args:
        address: The database.
        table: The table.

    Returns:
        The columns that can be written; none if there is no such table, or no such file.

    Raises:
        StoreError: The database cannot be reached, or cannot be read.
    """
    match address:
        case PostgresAddress(conninfo):
            from hubline.sinks.sql_sink.postgres_tables import PostgresTables
            from hubline.sql.postgres import PostgresDatabase

            server = PostgresDatabase(conninfo)
            return call_explained(lambda: _columns(server.look(), PostgresTables, table), server.explain)
        case SqliteAddress(path):
            from hubline.sinks.sql_sink.sqlite_tables import SqliteTables
            from hubline.sql.sqlite import SqliteDatabase

            if not path.exists():
                return []
            file = SqliteDatabase(path)
            return call_explained(lambda: _columns(file.look(), SqliteTables, table), file.explain)


def has_rows(address: SqlAddress, table: TableName) -> bool:
    """Whether there is such a table, with a row in it. Changes nothing, and creates no file."""
    if not inspect_table(address, table):
        return False
    match address:
        case PostgresAddress(conninfo):
            from hubline.sql.postgres import PostgresDatabase

            server = PostgresDatabase(conninfo)
            return call_explained(lambda: _has_rows(server.look(), table), server.explain)
        case SqliteAddress(path):
            from hubline.sql.sqlite import SqliteDatabase

            file = SqliteDatabase(path)
            return call_explained(lambda: _has_rows(file.look(), table), file.explain)


def _has_rows(connection: Connection, table: TableName) -> bool:
    with closing(connection):
        return bool(connection.read(Statement(f"SELECT 1 FROM {table.quoted} LIMIT 1", {})))  # noqa: S608 - quoted


def _columns(connection: Opened, tables_of: Callable[[Opened], Tables], table: TableName) -> list[Column]:
    with closing(connection):
        return tables_of(connection).columns(table)
