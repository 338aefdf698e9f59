"""The local hub between processes: all at once, and killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubline.errors import ReaderRefused
from hubline.hubs.local import LocalHub

from .child import PARTITION_COUNT
from .support import ARRIVAL_SECONDS, new_hub, opened, opened_hub, run, send, texts

pytestmark = pytest.mark.kills

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Child:
    """A process of tests/hubs/child.py. Its lines tell what it has done."""

    process: asyncio.subprocess.Process

    async def line(self) -> str:
        assert self.process.stdout
        line = await asyncio.wait_for(self.process.stdout.readline(), ARRIVAL_SECONDS)
        return line.decode().strip()

    async def lines(self) -> list[str]:
        """What it says from now until it ends."""
        assert self.process.stdout
        rest = await asyncio.wait_for(self.process.stdout.read(), 4 * ARRIVAL_SECONDS)
        await self.process.wait()
        return rest.decode().splitlines()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


@asynccontextmanager
async def child(verb: str, root: Path, *arguments: object) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.hubs.child", verb, str(root), *map(str, arguments)),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    started = Child(process)
    try:
        yield started
    finally:
        started.kill()
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def sends_by_name(hub: LocalHub) -> dict[str, list[int]]:
    """The numbers of the sends that are there, by sender. Checks that each is whole, and that nothing has a gap."""
    found: dict[str, list[int]] = defaultdict(list)
    for partition in range(PARTITION_COUNT):
        described = await hub.describe_partition(str(partition))
        bodies = await texts(await opened(hub, partition=str(partition)), described.last_sequence + 1)
        words = iter([body.split()[:4] for body in bodies])
        for name, number, place, event_count in words:
            rest = [next(words) for _ in range(int(event_count) - 1)]
            assert place == "0"
            assert rest == [[name, number, str(place), event_count] for place in range(1, int(event_count))]
            found[name].append(int(number))
    return found


def test_what_was_acknowledged_survives_kill_9_whole(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)

    async def append_and_be_killed(name: str, after_count: int) -> tuple[str, list[int]]:
        async with child("append", tmp_path, name, 100_000) as appender:
            first = [await appender.line() for _ in range(after_count)]
            await asyncio.sleep(rng.random() * 0.02)  # not at an acknowledgement, but anywhere between two
            appender.kill()
            return name, [int(number) for number in first + await appender.lines() if number]

    async def test() -> None:
        async with new_hub(tmp_path, partitions=PARTITION_COUNT):
            pass
        acknowledged: dict[str, list[int]] = {}
        for round_number in range(3):
            acknowledged |= await asyncio.gather(
                *(append_and_be_killed(f"{round_number}-{n}", rng.randrange(1, 40)) for n in range(3))
            )
            async with opened_hub(tmp_path) as hub:
                found = await sends_by_name(hub)
            for name, numbers in acknowledged.items():
                # At most the one that was in flight came on top: it is there whole, or not at all.
                assert sorted(found[name]) in (numbers, [*numbers, len(numbers)]), f"seed {seed}"
            async with opened_hub(tmp_path) as hub:
                await send(hub, f"parent {round_number} 0 1")

    run(test())


def test_many_processes_append_and_read_at_once(tmp_path: Path) -> None:
    sends_each, appender_count = 42, 3
    # Every seventh size comes six times; each partition gets every other one of them.
    counts = [
        appender_count * sum(1 + n % 7 for n in range(sends_each) if n % PARTITION_COUNT == partition)
        for partition in range(PARTITION_COUNT)
    ]

    async def read(partition: int) -> list[str]:
        async with child("read", tmp_path, partition, counts[partition]) as reader:
            return await reader.lines()

    async def append(name: int) -> list[str]:
        async with child("append", tmp_path, name, sends_each) as appender:
            return await appender.lines()

    async def test() -> None:
        async with new_hub(tmp_path, partitions=PARTITION_COUNT) as hub:
            *reads, _, _, _ = await asyncio.gather(read(0), read(1), append(0), append(1), append(2))
            assert reads == [[f"read {counts[0]}"], [f"read {counts[1]}"]]
            found = await sends_by_name(hub)
            assert {name: sorted(numbers) for name, numbers in found.items()} == {
                str(name): list(range(sends_each)) for name in range(appender_count)
            }

    run(test())


def test_a_reader_in_another_process_takes_over_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=PARTITION_COUNT) as hub, child("hold", tmp_path, 5) as holder:
            assert await holder.line() == "holding"
            await send(hub, "a")
            assert await holder.line() == "received a"  # and now it waits
            with pytest.raises(ReaderRefused) as refused:
                await opened(hub, epoch=4)
            assert refused.value.held_epoch == 5

            async with child("hold", tmp_path, 4) as lower:
                assert await lower.lines() == ["refused 5"]
            async with child("hold", tmp_path, 5) as equal:
                assert await equal.line() == "holding"
                assert await holder.lines() == ["stolen 5"]
                await opened(hub, epoch=6)
                assert await equal.lines() == ["received a", "stolen 6"]

    run(test())


def test_a_killed_readers_epoch_refuses_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=PARTITION_COUNT) as hub:
            await send(hub, "a")
            async with child("hold", tmp_path, 5) as holder:
                assert await holder.line() == "holding"
                holder.kill()
                await holder.lines()

            assert await texts(await opened(hub), 1) == ["a"]
            assert await texts(await opened(hub, epoch=1), 1) == ["a"]
            assert len(list((tmp_path / "orders" / "readers").iterdir())) == 1  # the dead one's lock is swept up

    run(test())


def test_a_fork_of_a_killed_reader_holds_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=PARTITION_COUNT) as hub, child("hold_and_fork", tmp_path, 5) as holder:
            fork_id = int((await holder.line()).removeprefix("holding "))
            with pytest.raises(ReaderRefused):
                await opened(hub, epoch=1)
            holder.kill()
            await holder.process.wait()

            await opened(hub, epoch=1)

            os.kill(fork_id, signal.SIGKILL)  # which shows that it was still there

    run(test())
