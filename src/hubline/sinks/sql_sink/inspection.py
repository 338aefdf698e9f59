"""A look at a table before anything is written to it. A sink, when it is opened, creates hubline's own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hubline.addresses.store_address import PostgresAddress, SqliteAddress
from hubline.sinks.sql_sink.table_schema import Column, TableName
from hubline.sinks.sql_sink.tables import Tables
from hubline.sql.dialect import Connection, Database

Opened = TypeVar("Opened", bound=Connection)
Looked = TypeVar("Looked", bound=Connection, covariant=True)


def inspect_table(address: PostgresAddress | SqliteAddress, table: TableName) -> list[Column]:
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

            return _inspected(PostgresDatabase(conninfo), PostgresTables, table)
        case SqliteAddress(path):
            from hubline.sinks.sql_sink.sqlite_tables import SqliteTables
            from hubline.sql.sqlite import SqliteDatabase

            return _inspected(SqliteDatabase(path), SqliteTables, table) if path.exists() else []


class _DatabaseOf(Database, Protocol[Looked]):
    def look(self) -> Looked: ...


def _inspected(database: _DatabaseOf[Opened], tables_of: Callable[[Opened], Tables], table: TableName) -> list[Column]:
    try:
        connection = database.look()
        try:
            return tables_of(connection).columns(table)
        finally:
            connection.close()
    except Exception as error:
        failure = database.explain(error)
        if failure is None:
            raise
    # Raised out here: chained to the driver's error, a traceback would print whatever that one holds.
    raise failure
