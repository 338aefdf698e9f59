"""Streams that read the last hours again when they start, in virtual time and without Spark."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import Fixed, Greedy
from hubline.errors import PositionInvalid
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position, StartPositions
from hubline.spark.source.offsets import Gap, StreamOffset
from hubline.testing.memory_hub import MemoryHub
from tests.spark.queries import Query, places
from tests.support.scene import LEASE, until, virtual

GROUP = GroupKey("memory", "hub", "$Default")
HOUR = 3_600.0
LATEST = StartPositions(Position.latest())


def now() -> float:
    return asyncio.get_running_loop().time()


class Scene:
    """A hub that got ten events an hour in each partition for five hours, and a store. The last event is just in."""

    def __init__(self, partitions: int = 1) -> None:
        self.hub = MemoryHub(partitions, now=now)
        self.store = MemoryStore(now=now)

    @classmethod
    async def after_five_hours(cls, partitions: int = 1) -> Scene:
        scene = cls(partitions)
        for _ in range(50):
            await asyncio.sleep(HOUR / 10)
            for partition in range(partitions):
                scene.hub.append(str(partition), [b"old"])
        return scene

    def query(self, owner_id: str = "a", *, lookback_hours: float = 2.05, **options: Any) -> Query:
        """A query with a folder of its own: the state of its Spark is empty. Twenty-one events are in its lookback."""
        given = {"owner_id": owner_id, "load_balancing": Greedy(), "lookback_seconds": lookback_hours * HOUR, **options}
        return Query(self.hub, self.store, **given)

    async def handled_to(self, sequence: int, partition: str = "0") -> None:
        """Some time ago, all up to this event was handled."""
        key = GROUP.partition(partition)
        await self.store.reset_checkpoint(key, Checkpoint(key, self.hub.offset_of(sequence), sequence))

    async def checkpoints(self) -> dict[str, int]:
        return {found.key.partition: found.sequence_number for found in await self.store.list_checkpoints(GROUP)}


@virtual
async def test_what_was_handled_is_replayed_and_what_came_meanwhile_is_new() -> None:
    scene = await Scene.after_five_hours()
    await scene.handled_to(39)
    one = await scene.query().start()

    await one.read_up_to("0", 49)

    assert one.read == places("0", *range(29, 50))
    assert one.replayed == places("0", *range(29, 40))
    await one.stop()


@virtual
async def test_what_was_never_handled_is_read_however_long_ago_it_came() -> None:
    scene = await Scene.after_five_hours()
    await scene.handled_to(9)
    one = await scene.query().start()

    await one.read_up_to("0", 49)

    assert one.read == places("0", *range(10, 50))
    assert one.replayed == []
    await one.stop()


@virtual
async def test_without_a_checkpoint_the_start_is_where_new_events_begin() -> None:
    scene = await Scene.after_five_hours()
    one = await scene.query(starting_positions=LATEST).start()
    await one.owns("0")
    scene.hub.append("0", [b"new"])

    await one.read_up_to("0", 50)

    assert one.read == places("0", *range(29, 51))
    assert one.replayed == places("0", *range(29, 50))
    await one.stop()


@virtual
async def test_from_the_beginning_everything_is_new() -> None:
    scene = await Scene.after_five_hours()
    one = await scene.query().start()

    await one.read_up_to("0", 49)

    assert (len(one.read), one.replayed) == (50, [])
    await one.stop()


@virtual
async def test_a_replay_moves_no_checkpoint_and_new_events_do_when_their_batch_is_done() -> None:
    scene = await Scene.after_five_hours()
    await scene.handled_to(39)
    one = await scene.query(max_events_per_trigger=10).start()
    await one.owns("0")
    seen = []

    for _ in range(4):
        await one.batch()
        seen.append(await scene.checkpoints())

    await one.plan()
    # The batches are 29 to 38, 39 to 48, and 49 alone.
    assert [found["0"] for found in seen] == [39, 39, 48, 49]
    await one.stop()


@virtual
async def test_replays_are_bounded_as_everything_is() -> None:
    scene = await Scene.after_five_hours(2)
    await scene.handled_to(49, "0")
    await scene.handled_to(49, "1")
    one = await scene.query(max_events_per_trigger=6).start()
    await one.owns("0", "1")

    assert sorted(await one.batch()) == [*places("0", 29, 30, 31), *places("1", 29, 30, 31)]
    await one.stop()


@virtual
async def test_killed_in_the_replay_and_started_afresh_it_replays_all_of_it() -> None:
    scene = await Scene.after_five_hours()
    await scene.handled_to(39)
    one = await scene.query(max_events_per_trigger=5).start()
    await one.read_up_to("0", 33)
    await one.kill()

    again = await scene.query(max_events_per_trigger=5).start()
    await again.read_up_to("0", 49)

    assert again.read == places("0", *range(29, 50))
    assert again.replayed == places("0", *range(29, 40))
    assert await scene.checkpoints() == {"0": 48}
    await again.stop()


@virtual
async def test_killed_before_a_checkpoint_nothing_that_came_since_passes_for_handled() -> None:
    scene = await Scene.after_five_hours()
    start = StartPositions(Position.enqueued(_hours_ago(0.05)))
    one = await scene.query(starting_positions=start, max_events_per_trigger=1).start()
    await one.read_up_to("0", 29)
    await one.kill()
    scene.hub.append("0", [b"while it was down"])
    await asyncio.sleep(HOUR)

    again = await scene.query(starting_positions=StartPositions(Position.enqueued(_hours_ago(0.05)))).start()
    await again.read_up_to("0", 50)

    assert ("0", 49) not in again.replayed
    assert ("0", 50) not in again.replayed
    assert ("0", 48) in again.replayed
    await again.stop()


def _hours_ago(hours: float) -> datetime:
    return datetime.fromtimestamp(now() - hours * HOUR, UTC)


class TestTheSameFolder:
    """What Spark wrote down is in the query's state: it is not replayed to it again."""

    @virtual
    async def test_killed_in_the_replay_it_goes_on_with_the_replay(self) -> None:
        scene = await Scene.after_five_hours()
        await scene.handled_to(39)
        one = await scene.query(max_events_per_trigger=5).start()
        await one.read_up_to("0", 33)
        await one.plan()
        await one.kill()
        before = len(one.read)

        await one.start()
        await one.read_up_to("0", 49)

        assert one.read[before : before + 5] == places("0", *range(34, 39))
        assert one.read == places("0", *range(29, 50))
        assert one.replayed == places("0", *range(29, 40))
        await one.stop()

    @virtual
    async def test_after_the_replay_nothing_is_read_twice(self) -> None:
        scene = await Scene.after_five_hours()
        await scene.handled_to(39)
        one = await scene.query().start()
        await one.read_up_to("0", 49)
        await one.kill()
        scene.hub.append("0", [b"while it was down"])

        await one.start()
        await one.read_up_to("0", 50)

        assert one.read == places("0", *range(29, 51))
        assert one.replayed == places("0", *range(29, 40))
        await one.stop()


class TestPartitionsThatMove:
    @virtual
    async def test_one_that_is_gained_while_the_query_runs_is_replayed_too(self) -> None:
        scene = await Scene.after_five_hours(2)
        one, two = [await scene.query(owner).start() for owner in "ab"]
        (first,), (second,) = await _owned(one), await _owned(two)
        await one.read_up_to(first, 49)
        await two.read_up_to(second, 49)
        await two.plan()
        await two.stop()

        await one.read_up_to(second, 49)

        assert one.read == [*places(first, *range(50)), *places(second, *range(29, 50))]
        assert one.replayed == places(second, *range(29, 50))
        await one.stop()

    @virtual
    async def test_those_that_are_fixed_are_replayed_to_their_owners(self) -> None:
        scene = await Scene.after_five_hours(4)
        for partition in "0123":
            await scene.handled_to(44, partition)
        both = [await scene.query(owner, load_balancing=Fixed(2)).start() for owner in "ab"]
        for one in both:
            for partition in await _owned(one, 2):
                await one.read_up_to(partition, 49)

        assert sorted(both[0].read + both[1].read) == [p for n in "0123" for p in places(n, *range(29, 50))]
        assert sorted(both[0].replayed + both[1].replayed) == [p for n in "0123" for p in places(n, *range(29, 45))]
        for one in both:
            await one.stop()

    @virtual
    async def test_one_that_comes_back_is_replayed_from_where_the_query_left_it(self) -> None:
        scene = await Scene.after_five_hours(2)
        one = await scene.query("a").start()
        await one.read_all(100)
        two = await scene.query("b").start()
        (moved,) = await _handed_over(one, two)
        await two.read_up_to(moved, 49)
        scene.hub.append(moved, [b"for the other"] * 3)
        await two.read_up_to(moved, 52)
        await two.plan()
        await two.stop()
        scene.hub.append(moved, [b"new"])

        await one.read_up_to(moved, 53)

        assert [place for place in one.read if place[0] == moved] == places(moved, *range(54))
        assert one.replayed == places(moved, 50, 51, 52)
        assert two.replayed == places(moved, *range(29, 50))
        await one.stop()


async def _owned(one: Query, count: int = 1) -> list[str]:
    async with asyncio.timeout(300):
        while len(found := await one.owned()) < count:  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(LEASE.load_balancing_interval_seconds)
    return found


async def _handed_over(one: Query, two: Query) -> list[str]:
    """Triggers both until the second has a partition of the first's."""
    async with asyncio.timeout(300):
        while not (found := await two.owned()):
            await one.batch()
            await asyncio.sleep(LEASE.load_balancing_interval_seconds)
    return found


class TestRetention:
    @virtual
    async def test_what_is_removed_while_it_is_to_be_replayed_is_no_gap(self) -> None:
        scene = await Scene.after_five_hours()
        await scene.handled_to(45)
        one = await scene.query(max_events_per_trigger=5).start()
        await one.read_up_to("0", 33)
        scene.hub.trim("0", 40)
        await asyncio.sleep(5)

        await one.read_up_to("0", 49)

        assert one.read == places("0", *range(29, 34), *range(40, 50))
        assert one.replayed == places("0", *range(29, 34), *range(40, 46))
        await one.stop()

    @virtual
    async def test_new_events_that_are_removed_are_a_gap_as_ever(self) -> None:
        scene = await Scene.after_five_hours()
        await scene.handled_to(45)
        one = await scene.query(max_events_per_trigger=5, on_data_loss="earliest").start()
        await one.read_up_to("0", 33)
        scene.hub.trim("0", 48)
        await asyncio.sleep(5)

        end = await one.planner.next_offset(one.log[-1], is_limited=True)

        assert (end.entries["0"].start, end.entries["0"].gap) == (48, Gap("expired", 46))
        await one.stop()

    @virtual
    async def test_new_events_that_are_removed_fail_the_query_by_default(self) -> None:
        scene = await Scene.after_five_hours()
        await scene.handled_to(45)
        one = await scene.query(max_events_per_trigger=5).start()
        await one.read_up_to("0", 33)
        scene.hub.trim("0", 48)
        await asyncio.sleep(5)

        with pytest.raises(PositionInvalid):
            await one.batch()
        await one.stop()

    @virtual
    async def test_a_start_whose_event_before_it_is_gone_is_written_down(self) -> None:
        scene = await Scene.after_five_hours()
        scene.hub.trim("0", 49)
        one = await scene.query(starting_positions=StartPositions(Position.enqueued(_hours_ago(4)))).start()
        await until(lambda: one.planner._owned is not None and one.planner._owned._held)

        await one.read_up_to("0", 49)

        assert await scene.checkpoints() == {"0": 48}
        await one.stop()


@virtual
async def test_an_offset_tells_what_of_its_batch_is_replayed() -> None:
    scene = await Scene.after_five_hours()
    await scene.handled_to(39)
    one = await scene.query(max_events_per_trigger=15).start()
    await one.owns("0")

    await one.batch()
    await one.batch()

    mixed, new = one.log[-2:]
    assert mixed.to_json()["0"] == {"from": 29, "to": 44, "epoch": 1, "replayed_to": 40}
    assert mixed.entries["0"].new_start == 40
    assert new.to_json()["0"] == {"from": 44, "to": 50, "epoch": 1}
    assert new.entries["0"].new_start == 44
    assert mixed == StreamOffset.from_json(mixed.to_json())
    await one.stop()
