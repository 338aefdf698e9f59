"""The whole of it for real: the local hub, SQL stores, threads, and handlers that block."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.errors import HublineError, LeaseLost, ProcessorError, RecordDamaged, StoreUnavailable
from hubline.hubs.local import LocalHub, create_hub, grow_hub
from hubline.model.events import EventBatch, new_events
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.ports import CheckpointStore
from hubline.processor import LeaseOptions, PartitionContext, Processor, ProcessorOptions, ReleaseReason
from hubline.secrets import Secret
from tests.support.postgres import PostgresServer
from tests.support.scene import until

LEASE = LeaseOptions(lease_seconds=10.0, load_balancing_interval_seconds=0.2, startup_delay_seconds=0.1)
"""Long, so that a busy machine loses none; the moves of these tests do not wait for its end."""

SHORT_LEASE_SECONDS = 1.5

StoreFactory = Callable[[], CheckpointStore]


@pytest.fixture(params=["sqlite", "postgresql"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """Connections to one store: every processor has its own."""
    if request.param == "sqlite":
        yield lambda: SqliteStore(tmp_path / "state.db")
    else:
        conninfo = request.getfixturevalue("postgres_database")
        yield lambda: PostgresStore(conninfo)


class Ledger:
    """What any number of processors handled, from whichever thread."""

    def __init__(self) -> None:
        self.handled: defaultdict[str, list[int]] = defaultdict(list)
        self.released: list[tuple[str, ReleaseReason]] = []
        self.errors: list[HublineError] = []
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.handled.values()))

    def add(self, batch: EventBatch) -> None:
        with self._lock:
            self.handled[batch.partition] += batch.arrow.column("sequenceNumber").to_pylist()

    def register(self, processor: Processor) -> Processor:
        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            self.add(batch)

        return self.listen(processor)

    def listen(self, processor: Processor) -> Processor:
        @processor.on_released
        async def released(partition: PartitionContext, reason: ReleaseReason) -> None:
            self.released.append((partition.partition_id, reason))

        @processor.on_error
        async def error(error: HublineError) -> None:
            self.errors.append(error)

        return processor


def made(root: Path, store: CheckpointStore, *, lease: LeaseOptions = LEASE, **options: Any) -> Processor:
    return Processor(
        f"local:{root}/hub",
        store,
        consumer_group="tests",
        starting_position=Position.earliest(),
        options=ProcessorOptions(lease=lease, **options),
    )


async def send_until(hub: LocalHub, done: asyncio.Event) -> int:
    """Sends small batches, in turn to all partitions; returns how many events that were."""
    sender = await hub.open_sender()
    rng = random.Random(3)
    sent_count = 0
    while not done.is_set():
        count = rng.randint(1, 20)
        await sender.send(new_events([str(sent_count + index) for index in range(count)]))
        sent_count += count
        await asyncio.sleep(0.005)
    await sender.close()
    return sent_count


async def last_sequences(hub: LocalHub) -> dict[str, int]:
    ids = (await hub.describe()).partition_ids
    return {partition: (await hub.describe_partition(partition)).last_sequence for partition in ids}


class TestHandOver:
    def test_joining_and_leaving_handles_every_event_exactly_once(
        self, tmp_path: Path, new_store: StoreFactory
    ) -> None:
        ledger = Ledger()

        async def main() -> dict[str, int]:
            await create_hub(tmp_path, "hub", partitions=6)
            hub = LocalHub(tmp_path, "hub")
            done = asyncio.Event()
            sending = asyncio.create_task(send_until(hub, done))
            stores = [new_store() for _ in range(3)]
            processors = [ledger.register(made(tmp_path, store)) for store in stores]
            first, second, third = processors
            await first.start()
            await until(lambda: len(first.partitions) == 6, seconds_max=60)
            await asyncio.gather(second.start(), third.start())
            await until(lambda: [len(one.partitions) for one in processors] == [2, 2, 2], seconds_max=60)
            await first.stop()
            await until(lambda: [len(one.partitions) for one in processors] == [0, 3, 3], seconds_max=60)
            done.set()
            sent_count = await sending
            await until(lambda: ledger.count >= sent_count, seconds_max=60)
            await asyncio.gather(second.stop(), third.stop())
            sequences = await last_sequences(hub)
            await asyncio.gather(hub.close(), *(store.close() for store in stores))
            return sequences

        sequences = asyncio.run(main())

        assert {p: sorted(handled) for p, handled in ledger.handled.items()} == {
            p: list(range(last + 1)) for p, last in sequences.items()
        }
        assert {reason for _, reason in ledger.released} == {ReleaseReason.REQUESTED, ReleaseReason.STOPPED}
        assert ledger.errors == []

    def test_a_restart_goes_on_where_the_last_one_ended(self, tmp_path: Path, new_store: StoreFactory) -> None:
        async def run_once(expected_count: int) -> dict[str, list[int]]:
            ledger = Ledger()
            store = new_store()
            async with ledger.register(made(tmp_path, store)):
                await until(lambda: ledger.count >= expected_count, seconds_max=60)
            await store.close()
            return {p: list(handled) for p, handled in ledger.handled.items()}

        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=2)
            hub = LocalHub(tmp_path, "hub")
            sender = await hub.open_sender()
            for partition in ("0", "1"):
                await sender.send(new_events(["x"] * 100), partition=partition)
            first = await run_once(200)
            await sender.send(new_events(["y"] * 5), partition="1")
            second = await run_once(5)
            await hub.close()

            assert first == {"0": list(range(100)), "1": list(range(100))}
            assert second == {"1": list(range(100, 105))}

        asyncio.run(main())

    def test_partitions_added_to_the_hub_are_picked_up(self, tmp_path: Path) -> None:
        ledger = Ledger()

        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=1)
            async with ledger.register(made(tmp_path, SqliteStore(tmp_path / "state.db"))) as processor:
                await until(lambda: len(processor.partitions) == 1, seconds_max=60)
                await grow_hub(tmp_path, "hub", partitions=3)
                await until(lambda: len(processor.partitions) == 3, seconds_max=60)
                hub = LocalHub(tmp_path, "hub")
                await (await hub.open_sender()).send(new_events(["x"]), partition="2")
                await until(lambda: ledger.handled["2"] == [0], seconds_max=60)
                await hub.close()
            await processor._store.close()

        asyncio.run(main())


class TestStoreRestart:
    def test_a_database_that_is_down_for_longer_than_the_lease_costs_no_event(
        self, tmp_path: Path, postgres_server: PostgresServer, postgres_database: Secret
    ) -> None:
        ledger = Ledger()
        lease = LeaseOptions(
            lease_seconds=SHORT_LEASE_SECONDS, load_balancing_interval_seconds=0.2, startup_delay_seconds=0.1
        )

        async def main() -> dict[str, int]:
            await create_hub(tmp_path, "hub", partitions=4)
            hub = LocalHub(tmp_path, "hub")
            done = asyncio.Event()
            sending = asyncio.create_task(send_until(hub, done))
            stores = [PostgresStore(postgres_database) for _ in range(2)]
            first, second = (ledger.register(made(tmp_path, store, lease=lease)) for store in stores)
            async with first, second:
                await until(lambda: (len(first.partitions), len(second.partitions)) == (2, 2), seconds_max=60)
                await until(lambda: ledger.count, seconds_max=60)
                await asyncio.to_thread(postgres_server.stop)
                try:
                    await until(lambda: not first.partitions and not second.partitions, seconds_max=60)
                finally:
                    await asyncio.to_thread(postgres_server.start_again)
                done.set()
                sent_count = await sending
                await until(lambda: sum(len(set(h)) for h in ledger.handled.values()) == sent_count, seconds_max=60)
            sequences = await last_sequences(hub)
            await asyncio.gather(hub.close(), *(store.close() for store in stores))
            return sequences

        sequences = asyncio.run(main())

        assert {p: sorted(set(handled)) for p, handled in ledger.handled.items()} == {
            p: list(range(last + 1)) for p, last in sequences.items()
        }
        assert {reason for _, reason in ledger.released} >= {ReleaseReason.LOST, ReleaseReason.STOPPED}
        assert any(isinstance(error, StoreUnavailable) for error in ledger.errors)
        assert not any(postgres_server.password in str(error) for error in ledger.errors)


class TestDamage:
    def test_a_row_that_somebody_damaged_stops_that_partition_only(self, tmp_path: Path) -> None:
        ledger = Ledger()

        def update(statement: str) -> None:
            connection = sqlite3.connect(tmp_path / "state.db", timeout=20)
            with connection:
                connection.execute(statement)
            connection.close()

        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=3)
            hub = LocalHub(tmp_path, "hub")
            sender = await hub.open_sender()
            store = SqliteStore(tmp_path / "state.db")
            lease = LeaseOptions(lease_seconds=3.0, load_balancing_interval_seconds=0.2, startup_delay_seconds=0.1)
            async with ledger.register(made(tmp_path, store, lease=lease)) as processor:
                await until(lambda: len(processor.partitions) == 3, seconds_max=60)
                update("UPDATE hubline_ownership SET epoch = 'seven' WHERE partition_id = '1'")
                await until(lambda: len(processor.partitions) == 2, seconds_max=60)
                for partition in ("0", "1", "2"):
                    await sender.send(new_events(["x"]), partition=partition)
                await until(lambda: ledger.count == 2, seconds_max=60)
                assert ledger.handled["1"] == []
                update("DELETE FROM hubline_ownership WHERE partition_id = '1'")  # as the message advises
                await until(lambda: ledger.handled["1"] == [0], seconds_max=60)
            await store.close()
            await hub.close()

        asyncio.run(main())

        damaged = [error for error in ledger.errors if isinstance(error, RecordDamaged)]
        assert [error.partition for error in damaged] == ["1"]
        assert "'seven'" in str(damaged[0])
        assert "hubline_ownership" in str(damaged[0])

    def test_a_damaged_checkpoint_stops_that_partition_only(self, tmp_path: Path) -> None:
        ledger = Ledger()

        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=2)
            hub = LocalHub(tmp_path, "hub")
            sender = await hub.open_sender()
            for partition in ("0", "1"):
                await sender.send(new_events(["x"]), partition=partition)
            store = SqliteStore(tmp_path / "state.db")
            key = GroupKey(hub.namespace, hub.name, "tests").partition("1")
            await store.reset_checkpoint(key, Checkpoint.before_first(key))
            connection = sqlite3.connect(tmp_path / "state.db", timeout=20)
            with connection:
                connection.execute("UPDATE hubline_checkpoint SET sequence_number = 'many'")
            connection.close()
            async with ledger.register(made(tmp_path, store)):
                await until(lambda: ledger.handled["0"] == [0] and ledger.errors, seconds_max=60)
                assert ledger.handled["1"] == []
                await store.reset_checkpoint(key, None)  # as the message advises
                await until(lambda: ledger.handled["1"] == [0], seconds_max=60)
            await store.close()
            await hub.close()

        asyncio.run(main())

        damaged = [error for error in ledger.errors if isinstance(error, RecordDamaged)]
        assert {error.partition for error in damaged} == {"1"}
        assert "'many'" in str(damaged[0])
        assert "hubline checkpoints set" in str(damaged[0])


class TestBlockedLoop:
    """A handler that blocks the event loop itself: time.sleep in an async def."""

    def test_its_partition_is_not_lost_while_another_processor_waits_for_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        blocker, waiter = Ledger(), Ledger()
        lease = LeaseOptions(
            lease_seconds=SHORT_LEASE_SECONDS, load_balancing_interval_seconds=0.2, startup_delay_seconds=0.1
        )
        blocking = threading.Event()
        ready = threading.Event()
        done = threading.Event()

        async def block() -> None:
            store = SqliteStore(tmp_path / "state.db")
            processor = blocker.listen(made(tmp_path, store, lease=lease, slow_handler_seconds=0.5))

            @processor.on_batch
            async def handle(batch: EventBatch) -> None:
                blocking.set()
                assert ready.wait(60)
                time.sleep(3 * SHORT_LEASE_SECONDS)  # noqa: ASYNC251 - the mistake under test
                blocker.add(batch)

            async with processor:
                await until(lambda: blocker.count, seconds_max=60)
                done.set()
            await store.close()

        async def wait() -> None:
            store = SqliteStore(tmp_path / "state.db")
            async with waiter.register(made(tmp_path, store, lease=lease)) as processor:
                ready.set()
                await asyncio.to_thread(done.wait, 60)
                assert waiter.count == 0
                await until(lambda: processor.partitions, seconds_max=60)
            await store.close()

        async def prepare() -> None:
            await create_hub(tmp_path, "hub", partitions=1)
            hub = LocalHub(tmp_path, "hub")
            await (await hub.open_sender()).send(new_events(["x"]), partition="0")
            await hub.close()

        asyncio.run(prepare())
        with caplog.at_level(logging.ERROR, "hubline"):
            thread = threading.Thread(target=lambda: asyncio.run(block()))
            thread.start()
            assert blocking.wait(60)
            asyncio.run(wait())
            thread.join()

        assert (dict(blocker.handled), dict(waiter.handled)) == ({"0": [0]}, {})
        assert not [error for error in blocker.errors if isinstance(error, LeaseLost)]
        assert blocker.released == [("0", ReleaseReason.STOPPED)]
        assert "event_loop_blocked" in caplog.text


class TestHungHandler:
    def test_a_plain_handler_that_hangs_does_not_hang_the_stop(self, tmp_path: Path) -> None:
        ledger = Ledger()
        entered, leave = threading.Event(), threading.Event()

        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=2)
            hub = LocalHub(tmp_path, "hub")
            await (await hub.open_sender()).send(new_events(["x"]), partition="1")
            store = SqliteStore(tmp_path / "state.db")
            processor = ledger.listen(made(tmp_path, store, stop_timeout_seconds=0.5))

            @processor.on_batch
            def hang(batch: EventBatch) -> None:
                entered.set()
                leave.wait(120)

            await processor.start()
            await until(entered.is_set, seconds_max=60)
            async with asyncio.timeout(30):
                await processor.stop()
            await store.close()
            await hub.close()

        try:
            asyncio.run(main())
        finally:
            leave.set()

        messages = [str(error) for error in ledger.errors if isinstance(error, ProcessorError)]
        assert len(messages) == 1
        assert "longer than 0.5 s" in messages[0]
        assert "partitions 1 stay owned" in messages[0]
