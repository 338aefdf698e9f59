"""Pipelines end to end, beside the slowest of their parts alone, and beside the same by hand with the official SDK.

One session of two cores; JSON of 200 bytes with a key and three properties in four partitions. A rate is the median
over the batches of several runs, once they are warm. The parts alone are those of the arrows, each through Spark: hub
to Spark is the source into nothing, and Spark to a hub or to PostgreSQL is the sink over rows that are ready in memory.
Where a query parses JSON between the two, that is a part of its own: over ready rows, into nothing. By hand is what
people write: a consumer of the SDK, a function for each event, and a checkpoint after each batch.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users have it
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.amqp_client import FOLDER, serving
from benchmarks.harness import Result, benchmark
from benchmarks.spark_ready import rows
from benchmarks.spark_source import _seconds, _session
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from hubline.pipeline.checks import check_file
from hubline.pipeline.runner import Request, run
from hubline.spark import SqlBatchWriter, event_id, parse_json
from tests.support.postgres import PostgresServer

PARTITIONS: Final = 4
BATCH_EVENTS: Final = 200_000
BATCHES: Final = 5
COUNT: Final = BATCH_EVENTS * BATCHES
SDK_COUNT: Final = 10_000
# In the first rounds Java compiles: rates continue rising for some seconds.
WARM_ROUNDS: Final = 3
ROUNDS: Final = 3
SENT_AT_ONCE: Final = 5_000

READING: Final = {"device": "device-17", "number": 1_234_567, "celsius": 21.5, "note": "x" * 130}
BODY: Final = json.dumps(READING).ljust(200)
TABLES: Final = b"""
    CREATE TABLE readings (device text, number bigint, celsius double precision, note text);
    CREATE TABLE events (
        partition text, "sequenceNumber" bigint, "enqueuedTime" timestamptz, "partitionKey" text, body bytea
    );
"""
HUBS: Final = ("raw", "clean")

FIELDS: Final = "device string, number long, celsius double, note string"
AGAINST_PARTS: Final = "the slowest of its parts alone: {}"
AGAINST_SDK: Final = "the same by hand: azure-eventhub, a function for each event; both over hubline serve"

CODE: Final = """
import hubline
from hubline.spark import parse_json

pipeline = hubline.Pipeline("measured")


@pipeline.stage(source="raw", sink="clean", consumer_group="copy", load_balancing="all", max_batch_size={events_max})
def copy(events):
    return events


@pipeline.stage(source="raw", sink="events", consumer_group="keep", load_balancing="all", max_batch_size={events_max})
def keep(events):
    return events


@pipeline.stage(
    source="raw", sink="readings", consumer_group="store", load_balancing="all", max_batch_size={events_max}
)
def store(events):
    return parse_json(events, "{fields}")
"""


CONFIG: Final = """
[datasets]
raw = {{ hub = "file:{folder}/raw" }}
clean = {{ hub = "file:{folder}/clean" }}
events = {{ url = "file:{folder}/database", table = "events" }}
readings = {{ url = "file:{folder}/database", table = "readings" }}

[run]
spark_checkpoints = "{folder}/state"
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
        manual = max(SDK_COUNT / _seconds(lambda: copy_by_sdk(its.served)) for _ in range(ROUNDS))
    yield _against_parts("pipeline-hub-to-hub", own, dict(zip(("the source", "the sink"), parts, strict=True)))
    yield Result("pipeline-hub-to-hub", served, "events/s", served / manual, AGAINST_SDK)


@benchmark("pipeline-hub-to-postgres")
def hub_to_postgres() -> Iterator[Result]:
    """A stage that writes events as they are, and one that parses their JSON: a row for each event."""
    name = "pipeline-hub-to-postgres"
    with scene() as its:
        kept, parsed, served, source, kept_sink, parsed_sink, parsing = its.medians(
            lambda: its.run("keep", its.local),
            lambda: its.run("store", its.local),
            lambda: its.run("store", its.served),
            lambda: its.drain(its.events(its.local["raw"])),
            lambda: its.write_to_table(its.ready(), "events"),
            lambda: its.write_to_table(its.ready_readings(), "readings"),
            lambda: its.drain(parse_json(its.ready(), FIELDS)),
        )
        manual = max(SDK_COUNT / _seconds(its.store_by_sdk) for _ in range(ROUNDS))
    yield _against_parts(f"{name}, events as they are", kept, {"the source": source, "the sink": kept_sink})
    parts = {"the source": source, "parsing": parsing, "the sink": parsed_sink}
    yield _against_parts(f"{name}, JSON parsed", parsed, parts)
    yield Result(f"{name}, JSON parsed", served, "events/s", served / manual, AGAINST_SDK)


def _against_parts(name: str, own: float, parts: dict[str, float]) -> Result:
    slowest = min(parts, key=parts.__getitem__)
    shown = ", ".join(f"{part} {rate:,.0f}/s" for part, rate in parts.items())
    return Result(name, own, "events/s", own / parts[slowest], AGAINST_PARTS.format(f"{slowest} ({shown})"))


class Batches(StreamingQueryListener):
    """Hears of the batches of all queries: how many events in how many seconds.

    Straight from Java: PySpark's own would ask for each field by a call, which takes 0.1 s of processor time a batch.
    """

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.ended = threading.Event()

    @property
    def _jlistener(self) -> Any:
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = json.loads(event.progress().json())
        if progress["numInputRows"] == BATCH_EVENTS:
            self.rates.append(BATCH_EVENTS / progress["durationMs"]["triggerExecution"] * 1000)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's name
        self.ended.set()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


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
            file.with_suffix(".toml").write_text(CONFIG.format(folder=folder))
            run(check_file(file, stages=[stage]), Request(once=True), spark=self.spark)

    @contextmanager
    def table(self) -> Iterator[str]:
        """A new database with an empty table. It goes in the end: the server would tidy it up while others run."""
        database = self.server.new_database()
        with psycopg.connect(database.reveal()) as connection:
            connection.execute(TABLES)
        yield database.reveal()
        self.server.drop_database(database)

    def events(self, hub: str) -> DataFrame:
        reader = self.spark.readStream.format("eventhubs").options(
            hub=hub, startingPosition="earliest", maxEventsPerTrigger=BATCH_EVENTS
        )
        return reader.load()

    def ready(self) -> DataFrame:
        options = {"count": str(COUNT), "max_events": str(BATCH_EVENTS), "body": BODY}
        return self.spark.readStream.format("ready").options(**options).load()

    def ready_readings(self) -> DataFrame:
        fields = [F.lit(value).alias(name) for name, value in READING.items()]
        return self.ready().select("partition", "sequenceNumber", "offset", *fields)

    def drain(self, frame: DataFrame) -> None:
        self._write(frame.writeStream.format("noop"))

    def write_to_hub(self, hub: str) -> None:
        rows = self.ready().withColumn("eventId", event_id(hub)).select("body", "partitionKey", "properties", "eventId")
        self._write(rows.writeStream.format("eventhubs").option("hub", hub))

    def write_to_table(self, rows: DataFrame, table: str) -> None:
        with self.table() as database:
            sink = SqlBatchWriter(database, table=table)
            writing = sink.write_stream(rows, checkpoint_location=tempfile.mkdtemp(dir=self.folder))
            writing.trigger(availableNow=True).start().awaitTermination()

    def _write(self, writing: DataStreamWriter) -> None:
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    def store_by_sdk(self) -> None:
        with self.table() as database:
            store_by_sdk(self.served["raw"], database)


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
    events = new_events(
        {"body": BODY, "partitionKey": row["partitionKey"], "properties": dict(row["properties"])}
        for row in rows(SENT_AT_ONCE)
    )
    for number in range(COUNT // SENT_AT_ONCE):
        await sender.send(events, partition=str(number % PARTITIONS))
    await raw.close()
