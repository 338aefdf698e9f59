"""What is in the SQLite database of a sink, for tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

from hubline.addresses.store_address import SqliteAddress
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection
from hubline.sinks import SqlSink
from hubline.sql.dead_letter_queries import DeadLetterQueries
from hubline.sql.dead_letter_table import read_dead_letter_row
from hubline.sql.sqlite import DIALECT, SqliteConnection, SqliteDatabase

_MAX_ROWS: Final = 1_000_000
"""A test looks at a few rows: so many in memory are a mistake."""


class TestSink(SqlSink):
    """A `SqlSink` into a SQLite file, which a test can look into. Make one with the fixture `hubline_sink`."""

    __test__ = False  # to pytest, it is no class of tests

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table, in the order in which they were written; none if there is no table yet."""
        own = copy.copy(self)  # with a connection of its own: in SQLite, an open transaction has the sink's only one
        try:
            return rows_of(own)
        finally:
            own.close()

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters that are waiting, in the order of partitions and sequence numbers."""
        assert isinstance(self.address, SqliteAddress)  # TestSinks makes no other
        connection = SqliteDatabase(self.address.path).connect()
        try:
            return dead_letters_in(connection)
        finally:
            connection.close()


class TestSinks:
    """Makes sinks into one SQLite file of a test: the fixture `hubline_sink`.

    Args:
        file: The SQLite file.
    """

    __test__ = False

    def __init__(self, file: Path) -> None:
        self._file = file
        self._made: list[TestSink] = []

    def __call__(self, table: str = "results", **options: Any) -> TestSink:
        """Make a sink. Its table is created by the first rows.

        Args:
            table: The table. Default: `"results"`.
            **options: Other options of `hubline.SqlSink`, such as `upsert_key`.

        Returns:
            The sink, for `hubline.Processor(..., sink=...)`.

        Raises:
            ConfigError: An option is not valid.
        """
        sink = TestSink(f"sqlite:///{self._file}", table=table, **{"create_table": True, **options})
        self._made.append(sink)
        return sink

    def close(self) -> None:
        """Close the connections. The fixture does so at the end of the test."""
        for sink in self._made:
            sink.close()


def rows_of(sink: SqlSink) -> list[dict[str, Any]]:
    """The rows of a sink's table; none if there is no table yet."""
    if not sink.database.columns():
        return []
    rows: list[dict[str, Any]] = sink.database.read_table(max_rows=_MAX_ROWS).to_pylist()
    return rows


def dead_letters_in(connection: SqliteConnection) -> list[DeadLetter]:
    """The dead letters of a database that are waiting."""
    asking = DeadLetterQueries(DIALECT).page(DeadLetterSelection(), after=None, max_count=_MAX_ROWS, bodies=True)
    return [read_dead_letter_row(row) for row in connection.read(asking)]
