"""Kills, freezes and crashes of the server, while events keep coming: afterwards each is in the table or a dead letter,
once, and in order.

``make chaos`` runs the same with a thousand kills and fifty crashes of PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psycopg
import pytest

from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from tests.sinks.worker import BAD, COPY, LEASE_SECONDS, STEPS, TABLE, Fault, Task, start
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.kills, pytest.mark.xdist_group("sink-chaos")]

KILLS_COUNT = int(os.environ.get("CHAOS_KILLS", "8"))
RESTARTS_COUNT = int(os.environ.get("CHAOS_RESTARTS", "2"))
PARTITIONS_COUNT = 3
OPENED_COUNT = 10
"""At its tenth batch, a process has opened all partitions: frozen before, it may hold a lock on one's file."""
WORKERS_COUNT = 2
BAD_SHARE = 0.02

PAUSE_SECONDS_MAX = 0.6
"""Between two faults: a process that was just started is at work by then, or in the middle of joining."""

SETTLE_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05


class Scene:
    """A hub, a server of its own, and the processes between them."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.folder = folder
        self.server = server
        self.url = server.new_database().reveal()
        self.living: dict[str, ForkServerProcess] = {}
        self.hub_url = f"local:{folder}/hub"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(TABLE.encode())

    def start(self, owner_id: str, fault: Fault | None = None) -> ForkServerProcess:
        process = start(Task(self.hub_url, self.url, owner_id, fault))
        self.living[owner_id] = process
        return process

    def start_all(self) -> None:
        for number in range(WORKERS_COUNT):
            self.start(f"worker{number}")

    def kill(self, owner_id: str) -> None:
        process = self.living.pop(owner_id)
        process.kill()
        process.join()

    def close(self) -> None:
        for owner_id in list(self.living):
            self.kill(owner_id)

    def read(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def done(self) -> dict[str, int]:
        """How far each partition is committed."""
        return self._of_checkpoints("sequence_number")

    def epochs(self) -> dict[str, int]:
        return self._of_checkpoints("epoch")

    def _of_checkpoints(self, column: str) -> dict[str, int]:
        try:
            rows = self.read(f"SELECT partition_id, {column} FROM hubline_checkpoint WHERE {column} IS NOT NULL")
        except psycopg.errors.UndefinedTable:
            return {}  # the first process is still making it
        return {str(partition): int(str(value)) for partition, value in rows}

    async def play(self, disturb: Callable[[], Awaitable[None]]) -> None:
        """Sends while processes are disturbed, waits until everything is done, and then looks at all of it."""
        await create_hub(self.folder, "hub", partitions=PARTITIONS_COUNT)
        hub = LocalHub(self.folder, "hub")
        done = asyncio.Event()
        sending = asyncio.create_task(_send_until(hub, done))
        await disturb()
        done.set()
        await sending
        last = {p: (await hub.describe_partition(p)).last_sequence for p in (await hub.describe()).partition_ids}
        await hub.close()
        await self.until(lambda: self.done() == last, f"the end, which is {last}")
        self.close()
        self.check(last)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < deadline, f"{what} did not come: {self.done()}"
            await asyncio.sleep(POLL_SECONDS)

    def check(self, last: dict[str, int]) -> None:
        rows = self.read("SELECT partition, sequence FROM results ORDER BY place")
        dead_letters = self.read("SELECT partition_id, sequence_number FROM hubline_dead_letter")
        assert dead_letters, "nothing bad was sent"
        for partition, last_sequence in last.items():
            written = [sequence for place, sequence in rows if place == partition]
            failed = [sequence for place, sequence in dead_letters if place == partition]
            assert written == sorted(written), f"out of order in partition {partition}"  # type: ignore[type-var]
            assert sorted(written + failed) == list(range(last_sequence + 1))  # type: ignore[type-var]


async def _send_until(hub: LocalHub, done: asyncio.Event) -> None:
    rng = random.Random(17)
    sender = await hub.open_sender()
    while not done.is_set():
        bodies = [BAD if rng.random() < BAD_SHARE else b"good" for _ in range(rng.randint(1, 20))]
        await sender.send(new_events(bodies))
        await asyncio.sleep(0.02)
    await sender.send(new_events([BAD] * PARTITIONS_COUNT))
    await sender.close()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Not the one that other tests share: this one crashes."""
    with PostgresServer.start() as started:
        yield started


@pytest.fixture
def scene(tmp_path: Path, server: PostgresServer) -> Iterator[Scene]:
    made = Scene(tmp_path, server)
    yield made
    made.close()


def test_killed_at_random_moments(scene: Scene) -> None:
    rng = random.Random(18)

    async def disturb() -> None:
        scene.start_all()
        await scene.until(scene.done, "a first commit")
        for _ in range(KILLS_COUNT):
            await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))
            owner_id = rng.choice(sorted(scene.living))
            await asyncio.to_thread(scene.kill, owner_id)
            scene.start(owner_id)

    asyncio.run(scene.play(disturb))


def test_killed_at_every_step_of_the_commit(scene: Scene) -> None:
    faults = [Fault(step, is_before) for step in STEPS for is_before in (True, False)]

    async def disturb() -> None:
        for fault in faults:
            process = scene.start("worker", fault)
            await asyncio.to_thread(process.join, SETTLE_SECONDS_MAX)
            assert process.exitcode == -signal.SIGKILL, fault
        scene.start("worker")

    asyncio.run(scene.play(disturb))


def test_the_server_crashes_under_load(scene: Scene) -> None:
    async def disturb() -> None:
        scene.start_all()
        for _ in range(RESTARTS_COUNT):
            before = await asyncio.to_thread(scene.done)
            await scene.until(lambda before=before: scene.done() != before, "a commit")  # type: ignore[misc]
            await asyncio.to_thread(scene.server.stop, immediate=True)
            await asyncio.to_thread(scene.server.start_again)

    asyncio.run(scene.play(disturb))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("begin", is_before=True, signum=signal.SIGSTOP, count=OPENED_COUNT),
        Fault("commit", is_before=True, signum=signal.SIGSTOP, count=OPENED_COUNT),
        Fault(COPY, is_before=False, signum=signal.SIGSTOP, count=OPENED_COUNT),
    ],
    ids=["before its transaction", "within its transaction", "while it sends rows"],
)
def test_an_owner_that_is_frozen_past_its_lease_wakes_and_writes_nothing(scene: Scene, fault: Fault) -> None:
    async def disturb() -> None:
        frozen = scene.start("frozen", fault)
        await scene.until(lambda: _is_stopped(frozen), "the freeze")
        before = scene.epochs()
        scene.start("other")
        await scene.until(lambda: all(scene.epochs()[p] > epoch for p, epoch in before.items()), "the other owner")
        done = scene.done()
        await scene.until(lambda: scene.done() != done, "the other owner's commit")
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGCONT)
        await asyncio.sleep(LEASE_SECONDS / 2)  # it wakes in the middle of its commit, and continues as it can

    asyncio.run(scene.play(disturb))


def _is_stopped(process: ForkServerProcess) -> bool:
    assert process.is_alive(), "it ended"
    status = Path(f"/proc/{process.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"
