"""The pipeline of examples/telemetry under kills: afterwards every reading that reads is in the table once, and every
other one among the dead letters, once.

The run is killed with its Java, executors and Python workers are killed, and the database crashes, at random moments
while readings keep coming: on a cluster, from hubs over AMQP, into PostgreSQL. Over Spark Connect, so is the server.
``make chaos`` does the same with a million readings and twenty kills, and on one machine, over both kinds of hub and of
database.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest

import hubline
from examples.telemetry.readings import BATCH_COUNT, readings
from hubline.cli.exit_codes import ExitCode
from hubline.hubs.local import create_hub
from tests.emulator.serving import serving
from tests.support.cluster import cluster, executors
from tests.support.connect import MISSING, ConnectServer
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.kills, pytest.mark.timeout(0)]

EVENTS_COUNT = int(os.environ.get("CHAOS_EVENTS", "5000"))
KILLS_COUNT = int(os.environ.get("CHAOS_PIPELINE_KILLS", "4"))
IS_FULL = "CHAOS_EVENTS" in os.environ
STAGES = () if IS_FULL else ("ingest", "store")
"""All of them; in short those that the table is made of. What the third one publishes is not looked at."""
PARTITIONS = 4
PIPELINE = Path(__file__).parents[2] / "examples" / "telemetry" / "telemetry.py"

PAUSE_SECONDS_MAX = 4.0
"""Between two kills: a run that was just started is at work by then, or in the middle of starting."""
SETTLE_SECONDS_MAX = 600.0
POLL_SECONDS = 0.5


class Scene:
    """Hubs, a database, and the run between them."""

    def __init__(
        self,
        folder: Path,
        master: str | ConnectServer,
        hubs: dict[str, str],
        url: str,
        server: PostgresServer | None,
    ) -> None:
        self._folder = folder
        self._connect = master if isinstance(master, ConnectServer) else None
        self._master = "" if isinstance(master, ConnectServer) else master
        self._hubs = hubs
        self._url = url
        self._server = server
        self._run: subprocess.Popen[bytes] | None = None
        # With another number, the partitions of a killed run have to wait for its leases.
        self._queries = itertools.cycle((2, 4, 1) if IS_FULL else (2,))

    # The run

    def start(self) -> None:
        settings = {
            **{f"datasets.{name}.hub": f"env:{name.upper()}" for name in self._hubs},
            **{f"datasets.{name}.create_if_missing": "false" for name in self._hubs},
            "datasets.readings.url": "env:DATABASE",
            "run.store": "env:DATABASE",
            "run.spark_checkpoints": f"{self._folder}/state",
            "run.max_restarts": "1000",
            **({} if self._connect else {f"spark.{name}": value for name, value in SPARK_SETTINGS.items()}),
            "stages.store.queries": str(next(self._queries)),
            "stages.store.max_batch_size": str(max(EVENTS_COUNT // 50, 500)),
        }
        arguments = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
        arguments += [argument for name in STAGES for argument in ("--stage", name)]
        arguments += ["--remote", self._connect.url] if self._connect else ["--master", self._master]
        with (self._folder / "run.log").open("ab") as log:
            self._run = subprocess.Popen(
                [sys.executable, "-m", "hubline", "run", str(PIPELINE), *arguments],
                cwd=self._folder,
                env={**os.environ, **environment(self._hubs, self._url)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> None:
        if self._run is not None:
            with suppress(ProcessLookupError):  # it ended cleanly, with all that it had started
                os.killpg(self._run.pid, signal.SIGKILL)
            self._run.wait()
            self._run = None

    def stop_cleanly(self) -> int:
        assert self._run is not None
        self._run.terminate()
        return self._run.wait()

    def require_running(self) -> None:
        """Fails if the run has ended. A run that cannot reach its datasets does not start: if the database was down
        while it started, this starts it again, as a supervisor would."""
        assert self._run is not None
        if self._run.poll() == ExitCode.CHECKS_FAILED and self._server is not None:
            self.start()
        if self._run.poll() == ExitCode.FAILED and self._connect is not None:  # as its server was killed
            self.start()
        assert self._run.poll() is None, (self._folder / "run.log").read_text()[-5000:]

    # Faults

    def faults(self) -> Sequence[Callable[[], None]]:
        crash = [] if self._server is None else [self.crash_database]
        executor = [self.kill_executor] if self._master.startswith("spark:") else []
        connect = [self.kill_connect_server] if self._connect else []
        return [self.kill_run, *connect, self.kill_worker, *executor, *crash]

    def kill_run(self) -> None:
        self.end()
        self.start()

    def kill_worker(self) -> None:
        """One of Spark's Python workers, if there is one by now."""
        assert self._run is not None
        parents = {self._run.pid, *executors(self._folder), *([self._connect.pid] if self._connect else [])}
        workers = [pid for pid in _descendants(parents) if b"daemon pyspark.worker" in _command(pid)]
        if workers:
            os.kill(workers[-1], signal.SIGKILL)

    def kill_connect_server(self) -> None:
        """In mid-batch, and with it its workers. The run ends with one line."""
        assert self._connect is not None
        self._connect.kill()
        self._connect.start()

    def kill_executor(self) -> None:
        for pid in executors(self._folder)[:1]:
            os.kill(pid, signal.SIGKILL)

    def crash_database(self) -> None:
        assert self._server is not None
        self._server.stop(immediate=True)
        self._server.start_again()

    # What came of it

    def read(self, query: str) -> list[tuple[str, int]]:
        """Nothing where the tables are still to be made, or the database is down."""
        try:
            if self._url.startswith("sqlite:"):
                path = self._url.removeprefix("sqlite:///")
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
                    return database.execute(query).fetchall()
            with psycopg.connect(self._url) as connection:
                return connection.execute(query.encode()).fetchall()
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable, psycopg.OperationalError):
            return []

    def stored_count(self) -> int:
        counts = self.read(
            "SELECT 'rows', count(*) FROM readings UNION ALL SELECT 'dead letters', count(*) FROM hubline_dead_letter"
        )
        return sum(count for _, count in counts)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not await asyncio.to_thread(condition):
            self.require_running()
            assert time.monotonic() < deadline, f"{what} did not come: {(self._folder / 'run.log').read_text()[-5000:]}"
            await asyncio.sleep(POLL_SECONDS)

    async def play(self, rng: random.Random) -> None:
        sent = asyncio.create_task(self._send())
        self.start()
        await self.until(lambda: self.stored_count() > 0, "the first row")
        faults = itertools.cycle(self.faults())
        for _ in range(KILLS_COUNT):
            await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))
            await asyncio.to_thread(next(faults))
        ids, malformed_count = await sent
        await self.until(lambda: self.stored_count() >= len(ids) + malformed_count, "the last row")
        assert await asyncio.to_thread(self.stop_cleanly) == 0
        rows = dict(self.read("SELECT id, count(*) FROM readings GROUP BY id"))
        dead_letters = dict(
            self.read("SELECT partition_id || ' ' || sequence_number, count(*) FROM hubline_dead_letter GROUP BY 1")
        )
        assert rows.keys() == ids
        assert set(rows.values()) == {1}
        assert len(dead_letters) == malformed_count
        assert set(dead_letters.values()) == {1}

    async def _send(self) -> tuple[set[str], int]:
        hub = hubline.open_hub(self._hubs["raw"])
        sender = await hub.open_sender()
        left, ids, malformed = readings(EVENTS_COUNT), set(), set()
        while batch := list(itertools.islice(left, BATCH_COUNT)):
            await sender.send(hubline.new_events(reading.event for reading in batch))
            ids |= {reading.id for reading in batch if reading.id is not None}
            malformed |= {reading.number for reading in batch if reading.id is None}
        await hub.close()
        return ids, len(malformed)


def _descendants(pids: set[int]) -> list[int]:
    """All processes below these, the youngest last."""
    parents = {int(process.name): _parent(process) for process in Path("/proc").glob("[0-9]*")}
    found, ahead = set(), pids
    while ahead:
        ahead = {pid for pid, parent in parents.items() if parent in ahead}
        found |= ahead
    return sorted(found)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # it ended meanwhile


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it ended meanwhile


def environment(hubs: dict[str, str], url: str) -> dict[str, str]:
    return {**{name.upper(): text for name, text in hubs.items()}, "DATABASE": url}


HUBS = ("raw", "clean", "averages")
CLUSTER = "cluster"
CONNECT = "connect"
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": os.environ["SPARK_DAEMON_JAVA_OPTS"],
    "spark.sql.shuffle.partitions": "2",
}
KINDS = [
    (CLUSTER, "served", "postgresql"),
    pytest.param(CONNECT, "served", "postgresql", marks=pytest.mark.skipif(MISSING is not None, reason=str(MISSING))),
    ("local[2,8]", "local", "sqlite"),
    ("local[2,8]", "served", "sqlite"),
    ("local[2,8]", "local", "postgresql"),
    ("local[2,8]", "served", "postgresql"),
]


@pytest.mark.parametrize(("master", "hubs", "database"), KINDS if IS_FULL else KINDS[:1])
def test_every_reading_is_a_row_or_a_dead_letter_once(tmp_path: Path, master: str, hubs: str, database: str) -> None:
    for name in HUBS:
        asyncio.run(create_hub(tmp_path / "hubs", name, partitions=PARTITIONS))
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer.start()) if database == "postgresql" else None
        url = server.new_database().reveal() if server is not None else f"sqlite:///{tmp_path}/readings.db"
        local = {name: f"local:{tmp_path}/hubs/{name}" for name in HUBS}
        addresses = local
        if hubs == "served":
            served = stack.enter_context(serving(tmp_path / "hubs"))
            addresses = {name: served.connection_string(name) for name in HUBS}
        address: str | ConnectServer = master
        if master == CLUSTER:
            address = stack.enter_context(cluster(tmp_path))
        elif master == CONNECT:
            address = ConnectServer(tmp_path, environment(addresses, url), master="local[2,8]")
            stack.callback(address.kill)
            address.start()
        scene = Scene(tmp_path, address, addresses, url, server)
        stack.callback(scene.end)
        asyncio.run(scene.play(random.Random(7)))
