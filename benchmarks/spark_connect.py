"""Queries over Spark Connect, beside the same ones in a classic session.

A server and a classic session, each of two cores with hubline's settings, in processes of their own; JSON of 200 bytes
in four partitions of a local hub. They take turns. A rate is the median over the batches of several queries, by Spark's
own time of a whole batch, once Java has compiled.

``python -m benchmarks.spark_connect FOLDER`` is the process of the classic session: it runs what it is given by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psycopg
from pyspark.sql import SparkSession

from benchmarks.amqp_client import FOLDER
from benchmarks.harness import Result, benchmark
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from hubline.spark import EventHubs, SqlBatchWriter, parse_json, session
from hubline.spark.sessions.remote import remote_session
from hubline.spark.sessions.settings import LOCAL_SETTINGS, SETTINGS
from tests.support.connect import ConnectServer
from tests.support.postgres import PostgresServer

PARTITIONS: Final = 4
BATCH_EVENTS: Final = int(os.environ.get("CONNECT_BATCH_EVENTS", "100000"))
BATCHES: Final = 4
WARM_ROUNDS: Final = 2
ROUNDS: Final = 3
SENT_AT_ONCE: Final = 5_000

READING: Final = {"device": "device-17", "number": 1_234_567, "celsius": 21.5, "note": "x" * 130}
FIELDS: Final = "device string, number long, celsius double, note string"
TABLE: Final = "CREATE TABLE readings (device text, number bigint, celsius double precision, note text)"
DATABASE: Final = "HUBLINE_BENCHMARK_DATABASE"
AGAINST: Final = "the same query in a classic session"


@benchmark("spark-connect-noop")
def spark_connect_noop() -> Iterator[Result]:
    yield from _beside("spark-connect-noop", "noop")


@benchmark("spark-connect-postgres")
def spark_connect_postgres() -> Iterator[Result]:
    yield from _beside("spark-connect-postgres", "postgres")


def _beside(name: str, sink: str) -> Iterator[Result]:
    with _both() as (connect, classic):
        rates: tuple[list[float], list[float]] = [], []
        for number in range(WARM_ROUNDS + ROUNDS):
            for found, measure in zip(rates, (connect, classic), strict=True):
                found.extend(measure(sink) if number >= WARM_ROUNDS else measure(sink)[:0])
    own, other = map(statistics.median, rates)
    yield Result(name, own, "events/s", own / other, AGAINST)


@contextmanager
def _both() -> Iterator[tuple[Callable[[str], list[float]], Callable[[str], list[float]]]]:
    """What measures over Connect, and in a classic session."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER)))
        asyncio.run(_fill(folder))
        postgres = stack.enter_context(PostgresServer.start(syncs=False))
        database = postgres.new_database().reveal()
        os.environ[DATABASE] = database
        with psycopg.connect(database) as connection:
            connection.execute(TABLE)
        server = ConnectServer(folder, {DATABASE: database}, settings={**SETTINGS, **LOCAL_SETTINGS})
        stack.callback(server.kill)
        server.start()
        spark = remote_session(server.url, "benchmark", {})
        spark.dataSource.register(EventHubs)
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark_connect", folder],
            # What says to PySpark that a process is a client.
            env={name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(child.wait)
        assert child.stdin is not None
        assert child.stdout is not None
        stack.callback(child.stdin.close)
        given, answers = child.stdin, child.stdout

        def classic(sink: str) -> list[float]:
            print(sink, file=given, flush=True)
            return [float(rate) for rate in json.loads(answers.readline())]

        yield lambda sink: rates(spark, folder, sink), classic


def rates(spark: SparkSession, folder: Path, sink: str) -> list[float]:
    """Events a second of a query's batches, without the first, which starts what it needs."""
    hub, checkpoint = f"local:{folder}/hub", tempfile.mkdtemp(dir=folder)
    # A group of its own: the table has a checkpoint for each.
    options = {"hub": hub, "consumerGroup": uuid.uuid4().hex, "startingPosition": "earliest"}
    reader = spark.readStream.format("eventhubs").options(maxEventsPerTrigger=BATCH_EVENTS, **options)
    if sink == "noop":
        writing = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    else:
        writer = SqlBatchWriter(f"env:{DATABASE}", table="readings")
        writing = writer.write_stream(parse_json(reader.load(), FIELDS), checkpoint_location=checkpoint)
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    durations = [p.durationMs["triggerExecution"] for p in query.recentProgress if "addBatch" in p.durationMs]
    assert len(durations) >= BATCHES
    return [BATCH_EVENTS * 1000 / duration for duration in durations[1:BATCHES]]


async def _fill(folder: Path) -> None:
    await create_hub(folder, "hub", partitions=PARTITIONS)
    hub = LocalHub(folder, "hub")
    sender = await hub.open_sender()
    body = json.dumps(READING).ljust(200).encode()
    for partition in range(PARTITIONS):
        for _ in range(BATCH_EVENTS * BATCHES // PARTITIONS // SENT_AT_ONCE):
            await sender.send(new_events([body] * SENT_AT_ONCE), partition=str(partition))
    await hub.close()


def _classic(folder: Path) -> None:
    spark = session("benchmark", master="local[2]", **{"spark.ui.enabled": False, "spark.log.level": "ERROR"})
    for line in sys.stdin:
        print(json.dumps(rates(spark, folder, line.strip())), flush=True)
    spark.stop()


if __name__ == "__main__":
    _classic(Path(sys.argv[1]))
