"""Pipelines end to end, beside the slowest of their parts alone, and beside the same by hand with the official SDK.

One session of two cores; JSON of 200 bytes with a key and three properties in four partitions. A rate is the median
over the batches of several runs, once they are warm. The parts alone are the source into nothing, the query over rows
that are ready in memory into nothing, and the sink over rows that are ready. By hand is what people write: a consumer
of the SDK, a function for each event, and a checkpoint after each batch.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from benchmarks.amqp_client import FOLDER, serving
from benchmarks.harness import Result, benchmark
from benchmarks.spark_ready import rows
from benchmarks.spark_source import _seconds, _session
from hubline.hubs.local import LocalHub, create_hub
from hubline.model import Checkpoint, GroupKey, outgoing
from hubline.pipeline.checks import checked_file
from hubline.pipeline.runner import Request, run
from hubline.sinks import SqlSink
from hubline.spark import event_id, parse_json
from tests.support.postgres import PostgresServer

PARTITIONS: Final = 4
BATCH_EVENTS: Final = 200_000
BATCHES: Final = 5
COUNT: Final = BATCH_EVENTS * BATCHES
SDK_COUNT: Final = 10_000
# In the first rounds Java compiles: rates go on rising for some seconds.
WARM_ROUNDS: Final = 2
ROUNDS: Final = 3
SENT_AT_ONCE: Final = 5_000

CORES: Final = 2

READING: Final = {"device": "device-17", "number": 1_234_567, "celsius": 21.5, "note": "x" * 130}
BODY: Final = json.dumps(READING).ljust(200)
TABLE: Final = b"CREATE TABLE readings (device text, number bigint, celsius double precision, note text)"
HUBS: Final = ("raw", "clean")
GROUP: Final = GroupKey("namespace.example", "raw", "sink-alone")

FIELDS: Final = "device string, number long, celsius double, note string"
AGAINST_PARTS: Final = "the slowest of its parts alone: {}"
AGAINST_SDK: Final = "the same by hand: azure-eventhub, a function for each event; both over hubline serve"

CODE: Final = """
import hubline
from hubline.spark import parse_json

pipeline = hubline.Pipeline("measured")


@pipeline.stage(source="raw", to="clean", group="copy", ownership="all", batch_count_max={events_max})
def copy(events):
    return events


@pipeline.stage(source="raw", to="readings", group="store", ownership="all", batch_count_max={events_max})
def store(events):
    return parse_json(events, "{fields}")
"""


PLACES: Final = """
[places]
raw = {{ hub = "file:{folder}/raw" }}
clean = {{ hub = "file:{folder}/clean" }}
readings = {{ url = "file:{folder}/database", table = "readings" }}

[run]
state = "{folder}/state"
"""


@benchmark("pipeline-hub-to-hub")
def hub_to_hub() -> Iterator[Result]:
    """One stage from hub to hub: local, and over AMQP."""
    with scene() as its:
        own, served, *parts = its.medians(
            lambda: its.run("copy", its.local),
            lambda: its.run("copy", its.served),
            lambda: its.drain(its.events(its.local["raw"])),
            lambda: its.write_to_hub(its.local["clean"]),
        )
        by_hand = max(SDK_COUNT / _seconds(lambda: copy_by_sdk(its.served)) for _ in range(ROUNDS))
    yield _against_parts("pipeline-hub-to-hub", own, dict(zip(("the source", "the sink"), parts, strict=True)))
    yield Result("pipeline-hub-to-hub", served, "events/s", served / by_hand, AGAINST_SDK)


@benchmark("pipeline-hub-to-postgres")
def hub_to_postgres() -> Iterator[Result]:
    """One stage from hub to table: JSON parsed, a row for each event."""
    with scene() as its:
        own, served, source, parsing = its.medians(
            lambda: its.run("store", its.local),
            lambda: its.run("store", its.served),
            lambda: its.drain(its.events(its.local["raw"])),
            lambda: its.drain(parse_json(its.ready(), FIELDS)),
        )

        def by_hand_seconds(database: str) -> float:
            return _seconds(lambda: store_by_sdk(its.served["raw"], database))

        sink = BATCH_EVENTS / statistics.median(its.in_table(store_seconds) for _ in range(2 * ROUNDS))
        by_hand = max(SDK_COUNT / its.in_table(by_hand_seconds) for _ in range(ROUNDS))
    yield _against_parts("pipeline-hub-to-postgres", own, {"the source": source, "parsing": parsing, "the sink": sink})
    yield Result("pipeline-hub-to-postgres", served, "events/s", served / by_hand, AGAINST_SDK)


def _against_parts(name: str, own: float, parts: dict[str, float]) -> Result:
    slowest = min(parts, key=parts.__getitem__)
    shown = ", ".join(f"{part} {rate:,.0f}/s" for part, rate in parts.items())
    return Result(name, own, "events/s", own / parts[slowest], AGAINST_PARTS.format(f"{slowest} ({shown})"))


class Batches(StreamingQueryListener):
    """Hears of the batches of all queries: how many events in how many seconds."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        if progress.numInputRows == BATCH_EVENTS:
            self.rates.append(BATCH_EVENTS / progress.durationMs["triggerExecution"] * 1000)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's name
        self.ended.set()


@dataclass(frozen=True, slots=True)
class Scene:
    """A session, hubs as folders and over AMQP, and a database."""

    spark: SparkSession
    heard: Batches
    folder: Path
    server: PostgresServer
    local: dict[str, str]
    served: dict[str, str]

    def medians(self, *works: Callable[[], None]) -> list[float]:
        """Events a second of each, over the batches of several runs, in turns, once Java has compiled; the first batch
        of each run starts what it needs."""
        rates: list[list[float]] = [[] for _ in works]
        for number in range(WARM_ROUNDS + ROUNDS):
            for found, work in zip(rates, works, strict=True):
                self.heard.rates.clear()
                self.heard.ended.clear()
                work()
                self.heard.ended.wait()
                found.extend(self.heard.rates[1:] if number >= WARM_ROUNDS else [])
        return [statistics.median(found) for found in rates]

    def run(self, stage: str, hubs: dict[str, str]) -> None:
        """The pipeline, from the first event, into a new database."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name, self.table() as database:
            folder = Path(name)
            kept = {**hubs, "database": database}
            for place, address in kept.items():
                (folder / place).write_text(address)
            file = folder / "measured.py"
            file.write_text(CODE.format(events_max=BATCH_EVENTS, fields=FIELDS))
            file.with_suffix(".toml").write_text(PLACES.format(folder=folder))
            run(checked_file(file, stages=[stage]), Request(once=True), spark=self.spark)

    @contextmanager
    def table(self) -> Iterator[str]:
        """A new database with an empty table. It goes in the end: the server would tidy it up while others run."""
        database = self.server.new_database()
        with psycopg.connect(database.reveal()) as connection:
            connection.execute(TABLE)
        yield database.reveal()
        self.server.drop_database(database)

    def in_table(self, work: Callable[[str], float]) -> float:
        with self.table() as database:
            return work(database)

    def events(self, hub: str) -> DataFrame:
        reader = self.spark.readStream.format("eventhubs").options(hub=hub, start="earliest", max_events=BATCH_EVENTS)
        return reader.load()

    def ready(self) -> DataFrame:
        options = {"count": str(COUNT), "max_events": str(BATCH_EVENTS), "body": BODY}
        return self.spark.readStream.format("ready").options(**options).load()

    def drain(self, frame: DataFrame) -> None:
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        writing = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writing.trigger(availableNow=True).start().awaitTermination()

    def write_to_hub(self, hub: str) -> None:
        rows = self.ready().withColumn("eventId", event_id(hub)).select("body", "partitionKey", "properties", "eventId")
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        writing = rows.writeStream.format("eventhubs").options(hub=hub, checkpointLocation=checkpoint)
        writing.trigger(availableNow=True).start().awaitTermination()


def store_seconds(database: str) -> float:
    """A batch by the sink alone, two partitions at a time, as two cores would."""
    sink = SqlSink(database, table="readings")
    count = BATCH_EVENTS // PARTITIONS
    rows = pa.table({name: pa.repeat(value, count) for name, value in READING.items()})
    keys = [GROUP.partition(str(number)) for number in range(PARTITIONS)]
    opened = [sink.open(key, 1) for key in keys]
    works = [
        lambda key=key, partition=partition: partition.commit(Checkpoint(key, "0", count - 1), rows)
        for key, partition in zip(keys, opened, strict=True)
    ]
    with ThreadPoolExecutor(CORES) as threads:
        took = _seconds(lambda: [call.result() for call in [threads.submit(work) for work in works]])
    sink.close()
    return took


# By hand


def _received(connection_string: str, handle: Callable[[Any, list[Any]], None]) -> None:
    """What people write without a pipeline: batches of the SDK, until so many events came."""
    from azure.eventhub import EventHubConsumerClient

    done, count = threading.Event(), 0

    def take(context: Any, events: list[Any]) -> None:
        nonlocal count
        if not done.is_set():
            handle(context, events)
            count += len(events)
            if count >= SDK_COUNT:
                done.set()

    client = EventHubConsumerClient.from_connection_string(connection_string, "$Default")
    options = {"on_event_batch": take, "starting_position": "-1", "max_batch_size": 1000, "prefetch": 3000}
    reading = threading.Thread(target=client.receive_batch, kwargs=options)
    reading.start()
    done.wait()
    client.close()
    reading.join()


def copy_by_sdk(hubs: dict[str, str]) -> None:
    from azure.eventhub import EventData, EventHubProducerClient

    with EventHubProducerClient.from_connection_string(hubs["clean"]) as producer:

        def copy(_context: Any, events: list[Any]) -> None:
            by_key: dict[bytes | None, list[Any]] = {}
            for event in events:
                by_key.setdefault(event.partition_key, []).append(EventData(event.body_as_str()))
            for key, own in by_key.items():
                batch = producer.create_batch(partition_key=key.decode() if key else None)
                for event in own:
                    batch.add(event)
                producer.send_batch(batch)

        _received(hubs["raw"], copy)


def store_by_sdk(connection_string: str, database: str) -> None:
    progress = "INSERT INTO progress VALUES (%s, %s) ON CONFLICT (partition) DO UPDATE SET sequence = excluded.sequence"
    insert = "INSERT INTO readings (device, number, celsius, note) VALUES (%s, %s, %s, %s)"
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE progress (partition text PRIMARY KEY, sequence bigint)")

        def store(context: Any, events: list[Any]) -> None:
            for event in events:
                reading = json.loads(event.body_as_str())
                values = (reading["device"], reading["number"], reading["celsius"], reading["note"])
                connection.execute(insert, values)
            connection.execute(progress, (context.partition_id, events[-1].sequence_number))
            connection.commit()

        _received(connection_string, store)


# The scene


@contextmanager
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as name, PostgresServer.start() as server:
        folder = Path(name)
        asyncio.run(_fill(folder / "hubs"))
        with serving(folder / "hubs") as served:
            spark = _session(folder)
            heard = Batches()
            spark.streams.addListener(heard)
            try:
                yield Scene(
                    spark,
                    heard,
                    folder,
                    server,
                    local={hub: f"local:{folder}/hubs/{hub}" for hub in HUBS},
                    served={hub: re.sub("EntityPath=.*", f"EntityPath={hub}", served) for hub in HUBS},
                )
            finally:
                spark.stop()


async def _fill(folder: Path) -> None:
    for hub in HUBS:
        await create_hub(folder, hub, partitions=PARTITIONS)
    raw = LocalHub(folder, "raw")
    sender = await raw.open_sender()
    events = outgoing({**row, "body": BODY, "properties": dict(row["properties"])} for row in rows(SENT_AT_ONCE))
    for number in range(COUNT // SENT_AT_ONCE):
        await sender.send(events, partition=str(number % PARTITIONS))
    await raw.close()
