"""Where reading starts, and what happens where it cannot: reported, never silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hubline.errors import ConfigError, HandlerFailed, HubUnavailable, PositionInvalid, ProcessorError
from hubline.model.events import EventBatch
from hubline.model.ownership import Checkpoint
from hubline.model.positions import OnDataLoss, Position
from hubline.processor import CheckpointPolicy, PartitionContext
from hubline.testing.memory_hub import MemoryHub, MemoryReceiver
from tests.support.scene import Recorder, Scene, until, virtual


async def first_handled(scene: Scene, recorder: Recorder) -> int:
    """The first event that is handled, once one more has come."""
    async with recorder.processor:
        await until(lambda: recorder.owned)
        await asyncio.sleep(1)
        scene.append(1)
        await until(lambda: recorder.sequences)
    return recorder.sequences[0]


class TestKinds:
    """Five events are there, enqueued ten seconds apart."""

    @pytest.mark.parametrize(
        ("position_in", "expected"),
        [
            (lambda hub: Position.earliest(), 0),
            (lambda hub: Position.latest(), 5),
            (lambda hub: Position.latest(inclusive=True), 4),
            (lambda hub: Position.sequence(1), 2),
            (lambda hub: Position.sequence(1, inclusive=True), 1),
            (lambda hub: Position.sequence(-1), 0),
            (lambda hub: Position.offset(hub.offset_of(2)), 3),
            (lambda hub: Position.offset(hub.offset_of(2), inclusive=True), 2),
            (lambda hub: Position.enqueued(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=30)), 3),
            (lambda hub: Position.enqueued(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=25)), 3),
            (
                lambda hub: Position.enqueued(
                    datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=30), inclusive=False
                ),
                4,
            ),
        ],
    )
    @virtual
    async def test_reading_starts_where_asked(
        self, position_in: Callable[[MemoryHub], Position], expected: int
    ) -> None:
        scene = Scene()
        for _ in range(5):
            scene.append(1)
            await asyncio.sleep(10)
        recorder = scene.processor(starting_position=position_in(scene.hub))

        assert await first_handled(scene, recorder) == expected

    @virtual
    async def test_partitions_may_start_at_different_places(self) -> None:
        scene = Scene(3)
        for partition in ("0", "1", "2"):
            scene.append(5, partition=partition)
        start = {"*": Position.earliest(), "1": Position.sequence(2), "2": Position.latest()}
        recorder = scene.processor(starting_position=start)

        async with recorder.processor:
            await until(lambda: len(recorder.owned) == 3)
            await asyncio.sleep(1)
            scene.append(1, partition="2")
            await until(lambda: recorder.handled["2"])

        assert dict(recorder.handled) == {"0": [0, 1, 2, 3, 4], "1": [3, 4], "2": [5]}


class TestPrecedence:
    @virtual
    async def test_a_checkpoint_comes_before_the_start_position(self) -> None:
        scene = Scene()
        scene.append(5)
        await scene.set_checkpoint(2)

        assert await first_handled(scene, scene.processor(starting_position=Position.earliest())) == 3

    @virtual
    async def test_start_at_comes_before_the_checkpoint(self) -> None:
        scene = Scene()
        scene.append(5)
        await scene.set_checkpoint(2)
        recorder = self.starting_at(scene, Position.sequence(0))

        assert await first_handled(scene, recorder) == 1

    @virtual
    async def test_what_is_read_again_moves_no_checkpoint_back(self) -> None:
        scene = Scene()
        scene.append(5)
        await scene.set_checkpoint(3)
        seen: list[int | None] = []

        async def look(batch: EventBatch, partition: PartitionContext) -> None:
            await partition.checkpoint()
            seen.append(await scene.checkpoint())

        recorder = self.starting_at(
            scene, Position.earliest(), look, max_batch_size=1, checkpoint_policy=CheckpointPolicy.manual()
        )
        async with recorder.processor:
            await until(lambda: len(seen) == 5)

        assert seen == [3, 3, 3, 3, 4]

    @virtual
    async def test_on_assigned_sees_the_checkpoint(self) -> None:
        scene = Scene()
        scene.append(5)
        await scene.set_checkpoint(2)
        recorder = scene.processor()

        async with recorder.processor:
            await until(lambda: recorder.owned)
            initial_checkpoint = recorder.contexts["0"].initial_checkpoint

        assert initial_checkpoint == Checkpoint(scene.group.partition("0"), scene.hub.offset_of(2), 2)

    @virtual
    async def test_start_at_outside_on_assigned_is_refused_rather_than_ignored(self) -> None:
        async def too_late(batch: EventBatch, partition: PartitionContext) -> None:
            partition.seek(Position.earliest())

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(too_late)

        async with recorder.processor:
            await until(lambda: recorder.errors_of(HandlerFailed))

        assert isinstance(recorder.errors[0].__cause__, ProcessorError)
        assert "on_assigned" in str(recorder.errors[0].__cause__)

    @virtual
    async def test_seek_takes_a_position_as_text(self) -> None:
        scene = Scene()
        scene.append(5)
        recorder = scene.processor()
        recorder.assigning = lambda partition: partition.seek("sequence:2:inclusive")

        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert recorder.sequences == [2, 3, 4]

    @virtual
    async def test_seek_refuses_what_is_no_position_where_it_is_given(self) -> None:
        wrong: Any = 5
        refused: list[ConfigError] = []

        def assigning(partition: PartitionContext) -> None:
            try:
                partition.seek(wrong)
            except ConfigError as error:
                refused.append(error)

        recorder = Scene().processor()
        recorder.assigning = assigning

        async with recorder.processor:
            await until(lambda: refused)

        assert "position must be a Position or text such as 'earliest', not 5" in str(refused[0])

    @staticmethod
    def starting_at(scene: Scene, position: Position, *args: object, **options: object) -> Recorder:
        recorder = scene.processor(*args, **options)  # type: ignore[arg-type]
        recorder.assigning = lambda partition: partition.seek(position)
        return recorder


class FlakyHub(MemoryHub):
    """Cannot be reached for a few openings."""

    failures_left = 0

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> MemoryReceiver:
        if self.failures_left:
            self.failures_left -= 1
            self.append(partition, [b"meanwhile"])
            raise HubUnavailable("the hub cannot be reached", hub=self.name)
        return await super().open_receiver(partition, group=group, position=position, epoch=epoch)


class TestLatest:
    @pytest.mark.parametrize("inclusive", [False, True])
    @virtual
    async def test_the_end_stays_where_it_was_found_when_the_handler_fails(self, inclusive: bool) -> None:
        failures: list[int] = []

        async def fail_at_first(batch: EventBatch, partition: PartitionContext) -> None:
            if len(failures) < 6:
                failures.append(batch.first_sequence)
                scene.append(1)
                raise ValueError("not yet")

        scene = Scene()
        scene.append(3)
        recorder = scene.processor(fail_at_first, starting_position=Position.latest(inclusive=inclusive))
        async with recorder.processor:
            await until(lambda: recorder.owned)
            await asyncio.sleep(1)
            scene.append(1)
            await until(lambda: recorder.sequences)

        assert recorder.sequences[0] == (2 if inclusive else 3)

    @pytest.mark.parametrize("count", [0, 3])
    @virtual
    async def test_a_crash_before_the_first_event_loses_nothing(self, count: int) -> None:
        scene = Scene()
        scene.append(count)
        first = scene.processor(starting_position=Position.latest())
        async with first.processor:
            await until(lambda: first.owned)
            await asyncio.sleep(1)
        scene.append(4)  # while nobody is there

        second = scene.processor(starting_position=Position.latest())
        async with second.processor:
            await until(lambda: len(second.sequences) == 4)

        assert second.sequences == list(range(count, count + 4))

    @pytest.mark.parametrize("by_start_at", [False, True])
    @virtual
    async def test_the_end_stays_where_it_was_found_when_the_hub_cannot_be_reached(self, by_start_at: bool) -> None:
        scene = Scene()
        hub = FlakyHub(1, now=asyncio.get_running_loop().time)
        hub.append("0", [b"before"] * 3)
        hub.failures_left = 3
        recorder = scene.processor(hub=hub, starting_position=Position.earliest() if by_start_at else Position.latest())
        if by_start_at:
            recorder.assigning = lambda partition: partition.seek(Position.latest())

        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 3)

        assert recorder.sequences == [3, 4, 5]


class TestInvalidPosition:
    """The checkpoint is at 2, and retention has removed everything before 6."""

    @staticmethod
    async def expired() -> Scene:
        scene = Scene()
        scene.append(10)
        await scene.set_checkpoint(2)
        scene.hub.trim("0", 6)
        return scene

    @virtual
    async def test_an_expired_position_stops_the_partition_by_default(self) -> None:
        scene = await self.expired()
        recorder = scene.processor()

        async with recorder.processor:
            await until(lambda: len(recorder.released) == 2)  # it tries again, and again

        error = recorder.errors[0]
        assert isinstance(error, PositionInvalid)
        assert (error.reason, error.partition, error.begin_sequence, error.last_sequence) == ("expired", "0", 6, 9)
        assert recorder.released[0] == "released 0 failed"
        assert (recorder.sequences, await scene.checkpoint()) == ([], 2)

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [("earliest", [6, 7, 8, 9, 10]), ("latest", [10])],
    )
    @virtual
    async def test_a_gap_that_is_jumped_by_choice_is_reported(self, choice: OnDataLoss, expected: list[int]) -> None:
        scene = await self.expired()
        recorder = scene.processor(on_data_loss=choice)

        async with recorder.processor:
            await until(lambda: recorder.errors)
            await asyncio.sleep(1)
            scene.append(1)
            await until(lambda: 10 in recorder.sequences)

        assert [type(error) for error in recorder.errors] == [PositionInvalid]
        assert recorder.sequences == expected
        assert await scene.checkpoint() == 10

    @virtual
    async def test_a_reader_that_retention_overtakes_is_reported_too(self) -> None:
        async def slow(batch: EventBatch, partition: PartitionContext) -> None:
            if batch.first_sequence == 0:
                scene.append(100)
                scene.hub.trim("0", 50)

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(slow, on_data_loss="earliest", max_batch_size=1, prefetch_bytes=1)

        async with recorder.processor:
            await until(lambda: 100 in recorder.sequences)

        assert len(recorder.errors_of(PositionInvalid)) == 1
        assert recorder.sequences == [0, *range(50, 101)]

    @pytest.mark.parametrize(
        ("offset_in", "reason"),
        [
            (lambda hub: MemoryHub(1).offset_of(2), "foreign"),
            (lambda hub: "not an offset", "foreign"),
            (lambda hub: hub.offset_of(40), "beyond"),
        ],
    )
    @virtual
    async def test_a_position_that_is_not_this_hubs_is_named(
        self, offset_in: Callable[[MemoryHub], str], reason: str
    ) -> None:
        scene = Scene()
        scene.append(5)
        key = scene.group.partition("0")
        await scene.store.reset_checkpoint(key, Checkpoint(key, offset_in(scene.hub), 40))
        recorder = scene.processor()

        async with recorder.processor:
            await until(lambda: recorder.errors_of(PositionInvalid))

        (error, *_) = recorder.errors_of(PositionInvalid)
        assert isinstance(error, PositionInvalid)
        assert error.reason == reason
        assert recorder.sequences == []


class TestHubMadeAnew:
    """The checkpoint of the old hub, at 1,000, is far ahead of the five events of the new one."""

    @staticmethod
    async def overwritten_columns() -> Scene:
        scene = Scene()
        scene.append(5)
        key = scene.group.partition("0")
        await scene.store.reset_checkpoint(key, Checkpoint(key, MemoryHub(1).offset_of(1_000), 1_000))
        return scene

    @pytest.mark.parametrize("choice", ["earliest", "latest"])
    @virtual
    async def test_it_is_read_once_and_not_again_after_a_restart(self, choice: str) -> None:
        scene = await self.overwritten_columns()
        first = scene.processor(on_data_loss=choice)
        async with first.processor:
            await until(lambda: first.errors_of(PositionInvalid))
            await asyncio.sleep(60)
            scene.append(1)
            await until(lambda: 5 in first.sequences)
        scene.append(1)

        second = scene.processor(on_data_loss=choice)
        async with second.processor:
            await until(lambda: second.sequences)

        assert first.sequences == ([0, 1, 2, 3, 4, 5] if choice == "earliest" else [5])
        assert len(first.errors_of(PositionInvalid)) == 1
        assert (second.sequences, second.errors) == ([6], [])

    @virtual
    async def test_it_is_read_by_who_comes_next_where_its_owner_dies_on_the_way(self) -> None:
        scene = await self.overwritten_columns()
        key = scene.group.partition("0")
        await scene.store.reset_checkpoint(key, Checkpoint.before_first(key))  # done, and then no more was

        recorder = scene.processor(on_data_loss="earliest")
        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 5)

        assert (recorder.errors, await scene.checkpoint()) == ([], 4)

    @virtual
    async def test_a_start_that_on_assigned_chose_moves_no_checkpoint(self) -> None:
        scene = Scene()
        scene.append(5)
        await scene.set_checkpoint(3)
        recorder = TestPrecedence.starting_at(scene, Position.sequence(1_000), on_data_loss="latest")

        async with recorder.processor:
            await until(lambda: recorder.errors_of(PositionInvalid))
            await asyncio.sleep(60)

        assert (recorder.sequences, await scene.checkpoint()) == ([], 3)

    @virtual
    async def test_an_owner_that_was_overtaken_sets_nothing_back(self) -> None:
        seen: list[int | None] = []

        class OvertakingHub(MemoryHub):
            async def open_receiver(self, *args: Any, **kwargs: Any) -> MemoryReceiver:
                if not seen:
                    await scene.store.store.fence(scene.group.partition("0"), 1_000)
                seen.append(await scene.checkpoint())
                return await super().open_receiver(*args, **kwargs)

        scene = await self.overwritten_columns()
        hub = OvertakingHub(1, now=scene.loop.time)
        hub.append("0", [b"x"] * 5)
        recorder = scene.processor(hub=hub, on_data_loss="earliest")

        async with recorder.processor:
            await until(lambda: len(recorder.sequences) == 5)

        # Overtaken, then the owner again, which sets it back, and once more from there.
        assert seen == [1_000, 1_000, -1]
