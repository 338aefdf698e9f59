"""Real processes that are killed, frozen and stopped, over the local hub and SQLite, while events keep coming."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import pytest

from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from tests.support.worker import Fact, Task, Worker

pytestmark = pytest.mark.kills

PARTITIONS_COUNT = 6
WORKERS_COUNT = 3

KILLS_COUNT = 5
STOPS_COUNT = 4
PAUSE_SECONDS = 1.0
"""Between two faults: long enough for partitions to have moved, and for events to be in progress."""

KILLED_LEASE_SECONDS = 1.5
"""Short: a crash costs it, and a frozen process must outsleep it."""

STOPPED_LEASE_SECONDS = 20.0
"""Long: a machine that is busy for seconds must not cost a lease where no event may come twice."""

SETTLE_SECONDS_MAX = 60.0


class Group:
    """The workers of a test, living and dead."""

    def __init__(self, root: Path, lease_seconds: float) -> None:
        self.root = root
        self.lease_seconds = lease_seconds
        self.living: list[Worker] = []
        self.all: list[Worker] = []
        self._numbers = itertools.count()

    def start(self, owner_id: str) -> Worker:
        task = Task(
            hub=f"local:{self.root}/hub",
            store=f"sqlite:///{self.root}/state.db",
            owner_id=owner_id,
            journal=str(self.root / f"{owner_id}-{next(self._numbers)}.journal"),
            lease_seconds=self.lease_seconds,
            handler_seconds=0.01,
        )
        worker = Worker(task)
        self.living.append(worker)
        self.all.append(worker)
        return worker

    def start_all(self) -> None:
        for number in range(WORKERS_COUNT):
            self.start(f"worker{number}")

    def kill_all(self) -> None:
        for worker in self.all:
            worker.kill()

    def facts(self) -> list[Fact]:
        return sorted((fact for worker in self.all for fact in worker.facts()), key=lambda fact: fact.at)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[list[Group]]:
    made: list[Group] = []
    yield made
    for group in made:
        group.kill_all()


def test_killed_and_frozen_processes_lose_no_event(tmp_path: Path, groups: list[Group]) -> None:
    group = Group(tmp_path, KILLED_LEASE_SECONDS)
    groups.append(group)
    rng = random.Random(11)

    async def disturb() -> None:
        for number in range(KILLS_COUNT):
            await asyncio.sleep(PAUSE_SECONDS)
            worker = rng.choice(group.living)
            if number == KILLS_COUNT // 2:
                worker.signal(signal.SIGSTOP)
                await asyncio.sleep(2 * KILLED_LEASE_SECONDS)
                worker.signal(signal.SIGCONT)
                continue
            group.living.remove(worker)
            await asyncio.to_thread(worker.kill)
            # Half of them come back under their own name, half as somebody else.
            group.start(worker.task.owner_id if number % 2 else f"other{number}")

    last_sequences, checkpoints = asyncio.run(play(group, disturb))

    facts = group.facts()
    check_order(facts)
    check_checkpoints(facts, checkpoints)
    assert {p: sorted(set(sequences)) for p, sequences in handled(facts).items()} == {
        p: list(range(last + 1)) for p, last in last_sequences.items()
    }


def test_processes_that_are_stopped_in_good_order_handle_every_event_exactly_once(
    tmp_path: Path, groups: list[Group]
) -> None:
    group = Group(tmp_path, STOPPED_LEASE_SECONDS)
    groups.append(group)
    rng = random.Random(12)

    async def disturb() -> None:
        for number in range(STOPS_COUNT):
            await asyncio.sleep(PAUSE_SECONDS)
            worker = rng.choice(group.living)
            await asyncio.to_thread(worker.await_fact, "assigned")  # signals are handled by now
            group.living.remove(worker)
            worker.signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
            group.start(f"other{number}")
            assert await asyncio.to_thread(worker.wait) == 0

    last_sequences, checkpoints = asyncio.run(play(group, disturb))

    facts = group.facts()
    check_order(facts)
    check_checkpoints(facts, checkpoints)
    assert {p: sorted(sequences) for p, sequences in handled(facts).items()} == {
        p: list(range(last + 1)) for p, last in last_sequences.items()
    }


async def play(group: Group, disturb: Callable[[], Awaitable[None]]) -> tuple[dict[str, int], dict[str, int]]:
    """Sends while processes are disturbed; returns the last events and the checkpoints, once all is handled."""
    await create_hub(group.root, "hub", partitions=PARTITIONS_COUNT)
    hub = LocalHub(group.root, "hub")
    store = SqliteStore(group.root / "state.db")
    key = GroupKey(hub.namespace, hub.name, "tests")
    group.start_all()
    for worker in group.all:
        await asyncio.to_thread(worker.await_fact, "assigned")

    done = asyncio.Event()
    sending = asyncio.create_task(send_until(hub, done))
    await disturb()
    done.set()
    await sending

    ids = (await hub.describe()).partition_ids
    last_sequences = {p: (await hub.describe_partition(p)).last_sequence for p in ids}
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while (checkpoints := await checkpoints_of(store, key)) != last_sequences:
        assert time.monotonic() < deadline, f"only {checkpoints} of {last_sequences} was handled"
        await asyncio.sleep(0.1)

    for worker in group.living:
        await asyncio.to_thread(worker.await_fact, "assigned")
        worker.signal(signal.SIGTERM)
    for worker in group.living:
        assert await asyncio.to_thread(worker.wait) == 0, worker.kill()
    checkpoints = await checkpoints_of(store, key)
    await store.close()
    await hub.close()
    return last_sequences, checkpoints


async def send_until(hub: LocalHub, done: asyncio.Event) -> None:
    sender = await hub.open_sender()
    rng = random.Random(13)
    while not done.is_set():
        await sender.send(new_events(["x"] * rng.randint(1, 10)))
        await asyncio.sleep(0.01)
    await sender.close()


async def checkpoints_of(store: SqliteStore, key: GroupKey) -> dict[str, int]:
    return {c.key.partition: c.sequence_number for c in await store.list_checkpoints(key)}


def handled(facts: Iterable[Fact]) -> dict[str, list[int]]:
    """Sequence numbers by partition, as often as they were handled."""
    sequences: defaultdict[str, list[int]] = defaultdict(list)
    for fact in facts:
        if fact.what == "handled":
            sequences[fact.partition] += range(fact.first, fact.last + 1)
    return dict(sequences)


def check_order(facts: Iterable[Fact]) -> None:
    """Each session starts just after its checkpoint, and continues without a gap."""
    next_sequences: dict[tuple[str, str], int] = {}
    for fact in facts:
        session = (fact.worker, fact.partition)
        if fact.what == "assigned":
            next_sequences[session] = fact.last + 1
        elif fact.what == "handled":
            assert fact.first == next_sequences[session], fact
            next_sequences[session] = fact.last + 1


def check_checkpoints(facts: Iterable[Fact], checkpoints: dict[str, int]) -> None:
    """Whenever a checkpoint was seen, everything up to it had been handled before."""
    handled_to: defaultdict[str, int] = defaultdict(lambda: -1)
    for fact in facts:
        if fact.what == "assigned":
            assert fact.last <= handled_to[fact.partition], fact
        elif fact.what == "handled" and fact.first <= handled_to[fact.partition] + 1:
            handled_to[fact.partition] = max(handled_to[fact.partition], fact.last)
    assert all(sequence <= handled_to[partition] for partition, sequence in checkpoints.items())
