from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.errors import StoreError, StoreUnavailable
from hubline.model.ownership import Member, Ownership
from hubline.sql import sqlite
from hubline.sql.dialect import Connection
from hubline.testing.contracts.store import GROUP, CheckpointStoreContract, claim, listed_ownership
from tests.checkpoint_stores.conftest import SqliteFile

MANY = 2000  # claims that take more than a few pages


class TestSqliteStore(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> SqliteStore:
        return SqliteStore(self.path)


def first_call(path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        try:
            await claim(store, "a", epoch=1)
        finally:
            await store.close()

    asyncio.run(scenario())


def test_constructing_a_store_touches_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "missing" / "store.db")

    assert list(tmp_path.iterdir()) == []
    assert repr(store) == f"SqliteStore(the SQLite store {tmp_path}/missing/store.db)"
    asyncio.run(store.close())


def test_sqlite_costs_no_postgres_driver() -> None:
    script = "import sys; from hubline.checkpoint_stores.sqlite import SqliteStore; print('psycopg' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"


def test_a_relative_path_stays_what_it_was_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("store.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    async def scenario() -> None:
        await claim(store, "a", epoch=1)
        await store.close()

    asyncio.run(scenario())
    assert (tmp_path / "store.db").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"there is no folder {tmp_path}/missing. Create it"):
        first_call(tmp_path / "missing" / "store.db")


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is a folder"):
        first_call(tmp_path)


def test_another_kind_of_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 1000)

    with pytest.raises(StoreError, match=r"is another kind of file .*Correct the path"):
        first_call(path)
    assert path.read_text() == "Dear diary, " * 1000


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first_call(path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)

    with pytest.raises(StoreError, match=r"is damaged .*Restore it") as raised:
        first_call(path)
    assert not isinstance(raised.value, StoreUnavailable)


def test_a_file_that_may_not_be_written_is_named(unprivileged_folder: Path) -> None:
    path = unprivileged_folder / "store.db"
    first_call(path)
    path.chmod(0o444)
    unprivileged_folder.chmod(0o555)

    with (
        as_somebody_else(),
        pytest.raises(StoreError, match=r"may not be written .*Allow writing the file and its folder"),
    ):
        first_call(path)


def test_a_folder_that_may_not_be_written_is_named(unprivileged_folder: Path) -> None:
    unprivileged_folder.chmod(0o555)

    with (
        as_somebody_else(),
        pytest.raises(StoreError, match="Check the rights of the file and of its folder"),
    ):
        first_call(unprivileged_folder / "store.db")


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """As a user whom permissions stop, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_full_disk_loses_the_call_and_nothing_else(sqlite_file: SqliteFile) -> None:
    async def scenario() -> None:
        store = sqlite_file.open_store()
        held = await claim(store, "a", epoch=1)
        await store._pool.run(lambda connection: limit_pages(connection, 30))

        with pytest.raises(StoreError, match=r"cannot grow .*Free some space") as raised:
            await store.claim_ownership(
                [Ownership(GROUP.partition(f"partition{number}"), "a", epoch=1) for number in range(MANY)]
            )

        assert not isinstance(raised.value, StoreUnavailable)
        assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1
        assert [one.key.partition for one in (await store.list_ownership(GROUP)).ownerships] == ["0"]
        await store.close()

    asyncio.run(scenario())


def limit_pages(connection: Connection, page_count_max: int) -> None:
    assert isinstance(connection, sqlite.SqliteConnection)
    connection.driver.execute(f"PRAGMA max_page_count = {page_count_max}")


def test_a_limit_on_the_size_of_files_is_named(sqlite_file: SqliteFile) -> None:
    script = (
        "import asyncio, resource, sys\n"
        "from hubline.errors import StoreError\n"
        "from hubline.model.keys import GroupKey\n"
        "from hubline.model.ownership import Ownership\n"
        "from hubline.checkpoint_stores.sqlite import SqliteStore\n"
        "async def scenario():\n"
        "    store = SqliteStore(sys.argv[1])\n"
        "    keys = [GroupKey('n', 'h', 'g').partition(str(number)) for number in range(2000)]\n"
        "    try:\n"
        "        await store.claim_ownership([Ownership(key, 'a', epoch=1) for key in keys])\n"
        "    except StoreError as error:\n"
        "        print(error)\n"
        "    await store.close()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))\n"
        "asyncio.run(scenario())\n"
    )
    first_call(sqlite_file.path)

    said = subprocess.run(
        [sys.executable, "-c", script, sqlite_file.path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert "Check its disk, the space left there, and limits and quotas" in said
    assert sqlite_file.execute("SELECT count(*) FROM hubline_ownership") == [(1,)]


def test_reading_goes_on_and_writing_waits_while_another_process_writes(sqlite_file: SqliteFile) -> None:
    async def scenario() -> None:
        store = sqlite_file.open_store()
        held = await claim(store, "a", epoch=1)
        with closing(sqlite3.connect(sqlite_file.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            renewal = asyncio.create_task(store.renew_ownership(GROUP, Member("a"), [held]))
            for _ in range(5):
                assert (await listed_ownership(store)).version == held.version
            assert not renewal.done()
            other.execute("ROLLBACK")
        assert len((await renewal).renewed) == 1
        await store.close()

    asyncio.run(scenario())


def test_a_new_file_that_another_process_is_setting_up_is_waited_for(sqlite_file: SqliteFile) -> None:
    async def scenario() -> None:
        store = sqlite_file.open_store()
        with closing(sqlite3.connect(sqlite_file.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # not yet in WAL mode: SQLite refuses to change it and does not wait
            first = asyncio.create_task(claim(store, "a", epoch=1))
            await asyncio.sleep(0.1)
            assert not first.done()
            other.execute("ROLLBACK")
        await first
        await store.close()

    asyncio.run(scenario())


def test_a_file_that_stays_locked_is_unavailable(sqlite_file: SqliteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS_MAX", 0.01)

    async def scenario() -> None:
        store = sqlite_file.open_store()
        held = await claim(store, "a", epoch=1)
        with closing(sqlite3.connect(sqlite_file.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="was locked by another process"):
                await store.renew_ownership(GROUP, Member("a"), [held])
        assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1
        await store.close()

    asyncio.run(scenario())


def test_a_store_whose_file_was_deleted_starts_empty(sqlite_file: SqliteFile) -> None:
    async def scenario() -> None:
        store = sqlite_file.open_store()
        held = await claim(store, "a", epoch=1)
        for file in sqlite_file.path.parent.iterdir():
            file.unlink()

        # Not the deleted file, which nobody else could see any more.
        assert await store.claim_ownership([replace(held, owner_id="b")]) == []
        await claim(store, "b", epoch=1)
        await store.close()

    asyncio.run(scenario())
    assert sqlite_file.execute("SELECT owner_id FROM hubline_ownership") == [("b",)]


def test_what_was_answered_is_synced_to_disk(sqlite_file: SqliteFile) -> None:
    async def scenario() -> list[object]:
        store = sqlite_file.open_store()
        found = await store._pool.run(pragmas)
        await store.close()
        return found

    assert asyncio.run(scenario()) == ["wal", 2]


def pragmas(connection: Connection) -> list[object]:
    assert isinstance(connection, sqlite.SqliteConnection)
    return [connection.driver.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]


def test_an_sqlite_without_returning_is_refused(sqlite_file: SqliteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))

    with pytest.raises(StoreError, match=r"needs SQLite 3.35.0 or later"):
        first_call(sqlite_file.path)
