"""A receiver that is lost or falls silent is replaced after the last event; what is lasting is reported and raised."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable

import pytest

from hubline.errors import (
    HublineError,
    HubUnavailable,
    PartitionStalled,
    PositionInvalid,
    ReaderRefused,
    ReaderStolen,
)
from hubline.hubs.reconnecting_receiver import ReconnectingReceiver, ReconnectPolicy
from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.ports import Receiver
from hubline.retry import RetryPolicy
from hubline.testing.memory_hub import MemoryHub, MemoryReceiver
from tests.support.scene import virtual

GROUP = "$Default"


class FailingHub(MemoryHub):
    """``failures`` are raised by calls to receive, one each, until None lets a call through."""

    def __init__(self) -> None:
        super().__init__(1, now=asyncio.get_running_loop().time)
        self.failures: list[Exception | None] = []
        self.opened_at: list[Position] = []
        self.open_count = 0
        self.is_silent = False

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> MemoryReceiver:
        self.opened_at.append(position)
        receiver = await super().open_receiver(partition, group=group, position=position, epoch=epoch)
        self.open_count += 1
        receive, close, is_silent = receiver.receive, receiver.close, self.is_silent

        async def failing(*, max_count: int, wait_seconds: float) -> EventBatch:
            if is_silent:
                await asyncio.sleep(wait_seconds)
                return EventBatch.empty(partition)
            if self.failures and (failure := self.failures.pop(0)) is not None:
                raise failure
            return await receive(max_count=max_count, wait_seconds=wait_seconds)

        async def noted() -> None:
            self.open_count -= 1
            await close()

        receiver.receive, receiver.close = failing, noted  # type: ignore[method-assign]
        return receiver


class Scene:
    def __init__(
        self, events_count: int = 10, *, stall_seconds: float = 60.0, outage_seconds: float = math.inf
    ) -> None:
        self.hub = FailingHub()
        self.hub.append("0", [b"x"] * events_count)
        self.reports: list[tuple[float, HublineError]] = []
        backoff = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=8.0)
        self._policy = ReconnectPolicy(backoff, self._note, stall_seconds=stall_seconds, outage_seconds=outage_seconds)

    def receiver(self, position: Position | None = None, *, epoch: int | None = None) -> ReconnectingReceiver:
        where, before = position or Position.earliest(), None if position else -1
        return ReconnectingReceiver(
            self.hub, "0", group=GROUP, position=where, after_sequence=before, epoch=epoch, policy=self._policy
        )

    def _note(self, error: HublineError) -> None:
        self.reports.append((asyncio.get_running_loop().time(), error))


async def sequences(receiver: Receiver, count: int, *, at_once: int = 3) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        batch = await receiver.receive(max_count=min(at_once, count - len(found)), wait_seconds=30)
        found += batch.arrow.column("sequenceNumber").to_pylist()
    return found


def lost() -> HubUnavailable:
    return HubUnavailable("the link was lost")


@virtual
async def test_each_event_comes_once_however_often_the_receiver_is_lost() -> None:
    scene = Scene(events_count=100)
    scene.hub.failures = [None, lost(), lost(), None, lost(), None] * 10
    receiver = scene.receiver()

    assert await sequences(receiver, 100) == list(range(100))

    await receiver.close()
    assert scene.hub.open_count == 0


@virtual
async def test_one_that_has_worked_is_replaced_at_once_and_nobody_is_alarmed() -> None:
    scene = Scene()
    scene.hub.failures = [None, lost(), None]
    receiver = scene.receiver()
    started_at = asyncio.get_running_loop().time()

    assert await sequences(receiver, 6) == list(range(6))

    assert asyncio.get_running_loop().time() == started_at
    assert scene.reports == []


@virtual
async def test_what_fails_again_is_reported_and_tried_ever_more_slowly() -> None:
    scene = Scene()
    scene.hub.failures = [None, *(lost() for _ in range(6))]
    receiver = scene.receiver()

    assert await sequences(receiver, 6) == list(range(6))

    times = [time for time, _ in scene.reports]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == 5  # the first loss was none of a receiver that had failed
    assert all(longest / 2 <= wait <= longest for wait, longest in zip(waits, [1, 2, 4, 8], strict=True))


@virtual
async def test_an_outage_that_lasts_too_long_is_raised_and_the_next_call_tries_again() -> None:
    scene = Scene(outage_seconds=20.0)
    scene.hub.failures = [lost() for _ in range(1_000)]
    receiver = scene.receiver()
    started_at = asyncio.get_running_loop().time()

    with pytest.raises(HubUnavailable, match="the link was lost"):
        await receiver.receive(max_count=1, wait_seconds=1)
    seconds = asyncio.get_running_loop().time() - started_at
    scene.hub.failures = []

    assert 20 <= seconds <= 28
    assert await sequences(receiver, 3) == [0, 1, 2]


@pytest.mark.parametrize(("outage_seconds", "is_raised"), [(math.inf, False), (100.0, True)])
@virtual
async def test_silence_where_there_are_events_is_reported_and_ended(outage_seconds: float, is_raised: bool) -> None:
    scene = Scene(stall_seconds=60.0, outage_seconds=outage_seconds)
    scene.hub.is_silent = True
    receiver = scene.receiver()
    receiving = asyncio.create_task(receiver.receive(max_count=3, wait_seconds=60))
    await asyncio.sleep(200 if is_raised else 30)
    scene.hub.is_silent = False

    if is_raised:
        with pytest.raises(HubUnavailable, match="has events after -1, but none arrived"):
            await receiving
    await asyncio.wait([receiving])
    assert await sequences(receiver, 3) == ([0, 1, 2] if is_raised else [3, 4, 5])
    assert all(isinstance(error, PartitionStalled) for _, error in scene.reports)
    assert scene.reports


@virtual
async def test_a_quiet_partition_keeps_its_receiver() -> None:
    scene = Scene(stall_seconds=60.0)
    receiver = scene.receiver(Position.latest())

    for _ in range(100):
        assert not len(await receiver.receive(max_count=1, wait_seconds=7))

    assert len(scene.hub.opened_at) == 1
    assert scene.reports == []


@virtual
async def test_the_end_is_where_it_was_when_it_was_first_looked_for() -> None:
    scene = Scene()
    scene.hub.failures = [lost()]
    receiver = scene.receiver(Position.latest())
    receiving = asyncio.create_task(sequences(receiver, 1))
    await asyncio.sleep(0.1)
    scene.hub.append("0", [b"while nobody was connected"])

    assert await receiving == [10]


@virtual
async def test_a_reader_that_comes_back_after_a_takeover_learns_of_it() -> None:
    scene = Scene()
    receiver = scene.receiver(epoch=1)
    assert await sequences(receiver, 3) == [0, 1, 2]
    scene.hub.failures = [lost()]
    await scene.hub.open_receiver("0", group=GROUP, position=Position.earliest(), epoch=2)

    with pytest.raises(ReaderStolen) as stolen:
        await receiver.receive(max_count=1, wait_seconds=1)

    assert (stolen.value.epoch, stolen.value.taken_by_epoch) == (1, 2)


@virtual
async def test_a_reader_without_an_epoch_is_refused_beside_one_that_took_the_partition() -> None:
    scene = Scene()
    receiver = scene.receiver()
    assert await sequences(receiver, 3) == [0, 1, 2]
    await scene.hub.open_receiver("0", group=GROUP, position=Position.earliest(), epoch=2)

    with pytest.raises(ReaderRefused) as refused:
        await receiver.receive(max_count=1, wait_seconds=1)

    assert (refused.value.epoch, refused.value.held_epoch) == (None, 2)


class TestRetention:
    @virtual
    async def test_that_the_last_event_expired_is_no_loss(self) -> None:
        scene = Scene()
        receiver = scene.receiver()
        assert await sequences(receiver, 3) == [0, 1, 2]
        scene.hub.failures = [lost()]
        scene.hub.trim("0", 3)

        assert await sequences(receiver, 3) == [3, 4, 5]

    @virtual
    async def test_events_that_expired_meanwhile_are_missed_until_another_position_is_chosen(self) -> None:
        scene = Scene()
        receiver = scene.receiver()
        assert await sequences(receiver, 3) == [0, 1, 2]
        scene.hub.failures = [lost()]
        scene.hub.trim("0", 4)

        for _ in range(2):
            with pytest.raises(PositionInvalid):
                await receiver.receive(max_count=1, wait_seconds=1)
        await receiver.seek(Position.earliest())

        assert await sequences(receiver, 3) == [4, 5, 6]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
@virtual
async def test_a_cancelled_call_loses_no_event_and_leaves_no_receiver_open(steps: int) -> None:
    scene = Scene()
    receiver = scene.receiver()
    found: list[int] = []

    for _ in range(4):
        receiving = asyncio.create_task(receiver.receive(max_count=1, wait_seconds=30))
        for _ in range(steps):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        if not receiving.cancelled():
            found += receiving.result().arrow.column("sequenceNumber").to_pylist()
    found += await sequences(receiver, 10 - len(found))

    await receiver.close()
    assert found == list(range(10))
    assert scene.hub.open_count == 0


@pytest.mark.parametrize("use", [ReconnectingReceiver.close, lambda receiver: receiver.seek(Position.earliest())])
@virtual
async def test_what_was_opened_ahead_is_closed(use: Callable[[ReconnectingReceiver], asyncio.Future[None]]) -> None:
    scene = Scene()
    receiver = scene.receiver()
    await receiver.open_ahead()

    await use(receiver)

    assert len(scene.hub.opened_at) == 1
    assert scene.hub.open_count == 0


@virtual
async def test_a_receiver_that_is_released_is_the_callers_and_can_be_adopted() -> None:
    scene = Scene()
    first = scene.receiver()
    assert await sequences(first, 3) == [0, 1, 2]
    kept = first.release()
    assert kept is not None
    await first.close()
    second = scene.receiver(Position.sequence(3, inclusive=True))
    second.adopt(kept)

    assert await sequences(second, 3) == [3, 4, 5]
    assert len(scene.hub.opened_at) == 1
