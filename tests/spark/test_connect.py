"""Spark Connect, on a real server: reading, writing, exactly once into SQL and pipelines, through kills."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.errors import ConfigError
from hubline.spark import EventHubs, SqlBatchWriter, parse_json
from hubline.spark.query_plan import QueryPlan
from hubline.spark.sessions.remote import remote_session
from tests.pipeline import files
from tests.spark.hubs import TestHub
from tests.spark.test_query_plan import COMPUTED, KEPT, MOVING, NAMES
from tests.spark.test_sql_sink import bodies, send
from tests.support.connect import MISSING, ConnectServer, connect_server

pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.xdist_group("connect"),
    pytest.mark.timeout(600),
]

EVENTS = 400
FIELDS = "device string, celsius double"
PATIENCE_SECONDS = 240.0
DATABASE = "HUBLINE_TEST_DATABASE"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect") / "results.db"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("server"), {DATABASE: f"sqlite:///{database}"}) as started:
        yield started


@pytest.fixture
def remote(server: ConnectServer, monkeypatch: pytest.MonkeyPatch, database: Path) -> Iterator[SparkSession]:
    monkeypatch.setenv(DATABASE, f"sqlite:///{database}")
    spark = remote_session(server.url, "hubline-tests", {})
    spark.dataSource.register(EventHubs)
    yield spark
    spark.stop()
    for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):  # else PySpark would take the process for a client
        os.environ.pop(name, None)


@pytest.fixture
def hub(tmp_path: Path) -> TestHub:
    return TestHub.local(tmp_path / "hubs", "telemetry")


def rows_in(database: Path, table: str) -> list[str]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(database, timeout=30)) as opened:
        try:
            return sorted(device for (device,) in opened.execute(f"SELECT device FROM {table}"))
        except sqlite3.OperationalError:
            return []


def eventually(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def test_plans_say_the_same_as_in_a_classic_session(remote: SparkSession, hub: TestHub) -> None:
    events = remote.readStream.format("eventhubs").option("hub", hub.address).load()
    plans = {name: QueryPlan.of(changed(events)) for name, changed in KEPT.items()}
    assert {name: (plan.computed(NAMES), plan.stays_in_task, plan.has_state) for name, plan in plans.items()} == (
        dict.fromkeys(KEPT, (set(), True, False))
    )
    found = {name: QueryPlan.of(changed(events)).computed(NAMES) for name, changed in COMPUTED.items()}
    assert found == {name: {"partition"} for name in COMPUTED}
    moving = {name: QueryPlan.of(changed(events)).moving_step for name, (_, changed) in MOVING.items()}
    assert moving == {name: name for name in MOVING}


def test_a_hub_is_read_and_written_and_rows_are_in_the_table_once(
    remote: SparkSession, hub: TestHub, database: Path, tmp_path: Path
) -> None:
    events = [(body,) for body in [*bodies(40), b"not json"]]
    remote.createDataFrame(events, "body binary").write.format("eventhubs").option("hub", hub.address).mode(
        "append"
    ).save()
    assert hub.count() == 41

    read = remote.readStream.format("eventhubs").options(hub=hub.address, startingPosition="earliest").load()
    rows = parse_json(read, FIELDS)
    for commit_by in ("partition", "batch"):
        sink = SqlBatchWriter(f"env:{DATABASE}", table=f"by_{commit_by}", create_table=True, commit_by=commit_by)
        given = rows if commit_by == "partition" else rows.repartition(3).drop("offset")
        for _ in range(2):
            writing = sink.write_stream(given, checkpoint_location=str(tmp_path / commit_by))
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            assert query.exception() is None
            for name in ("0", ".0.crc"):  # as if the server had died before it wrote this
                (tmp_path / commit_by / "commits" / name).unlink()
        assert rows_in(database, f"by_{commit_by}") == sorted(f"d{number}" for number in range(40))
        with closing(sqlite3.connect(database, isolation_level=None)) as opened:
            assert opened.execute("SELECT body FROM hubline_dead_letter").fetchall() == [(b"not json",)]
            opened.execute("DELETE FROM hubline_dead_letter")
            opened.execute("DELETE FROM hubline_checkpoint")


def test_a_password_is_not_sent_to_the_server(remote: SparkSession, hub: TestHub, tmp_path: Path) -> None:
    rows = remote.readStream.format("eventhubs").option("hub", hub.address).load()
    sink = SqlBatchWriter("postgresql://me:pass-word@host/db", table="readings")
    with pytest.raises(ConfigError, match=r"has a password in it, .* Name the address: env:NAME or file:PATH"):
        sink.write_stream(rows, checkpoint_location=str(tmp_path))


PIPELINE = """
    import json

    from hubline import Pipeline
    from beside import doubled

    pipeline = Pipeline("connected")


    @pipeline.event_stage(source="raw", sink="readings", schema="device string, celsius double")
    def store(event):
        return doubled(json.loads(event.body))
"""
CONFIG = """
    [datasets.raw]
    hub = "local:./hubs/telemetry"

    [datasets.readings]
    url = "env:HUBLINE_TEST_DATABASE"
    table = "readings"
    create_if_missing = true

    [run]
    max_restarts = 1000

    [stages.store]
    max_batch_size = 40
"""
BESIDE = """
def doubled(row):
    return {**row, "celsius": row["celsius"] * 2}
"""


def test_a_pipeline_writes_each_event_once_though_server_and_client_are_killed(
    server: ConnectServer, tmp_path: Path, hub: TestHub, database: Path
) -> None:
    """The server dies in the middle of a batch, which the run reports in one line; then the client does, and leaves its
    query with the server, which the next run must not write beside."""
    file = files.write(tmp_path, "connected", PIPELINE, CONFIG)
    (tmp_path / "beside.py").write_text(BESIDE)
    log = tmp_path / "run.log"

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "hubline", "run", str(file), "--remote", server.url, *arguments],
                cwd=tmp_path,
                env={**os.environ, DATABASE: f"sqlite:///{database}"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stored() -> int:
        return len(rows_in(database, "readings"))

    running = run()
    send(hub, [*bodies(EVENTS), b"bad"])
    eventually(lambda: stored() > 0, log)
    server.kill()
    assert running.wait() == 1
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("hubline:")]
    assert "the Spark Connect server ended, and the run with it; nothing is lost" in line

    server.start()
    running = run()
    before = stored()
    send(hub, bodies(2 * EVENTS)[EVENTS:])
    eventually(lambda: stored() > before, log)
    running.kill()
    running.wait()
    running = run()
    eventually(lambda: stored() >= 2 * EVENTS, log)
    running.terminate()
    assert running.wait() == 0, log.read_text()[-3000:]
    assert rows_in(database, "readings") == sorted(f"d{number}" for number in range(2 * EVENTS))
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT body FROM hubline_dead_letter").fetchall() == [(b"bad",)]
