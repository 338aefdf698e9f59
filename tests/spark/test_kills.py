"""Real Spark applications, killed at any moment: nothing is lost, and nothing twice where the sink can tell."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from hubline.model.keys import GroupKey

ROOT = Path(__file__).parents[2]
# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 200
PARTITIONS = 4

# Applications are slow to start: one play for all of these, in one worker of a parallel run.
pytestmark = [pytest.mark.kills, pytest.mark.timeout(900), pytest.mark.xdist_group("spark-kills")]


class Stage:
    """A hub that is filled all the time, a store, and applications that copy the hub into one database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = f"local:{folder}/hubs/telemetry"
        self.store = f"sqlite:///{folder}/state.db"
        self.sent = 0
        self.applications: list[subprocess.Popen[bytes]] = []
        self._is_filling = True
        asyncio.run(create_hub(folder / "hubs", "telemetry", partitions=PARTITIONS))
        self._filling = threading.Thread(target=lambda: asyncio.run(self._fill()))
        self._filling.start()

    def start(self, name: str, **options: str) -> subprocess.Popen[bytes]:
        """Starts an application that shares the group."""
        command = [sys.executable, "-m", "tests.spark.driver", self.hub, str(self.folder)]
        sharing = {"store": self.store, "ownerId": name, "lease": "6s", "loadBalancingInterval": "1s"}
        given = [f"{key}={value}" for key, value in {**sharing, **options}.items()]
        with (self.folder / f"{name}.log").open("ab") as log:
            application = subprocess.Popen(
                [*command, name, *given],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.applications.append(application)
        return application

    def stop_filling(self) -> None:
        self._is_filling = False
        self._filling.join()

    def ask(self, query: str, *values: object, database: str = "shared") -> list[tuple[object, ...]]:
        path = self.folder / f"{database}.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(path, timeout=60)
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError:  # the tables are not there yet
            return []
        finally:
            connection.close()

    def batches(self, name: str, database: str = "shared") -> int:
        return len(self.ask("SELECT DISTINCT batch_id FROM batches WHERE name = ?", name, database=database))

    def owners(self) -> list[str]:
        return asyncio.run(self._owners())

    def until(self, condition: Callable[[], object], *running: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert all(application.poll() is None for application in running), self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()[-3_000:]}" for log in self.folder.glob("*.log"))

    async def _fill(self) -> None:
        hub = LocalHub(self.folder / "hubs", "telemetry")
        sender = await hub.open_sender()
        while self._is_filling:
            await sender.send(new_events([{"body": f"{self.sent}", "partitionKey": f"key-{self.sent % 40}"}] * 20))
            self.sent += 20
            await asyncio.sleep(0.2)
        await hub.close()

    async def _owners(self) -> list[str]:
        store = SqliteStore(self.folder / "state.db")
        hub = LocalHub(self.folder / "hubs", "telemetry")
        state = await store.list_ownership(GroupKey(hub.namespace, hub.name, "$Default"))
        await store.close()
        return sorted(found.owner_id for found in state.ownerships)


def kill(application: subprocess.Popen[bytes]) -> None:
    """As if its machine had died: driver, Java and all Python processes at once."""
    os.killpg(application.pid, signal.SIGKILL)
    application.wait()
    if application.stdin:
        application.stdin.close()


def stop(application: subprocess.Popen[bytes]) -> None:
    assert application.stdin is not None
    application.stdin.close()
    application.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One is killed and started again; another joins; the first is killed for good, and the other stops."""
    its = Stage(tmp_path_factory.mktemp("kills"))
    try:
        one = its.start("a", alone="true")
        its.until(lambda: min(its.batches("a"), its.batches("a", "alone")) >= 3, one)
        kill(one)
        shared, alone = its.batches("a"), its.batches("a", "alone")

        # Started again, it takes its own back, and replays what it was at.
        one, two = its.start("a", alone="true"), its.start("b")
        its.until(lambda: its.batches("a") > shared + 2 and its.batches("b") >= 3, one, two)
        its.until(lambda: its.batches("a", "alone") > alone + 2, one, two)
        its.until(lambda: its.owners() == ["a", "a", "b", "b"], one, two)
        kill(one)
        its.until(lambda: its.owners() == ["b"] * PARTITIONS, two)
        its.stop_filling()
        its.until(lambda: its.ask("SELECT count(*) FROM events") == [(its.sent,)], two)
        stop(two)
        yield its
    finally:
        its.stop_filling()
        for application in its.applications:
            if application.poll() is None:
                kill(application)
            elif application.stdin:
                application.stdin.close()


def test_applications_that_share_a_group_are_killed_joined_and_restarted(played: Stage) -> None:
    assert played.ask("SELECT * FROM gaps") == []
    assert played.ask("SELECT count(*) FROM events") == [(played.sent,)]
    # What it stopped with is given up, not left to run out.
    assert played.owners() == [""] * PARTITIONS


def test_a_killed_application_without_a_store_goes_on_from_sparks_own_checkpoint(played: Stage) -> None:
    assert played.ask("SELECT * FROM gaps", database="alone") == []
    assert (
        played.ask("SELECT partition FROM events GROUP BY 1 HAVING count(*) <= max(sequence)", database="alone") == []
    )
    # Every batch that was read twice was read the same.
    reread = "SELECT batch_id, partition FROM batches GROUP BY 1, 2 HAVING count(DISTINCT first || '-' || last) > 1"
    assert played.ask(reread, database="alone") == []


def test_an_application_that_stops_says_nothing_of_closed_pipes(played: Stage) -> None:
    assert "BrokenPipe" not in (played.folder / "b.log").read_text()
