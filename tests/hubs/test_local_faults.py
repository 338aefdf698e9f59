"""What goes wrong with disks, files and locks gets a clear error, and stays where it is."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hubline.errors import HubDamaged, HubError, HubFull, HubUnavailable
from hubline.hubs.local import sqlite_files as database
from hubline.model.positions import Position

from .support import new_hub, opened, opened_hub, partition_file, run, send, texts

LARGE = "x" * 500_000


@contextmanager
def changed(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection beside the hub's own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def limit_size(path: Path, monkeypatch: pytest.MonkeyPatch, *, spare_pages: int) -> None:
    """Makes the partition's file unable to grow by more than some pages, as a full disk would."""
    real_connect = database.connect

    def connect(opened: Path, *, create: bool = False) -> sqlite3.Connection:
        connection = real_connect(opened, create=create)
        if opened == path:
            (page_count,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {page_count + spare_pages}")
        return connection

    monkeypatch.setattr(database, "connect", connect)


def test_a_full_disk_keeps_nothing_of_a_send_and_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=2) as hub:
            await send(hub, "before")
        path = partition_file(tmp_path, 0)
        limit_size(path, monkeypatch, spare_pages=20)

        async with opened_hub(tmp_path) as hub:
            with pytest.raises(HubFull, match=r"no space is left for partition 0.*Free some disk") as full:
                await send(hub, *["x" * 100_000] * 100)
            assert full.value.partition == "0"
            assert (await hub.describe_partition("0")).last_sequence == 0
            await send(hub, "a small one fits")
            await send(hub, "other partitions continue", partition="1")
            assert await texts(await opened(hub), 2) == ["before", "a small one fits"]

    run(test())


def test_of_sends_that_are_written_together_those_that_fit_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with new_hub(tmp_path):
            pass
        limit_size(partition_file(tmp_path, 0), monkeypatch, spare_pages=40)

        async with opened_hub(tmp_path) as hub:
            bodies = ["first", LARGE, "second", LARGE, "third"]
            results = await asyncio.gather(*(send(hub, body) for body in bodies), return_exceptions=True)

            assert [type(result) for result in results] == [type(None), HubFull, type(None), HubFull, type(None)]
            assert sorted(await texts(await opened(hub), 3)) == ["first", "second", "third"]

    run(test())


FILE_LIMIT_SCRIPT = """
import asyncio, resource, sys
from hubline.errors import HubFull
from hubline.hubs.local import LocalHub
from hubline.model.events import new_events

async def main():
    hub = LocalHub(sys.argv[1], "orders")
    sender = await hub.open_sender()
    await sender.send(new_events(["before"]), partition="0")
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
    for number in range(100):
        try:
            await sender.send(new_events([str(number), "x" * 200_000]), partition="0")
        except HubFull:
            print("full after", number)
            break
    await hub.close()

asyncio.run(main())
"""


def test_a_file_that_cannot_grow_is_a_full_hub_and_everything_acknowledged_stays(tmp_path: Path) -> None:
    async def prepare() -> None:
        async with new_hub(tmp_path):
            pass

    run(prepare())
    child = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT_SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")
    acknowledged_count = int(child.stdout.removeprefix("full after "))

    async def check() -> None:
        async with opened_hub(tmp_path) as hub:
            bodies = await texts(await opened(hub), 1 + 2 * acknowledged_count)
            assert bodies[1::2] == [str(number) for number in range(acknowledged_count)]
            assert (await hub.describe_partition("0")).last_sequence == 2 * acknowledged_count
            await send(hub, "there is room again")

    assert 5 < acknowledged_count < 100
    run(check())


@pytest.mark.parametrize("content", [b"", b"not a database, but longer than a header" * 300, None])
def test_a_damaged_partition_file_is_named_and_the_others_go_on(tmp_path: Path, content: bytes | None) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=2) as hub:
            await send(hub, "lost")
        path = partition_file(tmp_path, 0)
        _replace(path, content)

        async with opened_hub(tmp_path) as hub:
            for call in (send(hub, "x"), opened(hub), hub.describe_partition("0")):
                with pytest.raises(HubDamaged, match=path.name) as damaged:
                    await call
                assert damaged.value.partition == "0"
            await send(hub, "fine", partition="1")
            assert await texts(await opened(hub, partition="1"), 1) == ["fine"]
            assert len((await hub.describe()).partition_ids) == 2

    run(test())


def _replace(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def test_a_partition_without_its_state_is_damaged(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await send(hub, "a")
            for statement in (
                "UPDATE state SET next_sequence = -5",
                "UPDATE state SET begin_sequence = 7",
                "UPDATE state SET tag = 1",
                "UPDATE state SET bytes = 'many'",
                "DELETE FROM state",
            ):
                with changed(partition_file(tmp_path, 0)) as connection:
                    connection.execute("SAVEPOINT s")
                    connection.execute(statement)
                    connection.execute("RELEASE s")
                with pytest.raises(HubDamaged, match="cannot be read"):
                    await hub.describe_partition("0")

    run(test())


def test_a_damaged_batch_is_named_and_those_around_it_can_be_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            for number in range(5):
                await send(hub, f"{number}a", f"{number}b")
            with changed(partition_file(tmp_path, 0)) as connection:
                connection.execute("UPDATE batches SET payload = zeroblob(length(payload)) WHERE first_sequence = 4")

            receiver = await opened(hub, epoch=1)
            assert await texts(receiver, 4) == ["0a", "0b", "1a", "1b"]
            for _ in range(2):
                with pytest.raises(HubDamaged, match=r"damaged at sequence number 4.*checksum") as damaged:
                    await receiver.receive(max_count=10, wait_seconds=0)
                assert damaged.value.partition == "0"
            rest = await opened(hub, Position.sequence(6, inclusive=True), epoch=1)
            assert await texts(rest, 4) == ["3a", "3b", "4a", "4b"]
            await send(hub, "appending continues")

    run(test())


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_a_batch_that_is_missing_is_noticed(tmp_path: Path, missing: int) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            for number in range(3):
                await send(hub, f"{number}a", f"{number}b")
            with changed(partition_file(tmp_path, 0)) as connection:
                connection.execute("DELETE FROM batches WHERE first_sequence = ?", (missing,))

            receiver = await opened(hub)
            assert len(await texts(receiver, missing)) == missing
            with pytest.raises(HubDamaged, match=f"at sequence number {missing}: a batch is missing"):
                await receiver.receive(max_count=10, wait_seconds=0)

    run(test())


def test_a_partition_that_stays_locked_is_unavailable_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)

    async def test() -> None:
        async with new_hub(tmp_path, partitions=2) as hub:
            await send(hub, "a")
            with changed(partition_file(tmp_path, 0)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                with pytest.raises(HubUnavailable, match="locked by another process") as locked:
                    await send(hub, "b")
                assert locked.value.partition == "0"
                assert await texts(await opened(hub), 1) == ["a"]
                await send(hub, "others continue", partition="1")
            await send(hub, "c")
            assert await texts(await opened(hub), 2) == ["a", "c"]

    run(test())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_unavailable(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path):
            pass
        path = partition_file(tmp_path, 0)
        path.chmod(0o400)
        async with opened_hub(tmp_path) as hub:
            with pytest.raises(HubUnavailable, match="may be read and written"):
                await send(hub, "a")

    run(test())


def test_a_lost_or_cut_signal_file_is_recreated(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await send(hub, "a")
        signal = tmp_path / "orders" / "signal"
        for content in (None, b"cut"):
            _replace(signal, content)
            async with opened_hub(tmp_path) as hub:
                receiver = await opened(hub, Position.latest())
                waiting = asyncio.create_task(texts(receiver, 1))
                await asyncio.sleep(0)
                await send(hub, "b")
                assert await waiting == ["b"]

    run(test())


def test_errors_chain_to_what_the_database_said(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            pass
        partition_file(tmp_path, 0).write_bytes(b"no database at all, truly" * 100)
        async with opened_hub(tmp_path) as hub:
            with pytest.raises(HubError) as damaged:
                await hub.describe_partition("0")
        assert isinstance(damaged.value.__cause__, sqlite3.DatabaseError)

    run(test())


def test_many_partitions_do_not_use_up_file_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "IDLE_CONNECTIONS_MAX", 4)

    async def test() -> None:
        async with new_hub(tmp_path, partitions=40) as hub:
            before = _descriptor_count()
            for partition in range(40):
                await send(hub, "a", partition=str(partition))
            assert _descriptor_count() - before <= 3 * 4 + 4
            for partition in range(40):
                assert await texts(await opened(hub, partition=str(partition)), 1) == ["a"]
        assert _descriptor_count() <= before

    run(test())


def _descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_forked_child_must_open_the_hub_itself(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from hubline.hubs.local import LocalHub\n"
        "hub = LocalHub(sys.argv[1], 'orders')\n"
        "if os.fork() == 0:\n"
        "    asyncio.run(hub.describe())\n"
        "os.wait()\n"
    )

    child = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)

    assert "was opened before this process was forked" in child.stderr
