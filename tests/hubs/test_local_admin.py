"""Creating, listing, growing and deleting local hubs, also under those who use them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hubline.errors import (
    ConfigError,
    HubDamaged,
    HubError,
    HubExists,
    HubNotFound,
    HubUnavailable,
    PartitionNotFound,
    PositionInvalid,
)
from hubline.hubs.local import (
    PARTITIONS_MAX,
    LocalHub,
    Retention,
    create_hub,
    delete_hub,
    grow_hub,
    list_hubs,
)
from hubline.hubs.local import hub_folder as folder_module
from hubline.model.events import new_events
from hubline.model.positions import Position

from .support import ARRIVAL_SECONDS, names_in, new_hub, opened, opened_hub, run, send, texts, until


def test_a_created_hub_tells_what_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=3, retention=Retention(seconds=60, bytes=1000)) as hub:
            described = await hub.describe()
            assert described.partition_ids == ("0", "1", "2")
            assert (described.namespace, described.name) == (f"local:{tmp_path}", "orders")
            assert await hub.retention() == Retention(seconds=60, bytes=1000)

    run(test())


def test_the_namespace_is_the_same_however_the_path_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    namespaces = {LocalHub(path, "orders").namespace for path in (tmp_path, f"{tmp_path}/./link/link")}

    assert namespaces == {f"local:{tmp_path}"}


def test_hubs_are_listed_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    async def test() -> None:
        for name in ("orders", "audit"):
            await create_hub(tmp_path, name, partitions=1)
        (tmp_path / "a folder").mkdir()
        (tmp_path / "a file").touch()
        (tmp_path / ".creating-left-by-a-crash").mkdir()
        (tmp_path / ".creating-left-by-a-crash" / "hub.db").touch()

        assert await list_hubs(tmp_path) == ["audit", "orders"]
        assert await list_hubs(tmp_path / "nowhere") == []

    run(test())


def test_a_missing_hub_is_answered_with_those_that_are_there(tmp_path: Path) -> None:
    async def test() -> None:
        await create_hub(tmp_path, "audit", partitions=1)
        async with opened_hub(tmp_path) as hub:
            for call in (hub.describe, hub.open_sender, hub.retention, hub.apply_retention):
                with pytest.raises(HubNotFound, match=r"audit.*hubline hub create local:.*/orders"):
                    await call()
            with pytest.raises(HubNotFound):
                await hub.describe_partition("0")
            with pytest.raises(HubNotFound):
                await opened(hub)
        for verb in (delete_hub(tmp_path, "orders"), grow_hub(tmp_path, "orders", partitions=2)):
            with pytest.raises(HubNotFound):
                await verb

    run(test())


def test_a_hub_is_created_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=2) as hub:
            await send(hub, "kept")
            with pytest.raises(HubExists, match="already exists"):
                await create_hub(tmp_path, "orders", partitions=3)
            await create_hub(tmp_path, "orders", partitions=3, exist_ok=True)
            assert len((await hub.describe()).partition_ids) == 2
            assert await texts(await opened(hub), 1) == ["kept"]

    run(test())


def test_a_folder_that_is_no_hub_is_left_alone(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "orders").mkdir()
        for exist_ok in (False, True):
            with pytest.raises(HubExists, match="is not a hub"):
                await create_hub(tmp_path, "orders", partitions=1, exist_ok=exist_ok)
        with pytest.raises(HubNotFound):
            await delete_hub(tmp_path, "orders")
        assert (tmp_path / "orders").is_dir()

    run(test())


def test_of_many_creators_one_succeeds(tmp_path: Path) -> None:
    async def test() -> None:
        results = await asyncio.gather(
            *(create_hub(tmp_path, "orders", partitions=2) for _ in range(8)), return_exceptions=True
        )
        assert [type(result) for result in results if result] == [HubExists] * 7
        assert names_in(tmp_path) == ["orders"]

    run(test())


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "x" * 300])
def test_names_that_are_no_hub_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        run(create_hub(tmp_path, name, partitions=1))
    with pytest.raises(ConfigError):
        LocalHub(tmp_path, name)


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_the_number_of_partitions_has_bounds(tmp_path: Path, partitions: int) -> None:
    with pytest.raises(ConfigError, match="a whole number, 1 or more and at most 1024"):
        run(create_hub(tmp_path, "orders", partitions=partitions))


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"seconds": -1}, {"seconds": float("nan")}, {"bytes": 0}])
def test_a_retention_of_nothing_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"Retention: (seconds|bytes) must be "):
        Retention(**limits)  # type: ignore[arg-type]


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder_module, "_sync_file", fail)

    with pytest.raises(HubUnavailable, match="Permission denied"):
        run(create_hub(tmp_path, "orders", partitions=1))

    assert list(tmp_path.iterdir()) == []


def test_senders_use_added_partitions_and_readers_can_read_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            sender = await hub.open_sender()
            await sender.send(new_events(["before"]))
            with pytest.raises(PartitionNotFound, match="0 to 0"):
                await sender.send(new_events(["too early"]), partition="2")

            await grow_hub(tmp_path, "orders", partitions=3)
            await until(lambda: is_seen_to_have(hub, 3))
            for number in range(3):
                await sender.send(new_events([str(number)]))
            assert [(await hub.describe_partition(p)).last_sequence for p in "012"] == [1, 0, 0]

    run(test())


async def is_seen_to_have(hub: LocalHub, partition_count: int) -> bool:
    return len((await hub.describe()).partition_ids) == partition_count


def test_a_growth_that_the_files_date_does_not_show_is_seen_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await hub.describe()
            file = tmp_path / "orders" / "hub.db"
            before = await asyncio.to_thread(file.stat)
            await grow_hub(tmp_path, "orders", partitions=2)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

            await until(lambda: is_seen_to_have(hub, 2))

    run(test())


def test_a_hub_does_not_shrink(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=3) as hub:
            with pytest.raises(ConfigError, match="not removed"):
                await grow_hub(tmp_path, "orders", partitions=2)
            await grow_hub(tmp_path, "orders", partitions=3)
            assert len((await hub.describe()).partition_ids) == 3

    run(test())


def test_growing_after_a_crash_while_growing_starts_with_empty_partitions(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await send(hub, "zero")
        (zero,) = (tmp_path / "orders").glob("0.*.db")
        leftover = zero.with_name(zero.name.replace("0.", "1.", 1))
        leftover.write_bytes(zero.read_bytes())  # as a crash would: there, but not counted

        await grow_hub(tmp_path, "orders", partitions=2)

        async with opened_hub(tmp_path) as hub:
            assert (await hub.describe_partition("1")).is_empty
            assert (await hub.describe_partition("0")).last_sequence == 0

    run(test())


def test_many_growers_agree(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await asyncio.gather(
                *(grow_hub(tmp_path, "orders", partitions=n) for n in (4, 4, 4)), return_exceptions=True
            )
        async with opened_hub(tmp_path) as hub:
            for partition in (await hub.describe()).partition_ids:
                await send(hub, "works", partition=partition)

    run(test())


def test_a_deleted_hub_is_gone_with_its_files(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await send(hub, "lost")
        (tmp_path / ".deleted-left-by-a-crash").mkdir()

        await delete_hub(tmp_path, "orders")

        assert names_in(tmp_path) == []
        assert await list_hubs(tmp_path) == []

    run(test())


def test_who_uses_a_hub_learns_that_it_was_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=2) as hub:
            sender = await hub.open_sender()
            await send(hub, "a")
            waiting_reader, reader = await opened(hub, partition="1"), await opened(hub)
            waiting = asyncio.create_task(waiting_reader.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS))
            await asyncio.sleep(0)

            await delete_hub(tmp_path, "orders")

            for call in (
                waiting,
                reader.receive(max_count=1, wait_seconds=0),
                sender.send(new_events(["b"]), partition="0"),
                hub.describe(),
            ):
                with pytest.raises(HubNotFound):
                    await call

    run(test())


def test_an_open_reader_never_reads_a_new_hub_of_the_same_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await send(hub, "old 0", "old 1")
            plain, fenced = await opened(hub), await opened(hub, epoch=3)
            assert await texts(fenced, 1) == ["old 0"]
            offset = (await hub.describe_partition("0")).last_offset

            await delete_hub(tmp_path, "orders")
            async with new_hub(tmp_path) as recreated:
                await send(recreated, "new 0", "new 1", "new 2")

                # What it had read ahead is of the old hub, and may still come; nothing of the new one may.
                assert await texts(fenced, 1) == ["old 1"]
                with pytest.raises(PositionInvalid, match="re-created") as refused:
                    await fenced.receive(max_count=10, wait_seconds=ARRIVAL_SECONDS)
                assert refused.value.reason == "foreign"
                assert (refused.value.begin_sequence, refused.value.last_sequence) == (0, 2)
                with pytest.raises(PositionInvalid):
                    await plain.receive(max_count=10, wait_seconds=ARRIVAL_SECONDS)
                await fenced.close()

                # The same hub object continues with the new hub, where the old offset is not taken for one of its own.
                assert offset is not None
                with pytest.raises(PositionInvalid) as refused:
                    await opened(hub, Position.offset(offset))
                assert refused.value.reason == "foreign"
                await send(hub, "new 3")
                assert await texts(await opened(hub, epoch=1), 4) == ["new 0", "new 1", "new 2", "new 3"]

    run(test())


def test_a_hub_of_a_newer_hubline_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            _change_hub(tmp_path, "UPDATE hub SET format_version = 99")
            with pytest.raises(HubError, match="newer hubline"):
                await hub.describe()

    run(test())


def test_a_hub_file_without_its_row_is_damaged_and_can_be_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            _change_hub(tmp_path, "DELETE FROM hub")
            with pytest.raises(HubDamaged, match=r"hub\.db"):
                await hub.describe()
            await delete_hub(tmp_path, "orders")
            assert names_in(tmp_path) == []

    run(test())


def _change_hub(root: Path, statement: str) -> None:
    with closing(sqlite3.connect(root / "orders" / "hub.db")) as connection:
        connection.execute(statement)
        connection.commit()
