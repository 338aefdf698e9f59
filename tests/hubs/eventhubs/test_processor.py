"""The processor over the endpoint, exactly as over ``local:``: hand-overs, and processes that are killed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.ports import Hub
from hubline.processor import LeaseOptions, Processor, ProcessorOptions, ReleaseReason
from tests.hubs.eventhubs.support import connected, connection_string, new_hub, serving
from tests.processor.test_kills import check_checkpoints, check_order, checkpoints_of, handled
from tests.processor.test_local import Ledger
from tests.support.scene import until
from tests.support.worker import Task, Worker

PARTITIONS_COUNT = 4
LEASE = LeaseOptions(lease_seconds=10.0, load_balancing_interval_seconds=0.2, startup_delay_seconds=0.1)
KILLED_LEASE_SECONDS = 1.5


def test_joining_and_leaving_handles_every_event_exactly_once(tmp_path: Path) -> None:
    ledger = Ledger()

    async def main() -> dict[str, int]:
        name = await new_hub(tmp_path, PARTITIONS_COUNT)
        async with serving(tmp_path) as port, connected(port, name) as hub:
            done = asyncio.Event()
            sending = asyncio.create_task(send_until(hub, done))
            stores = [SqliteStore(tmp_path / "state.db") for _ in range(2)]
            first, second = (
                ledger.register(
                    Processor(
                        connection_string(port, name),
                        store,
                        consumer_group="tests",
                        starting_position=Position.earliest(),
                        options=ProcessorOptions(lease=LEASE),
                    )
                )
                for store in stores
            )
            await first.start()
            await until(lambda: len(first.partitions) == PARTITIONS_COUNT, seconds_max=60)
            await second.start()
            await until(lambda: (len(first.partitions), len(second.partitions)) == (2, 2), seconds_max=60)
            await first.stop()
            await until(lambda: len(second.partitions) == PARTITIONS_COUNT, seconds_max=60)
            done.set()
            await sending
            sequences = await last_sequences(hub)
            await until(lambda: ledger.count >= sum(last + 1 for last in sequences.values()), seconds_max=60)
            await second.stop()
            await asyncio.gather(*(store.close() for store in stores))
            return sequences

    sequences = asyncio.run(main())

    assert {p: sorted(sequences) for p, sequences in ledger.handled.items()} == {
        p: list(range(last + 1)) for p, last in sequences.items()
    }
    assert {reason for _, reason in ledger.released} == {ReleaseReason.REQUESTED, ReleaseReason.STOPPED}
    assert ledger.errors == []


@pytest.mark.kills
def test_a_killed_processor_loses_no_event(tmp_path: Path) -> None:
    workers: list[Worker] = []

    async def main() -> tuple[dict[str, int], dict[str, int]]:
        name = await new_hub(tmp_path, PARTITIONS_COUNT)
        async with serving(tmp_path) as port, connected(port, name) as hub:
            workers.extend(started(tmp_path, connection_string(port, name), owner) for owner in ("a", "b"))
            for worker in workers:
                await asyncio.to_thread(worker.await_fact, "assigned")
            done = asyncio.Event()
            sending = asyncio.create_task(send_until(hub, done))
            await asyncio.to_thread(workers[0].await_fact, "handled", count=5)
            await asyncio.to_thread(workers[0].kill)
            workers.append(started(tmp_path, connection_string(port, name), "c"))
            await asyncio.to_thread(workers[2].await_fact, "handled", count=5)
            done.set()
            await sending
            sequences = await last_sequences(hub)
            store = SqliteStore(tmp_path / "state.db")
            key = GroupKey(hub.namespace, hub.name, "tests")
            async with asyncio.timeout(60):
                while await checkpoints_of(store, key) != sequences:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            for worker in workers[1:]:
                worker.signal(signal.SIGTERM)
                assert await asyncio.to_thread(worker.wait) == 0, worker.kill()
            checkpoints = await checkpoints_of(store, key)
            await store.close()
            return sequences, checkpoints

    try:
        sequences, checkpoints = asyncio.run(main())
    finally:
        for worker in workers:
            worker.kill()

    facts = sorted((fact for worker in workers for fact in worker.facts()), key=lambda fact: fact.at)
    check_order(facts)
    check_checkpoints(facts, checkpoints)
    assert {p: sorted(set(numbers)) for p, numbers in handled(facts).items()} == {
        p: list(range(last + 1)) for p, last in sequences.items()
    }


def started(root: Path, hub: str, owner_id: str) -> Worker:
    return Worker(
        Task(
            hub=hub,
            store=f"sqlite:///{root}/state.db",
            owner_id=owner_id,
            journal=str(root / f"{owner_id}.journal"),
            lease_seconds=KILLED_LEASE_SECONDS,
            handler_seconds=0.01,
        )
    )


async def send_until(hub: Hub, done: asyncio.Event) -> None:
    sender = await hub.open_sender()
    while not done.is_set():
        await sender.send(new_events(["x"] * 7))
        await asyncio.sleep(0.01)
    await sender.close()


async def last_sequences(hub: Hub) -> dict[str, int]:
    ids = (await hub.describe()).partition_ids
    return {partition: (await hub.describe_partition(partition)).last_sequence for partition in ids}
