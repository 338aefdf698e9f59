"""Both SQL databases behind one face, so that a test of what they share is written once."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.checkpoint_stores.sql_store import SqlStore
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.secrets import Secret


class SqlDatabase(ABC):
    """A fresh database, and a way to do to it what people do by hand."""

    dialect: str
    address: str

    @abstractmethod
    def open_store(self, *, call_seconds_max: float = 30.0) -> SqlStore: ...

    @abstractmethod
    def execute(self, text: str) -> list[tuple[object, ...]]:
        """Runs one statement past the store."""


class SqliteFile(SqlDatabase):
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)

    def open_store(self, *, call_seconds_max: float = 30.0) -> SqliteStore:
        return SqliteStore(self.path, call_seconds_max=call_seconds_max)

    def execute(self, text: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(text).fetchall()


class PostgresDatabase(SqlDatabase):
    dialect = "postgres"

    def __init__(self, conninfo: Secret) -> None:
        self.conninfo = conninfo
        self.address = conninfo.reveal()

    def open_store(self, *, call_seconds_max: float = 30.0) -> PostgresStore:
        return PostgresStore(self.conninfo, call_seconds_max=call_seconds_max)

    def execute(self, text: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.conninfo.reveal(), autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def sqlite_file(tmp_path: Path) -> SqliteFile:
    return SqliteFile(tmp_path / "store.db")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDatabase:
    """Each of the two databases in turn."""
    if request.param == "sqlite":
        return SqliteFile(tmp_path / "store.db")
    return PostgresDatabase(request.getfixturevalue("postgres_database"))
