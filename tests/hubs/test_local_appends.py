"""Sends that come while a partition is being written to are written together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hubline.errors import HubUnavailable
from hubline.hubs.local import LocalHub
from hubline.hubs.local.partition_file import Partition
from hubline.hubs.local.stored_batch import Payload

from .support import ARRIVAL_SECONDS, new_hub, opened, run, send, texts, until


class SlowAppends:
    """Holds the first append up until it may end, and counts what each append brings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.payload_counts: list[int] = []
        self.error: Exception | None = None
        real_append = Partition.append

        def append(partition: Partition, payloads: Sequence[Payload], *, now_us: int) -> None:
            self.payload_counts.append(len(payloads))
            self.may_end.wait(ARRIVAL_SECONDS)
            if self.error:
                raise self.error
            real_append(partition, payloads, now_us=now_us)

        monkeypatch.setattr(Partition, "append", append)


async def queued(hub: LocalHub, count: int) -> None:
    """Until so many sends wait for the one that is being written."""

    async def are_queued() -> bool:
        return [len(waiting) for waiting in hub._open_hub.appends._waiting.values()] == [count]

    await until(are_queued)


def test_sends_that_come_during_an_append_are_appended_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            slow = SlowAppends(monkeypatch)
            sends = [asyncio.create_task(send(hub, "first"))]
            await queued(hub, 0)
            sends += [asyncio.create_task(send(hub, f"{n}a", f"{n}b")) for n in range(30)]
            await queued(hub, 30)

            slow.may_end.set()
            await asyncio.gather(*sends)

            assert slow.payload_counts == [1, 30]
            first, *rest = await texts(await opened(hub), 61)
            assert first == "first"
            assert sorted(zip(rest[::2], rest[1::2], strict=True)) == sorted((f"{n}a", f"{n}b") for n in range(30))

    run(test())


def test_an_error_reaches_all_that_were_appended_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            slow = SlowAppends(monkeypatch)
            slow.error = HubUnavailable("locked")
            sends = [asyncio.create_task(send(hub, "a")) for _ in range(5)]
            slow.may_end.set()

            results = await asyncio.gather(*sends, return_exceptions=True)

            assert results == [slow.error] * 5
            slow.error = None
            await send(hub, "works again")
            assert await texts(await opened(hub), 1) == ["works again"]

    run(test())


def test_a_cancelled_send_disturbs_none_of_those_appended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            slow = SlowAppends(monkeypatch)
            sends = [asyncio.create_task(send(hub, "0"))]
            await queued(hub, 0)
            sends += [asyncio.create_task(send(hub, str(n))) for n in range(1, 6)]
            await queued(hub, 5)
            for task in sends[::2]:
                task.cancel()
            await asyncio.wait(sends[::2])

            slow.may_end.set()
            await asyncio.gather(*sends[1::2])

            assert sorted(await texts(await opened(hub), 6)) == ["0", "1", "2", "3", "4", "5"]

    run(test())
