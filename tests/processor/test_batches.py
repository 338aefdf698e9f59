"""Batches: how large, how soon, in what order, and how much of them is held in memory."""

from __future__ import annotations

import asyncio
import random

import pytest

from hubline.model.events import EVENT_SCHEMA, EventBatch, new_events
from hubline.model.positions import Position
from hubline.processor import PartitionContext, RetryPolicy
from hubline.processor.partition_reader import PartitionReader, Source
from hubline.read_ahead import ReadAhead
from hubline.testing.memory_hub import MemoryHub, MemoryReceiver
from tests.support.scene import Scene, until, virtual


class TestSize:
    @virtual
    async def test_a_batch_is_never_larger_than_asked_for(self) -> None:
        scene = Scene()
        scene.append(10)
        recorder = scene.processor(max_batch_size=4)

        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 10)

        assert [len(batch) for batch in recorder.batches] == [4, 4, 2]

    @virtual
    async def test_a_batch_is_put_together_from_what_arrived_in_pieces(self) -> None:
        scene = Scene()
        recorder = scene.processor(max_batch_size=6, max_wait_seconds=10.0)

        async with recorder.processor:
            await until(lambda: recorder.owned)
            for _ in range(4):
                scene.append(2)
                await asyncio.sleep(0.1)
            await until(lambda: len(recorder.sequences) == 8)

        assert [len(batch) for batch in recorder.batches] == [6, 2]
        assert recorder.sequences == list(range(8))

    @virtual
    async def test_large_and_small_batches_are_cut_in_order_without_gaps(self) -> None:
        rng = random.Random(7)
        scene = Scene()
        recorder = scene.processor(max_batch_size=97, prefetch_bytes=5_000)

        async with recorder.processor:
            for _ in range(40):
                scene.append(rng.choice([1, 3, 250]))
                await asyncio.sleep(rng.choice([0.0, 0.2]))
            last = (await scene.hub.describe_partition("0")).last_sequence
            await until(lambda: len(recorder.sequences) == last + 1)

        assert recorder.sequences == list(range(last + 1))
        assert max(len(batch) for batch in recorder.batches) <= 97


class TestWait:
    @virtual
    async def test_without_a_wait_what_is_there_is_delivered_at_once(self) -> None:
        scene = Scene()
        recorder = scene.processor()

        async with recorder.processor:
            await until(lambda: recorder.owned)
            await asyncio.sleep(5)
            scene.append(1)
            sent_at = asyncio.get_running_loop().time()
            await until(lambda: recorder.batches)

        assert recorder.delivered_at == [pytest.approx(sent_at)]

    @virtual
    async def test_a_batch_fills_up_until_its_wait_is_over(self) -> None:
        scene = Scene()
        scene.append(1)
        recorder = scene.processor(max_batch_size=100, max_wait_seconds=3.0)

        async with recorder.processor:
            await until(lambda: recorder.owned)
            opened_at = asyncio.get_running_loop().time()
            for _ in range(20):
                await asyncio.sleep(0.1)
                scene.append(1)
            await until(lambda: recorder.batches)

        assert [len(batch) for batch in recorder.batches] == [21]
        assert recorder.delivered_at[0] - opened_at == pytest.approx(3.0, abs=0.1)

    @virtual
    async def test_a_full_batch_does_not_wait(self) -> None:
        scene = Scene()
        recorder = scene.processor(max_batch_size=5, max_wait_seconds=1_000.0)

        async with recorder.processor:
            await until(lambda: recorder.owned)
            scene.append(5)
            sent_at = asyncio.get_running_loop().time()
            await until(lambda: recorder.batches)

        assert recorder.delivered_at == [pytest.approx(sent_at)]

    @virtual
    async def test_a_batch_that_fills_the_memory_bound_does_not_wait_for_what_cannot_come(self) -> None:
        scene = Scene()
        scene.append(50, body=bytes(1_000))
        recorder = scene.processor(max_batch_size=1_000, max_wait_seconds=1_000.0, prefetch_bytes=10_000)

        async with recorder.processor:
            await until(lambda: len(recorder.sequences) > 40, seconds_max=20)

        assert max(batch.nbytes for batch in recorder.batches) <= 10_000

    @virtual
    async def test_nothing_arrives_nothing_is_delivered(self) -> None:
        recorder = Scene().processor(max_wait_seconds=1.0)

        async with recorder.processor:
            await asyncio.sleep(60)

        assert recorder.batches == []


class TestHeartbeat:
    @virtual
    async def test_an_empty_batch_comes_each_time_the_wait_is_over(self) -> None:
        recorder = Scene().processor(max_wait_seconds=2.0, heartbeat=True)

        async with recorder.processor:
            await until(lambda: len(recorder.batches) == 3)

        assert [len(batch) for batch in recorder.batches] == [0, 0, 0]
        assert {batch.partition for batch in recorder.batches} == {"0"}
        first, second, third = recorder.delivered_at
        assert [second - first, third - second] == pytest.approx([2.0, 2.0])

    @virtual
    async def test_events_take_the_place_of_a_heartbeat(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(max_wait_seconds=2.0, heartbeat=True)

        async with recorder.processor:
            await until(lambda: len(recorder.batches) == 2)

        assert [len(batch) for batch in recorder.batches] == [3, 0]

    @virtual
    async def test_a_heartbeat_moves_no_checkpoint(self) -> None:
        scene = Scene()
        recorder = scene.processor(max_wait_seconds=2.0, heartbeat=True)

        async with recorder.processor:
            await until(lambda: len(recorder.batches) == 3)

        assert await scene.checkpoint() is None

    @virtual
    async def test_a_handler_that_fails_on_a_heartbeat_stops_the_partition_like_any_other(self) -> None:
        async def fail_when_empty(batch: EventBatch, partition: PartitionContext) -> None:
            if not len(batch):
                raise ValueError("nothing to do")

        recorder = Scene().processor(fail_when_empty, max_wait_seconds=2.0, heartbeat=True)

        async with recorder.processor:
            await until(lambda: recorder.released)

        assert recorder.released[0] == "released 0 failed"
        assert "heartbeat" in str(recorder.errors[0])


class TestContent:
    @virtual
    async def test_events_and_columns_tell_the_same(self) -> None:
        scene = Scene()
        sender = await scene.hub.open_sender()

        await sender.send(
            new_events([{"body": b"a", "partitionKey": "k", "properties": {"n": "1"}}, "b"]), partition="0"
        )
        recorder = scene.processor()

        async with recorder.processor:
            await until(lambda: recorder.batches)

        (batch,) = recorder.batches
        first, second = batch
        assert (first.body, first.partition_key, first.properties, first.sequence_number) == (b"a", "k", {"n": "1"}, 0)
        assert (second.text(), second.partition_key, second.properties) == ("b", None, {})
        assert batch.arrow.schema.equals(EVENT_SCHEMA)
        assert batch.arrow.column("body").to_pylist() == batch.bodies == [b"a", b"b"]
        assert (batch.first_sequence, batch.last_sequence, batch.last_offset) == (0, 1, second.offset)


class CountingHub(MemoryHub):
    """Tells how many events have left it."""

    taken_count = 0

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> MemoryReceiver:
        receiver = await super().open_receiver(partition, group=group, position=position, epoch=epoch)
        receive = receiver.receive

        async def counted(*, max_count: int, wait_seconds: float) -> EventBatch:
            batch = await receive(max_count=min(max_count, self.portion), wait_seconds=wait_seconds)
            self.taken_count += len(batch)
            return batch

        receiver.receive = counted  # type: ignore[method-assign]
        return receiver

    portion = 10


class TestMemory:
    EVENT_BYTES = 1_000

    @virtual
    async def test_a_slow_handler_holds_the_reading_back(self) -> None:
        released = asyncio.Event()

        async def wait(batch: EventBatch, partition: PartitionContext) -> None:
            await released.wait()

        scene = Scene()
        hub = CountingHub(1, now=asyncio.get_running_loop().time)
        hub.append("0", [bytes(self.EVENT_BYTES)] * 5_000)
        recorder = scene.processor(wait, hub=hub, max_batch_size=10, prefetch_bytes=50 * self.EVENT_BYTES)

        async with recorder.processor:
            await asyncio.sleep(60)
            held_count = hub.taken_count
            released.set()
            await until(lambda: len(recorder.sequences) == 5_000)

        # The bound, what the handler has, and one more portion that was asked for below the bound.
        assert held_count <= 50 + 10 + 10
        assert recorder.sequences == list(range(5_000))

    @virtual
    async def test_a_hub_that_does_not_read_ahead_is_asked_for_what_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CountingHub, "portion", 1_000)
        released = asyncio.Event()
        given: list[int] = []

        async def wait(batch: EventBatch, partition: PartitionContext) -> None:
            given.append(len(batch))
            await released.wait()

        scene = Scene()
        hub = CountingHub(1, now=asyncio.get_running_loop().time)
        hub.append("0", [bytes(100)])
        hub.append("0", [bytes(100_000)] * 100)
        recorder = scene.processor(wait, hub=hub, max_batch_size=50, prefetch_bytes=1_000_000)

        async with recorder.processor:
            await asyncio.sleep(60)
            held_count = hub.taken_count - sum(given)
            released.set()
            await until(lambda: len(recorder.sequences) == 101)

        assert 5 < held_count < 10

    @virtual
    async def test_the_bound_holds_however_many_batches_were_cut(self) -> None:
        hub = CountingHub(1, now=asyncio.get_running_loop().time)
        count, bytes_max = 20_000, 2_000
        hub.append("0", [b"x" * 20] * count)
        reader = PartitionReader(
            Source(
                hub=hub,
                partition="0",
                group="tests",
                epoch=1,
                on_data_loss="fail",
                reconnect_backoff=RetryPolicy(),
                max_batch_size=1,
                read_ahead=ReadAhead(bytes_max),
                hub_timeout_seconds=60.0,
                report=lambda error: None,
                start_over=_nothing,
                rng=random.Random(1),
            ),
            Position.earliest(),
            after_sequence=-1,
        )
        most_ahead = event_bytes = 0
        for handled_count in range(1, count + 1):
            batch = await reader.next_batch(wait_seconds=0, heartbeat=False)
            assert batch is not None
            assert batch.first_sequence == handled_count - 1
            await asyncio.sleep(0.001)
            most_ahead = max(most_ahead, hub.taken_count - handled_count)
            event_bytes = batch.nbytes
        await reader.close()

        assert most_ahead <= bytes_max / event_bytes + 2 * hub.portion


async def _nothing() -> None:
    pass
