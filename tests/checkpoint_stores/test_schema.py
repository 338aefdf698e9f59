"""Migrations: numbered, whole or not at all, and safe from many processes at once."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from hubline.checkpoint_stores.sql_store import SqlStore
from hubline.errors import StoreError, StoreIncompatible
from hubline.model.ownership import Ownership
from hubline.secrets import Secret
from hubline.sql import postgres, sqlite
from hubline.sql.migrations import Migration, load_migrations
from hubline.testing.contracts.store import GROUP, at_once
from tests.checkpoint_stores.conftest import PostgresDatabase, SqlDatabase, SqliteFile

STARTER_COUNT = 16
PROCESS_COUNT = 4  # each takes about a second of processor time to load what it needs

STARTER = """
import asyncio, sys
from hubline.secrets import Secret
from hubline.model.keys import GroupKey
from hubline.model.ownership import Ownership
from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.checkpoint_stores.sqlite import SqliteStore

async def start(dialect, address, number):
    store = SqliteStore(address) if dialect == "sqlite" else PostgresStore(Secret(address))
    key = GroupKey("namespace.example", "orders", "$Default").partition(number)
    print("ready", flush=True)
    sys.stdin.readline()
    won = await store.claim_ownership([Ownership(key, number, epoch=1)])
    await store.close()
    print(len(won), flush=True)

asyncio.run(start(*sys.argv[1:]))
"""


def use(store: SqlStore) -> None:
    """Makes a first call, which opens a connection."""

    async def scenario() -> None:
        try:
            await store.list_ownership(GROUP)
        finally:
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps(dialect: str) -> None:
    migrations = load_migrations(dialect)

    assert [one.version for one in migrations] == list(range(1, len(migrations) + 1))


def test_both_databases_have_the_same_migrations() -> None:
    of_sqlite, of_postgres = (
        [(one.version, one.name) for one in load_migrations(dialect)] for dialect in ("sqlite", "postgres")
    )

    assert of_sqlite == of_postgres


def test_both_databases_have_the_same_tables_and_columns(sqlite_file: SqliteFile, postgres_database: Secret) -> None:
    server = PostgresDatabase(postgres_database)
    use(sqlite_file.open_store())
    use(server.open_store())

    of_sqlite = sqlite_file.execute(
        "SELECT entry.name, field.name FROM sqlite_schema AS entry, pragma_table_info(entry.name) AS field "
        "WHERE entry.type = 'table'"
    )
    of_postgres = server.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    )
    assert sorted(map(str, of_sqlite)) == sorted(map(str, of_postgres))


def test_a_fresh_database_records_what_was_applied(database: SqlDatabase) -> None:
    use(database.open_store())

    applied = database.execute("SELECT version, name FROM hubline_schema ORDER BY 1")
    assert applied == [(one.version, one.name) for one in load_migrations(database.dialect)]


def test_many_stores_may_start_on_an_empty_database_at_once(database: SqlDatabase) -> None:
    async def start(number: int) -> int:
        store = database.open_store()
        try:
            return len(await store.claim_ownership([Ownership(GROUP.partition(str(number)), "a", epoch=1)]))
        finally:
            await store.close()

    async def scenario() -> list[int]:
        return await at_once(start(number) for number in range(STARTER_COUNT))

    assert asyncio.run(scenario()) == [1] * STARTER_COUNT
    assert database.execute("SELECT count(*) FROM hubline_ownership") == [(STARTER_COUNT,)]


def test_many_processes_may_start_on_an_empty_database_at_once(database: SqlDatabase) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, database.dialect, database.address, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESS_COUNT)
    ]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"

    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()

    assert [starter.communicate()[0] for starter in starters] == ["1\n"] * PROCESS_COUNT
    assert database.execute("SELECT count(*) FROM hubline_ownership") == [(PROCESS_COUNT,)]


def test_a_schema_that_is_newer_than_the_code_is_refused(database: SqlDatabase) -> None:
    use(database.open_store())
    newer = len(load_migrations(database.dialect)) + 1
    database.execute(f"INSERT INTO hubline_schema (version, name) VALUES ({newer}, 'from_the_future')")

    with pytest.raises(StoreIncompatible, match=f"schema has version {newer}.* newer hubline"):
        use(database.open_store())


def use_with(database: SqlDatabase, migrations: tuple[Migration, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens the database as a hubline would that ships these migrations."""
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "load_migrations", lambda _: migrations)
    use(database.open_store())


def test_later_migrations_are_applied_to_what_is_there(database: SqlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_migrations(database.dialect)
    first = Migration(len(shipped) + 1, "first", "CREATE TABLE hubline_a (x int); CREATE TABLE hubline_b (y int);")
    second = Migration(
        len(shipped) + 2, "second", "-- One; and\nALTER TABLE hubline_a ADD COLUMN z int;\n-- no more.\n"
    )

    use(database.open_store())
    use_with(database, (*shipped, first), monkeypatch)
    use_with(database, (*shipped, first, second), monkeypatch)

    database.execute("INSERT INTO hubline_a (x, z) VALUES (1, 2)")
    database.execute("INSERT INTO hubline_b (y) VALUES (1)")
    versions = database.execute("SELECT version FROM hubline_schema ORDER BY 1")
    assert versions == [(number + 1,) for number in range(len(shipped) + 2)]


def test_a_migration_that_fails_leaves_nothing_of_itself(
    database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = load_migrations(database.dialect)
    good = Migration(len(shipped) + 1, "good", "CREATE TABLE hubline_good (x int);")
    broken = Migration(len(shipped) + 2, "broken", "CREATE TABLE hubline_half (x int); INSERT INTO nowhere VALUES (1);")

    with pytest.raises(StoreError, match="nowhere"):
        use_with(database, (*shipped, good, broken), monkeypatch)

    assert database.execute("SELECT max(version) FROM hubline_schema") == [(len(shipped) + 1,)]
    database.execute("CREATE TABLE hubline_half (x int)")


def test_opening_a_current_database_takes_no_lock(sqlite_file: SqliteFile) -> None:
    use(sqlite_file.open_store())
    with closing(sqlite3.connect(sqlite_file.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        use(sqlite_file.open_store(call_seconds_max=5))
