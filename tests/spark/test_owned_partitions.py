"""Several queries share a group, in virtual time and without Spark: nothing lost, nothing twice, no fights."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import All, Balanced, Fixed, Greedy
from hubline.errors import PositionInvalid, StoreUnavailable
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import OnDataLoss, Position, StartPositions, TimeAgo
from hubline.spark.source.offsets import Gap
from hubline.testing.memory_hub import MemoryHub, MemoryReceiver
from tests.spark.queries import Place, Query, places
from tests.support.scene import LEASE, FaultyStore, until, virtual

GROUP = GroupKey("memory", "hub", "$Default")
BATCH_SECONDS = 0.1
"""In virtual time: what a batch takes beside its planning."""


def filled(*counts: int) -> MemoryHub:
    hub = MemoryHub(len(counts))
    for partition, count in enumerate(counts):
        hub.append(str(partition), [b"%d" % number for number in range(count)])
    return hub


def query(hub: MemoryHub, store: MemoryStore | FaultyStore, owner_id: str, **options: object) -> Query:
    return Query(hub, store, owner_id=owner_id, **{"load_balancing": Greedy(), **options})


def new_store() -> MemoryStore:
    """A store whose leases run in the loop's time."""
    return MemoryStore(now=asyncio.get_running_loop().time)


def last_seconds(seconds: int) -> StartPositions:
    return StartPositions(TimeAgo(timedelta(seconds=seconds)))


async def checkpoints(store: MemoryStore) -> dict[str, int]:
    return {found.key.partition: found.sequence_number for found in await store.list_checkpoints(GROUP)}


async def owner_of(store: MemoryStore, partition: str) -> str:
    state = await store.list_ownership(GROUP)
    return next(found.owner_id for found in state.ownerships if found.key.partition == partition)


def taken_over(before: Query, query: Query) -> Query:
    """A query that starts with the checkpoint folder of another, as it was left."""
    query.log, query.committed = list(before.log), before.committed
    return query


async def side_by_side(queries: list[Query], count: int) -> list[Place]:
    """Runs the queries' batches at the same time until so many events were read by all of them together."""

    async def run(one: Query) -> None:
        while sum(len(each.read) for each in queries) < count:
            await one.batch()
            await asyncio.sleep(BATCH_SECONDS)

    async with asyncio.timeout(600):
        await asyncio.gather(*map(run, queries))
    return [place for one in queries for place in one.read]


@virtual
async def test_a_checkpoint_is_written_when_its_batch_is_done() -> None:
    hub, store = filled(5, 3), new_store()
    one = await query(hub, store, "a").start()
    await one.read_all(8)
    before = await checkpoints(store)

    await one.plan()

    assert before == {}
    assert await checkpoints(store) == {"0": 4, "1": 2}
    await one.stop()


@virtual
async def test_the_offset_of_a_checkpoint_is_that_of_its_event() -> None:
    hub, store = filled(10), new_store()
    one = await query(hub, store, "a", max_events_per_trigger=7).start()

    await one.read_all(7)
    await one.plan()
    limited = await store.list_checkpoints(GROUP)
    await one.run()
    hub.append("0", [b"new"])
    await one.plan()
    to_the_newest = await store.list_checkpoints(GROUP)

    assert [found.offset for found in limited] == [hub.offset_of(6)]
    assert [found.offset for found in to_the_newest] == [hub.offset_of(9)]
    await one.stop()


@virtual
async def test_the_offset_of_a_checkpoint_is_asked_for_while_its_batch_runs() -> None:
    class Hub(MemoryHub):
        opened_count = 0

        async def open_receiver(self, *args: Any, **kwargs: Any) -> MemoryReceiver:
            self.opened_count += 1
            return await super().open_receiver(*args, **kwargs)

    hub, store = Hub(1), new_store()
    hub.append("0", [b"x"] * 10)
    one = await query(hub, store, "a", max_events_per_trigger=7).start()
    await one.read_all(7)
    await asyncio.sleep(BATCH_SECONDS)
    opened_count = hub.opened_count

    await one.plan()

    assert hub.opened_count == opened_count
    assert [found.offset for found in await store.list_checkpoints(GROUP)] == [hub.offset_of(6)]
    await one.stop()


@virtual
async def test_without_checkpoints_partitions_stay_in_place_and_a_standby_begins_at_its_own_start() -> None:
    hub, store = MemoryHub(2, now=asyncio.get_running_loop().time), new_store()
    await store.reset_checkpoint(GROUP.partition("0"), Checkpoint(GROUP.partition("0"), hub.offset_of(0), 0))
    options: dict[str, Any] = {
        "load_balancing": Fixed(1),
        "checkpoint": "never",
        "starting_positions": last_seconds(55),
    }

    async def append() -> None:
        for partition in "01":
            hub.append(partition, [b"x"])
        await asyncio.sleep(25)

    for _ in range(3):
        await append()
    killed = await query(hub, store, "killed", **options).start()
    await killed.read_all(2)
    other = await query(hub, store, "other", **options).start()
    await other.read_all(2)
    standby = await query(hub, store, "standby", **options).start()
    await append()
    await killed.read_all(3)
    (partition,) = await killed.owned()
    assert (killed.read, await standby.owned()) == (places(partition, 1, 2, 3), [])

    await killed.kill()  # the next start takes it back, and reads nothing again: what it has read is in its state
    again = await taken_over(killed, query(hub, store, "killed", **options)).start()
    await again.owns(partition)
    assert await again.batch() == []
    await again.kill()
    await asyncio.sleep(LEASE.lease_seconds - LEASE.renew_interval_seconds - 0.1)
    assert await standby.owned() == []
    await append()
    await standby.read_all(2)

    assert standby.read == places(partition, 3, 4)
    await standby.stop()
    returned = await taken_over(again, query(hub, store, "killed", **options)).start()
    await returned.read_all(1)
    assert returned.read == places(partition, 4)  # whichever query had the partition since
    assert await checkpoints(store) == {"0": 0}  # from before: neither used nor touched
    for one in (other, returned):
        await one.stop()


@virtual
async def test_without_checkpoints_a_start_that_expired_ends_no_query_that_has_read_on() -> None:
    hub, store = filled(10), new_store()
    options: dict[str, Any] = {
        "checkpoint": "never",
        "starting_positions": StartPositions(Position.sequence(0, inclusive=True)),
    }
    one = await query(hub, store, "a", **options).start()
    await one.read_all(10)
    await one.kill()
    hub.trim("0", 5)
    hub.append("0", [b"new"])

    again = await taken_over(one, query(hub, store, "a", **options)).start()
    await again.read_all(1)
    assert again.read == places("0", 10)
    await again.stop()

    new = await query(hub, store, "a", **options).start()
    with pytest.raises(PositionInvalid):
        await new.read_all(1)
    await new.stop()


@pytest.mark.parametrize("strategy", [Balanced(), Greedy(), Fixed(2)])
def test_two_queries_read_everything_once(strategy: Greedy) -> None:
    @virtual
    async def share() -> None:
        hub, store = filled(50, 50, 50, 50), new_store()
        one, two = [
            await query(hub, store, owner, load_balancing=strategy, max_events_per_trigger=7).start() for owner in "ab"
        ]

        read = await side_by_side([one, two], 200)

        assert Counter(read) == Counter(place for partition in "0123" for place in places(partition, *range(50)))
        assert {partition for partition, _ in one.read}.isdisjoint({partition for partition, _ in two.read})
        await one.stop()
        await two.stop()

    share()


@virtual
async def test_one_that_joins_gets_its_share_and_no_event_is_read_twice() -> None:
    hub, store = filled(200, 200, 200, 200), new_store()
    one = await query(hub, store, "a", max_events_per_trigger=8).start()
    await one.read_all(100)
    two = await query(hub, store, "b", max_events_per_trigger=8).start()

    read = await side_by_side([one, two], 800)

    assert Counter(read).most_common(1)[0][1] == 1
    assert len(read) == 800
    assert two.read
    await one.stop()
    await two.stop()


@virtual
async def test_a_partition_that_is_asked_for_is_given_up_after_its_batch_and_not_before() -> None:
    hub, store = filled(10, 10), new_store()
    one = await query(hub, store, "a").start()
    await one.owns("0", "1")
    await one.plan()
    two = await query(hub, store, "b").start()
    # Long enough to ask, and shorter than the grace.
    await asyncio.sleep(LEASE.handover_timeout_seconds / 2)
    owners = {await owner_of(store, partition) for partition in "01"}

    await one.run()
    await one.plan()
    await until(lambda: two.planner._owned is not None and two.planner._owned._held)

    assert owners == {"a"}
    assert await side_by_side([two], 0) == []
    await two.plan()
    assert not await two.batch()
    await one.stop()
    await two.stop()


@virtual
async def test_leases_are_renewed_while_a_batch_runs_long() -> None:
    hub, store = filled(10), new_store()
    one = await query(hub, store, "a").start()
    await one.owns("0")
    await one.plan()

    await asyncio.sleep(LEASE.lease_seconds * 5)

    assert await owner_of(store, "0") == "a"
    await one.run()
    await one.plan()
    assert await checkpoints(store) == {"0": 9}
    await one.stop()


@virtual
async def test_what_a_killed_query_owned_goes_on_elsewhere_from_its_checkpoint() -> None:
    hub, store = filled(100, 100), new_store()
    one = await query(hub, store, "a", max_events_per_trigger=20).start()
    await one.read_all(60)
    await one.plan()
    await one.kill()
    two = await query(hub, store, "b").start()

    await two.read_all(140)

    assert Counter(one.read + two.read) == Counter([*places("0", *range(100)), *places("1", *range(100))])
    await two.stop()


@virtual
async def test_a_query_that_stops_gives_its_partitions_up_at_once() -> None:
    hub, store = filled(10), new_store()
    one = await query(hub, store, "a").start()
    await one.read_all(10)
    await one.plan()

    await one.stop()

    assert await owner_of(store, "0") == ""
    assert await checkpoints(store) == {"0": 9}


@virtual
async def test_a_query_that_stops_in_a_batch_claims_nothing_of_it() -> None:
    hub, store = filled(10), new_store()
    one = await query(hub, store, "a").start()
    await one.owns("0")
    await one.plan()

    await one.stop()

    assert await owner_of(store, "0") == ""
    assert await checkpoints(store) == {}


class TestRestarts:
    """The same query again, from Spark's log, under the same owner id."""

    @virtual
    async def test_killed_in_a_batch_it_reads_the_same_range_again_and_goes_on_after_it(self) -> None:
        hub, store = filled(30, 30), new_store()
        one = await query(hub, store, "a", max_events_per_trigger=10).start()
        await one.read_all(20)
        await one.plan()
        expected = one.log[-1].ranges(one.log[-2])
        await one.kill()
        one.read.clear()

        await one.start()
        replayed = list(one.read)
        await one.read_all(40)

        assert [place[1] for place in replayed] == [n for found in expected for n in range(found.start, found.end)]
        assert Counter(one.read).most_common(1)[0][1] == 1
        await one.stop()

    @virtual
    @pytest.mark.parametrize("owner_ids", ["aaaa", "abcd"], ids=["the same owner", "a fresh owner each time"])
    async def test_killed_in_one_batch_again_and_again_it_goes_on_after_it(self, owner_ids: str) -> None:
        hub, store = filled(30, 30), new_store()
        first = await query(hub, store, owner_ids[0], max_events_per_trigger=10).start()
        await first.read_all(20)
        await first.plan()
        await first.kill()
        done = list(first.read)
        for owner_id in owner_ids[1:3]:
            again = taken_over(first, query(hub, store, owner_id, max_events_per_trigger=10))
            await again.start()
            await asyncio.sleep(LEASE.lease_seconds * 2)  # it has its partitions again, and dies in that batch
            await again.kill()

        last = taken_over(first, query(hub, store, owner_ids[3], max_events_per_trigger=10))
        await last.start()
        await last.read_all(60 - len(done))

        assert sorted(done + last.read) == sorted(places("0", *range(30)) + places("1", *range(30)))
        await last.stop()

    @virtual
    async def test_a_checkpoint_that_is_set_back_while_a_batch_waits_to_be_run_again_counts_after_it(self) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a", max_events_per_trigger=10).start()
        await one.read_all(20)
        await one.plan()
        await one.kill()
        await store.reset_checkpoint(GROUP.partition("0"), Checkpoint(GROUP.partition("0"), hub.offset_of(4), 4))
        one.read.clear()

        await one.start()
        await one.read_all(35)

        assert one.read == places("0", *range(20, 30), *range(5, 30))
        await one.stop()

    @virtual
    async def test_what_was_done_of_a_partition_that_is_opened_late_is_not_read_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub, store = filled(10, 10), new_store()
        fence, late = store.fence, {"1"}

        async def fence_late(key: PartitionKey, epoch: int) -> Checkpoint | None:
            if key.partition in late:
                raise StoreUnavailable("not yet")
            return await fence(key, epoch)

        one = await query(hub, store, "a").start()
        await one.read_all(20)
        await one.kill()  # before its checkpoint
        hub.append("0", [b"new"])
        hub.append("1", [b"new"])

        monkeypatch.setattr(store, "fence", fence_late)

        await one.start()
        await one.read_all(21)
        late.clear()
        await one.read_all(22)

        assert sorted(one.read) == sorted(places("0", *range(11)) + places("1", *range(11)))
        await one.stop()

    @virtual
    async def test_killed_after_a_batch_and_before_its_checkpoint_it_reads_nothing_again(self) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a", max_events_per_trigger=10).start()
        await one.read_all(20)
        assert await checkpoints(store) == {"0": 9}
        await one.kill()

        await one.start()
        await one.read_all(30)

        assert one.read == places("0", *range(30))
        await one.stop()

    @virtual
    async def test_killed_twice_after_a_batch_it_reads_nothing_again_however_far_the_next_trigger_is(self) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a", max_events_per_trigger=10).start()
        await one.read_all(20)
        await one.kill()

        await one.start()
        await one.plan()  # as Spark does at once, when no partition is open yet
        await asyncio.sleep(LEASE.lease_seconds * 2)
        stored = await checkpoints(store)
        await one.kill()
        await one.start()
        await one.read_all(30)

        assert stored == {"0": 19}
        assert one.read == places("0", *range(30))
        await one.stop()

    @virtual
    async def test_under_another_owner_id_it_waits_for_its_own_lease_and_repeats_nothing(self) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a", max_events_per_trigger=10).start()
        await one.read_all(20)
        await one.kill()
        again = query(hub, store, "fresh", max_events_per_trigger=10)
        again.log, again.committed, again.read = one.log, one.committed, one.read

        await again.start()
        await again.read_all(30)

        assert again.read == places("0", *range(30))
        await again.stop()

    @virtual
    async def test_what_another_query_read_meanwhile_is_not_read_again(self) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a", max_events_per_trigger=10).start()
        await one.read_all(10)
        await one.plan()
        await one.run()
        await one.plan()
        await one.kill()
        two = await query(hub, store, "b", max_events_per_trigger=10).start()
        await two.read_all(10)
        await two.plan()
        await two.stop()
        del one.log[-1]

        await one.start()
        await one.owns("0")
        await one.plan()

        assert two.read == places("0", *range(20, 30))
        assert not await one.batch()
        await one.stop()

    @virtual
    async def test_a_checkpoint_that_was_reset_meanwhile_is_obeyed(self) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a").start()
        await one.read_all(30)
        await one.plan()
        await one.stop()
        key = GROUP.partition("0")
        await store.reset_checkpoint(key, Checkpoint(key, hub.offset_of(9), 9))

        await one.start()
        await one.read_all(50)

        assert one.read[30:] == places("0", *range(10, 30))
        await one.stop()


@virtual
async def test_a_checkpoint_that_is_reset_while_it_runs_is_obeyed() -> None:
    hub, store = filled(30), new_store()
    one = await query(hub, store, "a").start()
    await one.read_all(30)
    await one.plan()
    key = GROUP.partition("0")

    await store.reset_checkpoint(key, Checkpoint(key, hub.offset_of(9), 9))
    await one.read_all(50)

    assert one.read[30:] == places("0", *range(10, 30))
    await one.stop()


@virtual
async def test_a_query_that_was_fenced_reads_the_partition_no_more() -> None:
    hub, store = filled(10), new_store()
    one = await query(hub, store, "a").start()
    await one.read_all(10)
    hub.append("0", [b"new"])
    await store.fence(GROUP.partition("0"), 50)

    await one.plan()
    after = await one.owned()

    assert after == []
    await one.owns("0")
    await one.read_all(21)
    assert one.read[10:] == places("0", *range(11))
    await one.stop()


@virtual
async def test_a_store_that_is_down_costs_no_progress_and_is_caught_up() -> None:
    hub, store = filled(10), new_store()
    faulty = FaultyStore(store)
    one = await query(hub, faulty, "a", max_events_per_trigger=5).start()
    await one.owns("0")
    faulty.failing["update_checkpoint"] = OSError("no route")

    await one.read_all(10)
    assert await checkpoints(store) == {}
    for _ in range(100):
        await one.plan()
    tries = faulty.calls["update_checkpoint"]
    faulty.come_up()
    await asyncio.sleep(2)
    await one.plan()

    assert tries < 5
    assert await checkpoints(store) == {"0": 9}
    await one.stop()


@virtual
async def test_a_store_that_cannot_be_used_is_what_the_query_fails_with() -> None:
    faulty = FaultyStore(new_store())
    faulty.go_down()
    one = query(filled(1), faulty, "a")

    with pytest.raises(StoreUnavailable, match="the store is down"):
        await one.start()

    await one.stop()


async def expired() -> tuple[MemoryHub, MemoryStore]:
    """Ten events, of which two were handled, and six are gone since."""
    hub, store = filled(10), new_store()
    one = await query(hub, store, "a", max_events_per_trigger=2).start()
    await one.read_all(2)
    await one.plan()
    await one.stop()
    hub.trim("0", 6)
    return hub, store


class TestFirstOpening:
    @virtual
    async def test_the_end_is_written_down(self) -> None:
        hub, store = filled(10, 0), new_store()
        one = await query(hub, store, "a", starting_positions=StartPositions(Position.latest())).start()
        await one.owns("0", "1")
        await one.kill()
        hub.append("0", [b"new"])
        hub.append("1", [b"new"])

        await one.start()
        await one.read_all(2)

        assert sorted(one.read) == [("0", 10), ("1", 0)]
        await one.stop()

    @virtual
    async def test_a_partition_that_is_added_starts_at_its_beginning(self) -> None:
        hub, store = filled(1), new_store()
        one = await query(hub, store, "a", starting_positions=StartPositions(Position.latest())).start()
        await one.owns("0")

        hub.grow(2)
        hub.append("1", [b"early"] * 3)
        await one.read_all(3)

        assert one.read == places("1", 0, 1, 2)
        await one.stop()

    @virtual
    async def test_a_checkpoint_that_expired_fails_the_query_by_default(self) -> None:
        hub, store = await expired()
        two = await query(hub, store, "b").start()

        with pytest.raises(PositionInvalid):
            await two.read_all(1)

        await two.stop()

    @virtual
    async def test_a_checkpoint_that_expired_is_a_gap_by_choice(self) -> None:
        hub, store = await expired()
        two = await query(hub, store, "b", on_data_loss="earliest").start()
        await two.owns("0")

        end = await two.planner.next_offset(two.log[-1], is_limited=True)

        assert (end.entries["0"].start, end.entries["0"].gap) == (6, Gap("expired", 2))
        await two.stop()

    @virtual
    async def test_a_gap_is_moved_over_when_the_batch_that_tells_of_it_is_done_and_not_before(self) -> None:
        hub, store = await expired()
        two = await query(hub, store, "b", on_data_loss="latest").start()
        await two.owns("0")

        end = await two.planner.next_offset(two.log[-1], is_limited=True)
        assert (end.entries["0"].start, end.entries["0"].end) == (10, 10)  # nothing to read, and a gap to tell
        assert await checkpoints(store) == {"0": 1}
        assert await two.planner.next_offset(end, is_limited=True) == end
        assert await checkpoints(store) == {"0": 9}
        await two.stop()

    @virtual
    async def test_a_start_that_expired_is_a_gap_from_there_on(self) -> None:
        hub, store = filled(10), new_store()
        hub.trim("0", 6)
        start = StartPositions(Position.sequence(4, inclusive=True))
        choice = "earliest"
        one = await query(hub, store, "a", on_data_loss=choice, starting_positions=start).start()
        await one.owns("0")

        end = await one.planner.next_offset(one.log[-1], is_limited=True)

        assert (end.entries["0"].start, end.entries["0"].gap) == (6, Gap("expired", 4))
        await one.stop()

    @virtual
    @pytest.mark.parametrize("is_running", [False, True])
    @pytest.mark.parametrize(("choice", "first"), [("earliest", 0), ("latest", 10)])
    async def test_the_checkpoint_of_a_deleted_hub_gives_way_to_that_of_the_recreated_one(
        self, choice: OnDataLoss, first: int, is_running: bool
    ) -> None:
        hub, store = filled(30), new_store()
        one = await query(hub, store, "a", on_data_loss=choice).start()
        await one.read_all(30)
        await one.plan()
        assert await checkpoints(store) == {"0": 29}
        one.read.clear()
        if is_running:
            vars(hub).update(vars(filled(10)))
        else:
            await one.stop()
            hub = filled(10)
            one = await query(hub, store, "b", on_data_loss=choice).start()
            await one.owns("0")
        async with asyncio.timeout(300):
            while not one.log[-1].entries or one.log[-1].entries["0"].end != 10:
                await one.batch()
                await asyncio.sleep(BATCH_SECONDS)
        hub.append("0", [b"new"] * 5)

        await one.read_all(15 - first)
        await one.plan()
        assert await checkpoints(store) == {"0": 14}
        await one.owns("0")  # it was given up for a moment, as with any checkpoint that is set
        hub.append("0", [b"newer"] * 5)
        await one.read_all(20 - first)
        await one.plan()

        assert one.read == places("0", *range(first, 20))
        assert one.replayed == []
        assert await checkpoints(store) == {"0": 19}
        await one.stop()


class TestAll:
    """``loadBalancing=all`` with a store: every partition, checkpoints in the store, nothing shared."""

    @virtual
    async def test_it_takes_every_partition_and_keeps_them(self) -> None:
        hub, store = filled(10, 10, 10, 10), new_store()
        one = await query(hub, store, "a", load_balancing=All()).start()
        await one.read_all(40)
        two = await query(hub, store, "b", load_balancing=All()).start()
        await asyncio.sleep(LEASE.lease_seconds * 3)
        await one.plan()

        assert await two.owned() == []
        assert await checkpoints(store) == dict.fromkeys("0123", 9)
        await one.stop()
        await two.owns(*"0123")
        await two.stop()

    @virtual
    async def test_a_run_that_ends_by_itself_has_them_at_once(self) -> None:
        hub, store = filled(*[1] * 32), new_store()
        one = await query(hub, store, "a", load_balancing=All()).start()
        started_at = asyncio.get_running_loop().time()

        await one.planner.pin()

        assert asyncio.get_running_loop().time() - started_at < 1.0
        assert len(await one.owned()) == 32
        await one.stop()


@virtual
async def test_a_run_that_ends_by_itself_waits_for_its_share() -> None:
    hub, store = filled(10, 10), new_store()
    one = await query(hub, store, "a").start()
    await one.planner.pin()

    while await one.batch():
        pass

    assert len(one.read) == 20
    assert await checkpoints(store) == {"0": 9, "1": 9}
    await one.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"load_balancing": All()},
        {"load_balancing": Greedy()},
        {"load_balancing": Balanced()},
        {"load_balancing": Fixed(2)},
    ],
)
@virtual
async def test_a_run_that_ends_by_itself_waits_for_what_a_killed_one_owns(options: dict[str, Any]) -> None:
    hub, store = filled(10, 10), new_store()
    killed = await query(hub, store, "a", load_balancing=Fixed(2)).start()
    await killed.owns("0", "1")
    await killed.kill()

    one = await query(hub, store, "b", **options).start()
    await one.planner.pin()
    while await one.batch():
        pass

    assert len(one.read) == 20
    await one.stop()


@virtual
async def test_a_run_that_ends_by_itself_leaves_one_that_lives_what_it_owns() -> None:
    hub, store = filled(10, 10), new_store()
    living = await query(hub, store, "a", load_balancing=Fixed(2)).start()
    await living.owns("0", "1")

    one = await query(hub, store, "b", load_balancing=All()).start()
    started_at = asyncio.get_running_loop().time()
    await one.planner.pin()

    assert asyncio.get_running_loop().time() - started_at < LEASE.lease_seconds
    assert await one.owned() == []
    await one.stop()
    await living.stop()


@pytest.mark.parametrize("failing", ["fence", "list_ownership"])
@virtual
async def test_a_run_that_ends_by_itself_fails_if_it_does_not_get_its_share(failing: str) -> None:
    hub, store = filled(10, 10), FaultyStore(new_store())
    store.failing[failing] = StoreUnavailable("the store is down")
    one = await query(hub, store, "a", operation_timeout_seconds=30.0).start()

    with pytest.raises(StoreUnavailable, match=r"does not have its share .* \(the store is down\)"):
        await one.planner.pin()

    store.come_up()
    await one.planner.pin()
    await one.read_all(20)
    await one.stop()
