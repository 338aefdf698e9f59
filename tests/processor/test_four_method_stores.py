"""Processors that share partitions over a store of four methods, each with its own connection, killed and cut off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hubline.checkpoint_stores.adapted import AdaptedStore
from hubline.coordination.strategies import Balanced, Fixed, Greedy, Strategy
from hubline.errors import LeaseLost, StoreUnavailable
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, PartitionContext, Processor, ProcessorOptions
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.faults import RemoteHub, Weather
from hubline.testing.simulation.virtual_loop import SimProcess, World
from hubline.testing.simulation.virtual_processor import VirtualProcessor
from tests.processor.test_sink import Results, processor_of
from tests.support.four_methods import DictionaryStore, Record, RemoteFourMethods
from tests.support.scene import GROUP, LEASE, FaultyStore, Recorder, Scene, until, virtual


class FourMethodScene(Scene):
    """Each processor wraps the one store for itself, as processes do."""

    def __init__(self, partitions_count: int = 1) -> None:
        super().__init__(partitions_count)
        self.partitions = [str(number) for number in range(partitions_count)]
        self.four = DictionaryStore(self.loop.time)
        self.store = cast("FaultyStore", None)

    def wrapped(self) -> AdaptedStore:
        return AdaptedStore(self.four, monotonic=self.loop.time, wall=self.loop.time)

    def processor(self, *arguments: Any, **options: Any) -> Recorder:
        self.store = cast("FaultyStore", self.wrapped())
        return super().processor(*arguments, **options)

    async def checkpoint(self, partition: str = "0") -> int | None:
        stored = await self.wrapped().list_checkpoints(self.group)
        return next((c.sequence_number for c in stored if c.key.partition == partition), None)


def shares(*recorders: Recorder) -> list[int]:
    return sorted(len(recorder.owned) for recorder in recorders)


def handled_by_all(scene: FourMethodScene, *recorders: Recorder) -> dict[str, set[int]]:
    return {partition: {n for one in recorders for n in one.handled[partition]} for partition in scene.partitions}


def went_back(written: list[Record]) -> list[str]:
    """Partitions whose checkpoint was written over by a lower one."""
    newest: dict[str, int] = {}
    back = []
    for record in written:
        if record["sequence_number"] < newest.get(record["partition_id"], -1):
            back.append(record["partition_id"])
        newest[record["partition_id"]] = record["sequence_number"]
    return back


async def produce(scene: Scene, partitions_count: int, *, seconds: float) -> None:
    for count in range(int(seconds * 10)):
        scene.append(1, partition=str(count % partitions_count))
        await asyncio.sleep(0.1)


class TestSharing:
    @pytest.mark.parametrize("strategy", [Greedy(), Balanced()])
    @virtual
    async def test_processors_that_start_together_come_to_an_even_share_and_rest(self, strategy: Strategy) -> None:
        scene = FourMethodScene(8)
        recorders = [scene.processor(owner_id=name, load_balancing=strategy) for name in "abc"]
        await asyncio.gather(*(recorder.processor.start() for recorder in recorders))
        await until(lambda: shares(*recorders) == [2, 3, 3])
        await asyncio.sleep(10)
        moved = [list(recorder.happened) for recorder in recorders]
        await asyncio.sleep(120)
        assert [recorder.happened for recorder in recorders] == moved
        await asyncio.gather(*(recorder.processor.stop() for recorder in recorders))

    @virtual
    async def test_a_new_member_gets_its_share_without_waiting_for_a_lease(self) -> None:
        scene = FourMethodScene(6)
        first = scene.processor(owner_id="a")
        second = scene.processor(owner_id="b")
        async with first.processor:
            await until(lambda: shares(first) == [6])
            joined_at = scene.loop.time()
            async with second.processor:
                await until(lambda: shares(first, second) == [3, 3])
                assert scene.loop.time() - joined_at < LEASE.lease_seconds
                await until(lambda: first.errors_of(LeaseLost))
                assert "owner 'b' took it" in str(first.errors_of(LeaseLost)[0])
            await until(lambda: shares(first) == [6])

    @virtual
    async def test_joining_and_leaving_loses_no_event_and_no_checkpoint_goes_back(self) -> None:
        async def take_a_while(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(0.3)

        scene = FourMethodScene(6)
        recorders = [
            scene.processor(
                take_a_while,
                owner_id=name,
                max_batch_size=3,
                checkpoint_policy=CheckpointPolicy.every_batch(),
            )
            for name in "abc"
        ]
        producing = asyncio.create_task(produce(scene, 6, seconds=100))
        for recorder in recorders:
            await recorder.processor.start()
            await asyncio.sleep(15)
        await until(lambda: shares(*recorders) == [2, 2, 2])
        for recorder in recorders[:2]:
            await recorder.processor.stop()
            await asyncio.sleep(15)
        await producing
        last = recorders[2]
        await until(lambda: sum(map(len, handled_by_all(scene, *recorders).values())) == 1_000)
        await last.processor.stop()

        assert went_back(scene.four.written) == []
        newest = [max(sequences) for sequences in handled_by_all(scene, *recorders).values()]
        assert [await scene.checkpoint(partition) for partition in scene.partitions] == newest

    @virtual
    async def test_rows_in_a_sink_are_written_exactly_once_while_partitions_are_taken(self, tmp_path: Path) -> None:
        def rows_of(batch: EventBatch) -> pa.Table:
            first = int(batch.partition) * 100_000
            sequences = batch.arrow.column("sequenceNumber")
            return pa.table({"id": pc.add(sequences, first), "sequenceNumber": sequences})

        scene = FourMethodScene(6)
        results = Results(tmp_path)
        started: list[Processor] = []
        for name in "abcd":
            scene.store = cast("FaultyStore", scene.wrapped())
            processor, _ = processor_of(scene, results, owner_id=name, max_batch_size=7)
            processor.on_batch(rows_of)
            await processor.start()
            started.append(processor)
            for count in range(120):
                scene.append(1, partition=str(count % 6))
                await asyncio.sleep(0.05)
        await started[0].stop()
        await until(lambda: len(results.ids) == 480)
        await asyncio.gather(*(processor.stop() for processor in started))
        results.sink.close()

        assert results.ids == [partition * 100_000 + sequence for partition in range(6) for sequence in range(80)]
        assert results.dead_letters == []

    @virtual
    async def test_a_member_with_a_limit_leaves_nothing_to_nobody(self) -> None:
        scene = FourMethodScene(6)
        small = scene.processor(owner_id="a", load_balancing=Greedy(max_partitions=1))
        large = scene.processor(owner_id="b", load_balancing=Greedy())
        async with small.processor:
            await until(lambda: shares(small) == [1])
            async with large.processor:
                await until(lambda: shares(small, large) == [1, 5])
                await asyncio.sleep(60)
                assert shares(small, large) == [1, 5]

    @virtual
    async def test_fixed_members_keep_their_count_and_a_standby_waits(self) -> None:
        scene = FourMethodScene(4)
        recorders = [scene.processor(owner_id=name, load_balancing=Fixed(2)) for name in "abc"]
        first, second, standby = recorders
        async with first.processor, second.processor:
            await until(lambda: shares(first, second) == [2, 2])
            async with standby.processor:
                await asyncio.sleep(60)
                assert standby.owned == set()
                assert (first.released, second.released) == ([], [])
                await first.processor.stop()
                await until(lambda: shares(standby) == [2])


class TestTrouble:
    @virtual
    async def test_a_store_that_fails_for_less_than_a_lease_costs_nothing(self) -> None:
        scene = FourMethodScene(2)
        recorder = scene.processor()
        async with recorder.processor:
            await until(lambda: shares(recorder) == [2])
            producing = asyncio.create_task(produce(scene, 2, seconds=20))
            scene.four.failing["*"] = ConnectionError("the store is down")
            await asyncio.sleep(LEASE.lease_seconds * 0.6)
            scene.four.failing.clear()
            await producing
            await asyncio.sleep(1)

        assert recorder.released == ["released 0 stopped", "released 1 stopped"]
        assert [recorder.handled[p] for p in "01"] == [list(range(100)), list(range(100))]
        assert "ConnectionError: the store is down" in str(recorder.errors_of(StoreUnavailable)[0])
        assert (await scene.checkpoint("0"), await scene.checkpoint("1")) == (99, 99)

    @virtual
    async def test_an_operator_sets_a_checkpoint_back_while_it_runs(self) -> None:
        scene = FourMethodScene()
        recorder = scene.processor(checkpoint_policy=CheckpointPolicy.every_batch())
        async with recorder.processor:
            scene.append(10)
            await until(lambda: recorder.sequences == list(range(10)))
            await asyncio.sleep(1)
            recorder.clear()
            key = scene.group.partition("0")
            await scene.wrapped().reset_checkpoint(key, Checkpoint(key, scene.hub.offset_of(4), 4))
            await until(lambda: recorder.sequences == list(range(5, 10)))
            await until(lambda: scene.four.written[-1]["sequence_number"] == 9)

    @virtual
    async def test_two_living_processors_with_one_owner_id_learn_of_it(self) -> None:
        scene = FourMethodScene()
        first = scene.processor(owner_id="twin")
        second = scene.processor(owner_id="twin")
        async with first.processor:
            await until(lambda: first.owned)
            async with second.processor:
                await until(lambda: first.errors_of(LeaseLost))

        assert "another processor runs under this one's owner id 'twin'" in str(first.errors_of(LeaseLost)[0])


class TestProcesses:
    """Simulated processes over a network, which are killed and paused."""

    def setup_method(self) -> None:
        self.world = World(5)
        self.weather = Weather()
        self.hub = MemoryHub(4, now=lambda: self.world.now)
        self.four = DictionaryStore(lambda: self.world.now)
        self.group = GroupKey(self.hub.namespace, self.hub.name, GROUP)
        self.handled: list[tuple[str, str, int]] = []
        self.epochs: list[tuple[str, int]] = []

    def start(self, owner_id: str) -> SimProcess:
        process = SimProcess(self.world, owner_id, clock_start=1000.0 * len(self.world.processes))  # type: ignore[abstract]
        four = RemoteFourMethods(process, self.four, self.weather)
        processor = VirtualProcessor(
            RemoteHub(process, self.hub, self.weather),
            AdaptedStore(four, monotonic=process.time, wall=lambda: self.world.now),
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

    def owners(self) -> list[str]:
        """The names of those that own partitions, as often as they do, by the records themselves."""
        return sorted(record["owner_id"].rpartition(":")[2] for record in self.four.ownerships.values())

    def run_until(self, condition: Callable[[], bool], *, seconds_max: float = 120.0) -> float:
        started_at = self.world.now
        self.world.run_until(started_at + seconds_max, is_done=condition)
        assert not self.world.failures
        assert condition()
        return self.world.now - started_at

    def checkpoints(self) -> dict[str, int]:
        return {record["partition_id"]: record["sequence_number"] for record in self.four.checkpoints.values()}

    def test_a_crash_costs_the_lease_and_two_cycles_and_loses_nothing(self) -> None:
        crashed, _ = self.start("a"), self.start("b")
        self.run_until(lambda: self.owners() == ["a", "a", "b", "b"])
        self.world.run_until(self.world.now + 5)
        for partition in range(4):
            self.hub.append(str(partition), [b"x"])
        self.world.run_until(self.world.now + 1)
        crashed.kill()
        for partition in range(4):
            self.hub.append(str(partition), [b"y"])

        took = self.run_until(lambda: self.owners() == ["b"] * 4)
        self.world.run_until(self.world.now + 1)
        self.world.end()

        assert took <= LEASE.lease_seconds + 2 * LEASE.load_balancing_interval_seconds
        assert sorted({(partition, sequence) for _, partition, sequence in self.handled}) == [
            (str(partition), sequence) for partition in range(4) for sequence in (0, 1)
        ]

    def test_a_restart_under_the_same_owner_id_takes_its_own_back_at_once(self) -> None:
        crashed, _ = self.start("a"), self.start("b")
        self.run_until(lambda: self.owners() == ["a", "a", "b", "b"])
        before = self.of("a")
        crashed.kill()
        self.start("a")
        self.hub.append(min(before), [b"x"])
        self.world.run_until(self.world.now + 1.0)
        after = self.of("a")
        self.world.end()

        assert after == before
        assert self.handled == [("a", min(before), 0)]

    def test_one_that_was_paused_past_its_lease_writes_no_checkpoint_and_joins_again(self) -> None:
        paused, _ = self.start("a"), self.start("b")
        self.run_until(lambda: self.owners() == ["a", "a", "b", "b"])
        paused.pause(3 * LEASE.lease_seconds)
        self.run_until(lambda: self.owners() == ["b"] * 4)
        for partition in range(4):
            self.hub.append(str(partition), [b"x"])
        self.world.run_until(paused.paused_until + 0.5)
        handlers = {name for name, _, _ in self.handled}

        self.run_until(lambda: self.owners() == ["a", "a", "b", "b"])
        self.world.end()

        assert handlers == {"b"}
        assert went_back(self.four.written) == []

    # In the first three, an update that arrives late sets back the last checkpoint of a partition.
    @pytest.mark.parametrize("seed", [100, 133, 152, 1, 2, 3])
    def test_killed_at_random_over_a_bad_network_every_event_is_handled(self, seed: int) -> None:
        rng = random.Random(seed)
        self.weather.fail_before = self.weather.fail_after = 0.03
        self.weather.spike = 0.02
        living = [self.start(name) for name in "abc"]
        sent = dict.fromkeys("0123", 0)
        for number in range(8):
            for _ in range(rng.randint(5, 40)):
                partition = rng.choice("0123")
                self.hub.append(partition, [b"x"])
                sent[partition] += 1
                self.world.run_until(self.world.now + rng.uniform(0.0, 0.5))
            victim = living.pop(rng.randrange(3))
            if number % 2:
                victim.kill(after_steps=rng.randint(0, 30))
                living.append(self.start(f"{victim.name}{number}"))
            else:
                victim.pause(rng.uniform(1.0, 3 * LEASE.lease_seconds))
                living.append(victim)
        self.weather.clear()

        self.run_until(lambda: self.checkpoints() == {p: count - 1 for p, count in sent.items()}, seconds_max=300.0)
        self.world.end()

        assert {(p, n) for _, p, n in self.handled} == {(p, n) for p, count in sent.items() for n in range(count)}

    def of(self, owner_id: str) -> set[str]:
        return {
            record["partition_id"]
            for record in self.four.ownerships.values()
            if record["owner_id"].rpartition(":")[2] == owner_id
        }
