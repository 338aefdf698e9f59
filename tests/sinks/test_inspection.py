"""Looking at a table changes nothing: neither file nor schema is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubline.addresses.store_address import PostgresAddress, SqliteAddress, parse_store
from hubline.errors import StoreError
from hubline.sinks.sql_sink.inspection import has_rows, inspect_table
from hubline.sinks.sql_sink.table_schema import TableName
from tests.sinks.conftest import SinkDatabase


def address_of(url: str) -> PostgresAddress | SqliteAddress:
    address = parse_store(url)
    assert isinstance(address, PostgresAddress | SqliteAddress)
    return address


def test_columns_that_can_be_written_are_found_as_a_sink_finds_them(database: SinkDatabase) -> None:
    database.execute(
        'CREATE TABLE readings (id integer, "eventId" text, twice integer GENERATED ALWAYS AS (id * 2) STORED)'
    )
    found = inspect_table(address_of(database.url), TableName.parse("readings"))
    assert [column.name for column in found] == ["id", "eventId"]
    assert found == database.sink(table="readings").database.columns()


def test_nothing_is_created_by_looking(database: SinkDatabase) -> None:
    for _ in range(2):
        assert inspect_table(address_of(database.url), TableName(None, "hubline_schema")) == []


def test_rows_are_found_by_a_look(database: SinkDatabase) -> None:
    address, table = address_of(database.url), TableName.parse("readings")
    assert not has_rows(address, table)
    database.execute("CREATE TABLE readings (id integer)")
    assert not has_rows(address, table)
    database.execute("INSERT INTO readings VALUES (1)")
    assert has_rows(address, table)


def test_file_that_is_missing_stays_so(tmp_path: Path) -> None:
    assert inspect_table(SqliteAddress(tmp_path / "none.db"), TableName.parse("readings")) == []
    assert not list(tmp_path.iterdir())


def test_file_of_another_kind_and_server_that_is_away_are_errors_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(StoreError, match="is another kind of file"):
        inspect_table(SqliteAddress(tmp_path / "text.db"), TableName.parse("readings"))
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        inspect_table(address_of("postgresql://me:pLaNtEd@127.0.0.1:1/none"), TableName.parse("readings"))
    assert "pLaNtEd" not in str(caught.value)
    assert caught.value.__cause__ is None
