"""A sink's options, and the default limits."""

from __future__ import annotations

from dataclasses import dataclass

from hubline.addresses.store_address import SqlAddress
from hubline.model.duplicates import DropDuplicates
from hubline.sinks.sql_sink.table_schema import TableName

TRANSACTION_TIMEOUT_SECONDS = 60
"""How long a statement, or a pause between two, may hold the checkpoint row: a new owner waits for its end."""

OVERDUE = 2.0
"""A transaction that takes so many times its bound hangs on a server that answers nothing any more."""

DUPLICATE_WINDOW_SECONDS = 7 * 86_400.0
"""As long as a hub keeps events by its longest usual retention: what is older cannot be published again."""

MAX_CONNECTIONS = 4
"""Four writers use up two cores of a server already; SQLite has one writer at a time in any case."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What a sink was made with: equal for sinks that do the same. It can be pickled."""

    address: SqlAddress
    table: TableName | None
    upsert_key: tuple[str, ...]
    create_table: bool
    keep_dead_letter_bodies: bool
    drop_duplicates: DropDuplicates
    duplicate_window_seconds: float
    max_connections: int
    transaction_timeout_seconds: int

    @property
    def call_seconds_max(self) -> float:
        """How long a transaction may take at most, whatever it does."""
        return OVERDUE * self.transaction_timeout_seconds

    def __str__(self) -> str:
        into = f", table={self.table}" if self.table else ""
        return f"SqlSink({self.address}{into})"
