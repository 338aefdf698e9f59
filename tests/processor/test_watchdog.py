"""A hub that goes quiet, hangs or breaks is noticed, reported and opened again."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from hubline.errors import HublineError, HubUnavailable, PartitionStalled, ProcessorError, ReaderStolen
from hubline.model.events import EventBatch
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.positions import Position
from hubline.ports import Receiver, Sender
from hubline.processor import RetryPolicy
from hubline.testing.memory_hub import MemoryHub
from tests.support.scene import Scene, until, virtual


class BrokenHub:
    """A hub whose first receivers do not work; ``way`` says how."""

    def __init__(self, way: str, *, broken_count: int = 1) -> None:
        self.inner = MemoryHub(1, now=asyncio.get_running_loop().time)
        self.namespace, self.name = self.inner.namespace, self.inner.name
        self.way = way
        self.broken_left = broken_count
        self.opened_count = 0

    async def describe(self) -> HubProperties:
        return await self.inner.describe()

    async def describe_partition(self, partition: str) -> PartitionProperties:
        if self.way == "describe hangs" and self.broken_left:
            self.broken_left -= 1
            await asyncio.sleep(1e9)
        return await self.inner.describe_partition(partition)

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> Receiver:
        self.opened_count += 1
        if not self.broken_left or self.way == "describe hangs":
            return await self.inner.open_receiver(partition, group=group, position=position, epoch=epoch)
        self.broken_left -= 1
        if self.way == "open hangs":
            await asyncio.sleep(1e9)
        if self.way == "open raises":
            raise OSError("no route to host")
        receiver = await self.inner.open_receiver(partition, group=group, position=position, epoch=epoch)
        return BrokenReceiver(receiver, self.way)

    async def open_sender(self) -> Sender:
        return await self.inner.open_sender()

    async def close(self) -> None: ...


class BrokenReceiver:
    def __init__(self, receiver: Receiver, way: str) -> None:
        self.receiver = receiver
        self.way = way

    @property
    def last_sequence(self) -> int | None:
        return None

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        if self.way == "receive raises":
            raise OSError("connection reset")
        if self.way == "unavailable":
            raise HubUnavailable("try again")
        await asyncio.sleep(1e9 if self.way == "receive hangs" else wait_seconds)
        return EventBatch.empty("0")

    async def close(self) -> None:
        await self.receiver.close()
        if self.way == "close hangs":
            await asyncio.sleep(1e9)
        if self.way == "close raises":
            raise HubUnavailable("the network is down")


class TestStall:
    @pytest.mark.parametrize("way", ["delivers nothing", "receive hangs", "close hangs"])
    @virtual
    async def test_a_receiver_that_delivers_nothing_is_opened_again_and_reported(self, way: str) -> None:
        scene = Scene()
        hub = BrokenHub(way)
        hub.inner.append("0", [b"x"] * 3)
        recorder = scene.processor(hub=hub, hub_timeout_seconds=20.0)
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        (error,) = recorder.errors_of(PartitionStalled)
        assert "events after -1" in str(error)
        assert recorder.sequences == [0, 1, 2]
        assert recorder.released == ["released 0 stopped"]

    @pytest.mark.parametrize("way", ["open hangs", "describe hangs"])
    @virtual
    async def test_a_hub_that_hangs_is_reported_and_asked_again(self, way: str) -> None:
        scene = Scene()
        hub = BrokenHub(way)
        recorder = scene.processor(hub=hub, hub_timeout_seconds=20.0)
        async with recorder.processor:
            await asyncio.sleep(100)
            hub.inner.append("0", [b"x"])
            await until(lambda: recorder.sequences, seconds_max=200)

        assert recorder.errors_of(HubUnavailable)

    @pytest.mark.parametrize("way", ["close hangs", "close raises"])
    @virtual
    async def test_a_receiver_that_cannot_be_closed_does_not_hang_the_stop(self, way: str) -> None:
        scene = Scene()
        recorder = scene.processor(hub=BrokenHub(way), hub_timeout_seconds=5.0)
        await recorder.processor.start()
        await until(lambda: recorder.owned)
        await asyncio.sleep(1)
        started_at = asyncio.get_running_loop().time()

        await recorder.processor.stop()

        assert asyncio.get_running_loop().time() - started_at <= 6
        assert recorder.released == ["released 0 stopped"]
        assert await scene.owners() == {"0": ""}

    @virtual
    async def test_a_hub_that_hangs_does_not_hang_the_start(self) -> None:
        class Hanging(MemoryHub):
            async def describe(self) -> HubProperties:
                await asyncio.sleep(1e9)
                raise AssertionError

        with pytest.raises(HubUnavailable, match="within 20 s"):
            await Scene().processor(hub=Hanging(1), hub_timeout_seconds=20.0).processor.start()

    @virtual
    async def test_a_quiet_partition_is_left_alone(self) -> None:
        scene = Scene()
        hub = BrokenHub("", broken_count=0)
        hub.inner.append("0", [b"x"] * 3)
        recorder = scene.processor(hub=hub, hub_timeout_seconds=20.0)
        async with recorder.processor:
            await asyncio.sleep(1_000)

        assert (recorder.errors, hub.opened_count) == ([], 1)

    @pytest.mark.parametrize("start", [Position.latest(), Position.sequence(2), Position.latest(inclusive=True)])
    @virtual
    async def test_what_is_before_the_start_is_no_reason_to_reopen(self, start: Position) -> None:
        scene = Scene()
        hub = BrokenHub("", broken_count=0)
        hub.inner.append("0", [b"x"] * 3)
        recorder = scene.processor(hub=hub, starting_position=start, hub_timeout_seconds=20.0)
        async with recorder.processor:
            await asyncio.sleep(1_000)

        assert (recorder.errors, hub.opened_count) == ([], 1)

    @virtual
    async def test_a_slow_handler_is_no_stall_of_the_receiver(self) -> None:
        async def slow(batch: EventBatch, partition: object) -> None:
            await asyncio.sleep(50)

        scene = Scene()
        hub = BrokenHub("", broken_count=0)
        hub.inner.append("0", [b"x"] * 20)
        recorder = scene.processor(slow, hub=hub, hub_timeout_seconds=60.0, max_batch_size=1, prefetch_bytes=1)
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 10, seconds_max=1_000)

        assert not recorder.errors_of(PartitionStalled)


class TestBroken:
    @pytest.mark.parametrize("way", ["open raises", "receive raises"])
    @virtual
    async def test_a_hub_that_raises_anything_stops_the_partition_which_reopens(self, way: str) -> None:
        scene = Scene()
        hub = BrokenHub(way)
        hub.inner.append("0", [b"x"] * 3)
        recorder = scene.processor(hub=hub)
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        (error,) = recorder.errors
        assert isinstance(error, ProcessorError)
        assert isinstance(error.__cause__, OSError)
        assert recorder.sequences == [0, 1, 2]

    @virtual
    async def test_a_hub_that_is_unavailable_is_tried_again_ever_more_slowly(self) -> None:
        scene = Scene()
        hub = BrokenHub("unavailable", broken_count=5)
        hub.inner.append("0", [b"x"] * 3)
        times: list[float] = []
        reopen = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=60.0)
        processor = scene.bare(hub=hub, reconnect_backoff=reopen)
        handled: list[int] = []
        loop = asyncio.get_running_loop()

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            handled.append(len(batch))

        @processor.on_error
        async def note(error: HublineError) -> None:
            assert isinstance(error, HubUnavailable)
            times.append(loop.time())

        async with processor:
            await until(lambda: handled)

        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(most / 2 <= wait <= most for wait, most in zip(waits, [1, 2, 4, 8], strict=True))
        assert handled == [3]

    @virtual
    async def test_a_reader_that_was_taken_tries_again_while_the_partition_is_its_own(self) -> None:
        scene = Scene()
        scene.append(1)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: recorder.sequences)
            thief = await scene.hub.open_receiver("0", group="tests", position=Position.earliest(), epoch=1)
            await until(lambda: recorder.errors_of(ReaderStolen))
            await thief.close()
            scene.append(1)
            await until(lambda: 1 in recorder.sequences)

        assert recorder.sequences == [0, 1]
