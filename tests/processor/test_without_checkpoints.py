"""Processors that keep no progress: the store has who owns what, and every opening begins at the starting position."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.coordination.strategies import Fixed
from hubline.errors import ConfigError, HandlerFailed, HubUnavailable, ProcessorError
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import EventBatch, new_events
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.ports import CheckpointStore
from hubline.processor import LeaseOptions, PartitionContext, Processor, ProcessorOptions
from hubline.sinks import SqlSink
from hubline.testing.memory_hub import MemoryHub, MemoryReceiver
from hubline.testing.simulation.faults import RemoteHub, RemoteStore, Weather
from hubline.testing.simulation.virtual_loop import SimProcess, World, run_now
from hubline.testing.simulation.virtual_processor import VirtualProcessor
from tests.checkpoint_stores.blob.support import blob_store
from tests.support.scene import GROUP, LEASE, Scene, until, virtual

MINUTE = 60.0
OF_CHECKPOINTS = ("fence", "update_checkpoint", "reset_checkpoint")


class CutHub(MemoryHub):
    """A hub whose receivers lose their connection so many times more."""

    cuts_left = 0

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> MemoryReceiver:
        receiver = await super().open_receiver(partition, group=group, position=position, epoch=epoch)
        receive = receiver.receive

        async def cut(*, max_count: int, wait_seconds: float) -> EventBatch:
            batch = await receive(max_count=max_count, wait_seconds=wait_seconds)
            if self.cuts_left:
                self.cuts_left -= 1
                raise HubUnavailable("the connection was lost")
            return batch

        receiver.receive = cut  # type: ignore[method-assign]
        return receiver


class TestOpening:
    @virtual
    async def test_every_start_begins_at_its_own_last_hours_and_nothing_is_written(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene = Scene()
        for _ in range(5):
            scene.append(1)
            await asyncio.sleep(MINUTE)
        await scene.set_checkpoint(3)

        async def handled_by_one(last: int) -> tuple[list[int], Checkpoint | None]:
            recorder = scene.processor(starting_position="time:-2.5m", checkpoint_policy="never")
            async with recorder.processor:
                await until(lambda: last in recorder.sequences)
                (context,) = recorder.contexts.values()
            return recorder.sequences, context.initial_checkpoint

        with caplog.at_level(logging.WARNING, "hubline.processor"):
            first = await handled_by_one(4)
        scene.append(1)
        await asyncio.sleep(MINUTE)
        second = await handled_by_one(5)

        assert (first, second) == (([3, 4], None), ([4, 5], None))
        assert await scene.checkpoint() == 3  # from before: neither used nor touched
        assert not any(scene.store.calls[name] for name in OF_CHECKPOINTS)
        assert "unused_checkpoints group=memory/hub/tests partitions=1" in caplog.text

    @virtual
    async def test_a_receiver_that_is_opened_again_goes_on_and_a_partition_that_failed_starts_over(self) -> None:
        scene = Scene()
        scene.hub = hub = CutHub(1, now=scene.loop.time)
        scene.append(2)
        await asyncio.sleep(2 * MINUTE)
        scene.append(2)
        fails = False

        async def fail(batch: EventBatch, partition: PartitionContext) -> None:
            if fails:
                raise ValueError

        recorder = scene.processor(fail, starting_position="time:-3m", checkpoint_policy="never")
        async with recorder.processor:
            await until(lambda: recorder.sequences == [0, 1, 2, 3])
            hub.cuts_left = 2
            scene.append(1)
            await until(lambda: recorder.sequences == [0, 1, 2, 3, 4])
            assert (recorder.happened, hub.cuts_left) == (["assigned 0"], 0)

            await asyncio.sleep(2 * MINUTE)  # the first two are older than three minutes by now
            recorder.clear()
            fails = True
            scene.append(1)
            await until(lambda: recorder.errors_of(HandlerFailed))
            fails = False
            await until(lambda: recorder.sequences == [2, 3, 4, 5])

        assert recorder.happened[:3] == ["assigned 0", "released 0 failed", "assigned 0"]

    @virtual
    async def test_a_handler_that_asks_for_a_checkpoint_fails_and_learns_why(self) -> None:
        async def ask(batch: EventBatch, partition: PartitionContext) -> None:
            await partition.checkpoint()

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(ask, checkpoint_policy="never")
        async with recorder.processor:
            await until(lambda: recorder.errors_of(HandlerFailed))

        (error, *_) = recorder.errors_of(HandlerFailed)
        assert isinstance(error.__cause__, ProcessorError)
        assert str(error.__cause__) == (
            'checkpoint_policy="never" keeps no checkpoints. Remove the call of checkpoint(), or write '
            "checkpoint_policy=CheckpointPolicy.manual()."
        )
        assert not any(scene.store.calls[name] for name in OF_CHECKPOINTS)

    def test_a_sink_needs_checkpoints(self) -> None:
        with pytest.raises(ConfigError, match='checkpoint_policy="never" does not go with a sink'):
            Processor(
                MemoryHub(1),
                MemoryStore(),
                consumer_group=GROUP,
                starting_position="earliest",
                options=ProcessorOptions(checkpoint_policy="never"),
                sink=SqlSink("sqlite:///rows.db", table="rows"),
            )


def test_a_standby_takes_over_after_the_lease_and_begins_at_its_own_start() -> None:
    world = World(7)
    hub = MemoryHub(2, now=lambda: world.now)
    store = MemoryStore(now=lambda: world.now)
    handled: dict[str, list[tuple[str, int]]] = {"a": [], "b": [], "standby": []}

    def started(owner_id: str) -> SimProcess:
        process = SimProcess(world, owner_id)  # type: ignore[abstract]
        processor = VirtualProcessor(
            RemoteHub(process, hub, Weather()),
            RemoteStore(process, store, Weather()),
            consumer_group=GROUP,
            starting_position="time:-90s",
            load_balancing=Fixed(1),
            owner_id=owner_id,
            options=ProcessorOptions(lease=LEASE, checkpoint_policy="never"),
            rng=random.Random(owner_id),
        )

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            handled[owner_id] += [(batch.partition, event.sequence_number) for event in batch]

        process.spawn(processor.start())
        return process

    def owners() -> dict[str, str]:
        state = run_now(store.list_ownership(GroupKey(hub.namespace, hub.name, GROUP)))
        return {each.key.partition: each.owner_id for each in state.ownerships}

    def pass_time(seconds: float) -> None:
        world.run_until(world.now + seconds)
        assert not world.failures

    def append() -> None:
        for partition in ("0", "1"):
            hub.append(partition, [b"x"])

    for _ in range(4):
        append()
        pass_time(30)
    killed, _ = started("a"), started("b")
    pass_time(10)
    started("standby")
    append()
    pass_time(10 * LEASE.lease_seconds)
    assert sorted(owners().values()) == ["a", "b"]
    (left,) = (partition for partition, owner in owners().items() if owner == "a")

    killed.kill()
    pass_time(LEASE.lease_seconds - LEASE.renew_interval_seconds - 0.1)
    assert owners()[left] == "a"
    pass_time(LEASE.renew_interval_seconds + 2 * LEASE.load_balancing_interval_seconds)
    world.end()

    assert owners()[left] == "standby"
    assert handled["a"] == [(left, 2), (left, 3), (left, 4)]
    assert handled["standby"] == [(left, 4)]
    assert run_now(store.list_checkpoints(GroupKey(hub.namespace, hub.name, GROUP))) == []


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("blob", marks=pytest.mark.xdist_group("azurite"))])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CheckpointStore]:
    match request.param:
        case "sqlite":
            return lambda: SqliteStore(tmp_path / "state.db")
        case "postgresql":
            conninfo = request.getfixturevalue("postgres_database")
            return lambda: PostgresStore(conninfo)
    container = request.getfixturevalue("container")
    return lambda: blob_store(container)


def test_real_stores_keep_owners_and_no_progress(tmp_path: Path, store_factory: Callable[[], CheckpointStore]) -> None:
    """Of an hour that a local hub was given with past times, each run has the last half."""
    lease = LeaseOptions(lease_seconds=10.0, load_balancing_interval_seconds=0.2, startup_delay_seconds=0.1)

    async def main() -> None:
        await create_hub(tmp_path, "hub", partitions=1)
        started_at = time.time()
        clock = 0.0
        hub = LocalHub(tmp_path, "hub", clock=lambda: clock)
        sender = await hub.open_sender()
        for minutes in (60, 45, 25, 5):
            clock = started_at - minutes * 60
            await sender.send(new_events(["x"] * 10))
        await hub.close()
        for epoch in (1, 2):
            await run(epoch)

    async def run(epoch: int) -> None:
        handled: list[int] = []
        store = store_factory()
        processor = Processor(
            f"local:{tmp_path}/hub",
            store,
            consumer_group=GROUP,
            starting_position="time:-30m",
            load_balancing=Fixed(1),
            options=ProcessorOptions(lease=lease, checkpoint_policy="never"),
        )

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            handled.extend(event.sequence_number for event in batch)

        async with processor:
            await until(lambda: handled == list(range(20, 40)), seconds_max=60)
            (partition,) = processor.partitions
            assert partition.epoch == epoch
        assert await store.list_checkpoints(partition.key.group_key) == []
        await store.close()

    asyncio.run(main())
