"""Checkpoints: when they are written, what they cover, and that a store which fails costs no progress."""

from __future__ import annotations

import asyncio
import threading
from typing import get_args

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import Greedy
from hubline.errors import (
    ConfigError,
    Fenced,
    HandlerFailed,
    HublineError,
    ProcessorError,
    StoreError,
    StoreUnavailable,
)
from hubline.model.events import EventBatch
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, OnFailure, PartitionContext, Processor, ProcessorOptions
from hubline.testing.memory_hub import MemoryHub
from tests.support.scene import GROUP, LEASE, Behaviour, Scene, partitions_of, until, virtual

RARELY = CheckpointPolicy.every(seconds=1e6)
"""Only at the end of a partition."""


async def nothing(batch: EventBatch, partition: PartitionContext) -> None:
    """Handles at once."""


class TestPolicies:
    @virtual
    async def test_after_each_batch(self) -> None:
        seen: list[int | None] = []

        async def look(batch: EventBatch, partition: PartitionContext) -> None:
            seen.append(await scene.checkpoint())

        scene = Scene()
        scene.append(6)
        recorder = scene.processor(look, max_batch_size=2, checkpoint_policy=CheckpointPolicy.every_batch())
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 6)

        assert seen == [None, 1, 3]

    @virtual
    async def test_after_so_many_events_and_never_inside_a_batch(self) -> None:
        seen: list[int | None] = []

        async def look(batch: EventBatch, partition: PartitionContext) -> None:
            seen.append(await scene.checkpoint())

        scene = Scene()
        scene.append(12)
        recorder = scene.processor(look, max_batch_size=2, checkpoint_policy=CheckpointPolicy.every(events=5))
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 12)

        assert seen == [None, None, None, 5, 5, 5]

    @virtual
    async def test_after_so_many_seconds(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=CheckpointPolicy.every(seconds=20.0))

        async with recorder.processor:
            await until(lambda: recorder.sequences)
            await asyncio.sleep(15)
            early = await scene.checkpoint()
            await asyncio.sleep(10)
            late = await scene.checkpoint()

        assert (early, late) == (None, 2)

    @virtual
    async def test_whichever_of_events_and_seconds_comes_first(self) -> None:
        scene = Scene()
        recorder = scene.processor(checkpoint_policy=CheckpointPolicy.every(events=5, seconds=20.0))

        async with recorder.processor:
            scene.append(5)
            await until(lambda: len(recorder.sequences) == 5)
            await asyncio.sleep(0.1)
            by_events = await scene.checkpoint()
            scene.append(1)
            await asyncio.sleep(25)
            by_seconds = await scene.checkpoint()

        assert (by_events, by_seconds) == (4, 5)

    @virtual
    async def test_at_each_renewal(self) -> None:
        scene = Scene()
        recorder = scene.processor(checkpoint_policy=CheckpointPolicy.on_renewal())

        async with recorder.processor:
            await until(lambda: recorder.owned)
            scene.append(3)
            await until(lambda: recorder.sequences)
            at_once = await scene.checkpoint()
            await asyncio.sleep(LEASE.renew_interval_seconds + 0.1)
            renewed = await scene.checkpoint()

        assert (at_once, renewed) == (None, 2)

    @virtual
    async def test_what_has_not_moved_is_not_written_again(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=CheckpointPolicy.every(seconds=1.0))

        async with recorder.processor:
            await asyncio.sleep(60)

        assert scene.store.calls["update_checkpoint"] == 1

    @pytest.mark.parametrize("policy", [RARELY, CheckpointPolicy.on_renewal(), CheckpointPolicy.every(events=1_000)])
    @virtual
    async def test_a_stop_writes_the_last_one(self, policy: CheckpointPolicy) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=policy)

        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert await scene.checkpoint() == 2

    @virtual
    async def test_a_hand_over_writes_the_last_one(self) -> None:
        scene = Scene(2)
        for partition in ("0", "1"):
            scene.append(3, partition=partition)
        first = scene.processor(owner_id="a", checkpoint_policy=RARELY)
        second = scene.processor(owner_id="b", checkpoint_policy=RARELY)

        async with first.processor:
            await until(lambda: len(first.handled) == 2)
            async with second.processor:
                await until(lambda: len(second.owned) == 1)
                (moved,) = second.owned
                assert await scene.checkpoint(moved) == 2
                scene.append(1, partition=moved)
                await until(lambda: second.handled[moved])

        assert second.handled[moved] == [3]
        assert first.released[0] == f"released {moved} requested"
        assert partitions_of(first, second) == []


class TestByHand:
    @virtual
    async def test_nothing_is_written_unless_asked(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=CheckpointPolicy.manual())

        async with recorder.processor:
            await until(lambda: recorder.sequences)
            await asyncio.sleep(60)

        assert await scene.checkpoint() is None

    @virtual
    async def test_by_default_the_batch_in_progress_is_marked_as_done(self) -> None:
        async def save(batch: EventBatch, partition: PartitionContext) -> None:
            await partition.checkpoint()
            seen.append(await scene.checkpoint())

        seen: list[int | None] = []
        scene = Scene()
        scene.append(4)
        recorder = scene.processor(save, max_batch_size=2, checkpoint_policy=CheckpointPolicy.manual())
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 4)

        assert seen == [1, 3]

    @virtual
    async def test_everything_up_to_an_event_can_be_marked_as_done(self) -> None:
        async def save(batch: EventBatch, partition: PartitionContext) -> None:
            for event in batch:
                if event.sequence_number % 2:
                    await partition.checkpoint(event)
                seen.append(await scene.checkpoint())

        seen: list[int | None] = []
        scene = Scene()
        scene.append(5)
        recorder = scene.processor(save, checkpoint_policy=CheckpointPolicy.manual())
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert seen == [None, 1, 1, 3, 3]

    @virtual
    async def test_an_event_of_another_partition_is_refused(self) -> None:
        async def mix_up(batch: EventBatch, partition: PartitionContext) -> None:
            await recorder.contexts["1"].checkpoint(batch[0])

        scene = Scene(2)
        scene.append(1, partition="0")
        recorder = scene.processor(mix_up, checkpoint_policy=CheckpointPolicy.manual())
        async with recorder.processor:
            await until(lambda: recorder.errors)

        assert isinstance(recorder.errors[0].__cause__, ConfigError)
        assert await scene.checkpoint("1") is None

    @virtual
    async def test_what_is_no_event_is_refused(self) -> None:
        async def mix_up(batch: EventBatch, partition: PartitionContext) -> None:
            for wrong in (batch, 0, "0"):
                with pytest.raises(
                    ConfigError, match=rf"takes an event, not {type(wrong).__name__}. Pass .*batch\[-1\]"
                ):
                    await partition.checkpoint(wrong)  # type: ignore[arg-type]

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(mix_up, checkpoint_policy=CheckpointPolicy.manual())
        async with recorder.processor:
            await until(lambda: recorder.sequences or recorder.errors)

        assert recorder.errors == []
        assert await scene.checkpoint() is None

    @virtual
    async def test_on_renewed_marks_only_what_is_handled(self) -> None:
        """A batch is in progress then, and may still fail."""

        async def take_long(batch: EventBatch, partition: PartitionContext) -> None:
            if batch.first_sequence > 0:
                await asyncio.sleep(3 * LEASE.renew_interval_seconds)
                seen.append(await scene.checkpoint())

        async def save(partition: PartitionContext) -> None:
            await partition.checkpoint()

        seen: list[int | None] = []
        scene = Scene()
        scene.append(2)
        recorder = scene.processor(take_long, max_batch_size=1, checkpoint_policy=CheckpointPolicy.manual())
        recorder.processor.on_renewed(save)
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 2)

        assert seen == [0]

    @virtual
    async def test_half_of_a_failing_batch_does_not_mark_the_other_half(self) -> None:
        """With dead letters, a failing batch is tried again in halves."""

        async def save_then_fail(batch: EventBatch, partition: PartitionContext) -> None:
            if 3 in batch.arrow.column("sequenceNumber").to_pylist():
                raise ValueError("poison")
            await partition.checkpoint()
            seen[batch.last_sequence] = await scene.checkpoint()

        seen: dict[int, int | None] = {}
        scene = Scene()
        scene.append(4)
        recorder = scene.processor(
            save_then_fail, checkpoint_policy=CheckpointPolicy.manual(), on_failure="dead_letter"
        )
        async with recorder.processor:
            await until(lambda: recorder.dead_letters)

        assert seen == {1: 1, 2: 2}

    def test_a_plain_handler_checkpoints_from_its_thread(self) -> None:
        store = MemoryStore()
        done = threading.Event()

        def handle(batch: EventBatch, partition: PartitionContext) -> None:
            partition.checkpoint_sync(batch[1])
            partition.checkpoint_sync()
            done.set()

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"] * 3)
            processor = Processor(
                hub,
                store,
                consumer_group=GROUP,
                starting_position=Position.earliest(),
                options=ProcessorOptions(lease=LEASE, checkpoint_policy=CheckpointPolicy.manual()),
            )
            processor.on_batch(handle)
            async with processor:
                await until(done.is_set, seconds_max=20)
                (checkpoint,) = await store.list_checkpoints(processor.partitions[0].key.group_key)
                assert checkpoint.sequence_number == 2

        asyncio.run(main())

    @virtual
    async def test_an_async_handler_that_would_block_itself_learns_to_await(self) -> None:
        async def block(batch: EventBatch, partition: PartitionContext) -> None:
            partition.checkpoint_sync()

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(block, checkpoint_policy=CheckpointPolicy.manual())
        async with recorder.processor:
            await until(lambda: recorder.errors)

        assert isinstance(recorder.errors[0].__cause__, ProcessorError)
        assert "await partition.checkpoint()" in str(recorder.errors[0].__cause__)


class TestStoreDown:
    @pytest.mark.parametrize(
        "policy",
        [
            CheckpointPolicy.every_batch(),
            CheckpointPolicy.every(events=2),
            CheckpointPolicy.every(seconds=1.0),
            CheckpointPolicy.on_renewal(),
        ],
    )
    @virtual
    async def test_processing_goes_on_and_the_checkpoint_is_written_later(self, policy: CheckpointPolicy) -> None:
        scene = Scene()
        recorder = scene.processor(checkpoint_policy=policy)

        async with recorder.processor:
            await until(lambda: recorder.owned)
            scene.store.failing["update_checkpoint"] = StoreUnavailable("down")
            for _ in range(5):
                scene.append(2)
                await asyncio.sleep(1)
            handled = list(recorder.sequences)
            await until(lambda: recorder.errors_of(StoreUnavailable))
            scene.store.come_up()
            await asyncio.sleep(LEASE.renew_interval_seconds + 1)  # without another event
            checkpoint = await scene.checkpoint()

        assert handled == list(range(10))
        assert recorder.sequences == handled
        assert checkpoint == 9
        assert recorder.released == ["released 0 stopped"]

    @virtual
    async def test_a_stop_tries_the_last_checkpoint_several_times(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=RARELY)
        await recorder.processor.start()
        await until(lambda: recorder.sequences)
        scene.store.failing["update_checkpoint"] = StoreUnavailable("down")

        stopping = asyncio.create_task(recorder.processor.stop())
        await until(lambda: scene.store.calls["update_checkpoint"] == 1)
        scene.store.come_up()
        await stopping

        assert await scene.checkpoint() == 2

    @virtual
    async def test_a_last_checkpoint_that_cannot_be_written_is_reported_and_the_stop_ends(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=RARELY)
        await recorder.processor.start()
        await until(lambda: recorder.sequences)
        scene.store.failing["update_checkpoint"] = StoreUnavailable("down")

        await recorder.processor.stop()

        assert any("last checkpoint of partition 0" in str(error) for error in recorder.errors)
        assert recorder.released == ["released 0 stopped"]
        assert await scene.owners() == {"0": ""}

    @virtual
    async def test_a_store_that_refuses_the_last_checkpoint_is_reported_and_the_stop_ends(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(checkpoint_policy=RARELY)
        await recorder.processor.start()
        await until(lambda: recorder.sequences)
        scene.store.failing["update_checkpoint"] = RuntimeError("the disk is full")

        await recorder.processor.stop()

        assert any("the disk is full" in str(error) for error in recorder.errors_of(StoreError))
        assert recorder.released == ["released 0 stopped"]
        assert await scene.owners() == {"0": ""}

    @pytest.mark.parametrize("on_failure", get_args(OnFailure))
    @virtual
    async def test_by_hand_it_is_reported_to_the_handler_and_no_event_is_to_blame(self, on_failure: OnFailure) -> None:
        async def save(batch: EventBatch, partition: PartitionContext) -> None:
            await partition.checkpoint()

        scene = Scene()
        recorder = scene.processor(save, checkpoint_policy=CheckpointPolicy.manual(), on_failure=on_failure)
        async with recorder.processor:
            await until(lambda: recorder.owned)
            scene.store.failing["update_checkpoint"] = StoreUnavailable("down")
            scene.append(4)
            await until(lambda: recorder.errors)
            scene.store.come_up()
            await until(lambda: recorder.sequences)

        assert recorder.dead_letters == []
        assert isinstance(recorder.errors[0], HandlerFailed)
        assert isinstance(recorder.errors[0].__cause__, StoreUnavailable)
        assert (recorder.sequences, await scene.checkpoint()) == ([0, 1, 2, 3], 3)


class TestOperator:
    """Somebody sets the checkpoint while the partition is being processed."""

    @pytest.mark.parametrize("to", [None, 1])
    @virtual
    async def test_an_idle_partition_starts_over_from_there(self, to: int | None) -> None:
        scene = Scene()
        scene.append(5)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 5)
            recorder.clear()

            await self.reset(scene, to)
            await until(lambda: recorder.sequences)

        assert recorder.sequences == list(range(0 if to is None else to + 1, 5))
        assert await scene.checkpoint() == 4

    @pytest.mark.parametrize(
        "policy", [CheckpointPolicy.every_batch(), CheckpointPolicy.every(seconds=1.0), CheckpointPolicy.on_renewal()]
    )
    @virtual
    async def test_a_busy_partition_starts_over_from_there(self, policy: CheckpointPolicy) -> None:
        await self.check_busy(nothing, policy)

    @pytest.mark.parametrize("on_failure", get_args(OnFailure))
    @virtual
    async def test_so_does_one_that_checkpoints_by_hand(self, on_failure: OnFailure) -> None:
        async def save(batch: EventBatch, partition: PartitionContext) -> None:
            attempts.append(batch.first_sequence)
            await partition.checkpoint()

        attempts: list[int] = []
        await self.check_busy(save, CheckpointPolicy.manual(), on_failure=on_failure)

        assert max(attempts.count(sequence) for sequence in attempts) == 2  # fenced once, and not tried again there

    async def check_busy(self, behaviour: Behaviour, policy: CheckpointPolicy, on_failure: OnFailure = "stop") -> None:
        async def produce() -> None:
            while True:
                scene.append(1)
                await asyncio.sleep(0.2)

        scene = Scene()
        recorder = scene.processor(behaviour, checkpoint_policy=policy, on_failure=on_failure, load_balancing=Greedy())
        producing = asyncio.create_task(produce())
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) > 30)
            await asyncio.sleep(LEASE.renew_interval_seconds)
            recorder.clear()
            await self.reset(scene, 4)
            await until(lambda: 5 in recorder.sequences)
            producing.cancel()

        again = recorder.sequences[recorder.sequences.index(5) :]
        assert again == list(range(5, 5 + len(again)))
        assert recorder.dead_letters == []
        assert not recorder.errors_of(HandlerFailed)
        assert "released 0 lost" in recorder.released
        assert await scene.checkpoint() == again[-1]

    @staticmethod
    async def reset(scene: Scene, to: int | None) -> None:
        key = scene.group.partition("0")
        checkpoint = None if to is None else Checkpoint(key, scene.hub.offset_of(to), to)
        await scene.store.reset_checkpoint(key, checkpoint)

    @virtual
    async def test_the_handler_that_was_fenced_may_see_it(self) -> None:
        caught: list[HublineError] = []

        async def save(batch: EventBatch, partition: PartitionContext) -> None:
            if batch.first_sequence == 0 and not caught:
                await self.reset(scene, 2)
            try:
                await partition.checkpoint()
            except Fenced as error:
                caught.append(error)
                raise

        scene = Scene()
        scene.append(5)
        recorder = scene.processor(save, checkpoint_policy=CheckpointPolicy.manual())
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert len(caught) == 1
        assert recorder.sequences == [3, 4]
