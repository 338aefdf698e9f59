"""Checkpoint stores in SQL databases: SQLite for the processes of one machine, PostgreSQL for many machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubline.stores.sql.postgres import PostgresStore
    from hubline.stores.sql.sqlite import SqliteStore

__all__ = ["PostgresStore", "SqliteStore"]


def __getattr__(name: str) -> object:
    """Loads a store when it is asked for: SQLite must not cost the PostgreSQL driver."""
    if name == "PostgresStore":
        from hubline.stores.sql.postgres import PostgresStore

        return PostgresStore
    if name == "SqliteStore":
        from hubline.stores.sql.sqlite import SqliteStore

        return SqliteStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
