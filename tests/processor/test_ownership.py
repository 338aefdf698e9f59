"""Who owns what: processors share, join, leave, crash and come back; a store that fails costs as little as it can."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Balanced, Fixed, Greedy, Plan, Strategy
from hubline.errors import ConfigError, LeaseLost, ProcessorError, RecordDamaged, StoreError, StoreUnavailable
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, PartitionContext, ProcessorOptions
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.faults import RemoteHub, RemoteStore, Weather
from hubline.testing.simulation.virtual_loop import SimProcess, World, run_now
from hubline.testing.simulation.virtual_processor import VirtualProcessor
from tests.support.scene import GROUP, LEASE, FaultyStore, Recorder, Scene, partitions_of, until, virtual


def shares(*recorders: Recorder) -> list[int]:
    return sorted(len(recorder.owned) for recorder in recorders)


def all_handled(scene: Scene, *recorders: Recorder) -> dict[str, list[int]]:
    """Everything that was handled, by partition."""
    ids = run_now(scene.hub.describe()).partition_ids
    return {p: [n for recorder in recorders for n in recorder.handled[p]] for p in ids}


async def produce(scene: Scene, *, seconds: float, every_seconds: float = 0.1) -> None:
    """Appends to all partitions in turn."""
    ids = (await scene.hub.describe()).partition_ids
    for count in range(int(seconds / every_seconds)):
        scene.append(1, partition=ids[count % len(ids)])
        await asyncio.sleep(every_seconds)


class TestSharing:
    @pytest.mark.parametrize("strategy", [Greedy(), Balanced()])
    @virtual
    async def test_processors_that_start_together_share_evenly(self, strategy: Strategy) -> None:
        scene = Scene(8)
        recorders = [scene.processor(owner_id=name, load_balancing=strategy) for name in "abc"]
        await asyncio.gather(*(recorder.processor.start() for recorder in recorders))
        await until(lambda: shares(*recorders) == [2, 3, 3])
        await asyncio.sleep(60)
        assert shares(*recorders) == [2, 3, 3]
        assert [recorder.released for recorder in recorders] == [[], [], []]  # and nothing ever moved
        await asyncio.gather(*(recorder.processor.stop() for recorder in recorders))

    @pytest.mark.parametrize("strategy", [Greedy(), Balanced()])
    @virtual
    async def test_joining_and_leaving_repeats_no_event(self, strategy: Strategy) -> None:
        async def take_a_while(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(0.3)

        scene = Scene(6)
        recorders = [
            scene.processor(take_a_while, owner_id=name, load_balancing=strategy, max_batch_size=3) for name in "abc"
        ]
        producing = asyncio.create_task(produce(scene, seconds=100))
        for recorder in recorders:
            await recorder.processor.start()
            await asyncio.sleep(15)
        await until(lambda: shares(*recorders) == [2, 2, 2])
        for recorder in recorders[:2]:
            await recorder.processor.stop()
            await asyncio.sleep(15)
        await producing
        last = recorders[2]
        await until(lambda: sum(map(len, all_handled(scene, *recorders).values())) >= 1_000)
        await last.processor.stop()

        handled = all_handled(scene, *recorders)
        assert sum(map(len, handled.values())) == 1_000
        assert all(sorted(sequences) == list(range(len(sequences))) for sequences in handled.values())
        assert partitions_of(*recorders) == []

    @virtual
    async def test_a_new_member_gets_its_share_from_the_fullest(self) -> None:
        scene = Scene(6)
        first = scene.processor(owner_id="a")
        second = scene.processor(owner_id="b")
        async with first.processor:
            await until(lambda: shares(first) == [6])
            async with second.processor:
                await until(lambda: shares(first, second) == [3, 3])
                assert [what.split()[2] for what in first.released] == ["requested"] * 3
            await until(lambda: shares(first) == [6])

    @virtual
    async def test_a_standby_takes_over_at_once_from_one_that_stops(self) -> None:
        scene = Scene(1)
        first = scene.processor(owner_id="a")
        standby = scene.processor(owner_id="b")
        await first.processor.start()
        await until(lambda: first.owned)
        async with standby.processor:
            await asyncio.sleep(30)
            assert standby.owned == set()
            stopped_at = asyncio.get_running_loop().time()
            await first.processor.stop()
            await until(lambda: standby.owned)
            waited = asyncio.get_running_loop().time() - stopped_at

        assert waited <= LEASE.load_balancing_interval_seconds + 0.1

    @virtual
    async def test_a_processor_takes_no_more_than_its_maximum(self) -> None:
        scene = Scene(6)
        small = scene.processor(owner_id="a", load_balancing=Greedy(max_partitions=1))
        large = scene.processor(owner_id="b", load_balancing=Greedy())
        async with small.processor:
            await asyncio.sleep(30)
            assert shares(small) == [1]
            async with large.processor:
                await until(lambda: shares(small, large) == [1, 5])

    @virtual
    async def test_fixed_members_take_their_count_and_keep_it(self) -> None:
        scene = Scene(6)
        first = scene.processor(owner_id="a", load_balancing=Fixed(3))
        second = scene.processor(owner_id="b", load_balancing=Fixed(2))
        async with first.processor:
            await until(lambda: shares(first) == [3])
            async with second.processor:
                await until(lambda: shares(first, second) == [2, 3])
                await asyncio.sleep(60)
                assert (first.released, second.released) == ([], [])
        assert len(partitions_of(first, second)) == 0

    @virtual
    async def test_partitions_added_to_the_hub_are_picked_up(self) -> None:
        scene = Scene(2)
        first = scene.processor(owner_id="a")
        second = scene.processor(owner_id="b")
        async with first.processor, second.processor:
            await until(lambda: shares(first, second) == [1, 1])
            scene.hub.grow(6)
            scene.append(3, partition="5")
            await until(lambda: shares(first, second) == [3, 3])
            await until(lambda: all_handled(scene, first, second)["5"] == [0, 1, 2])

    @virtual
    async def test_a_hub_that_cannot_be_described_for_a_while_is_asked_again(self) -> None:
        class Moody(MemoryHub):
            is_broken = False

            async def describe(self):  # type: ignore[no-untyped-def]
                if self.is_broken:
                    raise OSError("no route")
                return await super().describe()

        scene = Scene()
        hub = Moody(1, now=asyncio.get_running_loop().time)
        recorder = scene.processor(hub=hub)
        async with recorder.processor:
            await until(lambda: shares(recorder) == [1])
            hub.is_broken = True
            hub.grow(2)
            await asyncio.sleep(20)
            hub.is_broken = False
            await until(lambda: shares(recorder) == [2])


class TestCrash:
    """Processors in simulated processes of their own, which can be killed."""

    def setup_method(self) -> None:
        self.world = World(5)
        self.hub = MemoryHub(4, now=lambda: self.world.now)
        self.store = MemoryStore(now=lambda: self.world.now)
        self.handled: list[tuple[str, str, int]] = []

    def start(self, owner_id: str) -> SimProcess:
        process = SimProcess(self.world, owner_id)  # type: ignore[abstract]
        processor = VirtualProcessor(
            RemoteHub(process, self.hub, Weather()),
            RemoteStore(process, self.store, Weather()),
            consumer_group=GROUP,
            starting_position=Position.earliest(),
            owner_id=owner_id,
            options=ProcessorOptions(lease=LEASE, checkpoint_policy=CheckpointPolicy.every_batch()),
            rng=random.Random(owner_id),
        )

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            sequences = batch.arrow.column("sequenceNumber").to_pylist()
            self.handled += [(process.name, batch.partition, sequence) for sequence in sequences]

        process.spawn(processor.start())
        return process

    def owners(self) -> dict[str, str]:
        group = GroupKey(self.hub.namespace, self.hub.name, GROUP)
        state = run_now(self.store.list_ownership(group))
        return {o.key.partition: o.owner_id for o in state.ownerships if o.age_seconds < LEASE.lease_seconds}

    def run_until(self, owners: Sequence[str]) -> float:
        """Runs until the partitions are owned so; returns how long that took."""
        started_at = self.world.now
        self.world.run_until(started_at + 60, is_done=lambda: sorted(self.owners().values()) == sorted(owners))
        assert not self.world.failures
        assert sorted(self.owners().values()) == sorted(owners)
        return self.world.now - started_at

    def test_a_crash_costs_the_lease_and_one_cycle(self) -> None:
        crashed, _ = self.start("a"), self.start("b")
        self.run_until("aabb")
        for partition in range(4):
            self.hub.append(str(partition), [b"x"])
        self.world.run_until(self.world.now + 1)
        crashed.kill()
        for partition in range(4):
            self.hub.append(str(partition), [b"y"])

        took = self.run_until("bbbb")
        self.world.run_until(self.world.now + 1)
        self.world.end()

        assert took <= LEASE.lease_seconds + LEASE.load_balancing_interval_seconds
        assert sorted({(partition, sequence) for _, partition, sequence in self.handled}) == [
            (str(partition), sequence) for partition in range(4) for sequence in (0, 1)
        ]

    def test_a_restart_under_the_same_owner_id_takes_its_own_back_at_once(self) -> None:
        crashed, _ = self.start("a"), self.start("b")
        self.run_until("aabb")
        before = {p for p, owner in self.owners().items() if owner == "a"}
        crashed.kill()
        self.start("a")
        self.hub.append(min(before), [b"x"])

        self.world.run_until(self.world.now + 1.0)
        after = {p for p, owner in self.owners().items() if owner == "a"}
        self.world.end()

        assert after == before
        assert self.handled == [("a", min(before), 0)]

    def test_one_that_was_paused_past_its_lease_handles_nothing_more_and_joins_again(self) -> None:
        paused, _ = self.start("a"), self.start("b")
        self.run_until("aabb")
        paused.pause(3 * LEASE.lease_seconds)
        self.run_until("bbbb")
        for partition in range(4):
            self.hub.append(str(partition), [b"x"])
        self.world.run_until(paused.paused_until + 0.5)
        handlers = {name for name, _, _ in self.handled}

        self.run_until("aabb")
        self.world.end()

        assert handlers == {"b"}
        assert len(self.handled) == 4


class TestOwnerIds:
    @virtual
    async def test_two_living_processors_with_one_owner_id_learn_of_it(self) -> None:
        scene = Scene()
        first = scene.processor(owner_id="twin")
        second = scene.processor(owner_id="twin")
        async with first.processor:
            await until(lambda: first.owned)
            async with second.processor:
                await until(lambda: first.errors_of(LeaseLost))

        assert "another processor runs under this one's owner id 'twin'" in str(first.errors_of(LeaseLost)[0])

    @virtual
    async def test_who_took_a_partition_is_named(self) -> None:
        scene = Scene()
        recorder = scene.processor(owner_id="a")
        async with recorder.processor:
            await until(lambda: recorder.owned)
            (record,) = (await scene.store.list_ownership(scene.group)).ownerships
            await scene.store.claim_ownership([replace(record, owner_id="sdk", epoch=record.epoch + 1)])
            await until(lambda: recorder.errors_of(LeaseLost))

        assert "owner 'sdk' took it" in str(recorder.errors_of(LeaseLost)[0])


class TestPause:
    @virtual
    async def test_a_paused_partition_is_kept_and_delivers_nothing(self) -> None:
        scene = Scene(2)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: len(recorder.owned) == 2)
            recorder.processor.pause("0")
            scene.append(3, partition="0")
            scene.append(3, partition="1")
            await asyncio.sleep(30)
            assert (recorder.handled["0"], recorder.handled["1"]) == ([], [0, 1, 2])
            assert recorder.contexts["0"].is_paused
            assert set((await scene.owners()).values()) == {"a"}

            recorder.processor.resume("0")
            await until(lambda: recorder.handled["0"] == [0, 1, 2])
            assert not recorder.contexts["0"].is_paused

    @virtual
    async def test_all_can_be_paused_also_those_that_come_later(self) -> None:
        scene = Scene(2)
        recorder = scene.processor()
        async with recorder.processor:
            recorder.processor.pause()
            for partition in ("0", "1"):
                scene.append(1, partition=partition)
            await asyncio.sleep(30)
            assert len(recorder.owned) == 2
            assert recorder.batches == []
            recorder.processor.resume()
            await until(lambda: len(recorder.handled) == 2)

    @virtual
    async def test_one_of_all_can_be_resumed_and_stays_so_when_it_is_reopened(self) -> None:
        scene = Scene(2)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: len(recorder.owned) == 2)
            recorder.processor.pause()
            recorder.processor.resume("0")
            for partition in ("0", "1"):  # an operator's reset reopens them
                await scene.store.reset_checkpoint(scene.group.partition(partition), None)
            await until(lambda: len(recorder.happened) == 6)
            for partition in ("0", "1"):
                scene.append(1, partition=partition)
            await until(lambda: recorder.handled["0"])
            await asyncio.sleep(30)

        assert (recorder.handled["0"], recorder.handled["1"]) == ([0], [])

    @virtual
    async def test_a_paused_partition_can_be_stopped_and_loses_nothing(self) -> None:
        scene = Scene()
        first = scene.processor()
        async with first.processor:
            await until(lambda: first.owned)
            first.processor.pause()
            scene.append(3)
            await asyncio.sleep(10)
        second = scene.processor()
        async with second.processor:
            await until(lambda: second.sequences)

        assert (first.sequences, second.sequences) == ([], [0, 1, 2])

    @virtual
    async def test_a_partition_that_the_hub_does_not_have_is_refused(self) -> None:
        async with Scene(2).processor().processor as processor:
            for ask in (processor.pause, processor.resume):
                with pytest.raises(ConfigError, match="no partition '7'"):
                    ask("7")


class TestStoreDown:
    @virtual
    async def test_for_less_than_the_lease_processing_goes_on(self) -> None:
        scene = Scene(2)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: len(recorder.owned) == 2)
            producing = asyncio.create_task(produce(scene, seconds=20))
            scene.store.go_down()
            await asyncio.sleep(LEASE.lease_seconds * 0.6)
            scene.store.come_up()
            await producing
            await asyncio.sleep(1)

        assert recorder.released == ["released 0 stopped", "released 1 stopped"]
        assert all_handled(scene, recorder) == {"0": list(range(100)), "1": list(range(100))}
        assert recorder.errors_of(StoreUnavailable)
        assert (await scene.checkpoint("0"), await scene.checkpoint("1")) == (99, 99)

    @virtual
    async def test_for_longer_than_the_lease_processing_stops_at_its_end_and_resumes_after(self) -> None:
        scene = Scene(2)
        recorder = scene.processor()
        loop = asyncio.get_running_loop()
        async with recorder.processor:
            await until(lambda: len(recorder.owned) == 2)
            producing = asyncio.create_task(produce(scene, seconds=60))
            await asyncio.sleep(5)
            scene.store.go_down()
            down_at = loop.time()
            await asyncio.sleep(LEASE.lease_seconds * 4)
            during = [at for at in recorder.delivered_at if at > down_at]
            scene.store.come_up()
            up_at = loop.time()
            await producing
            await asyncio.sleep(1)

        assert 0 < max(during) - down_at <= LEASE.lease_seconds
        assert {what.split()[2] for what in recorder.released} == {"lost", "stopped"}
        assert all("expired" in str(error) for error in recorder.errors_of(LeaseLost))
        handled = all_handled(scene, recorder)
        assert all(sorted(set(sequences)) == list(range(300)) for sequences in handled.values())
        assert min(at for at in recorder.delivered_at if at > down_at + LEASE.lease_seconds) - up_at <= 10

    @virtual
    async def test_a_slow_store_loses_no_lease(self) -> None:
        scene = Scene(2)
        for method in ("list_ownership", "claim_ownership", "renew_ownership", "update_checkpoint"):
            scene.store.delay_seconds[method] = LEASE.renew_interval_seconds * 0.9
        recorder = scene.processor()
        await recorder.processor.start()
        await until(lambda: len(recorder.owned) == 2)
        await produce(scene, seconds=60)
        await until(lambda: all_handled(scene, recorder) == {"0": list(range(300)), "1": list(range(300))})
        assert recorder.released == []
        await recorder.processor.stop()

    @pytest.mark.parametrize("method", ["renew_ownership", "list_ownership", "claim_ownership", "request_handover"])
    @pytest.mark.parametrize("error", [RuntimeError("driver bug"), ConfigError("odd"), StoreError("full disk")])
    @virtual
    async def test_whatever_a_store_raises_ends_no_task_for_good(self, method: str, error: Exception) -> None:
        scene = Scene(4)
        first = scene.processor(owner_id="a")
        second = scene.processor(owner_id="b")
        async with first.processor:
            await until(lambda: shares(first) == [4])
            scene.store.failing[method] = error
            with_error = second.processor.start()
            if method == "renew_ownership":
                with pytest.raises(StoreError):
                    await with_error
                second = scene.processor(owner_id="c")
                await asyncio.sleep(3)
                scene.store.come_up()
                await second.processor.start()
            else:
                await with_error
                await asyncio.sleep(10)
                scene.store.come_up()
            await until(lambda: shares(first, second) == [2, 2])
            await second.processor.stop()

    @pytest.mark.parametrize("error", [RuntimeError("driver bug"), StoreUnavailable("down")])
    @virtual
    async def test_a_partition_that_could_not_be_given_up_is_not_held_on_to_for_good(self, error: Exception) -> None:
        class CannotRelease(FaultyStore):
            is_failing = True

            async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
                if self.is_failing and any(not claim.owner_id for claim in claims):
                    raise error
                return await super().claim_ownership(claims)

        scene = Scene(2)
        store = scene.store = CannotRelease(scene.store.store)
        first = scene.processor(owner_id="a")
        second = scene.processor(owner_id="b")
        async with first.processor:
            await until(lambda: shares(first) == [2])
            async with second.processor:
                await asyncio.sleep(LEASE.lease_seconds * 2)
                store.is_failing = False
                await until(lambda: shares(first, second) == [1, 1])
                for partition in ("0", "1"):
                    scene.append(1, partition=partition)
                await until(lambda: all(all_handled(scene, first, second).values()))

    @pytest.mark.parametrize("error", [RuntimeError("driver bug"), StoreUnavailable("down")])
    @virtual
    async def test_one_that_was_asked_for_by_a_member_that_died_runs_again(self, error: Exception) -> None:
        class CannotRelease(FaultyStore):
            async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
                if any(not claim.owner_id for claim in claims):
                    raise error
                return await super().claim_ownership(claims)

        scene = Scene(2)
        scene.store = CannotRelease(scene.store.store)
        recorder = scene.processor()
        await recorder.processor.start()
        await until(lambda: shares(recorder) == [2])
        await scene.store.renew_ownership(scene.group, Member("ghost"), ())
        await scene.store.request_handover([scene.group.partition("0")], owner_id="ghost")
        await until(lambda: recorder.released)
        scene.append(1)
        await until(lambda: recorder.sequences, seconds_max=3 * LEASE.lease_seconds)
        await recorder.processor.stop()

    @virtual
    async def test_a_strategy_that_fails_is_reported_and_asked_again(self) -> None:
        class Moody:
            max_partitions = None
            failures = 3

            def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
                if self.failures:
                    self.failures -= 1
                    raise ZeroDivisionError("no members")
                return Greedy().plan(snapshot, rng)

        recorder = Scene(2).processor(load_balancing=Moody())
        async with recorder.processor:
            await until(lambda: shares(recorder) == [2])

        assert all("ZeroDivisionError: no members" in str(error) for error in recorder.errors_of(ProcessorError))
        assert len(recorder.errors) == 3


class DamagedStore(FaultyStore):
    """Some of its records do not read back."""

    damaged_ownership: str | None = None
    damaged_checkpoint: str | None = None

    async def list_ownership(self, group: GroupKey) -> GroupState:
        return self._read(await super().list_ownership(group))

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        renewal = await super().renew_ownership(group, member, owned)
        kept = [ownership for ownership in renewal.renewed if ownership.key.partition != self.damaged_ownership]
        return Renewal(kept)

    def _read(self, state: GroupState) -> GroupState:
        if self.damaged_ownership is None:
            return state
        kept = tuple(o for o in state.ownerships if o.key.partition != self.damaged_ownership)
        return GroupState(kept, state.members, {self.damaged_ownership: "epoch is 'x', which is no whole number"})

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        if key.partition == self.damaged_checkpoint:
            raise RecordDamaged("offset is NULL", partition=key.partition, record="checkpoint")
        return await super().fence(key, epoch)


class TestDamage:
    @virtual
    async def test_a_damaged_ownership_stops_that_partition_only(self) -> None:
        scene = Scene(3)
        store = scene.store = DamagedStore(scene.store.store)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: shares(recorder) == [3])
            store.damaged_ownership = "1"
            await until(lambda: recorder.owned == {"0", "2"})
            for partition in ("0", "1", "2"):
                scene.append(1, partition=partition)
            await asyncio.sleep(30)
            assert all_handled(scene, recorder) == {"0": [0], "1": [], "2": [0]}

            store.damaged_ownership = None  # repaired
            await until(lambda: recorder.handled["1"] == [0])

        (damaged,) = recorder.errors_of(RecordDamaged)
        assert isinstance(damaged, RecordDamaged)
        assert (damaged.partition, damaged.record) == ("1", "ownership")
        assert "no whole number" in str(damaged)
        (lost,) = recorder.errors_of(LeaseLost)
        assert "no whole number" in str(lost)

    @virtual
    async def test_a_damaged_checkpoint_stops_that_partition_only(self) -> None:
        scene = Scene(3)
        store = scene.store = DamagedStore(scene.store.store)
        store.damaged_checkpoint = "1"
        for partition in ("0", "1", "2"):
            scene.append(1, partition=partition)
        recorder = scene.processor()
        async with recorder.processor:
            await asyncio.sleep(30)
            assert all_handled(scene, recorder) == {"0": [0], "1": [], "2": [0]}
            assert recorder.owned == {"0", "2"}

            store.damaged_checkpoint = None  # repaired
            await until(lambda: recorder.handled["1"] == [0])

        damaged = recorder.errors_of(RecordDamaged)
        assert damaged
        assert all("offset is NULL" in str(error) for error in damaged)

    @virtual
    async def test_deleted_records_are_made_again_above_the_old_fence(self) -> None:
        scene = Scene(2)
        for partition in ("0", "1"):
            scene.append(2, partition=partition)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: len(recorder.handled) == 2)
            await asyncio.sleep(6)
            store = scene.store.store
            assert isinstance(store, MemoryStore)
            store._groups[scene.group].records.clear()
            recorder.clear()
            scene.append(1)
            await until(lambda: recorder.sequences)
            await asyncio.sleep(20)

        assert recorder.sequences[-1] == 2
        assert await scene.checkpoint() == 2


class TestContext:
    @virtual
    async def test_a_processor_tells_its_partitions_and_their_progress(self) -> None:
        scene = Scene(12)
        scene.append(5, partition="0")
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: recorder.sequences)
            contexts = recorder.processor.partitions
            first = contexts[0]
            assert [context.partition_id for context in contexts] == [str(number) for number in range(12)]
            assert (first.last_handled_sequence, first.last_enqueued_sequence, first.epoch) == (4, 4, 1)
            assert (first.handled_count, first.is_lost, first.is_paused) == (5, False, False)
            assert repr(first) == "PartitionContext(memory/hub/tests/0, epoch=1)"

        assert recorder.processor.partitions == []

    @virtual
    async def test_a_handler_sees_that_its_lease_is_gone(self) -> None:
        seen: list[bool] = []

        async def outlast_the_lease(batch: EventBatch, partition: PartitionContext) -> None:
            seen.append(partition.is_lost)
            scene.store.go_down()
            try:
                await asyncio.sleep(1e6)
            finally:
                seen.append(partition.is_lost)

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(outlast_the_lease)
        async with recorder.processor:
            await until(lambda: recorder.released)
            scene.store.come_up()
            recorder.behaviour = None
            await until(lambda: recorder.sequences)

        assert seen[:2] == [False, True]
        assert recorder.released[0] == "released 0 lost"
