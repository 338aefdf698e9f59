"""The database of a sink: its connections, and what is known of its table. The parts of a sink share it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from hubline.addresses.store_address import PostgresAddress, SqliteAddress
from hubline.sinks.sql_sink.connection import SinkConnection, explained
from hubline.sinks.sql_sink.settings import SinkSettings
from hubline.sinks.sql_sink.table_plans import TablePlans
from hubline.sinks.sql_sink.table_schema import Column
from hubline.sql.pool import SqlPool


class SinkDatabase:
    """Connections are opened when they are needed. From any thread."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self.plans = TablePlans(settings.table, key=settings.upsert_key, creates=settings.create_table)
        self.pool: SqlPool[SinkConnection] = SqlPool(
            self.connect,
            shown=str(settings),
            max_connections=settings.max_connections,
            call_seconds_max=settings.call_seconds_max,
        )
        self.rng = random.Random()  # noqa: S311 - for pauses

    def __str__(self) -> str:
        return str(self.settings)

    @contextmanager
    def connection(self) -> Iterator[SinkConnection]:
        """A connection outside of any partition's transaction. What its driver raises becomes a StoreError."""
        with (
            self.pool.connection(wait_seconds=self.settings.transaction_timeout_seconds) as connection,
            explained(connection, self.settings.table),
        ):
            yield connection

    def columns(self) -> list[Column]:
        """Returns the columns of the table that can be written; none while the table is still to be made."""
        with self.connection() as connection:
            return self.plans.columns(connection)

    def read_table(self, *, max_rows: int) -> pa.Table:
        """Returns rows of the table, with types by its columns and not by what is in them.

        Raises:
            SinkError: A value is not of its column's type, as SQLite allows.
        """
        with self.connection() as connection:
            return connection.tables.read(self.plans.table, max_rows=max_rows)

    def borrow(self) -> SinkConnection:
        """A connection for a transaction, to be given back to the pool, or discarded there."""
        return self.pool.borrow(wait_seconds=self.settings.transaction_timeout_seconds)

    def connect(self) -> SinkConnection:
        """Drivers are loaded when they are needed: SQLite must not cost PostgreSQL's."""
        match self.settings.address:
            case PostgresAddress(conninfo):
                from hubline.sinks.sql_sink.postgres import PostgresSinkConnection

                return PostgresSinkConnection.connect(conninfo, seconds_max=self.settings.transaction_timeout_seconds)
            case SqliteAddress(path):
                from hubline.sinks.sql_sink.sqlite import SqliteSinkConnection

                return SqliteSinkConnection.connect(path)

    def pause(self, seconds: float) -> None:
        """Waits for the database to come back."""
        time.sleep(seconds)
