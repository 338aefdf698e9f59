"""A task's sending: in order, bounded, tried again, and nothing after what failed, without Spark."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hubline.addresses.hub_address import LocalHubAddress
from hubline.errors import EventTooLarge, HubFull, HubUnavailable
from hubline.model.events import new_events
from hubline.model.hubs import HubProperties
from hubline.ports import Hub, Sender
from hubline.producer import lanes
from hubline.producer.lanes import Piece
from hubline.retry import RetryPolicy
from hubline.spark.sink import partition_lanes
from hubline.spark.sink.partition_lanes import Publishing
from hubline.spark.tasks import event_loop as process
from hubline.spark.tasks.event_loop import OpenHub

ADDRESS = LocalHubAddress(Path("/nowhere"), "fake")
PATIENCE_SECONDS = 60

Answer = Callable[[str | None, list[bytes]], Awaitable[None]]


class FakeHub:
    """Keeps what its senders are given, by partition, once ``answer`` returns."""

    def __init__(self) -> None:
        self.kept: dict[str | None, list[bytes]] = {}
        self.answer: Answer | None = None

    async def open_sender(self) -> Sender:
        return FakeSender(self)

    async def describe(self) -> HubProperties:
        from datetime import UTC, datetime

        return HubProperties("fake", "fake", ("0", "1"), datetime.now(UTC))


class FakeSender:
    def __init__(self, hub: FakeHub) -> None:
        self.hub = hub

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        bodies: list[bytes] = events.column("body").to_pylist()
        if self.hub.answer:
            await self.hub.answer(partition, bodies)
        self.hub.kept.setdefault(partition, []).extend(bodies)

    async def close(self) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub()

    @asynccontextmanager
    async def shared_hub(_address: object) -> AsyncIterator[OpenHub]:
        yield OpenHub(made)  # type: ignore[arg-type]

    monkeypatch.setattr(partition_lanes, "shared_hub", shared_hub)
    monkeypatch.setattr(lanes, "RETRY", RetryPolicy(initial_backoff_seconds=0.001, max_backoff_seconds=0.1))
    return made


Numbered = tuple[pa.RecordBatch, np.ndarray[tuple[int], np.dtype[np.int64]]]
"""Events, and their numbers in the task."""


def piece(first: int, count: int = 10, size: int = 1) -> Numbered:
    bodies = [b"%d" % number * size for number in range(first, first + count)]
    return new_events(bodies), np.arange(first, first + count)


async def put(sending: Publishing, by_partition: Mapping[str | None, Numbered]) -> None:
    await sending.put(
        [
            Piece(events, numbers, events.nbytes, partition, sending)
            for partition, (events, numbers) in by_partition.items()
        ]
    )


async def published(groups: Iterable[Mapping[str | None, Numbered]], **options: float) -> None:
    sending = Publishing(ADDRESS, outage_seconds=options.get("outage_seconds", 60.0))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sending.open()
            for group in groups:
                await put(sending, group)
            await sending.finish()
    finally:
        await sending.close()


def test_each_partition_gets_its_events_in_order(hub: FakeHub) -> None:
    async def slowly(_partition: str | None, bodies: list[bytes]) -> None:
        for _ in range(len(bodies) % 3):
            await asyncio.sleep(0)

    hub.answer = slowly
    asyncio.run(published([{"0": piece(first), "1": piece(first, 7)} for first in range(0, 200, 10)]))

    assert hub.kept["0"] == [b"%d" % number for number in range(200)]
    assert hub.kept["1"] == [b"%d" % (first + number) for first in range(0, 200, 10) for number in range(7)]


def test_what_comes_while_a_send_is_under_way_is_sent_together(hub: FakeHub) -> None:
    sends: list[int] = []
    first_is_through = asyncio.Event()

    async def answer(_partition: str | None, bodies: list[bytes]) -> None:
        sends.append(len(bodies))
        if len(sends) == 1:
            await first_is_through.wait()

    async def check() -> None:
        hub.answer = answer
        sending = Publishing(ADDRESS, outage_seconds=60)
        await sending.open()
        for number in range(5):
            await put(sending, {"0": piece(10 * number)})
            await asyncio.sleep(0)
        first_is_through.set()
        await sending.finish()
        await sending.close()

    asyncio.run(check())
    assert sends == [10, 40]


def test_no_more_is_taken_than_there_is_room_for(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_lanes, "AHEAD_BYTES_MAX", 10_000)
    taken = 0

    async def check() -> None:
        async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
            await is_awake.wait()

        async def put_all() -> None:
            nonlocal taken
            for number in range(20):
                await put(sending, {"0": piece(10 * number, size=100)})
                taken += 1

        is_awake = asyncio.Event()
        hub.answer = answer
        sending = Publishing(ADDRESS, outage_seconds=60)
        await sending.open()
        putting = asyncio.create_task(put_all())
        for _ in range(200):
            await asyncio.sleep(0)
            assert sending._room.bytes_count <= 10_000
        assert 0 < taken < 8  # of 2 to 3 kB each
        is_awake.set()
        await putting
        await sending.finish()
        await sending.close()

    asyncio.run(check())
    assert len(hub.kept["0"]) == 200


def test_a_hub_that_is_away_for_a_while_gets_everything(hub: FakeHub) -> None:
    failures = iter([True, False, True, True])

    async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
        if next(failures, False):
            raise HubUnavailable("away")

    hub.answer = answer
    asyncio.run(published([{"0": piece(first)} for first in range(0, 50, 10)]))

    assert hub.kept["0"] == [b"%d" % number for number in range(50)]


def test_a_hub_that_stays_away_is_given_up(hub: FakeHub) -> None:
    async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
        raise HubUnavailable("away")

    hub.answer = answer
    with pytest.raises(HubUnavailable, match="away"):
        asyncio.run(published([{"0": piece(0)}], outage_seconds=0.05))


def test_nothing_is_sent_to_a_partition_after_what_failed(hub: FakeHub) -> None:
    async def answer(partition: str | None, bodies: list[bytes]) -> None:
        await asyncio.sleep(0)
        if partition == "0" and b"20" in bodies:
            raise HubFull("full")

    async def one_by_one() -> None:
        sending = Publishing(ADDRESS, outage_seconds=60)
        await sending.open()
        try:
            for first in range(0, 100, 10):
                await put(sending, {"0": piece(first), "1": piece(first)})
                await asyncio.sleep(0.001)
        finally:
            await sending.close()

    hub.answer = answer
    with pytest.raises(HubFull):
        asyncio.run(one_by_one())
    assert hub.kept["0"] == [b"%d" % number for number in range(20)]


def test_an_event_that_is_too_large_is_named_by_its_row(hub: FakeHub) -> None:
    async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
        raise EventTooLarge("too large", hub="fake", index=3, bytes_count=2_000_000, max_bytes=1_048_576)

    hub.answer = answer
    with pytest.raises(EventTooLarge, match="row 43 of the task is an event of 2,000,000 bytes") as caught:
        asyncio.run(published([{"0": piece(40)}]))
    assert caught.value.index == 43


def test_duplicates_of_attempts_that_failed_or_live_on_are_recognized_by_the_highest_id(hub: FakeHub) -> None:
    """Attempts fail and overlap at random: what is dropped by the highest id seen is nothing but duplicates."""
    everything = [b"%04d" % number for number in range(120)]

    def attempt_pieces() -> Iterator[dict[str | None, Numbered]]:
        for first in range(0, len(everything), 8):
            bodies = everything[first : first + 8]
            yield {"0": (new_events(bodies), np.arange(first, first + len(bodies)))}

    async def run_attempts(rng: random.Random) -> None:
        async def answer(partition: str | None, bodies: list[bytes]) -> None:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            what_happens = rng.random()
            if what_happens < 0.1:  # a part is kept, but the sender does not learn of it
                hub.kept.setdefault(partition, []).extend(bodies[: rng.randrange(len(bodies) + 1)])
                raise HubUnavailable("lost")
            if what_happens < 0.15:
                raise HubFull("full")

        hub.answer = answer
        attempts = [asyncio.create_task(published(attempt_pieces())) for _ in range(2)]
        await asyncio.sleep(0)
        attempts[0].cancel() if rng.random() < 0.3 else None
        await asyncio.gather(*attempts, return_exceptions=True)
        hub.answer = None
        await published(attempt_pieces())

    for seed in range(40):
        hub.kept.clear()
        asyncio.run(run_attempts(random.Random(seed)))
        highest = b""
        seen = [highest := body for body in hub.kept["0"] if body > highest]
        assert seen == everything, seed


def test_a_process_keeps_hubs_open_and_closes_what_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Closable:
        async def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(process, "open_hub", lambda _address: Closable())
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.0)

    async def borrow_twice() -> None:
        async with process.shared_hub(ADDRESS) as first, process.shared_hub(ADDRESS) as second:
            assert first is second
            await asyncio.sleep(0.02)  # long enough to be closed, were it not in use
            assert not closed
        while not closed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    process.close()
    try:
        process.run(asyncio.wait_for(borrow_twice(), PATIENCE_SECONDS))
    finally:
        process.close()


def test_the_end_of_a_process_closes_its_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Hub] = []

    class Closable:
        async def close(self) -> None:
            closed.append(self)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "open_hub", lambda _address: Closable())

    async def borrow() -> None:
        async with process.shared_hub(ADDRESS):
            pass

    process.close()
    process.run(borrow())
    process.close()

    assert len(closed) == 1
