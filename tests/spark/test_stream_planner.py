"""What a stream's batches read, in virtual time and without Spark: limits, growth, gaps, outages."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import Greedy
from hubline.errors import ConfigError, HubNotFound, HubUnavailable, PositionInvalid
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.keys import GroupKey
from hubline.model.positions import OnDataLoss, Position, StartPositions
from hubline.spark.options import parse_options
from hubline.spark.source.offsets import Entry, Gap, StreamOffset
from hubline.testing.memory_hub import MemoryHub
from tests.spark.queries import Query, places
from tests.support.scene import virtual


class TellingHub(MemoryHub):
    """A hub that can be out of reach or recreated, and that counts how often a partition is looked at."""

    def __init__(self, partitions_count: int) -> None:
        super().__init__(partitions_count)
        self.failing: dict[str, Exception] = {}
        self.created_at = datetime(2026, 1, 1, tzinfo=UTC)
        self.looks: Counter[str] = Counter()
        self.hanging: set[str] = set()

    async def describe(self) -> HubProperties:
        self._fail("*")
        found = await super().describe()
        return HubProperties(found.namespace, found.name, found.partition_ids, self.created_at)

    async def describe_partition(self, partition: str) -> PartitionProperties:
        self.looks[partition] += 1
        self._fail("*", partition)
        if partition in self.hanging:
            await asyncio.sleep(3_600)
        return await super().describe_partition(partition)

    def _fail(self, *names: str) -> None:
        for name in names:
            if name in self.failing:
                raise self.failing[name]


def filled(*counts: int) -> TellingHub:
    hub = TellingHub(len(counts))
    for partition, count in enumerate(counts):
        hub.append(str(partition), [b"%d" % number for number in range(count)])
    return hub


@virtual
@pytest.mark.parametrize("partition", ["2", "x"])
async def test_a_position_for_a_partition_that_is_not_there_is_refused(partition: str) -> None:
    starts = json.dumps(dict.fromkeys(("*", "0", partition), "earliest"))
    named = parse_options({"hub": "local:hubs/hub", "startingPosition": "latest", "startingPositions": starts})
    one = Query(MemoryHub(2), starting_positions=named.starting_positions)
    with pytest.raises(ConfigError, match=f"partition '{partition}', which the hub does not have: it has 2, from 0 "):
        await one.start()
    await one.stop()


@virtual
async def test_every_event_is_read_once_and_in_order() -> None:
    hub = filled(5, 0, 3)
    query = await Query(hub).start()

    await query.read_all(8)
    hub.append("1", [b"new"])
    await query.read_all(9)

    assert query.read == [*places("0", *range(5)), *places("2", 0, 1, 2), *places("1", 0)]
    await query.stop()


@virtual
async def test_nothing_new_is_the_start_itself() -> None:
    query = await Query(filled(5)).start()

    assert await query.batch()
    assert not await query.plan()
    await query.stop()


@virtual
async def test_a_batch_tells_the_group_whose_progress_it_is() -> None:
    query = await Query(filled(1), consumer_group="store").start()

    await query.batch()

    assert query.log[-1].group == GroupKey("memory", "hub", "store")
    await query.stop()


@virtual
async def test_a_stream_starts_at_the_position_given_for_each_partition() -> None:
    start = StartPositions(Position.latest(), {"0": Position.sequence(2, inclusive=True), "1": Position.sequence(2)})
    hub = filled(5, 5, 5)
    query = await Query(hub, starting_positions=start).start()

    await query.batch()
    hub.append("2", [b"new"])
    await query.read_all(6)

    assert sorted(query.read) == [*places("0", 2, 3, 4), *places("1", 3, 4), *places("2", 5)]
    await query.stop()


@virtual
async def test_the_end_is_written_down_by_the_first_batch_though_it_reads_nothing() -> None:
    hub = filled(5)
    query = await Query(hub, starting_positions=StartPositions(Position.latest())).start()
    assert await query.batch() == []
    await query.kill()
    hub.append("0", [b"while it was away"])

    await query.start()
    await query.read_all(1)

    assert query.read == places("0", 5)
    await query.stop()


class BusyHub(TellingHub):
    """A hub that gets an event whenever it is looked at."""

    async def describe_partition(self, partition: str) -> PartitionProperties:
        self.append(partition, [b"just in"])
        return await super().describe_partition(partition)


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_events_that_come_between_two_looks_are_no_reason_to_stop(store: MemoryStore | None) -> None:
    """Where a partition ends was seen a moment ago; where it starts is looked up now, and may be further."""

    @virtual
    async def start() -> None:
        query = await Query(
            BusyHub(1), store, starting_positions=StartPositions(Position.latest()), load_balancing=Greedy()
        ).start()

        await query.read_all(10)

        assert query.read == places("0", *range(query.read[0][1], query.read[-1][1] + 1))
        await query.stop()

    start()


@virtual
async def test_without_a_start_it_does_not_start() -> None:
    with pytest.raises(ConfigError, match="start"):
        await Query(filled(1), starting_positions=None).start()


class TestLimits:
    @virtual
    async def test_a_batch_takes_no_more_events_than_it_may(self) -> None:
        query = await Query(filled(10, 1_000, 1_000), max_events_per_trigger=100).start()

        batch = Counter(partition for partition, _ in await query.batch())

        assert batch == {"0": 10, "1": 45, "2": 45}
        await query.stop()

    @virtual
    async def test_a_trigger_that_wants_all_gets_all(self) -> None:
        query = await Query(filled(10, 1_000), max_events_per_trigger=100, max_bytes_per_trigger=10).start()

        assert len(await query.batch(is_limited=False)) == 1_010
        await query.stop()

    @virtual
    async def test_a_batch_takes_about_as_many_bytes_as_it_may(self) -> None:
        hub = TellingHub(2)
        hub.append("0", [b"x" * 10_000] * 100)
        hub.append("1", [b"x" * 100] * 100)
        query = await Query(hub, max_bytes_per_trigger=100_000).start()

        batch = Counter(partition for partition, _ in await query.batch())

        assert batch["1"] == 100
        assert 5 <= batch["0"] <= 10
        await query.stop()

    @virtual
    async def test_an_event_larger_than_the_limit_is_read_all_the_same(self) -> None:
        hub = TellingHub(1)
        hub.append("0", [b"x" * 10_000] * 3)
        query = await Query(hub, max_bytes_per_trigger=10).start()

        await query.read_all(3)

        assert query.read == places("0", 0, 1, 2)
        await query.stop()

    @virtual
    async def test_available_now_reads_what_was_there_and_no_more(self) -> None:
        hub = filled(5, 5)
        query = await Query(hub, max_events_per_trigger=4).start()
        await query.planner.pin()

        hub.append("0", [b"late"] * 5)
        hub.grow(3)
        hub.append("2", [b"late"])
        await asyncio.sleep(5)
        while await query.batch():
            pass

        assert sorted(query.read) == [*places("0", *range(5)), *places("1", *range(5))]
        await query.stop()

    @virtual
    async def test_ends_that_are_given_are_not_passed_by_later_events_nor_by_a_pin(self) -> None:
        hub = filled(5, 5)
        query = await Query(hub, ends={"0": 3, "1": 9}, max_events_per_trigger=2).start()
        await query.read_all(8)
        await query.planner.pin()
        hub.append("0", [b"late"])
        hub.append("1", [b"late"] * 10)
        hub.grow(3)
        hub.append("2", [b"late"])
        await asyncio.sleep(5)
        while await query.batch():
            pass

        assert sorted(query.read) == [*places("0", *range(3)), *places("1", *range(9))]
        assert await query.planner.latest() == {"0": 3, "1": 9, "2": 0}
        await query.stop()


@virtual
async def test_partitions_that_are_added_are_read_from_their_beginning() -> None:
    hub = filled(1, 1, 1, 1)
    query = await Query(hub, starting_positions=StartPositions(Position.latest())).start()
    await query.batch()

    hub.grow(8)
    for partition in "4567":
        hub.append(partition, [b"new"] * 3)
    await query.read_all(12)

    assert sorted(query.read) == [place for partition in "4567" for place in places(partition, 0, 1, 2)]
    await query.stop()


class TestGaps:
    @virtual
    async def test_an_expired_position_fails_the_query_by_default(self) -> None:
        hub = filled(5)
        query = await Query(hub).start()
        await query.batch()
        hub.append("0", [b"x"] * 10)
        hub.trim("0", 8)
        await asyncio.sleep(5)

        with pytest.raises(PositionInvalid, match="on_data_loss") as caught:
            await query.batch()

        assert caught.value.reason == "expired"
        await query.stop()

    @pytest.mark.parametrize(("choice", "first"), [("earliest", 8), ("latest", 15)])
    def test_a_gap_that_is_jumped_by_choice_is_kept_in_the_offset(self, choice: OnDataLoss, first: int) -> None:
        @virtual
        async def jump() -> None:
            hub = filled(5)
            query = await Query(hub, on_data_loss=choice).start()
            await query.batch()
            hub.append("0", [b"x"] * 10)
            hub.trim("0", 8)
            await asyncio.sleep(5)

            end = await query.planner.next_offset(query.log[-1], is_limited=True)

            assert end.entries["0"] == Entry(first, 15, 0, Gap("expired", 5))
            assert (await query.planner.next_offset(StreamOffset.from_json(end.to_json()), is_limited=True)).entries[
                "0"
            ].gap is None
            await query.stop()

        jump()

    @virtual
    async def test_a_hub_that_was_recreated_is_not_read_by_mistake(self) -> None:
        query = await Query(filled(5)).start()
        await query.batch()
        await query.stop()
        again = filled(500)
        again.created_at += timedelta(days=1)
        query._hub = again
        await query.start()

        with pytest.raises(PositionInvalid) as caught:
            await query.batch()

        assert caught.value.reason == "foreign"
        await query.stop()

    @virtual
    async def test_the_jvm_connectors_offset_of_another_hub_is_not_read_by_mistake(self) -> None:
        hub = filled(5)
        ours, others = ({name: {"0": 2}} for name in (hub.name.upper(), "another"))
        query = await Query(hub).start()
        query.log = [StreamOffset.from_json(ours)]
        assert await query.batch() == places("0", 2, 3, 4)
        query.log = [StreamOffset.from_json(others)]

        with pytest.raises(PositionInvalid) as caught:
            await query.batch()

        assert caught.value.reason == "foreign"
        await query.stop()

    @virtual
    async def test_a_position_in_a_partition_without_events_says_so(self) -> None:
        query = await Query(filled(0), starting_positions=StartPositions(Position.sequence(7))).start()

        with pytest.raises(PositionInvalid, match="It holds no events"):
            await query.batch()

        await query.stop()

    @virtual
    async def test_a_hub_that_was_recreated_is_read_from_its_beginning_by_choice(self) -> None:
        query = await Query(filled(5), on_data_loss="earliest").start()
        await query.batch()
        await query.stop()
        query._hub = again = filled(3)
        again.created_at += timedelta(days=1)
        query.read.clear()
        await query.start()

        await query.read_all(3)

        assert query.read == places("0", 0, 1, 2)
        assert not await query.plan()
        await query.stop()

    @virtual
    async def test_the_batch_of_a_hub_that_was_deleted_since_is_not_read_from_another(self) -> None:
        query = await Query(filled(5)).start()
        await query.plan()
        await query.kill()
        query._hub = again = filled(500)
        again.created_at += timedelta(days=1)

        with pytest.raises(PositionInvalid):
            await query.start()

        assert query.read == []
        await query.stop()

    @virtual
    async def test_a_position_after_the_end_is_no_silent_wait(self) -> None:
        query = await Query(filled(5)).start()
        await query.batch()
        await query.stop()
        query._hub = filled(2)
        await query.start()

        with pytest.raises(PositionInvalid) as caught:
            await query.batch()

        assert caught.value.reason == "beyond"
        await query.stop()


class TestOutages:
    @virtual
    async def test_the_query_lives_through_a_short_one(self) -> None:
        hub = filled(5)
        query = await Query(hub, operation_timeout_seconds=60.0).start()
        await query.batch()
        hub.failing["*"] = HubUnavailable("out of reach")
        await asyncio.sleep(30)

        assert not await query.plan()
        hub.failing.clear()
        hub.append("0", [b"new"])
        await query.read_all(6)
        await query.stop()

    @virtual
    async def test_a_long_one_fails_it_with_the_reason(self) -> None:
        hub = filled(5)
        query = await Query(hub, operation_timeout_seconds=60.0).start()
        await query.batch()
        hub.failing["*"] = HubUnavailable("no route to the hub")
        assert not await query.plan()
        await asyncio.sleep(70)

        with pytest.raises(HubUnavailable, match=r"60 s: no route to the hub"):
            await query.plan()
        await query.stop()

    @virtual
    async def test_a_partition_that_cannot_be_seen_does_not_hold_the_others_back(self) -> None:
        hub = filled(1, 1)
        query = await Query(hub).start()
        await query.batch()
        hub.failing["0"] = HubUnavailable("moving to another machine")
        hub.append("1", [b"new"])

        await query.read_all(3)

        assert query.read[-1] == ("1", 1)
        await query.stop()

    @virtual
    async def test_a_partition_that_does_not_answer_does_not_hold_the_others_back(self) -> None:
        hub = filled(1, 1)
        query = await Query(hub, receiver_timeout_seconds=60.0).start()
        await query.batch()
        hub.hanging.add("0")
        hub.append("1", [b"new"])
        started_at = asyncio.get_running_loop().time()

        await query.read_all(3)

        assert asyncio.get_running_loop().time() - started_at < 5
        await query.stop()

    @virtual
    async def test_what_waiting_does_not_help_fails_it_at_once(self) -> None:
        hub = filled(1)
        query = await Query(hub).start()
        hub.failing["*"] = HubNotFound("it was deleted")
        await asyncio.sleep(5)

        with pytest.raises(HubNotFound):
            await query.plan()
        await query.stop()

    @virtual
    async def test_a_hub_that_is_out_of_reach_at_first_is_waited_for(self) -> None:
        hub = filled(2)
        hub.failing["*"] = HubUnavailable("not yet")
        starting = asyncio.create_task(Query(hub).start())
        await asyncio.sleep(20)
        hub.failing.clear()

        query = await starting

        await query.read_all(2)
        await query.stop()


@virtual
async def test_an_idle_query_does_not_ask_the_hub_each_time() -> None:
    hub = filled(1)
    query = await Query(hub).start()
    await query.batch()
    hub.looks.clear()

    for _ in range(1_000):
        await query.plan()

    assert hub.looks["0"] <= 1
    hub.append("0", [b"new"])
    await query.read_all(2)
    await query.stop()


@virtual
async def test_a_query_that_is_seldom_triggered_sees_what_is_there_now() -> None:
    hub = filled(1)
    query = await Query(hub).start()
    await query.batch()
    await asyncio.sleep(3_600)
    hub.append("0", [b"new"])

    assert await query.batch() == places("0", 1)
    await query.stop()
