"""Both databases behind one face: a sink's address, and a way to look past it."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hubline.secrets import Secret
from hubline.sinks import SqlSink


class SinkDatabase(ABC):
    """A fresh database."""

    dialect: str

    def __init__(self, url: str) -> None:
        self.url = url
        self._sinks: list[SqlSink] = []

    def sink(self, **options: Any) -> SqlSink:
        """A sink that is closed with the test."""
        sink = SqlSink(self.url, **options)
        self._sinks.append(sink)
        return sink

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    @abstractmethod
    def execute(self, text: str) -> list[tuple[Any, ...]]:
        """Runs one statement past the sink."""

    def dead_letters(self) -> list[tuple[Any, ...]]:
        """Sequence number, stage, error type and text of every dead letter, in order."""
        return self.execute(
            "SELECT sequence_number, stage, error_type, error_text FROM hubline_dead_letter ORDER BY sequence_number"
        )

    def checkpoint(self) -> int | None:
        ((sequence,),) = self.execute("SELECT sequence_number FROM hubline_checkpoint")
        return None if sequence is None else int(sequence)


class SqliteSinkDatabase(SinkDatabase):
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self.path = path

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(text).fetchall()


class PostgresSinkDatabase(SinkDatabase):
    dialect = "postgres"

    def __init__(self, conninfo: Secret) -> None:
        super().__init__(conninfo.reveal())

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def postgres(postgres_database: Secret) -> Iterator[PostgresSinkDatabase]:
    with closing(PostgresSinkDatabase(postgres_database)) as found:
        yield found


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteSinkDatabase]:
    with closing(SqliteSinkDatabase(tmp_path / "sink.db")) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> SinkDatabase:
    """Each of the two databases in turn."""
    found: SinkDatabase = request.getfixturevalue(request.param)
    return found
