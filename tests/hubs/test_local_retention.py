"""Retention removes whole batches from the old end, and never goes unnoticed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from hubline.errors import PositionInvalid
from hubline.hubs.local import LocalHub, Retention
from hubline.hubs.local import partition_file as partition_module
from hubline.model.positions import Position

from .support import ManualClock, new_hub, opened, opened_hub, run, send, texts, until

HOUR = 3600.0


async def bounds(hub: LocalHub, partition: str = "0") -> tuple[int, int]:
    described = await hub.describe_partition(partition)
    return described.begin_sequence, described.last_sequence


def test_events_are_removed_once_they_are_too_old(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, partitions=2, retention=Retention(seconds=HOUR), clock=clock) as hub:
            await send(hub, "a", "b")
            clock.now += HOUR / 2
            await send(hub, "c")
            await send(hub, "x", partition="1")

            assert await hub.apply_retention() == 0
            clock.now += HOUR / 2 + 1
            assert await hub.apply_retention() == 2
            assert (await bounds(hub), await bounds(hub, "1")) == ((2, 2), (0, 0))
            clock.now += HOUR
            assert await hub.apply_retention() == 2

    run(test())


def test_the_sequence_goes_on_after_everything_was_removed(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, retention=Retention(seconds=HOUR), clock=clock) as hub:
            await send(hub, "a", "b", "c")
            last_offset = (await hub.describe_partition("0")).last_offset
            clock.now += 2 * HOUR
            await hub.apply_retention()

        async with opened_hub(tmp_path, clock=clock) as hub:
            described = await hub.describe_partition("0")
            assert described.is_empty
            assert (described.begin_sequence, described.last_sequence) == (3, 2)
            assert described.last_offset == last_offset
            assert described.bytes_count == 0
            for position in (Position.earliest(), Position.latest(inclusive=True), Position.sequence(2)):
                receiver = await opened(hub, position)
                assert len(await receiver.receive(max_count=1, wait_seconds=0)) == 0
            await send(hub, "d")
            assert await bounds(hub) == (3, 3)

    run(test())


def test_a_partition_keeps_no_more_bytes_than_allowed_beside_its_newest_batch(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, retention=Retention(bytes=20_000)) as hub:
            for number in range(10):
                await send(hub, f"{number}" * 5000)
            await hub.apply_retention()

            described = await hub.describe_partition("0")
            assert described.bytes_count is not None
            assert 10_000 < described.bytes_count <= 20_000
            assert (described.begin_sequence, described.last_sequence) == (7, 9)

            await send(hub, "x" * 500_000)
            await hub.apply_retention()
            assert await bounds(hub) == (10, 10)

    run(test())


def test_appending_applies_retention_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, retention=Retention(seconds=HOUR), clock=clock) as hub:
            await send(hub, "old")
        clock.now += 2 * HOUR
        async with opened_hub(tmp_path, clock=clock) as hub:
            await send(hub, "new")

            async def is_trimmed() -> bool:
                return await bounds(hub) == (1, 1)

            await until(is_trimmed)

    run(test())


def test_a_position_whose_events_were_removed_is_expired_and_the_one_before_them_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, retention=Retention(seconds=HOUR), clock=clock) as hub:
            for body in ("a", "b", "c", "d"):
                await send(hub, body)
                clock.now += HOUR / 2
            clock.now += 1
            await hub.apply_retention()
            assert await bounds(hub) == (3, 3)

            for position in (Position.sequence(2, inclusive=True), Position.sequence(1), Position.sequence(-1)):
                with pytest.raises(PositionInvalid, match="have been removed") as refused:
                    await opened(hub, position)
                assert refused.value.reason == "expired"
                assert (refused.value.begin_sequence, refused.value.last_sequence) == (3, 3)
            for position in (Position.sequence(2), Position.sequence(3, inclusive=True), Position.earliest()):
                assert await texts(await opened(hub, position), 1) == ["d"]

    run(test())


def test_a_slow_reader_that_retention_overtakes_gets_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, retention=Retention(seconds=HOUR), clock=clock) as hub:
            slow = await opened(hub, epoch=1)
            caught_up = await hub.open_receiver("0", group="other", position=Position.earliest())
            await send(hub, "a", "b")
            assert await texts(caught_up, 2) == ["a", "b"]
            clock.now += 2 * HOUR
            await hub.apply_retention()
            await send(hub, "c")

            with pytest.raises(PositionInvalid) as refused:
                await slow.receive(max_count=10, wait_seconds=0)
            assert (refused.value.reason, refused.value.begin_sequence) == ("expired", 2)
            assert await texts(caught_up, 1) == ["c"]

    run(test())


def test_many_batches_are_removed_while_others_are_appended(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, retention=Retention(seconds=HOUR), clock=clock) as hub:
            for number in range(600):
                await send(hub, str(number))
            clock.now += 2 * HOUR

            await asyncio.gather(hub.apply_retention(), *(send(hub, "new") for _ in range(20)))

            assert await bounds(hub) == (600, 619)
            assert await texts(await opened(hub), 20) == ["new"] * 20

    run(test())


def test_a_clock_that_goes_back_takes_no_event_back_in_time(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with new_hub(tmp_path, clock=clock) as hub:
            await send(hub, "a")
            clock.now -= HOUR
            await send(hub, "b")
            clock.now += 2 * HOUR
            await send(hub, "c")

            batch = await (await opened(hub)).receive(max_count=3, wait_seconds=0)
            a, b, c = (event.enqueued_time for event in batch)
            assert (b - a, c - a) == (timedelta(0), timedelta(hours=1))
            assert await texts(await opened(hub, Position.enqueued(a)), 3) == ["a", "b", "c"]
            assert await texts(await opened(hub, Position.enqueued(a, inclusive=False)), 1) == ["c"]

    run(test())


def test_removing_large_batches_lets_appenders_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step holds the write lock for as long as its bytes take, so its bytes are bounded, not just its batches."""
    monkeypatch.setattr(partition_module, "TRIM_BYTES_MAX", 25_000)

    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            for _ in range(10):
                await send(hub, "x" * 10_000)
            await send(hub, "x" * 100_000)  # larger than a step by itself, and removed all the same
            partition = hub._open_hub.current()[1].partition(0)
            steps = []
            while removed_count := await asyncio.to_thread(partition._trim_step, 2**62, None):
                steps.append(removed_count)
            assert steps == [2, 2, 2, 2, 2, 1]

    run(test())
