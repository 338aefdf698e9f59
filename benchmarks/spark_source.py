"""The Spark source, beside the limit of Spark's Python transport, Parquet files, and what people write today.

One session of two cores; events of 200 bytes with a key and three properties in four partitions; into Spark's ``noop``
sink. A figure is the median over batches, which take turns: the machine is shared, and never the same.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from benchmarks.amqp_client import FOLDER, HUB, Load, batches, serving
from benchmarks.harness import Result, benchmark
from benchmarks.spark_ready import BATCH_COUNT, Ready, rows
from hubline.hubs.local import LocalHub, create_hub
from hubline.spark.arrow_columns import Layout
from hubline.spark.schema import SOURCE_SCHEMA

PARTITIONS: Final = 4
# A batch takes about a second; the first of a query is left out, in which workers start.
BATCH_EVENTS: Final = 300_000
BATCHES: Final = 4
COUNT: Final = BATCH_EVENTS * BATCHES
# In the first rounds Java compiles: rates continue rising for some seconds.
WARM_ROUNDS: Final = 2
ROUNDS: Final = 5
SDK_COUNT: Final = 20_000
TINY_BATCHES: Final = 40
TINY_ROUNDS: Final = 3
# The first batches compile and connect.
WARM_UP: Final = 15

AGAINST_READY: Final = "the same rows, ready in memory, through the same transport"
AGAINST_PARQUET: Final = "Spark streaming the same rows from Parquet files"
AGAINST_SDK: Final = "azure-eventhub receive_batch in the driver, then createDataFrame"
AGAINST_RATE: Final = "Spark's rate-micro-batch source: the ratio; the figure is what is added"


@dataclass(frozen=True, slots=True)
class Scene:
    """A session, and the same events as a local hub, over AMQP, and as Parquet files."""

    spark: SparkSession
    local: str
    served: str
    parquet: Path
    folder: Path

    def stream(self, source: str, **options: object) -> DataFrame:
        texts = {name: str(value) for name, value in options.items()}
        return self.spark.readStream.format(source).options(**texts).load()

    def hub(self, address: str) -> DataFrame:
        return self.stream(
            "eventhubs",
            hub=address,
            startingPosition="earliest",
            maxEventsPerTrigger=BATCH_EVENTS,
            receiverTimeout="30s",
        )

    def ready(self) -> DataFrame:
        return self.stream("ready", count=COUNT, max_events=BATCH_EVENTS)

    def files(self) -> DataFrame:
        reader = self.spark.readStream.schema(SOURCE_SCHEMA).option("maxFilesPerTrigger", BATCH_EVENTS // BATCH_COUNT)
        return reader.parquet(str(self.parquet))


@benchmark("spark-source")
def spark_source() -> Iterator[Result]:
    """Over a local hub."""
    with scene() as its:
        own, ready, files = medians(its, lambda: its.hub(its.local), its.ready, its.files)
    yield Result("spark-source", own, "rows/s", own / ready, AGAINST_READY)
    yield Result("spark-source", own, "rows/s", own / files, AGAINST_PARQUET)


@benchmark("spark-source-amqp")
def spark_source_amqp() -> Iterator[Result]:
    """Over AMQP, from ``hubline serve`` on the same machine, which takes its part of the two cores."""
    with scene() as its:
        own, ready = medians(its, lambda: its.hub(its.served), its.ready)
    yield Result("spark-source-amqp", own, "rows/s", own / ready, AGAINST_READY)


@benchmark("spark-source-sdk")
def spark_source_sdk() -> Iterator[Result]:
    """Beside the official SDK in the driver, over the same endpoint."""
    with scene() as its:
        (own,) = medians(its, lambda: its.hub(its.served))
        sdk = max(SDK_COUNT / _seconds(lambda: read_by_sdk(its)) for _ in range(ROUNDS))
    yield Result("spark-source-sdk", own, "rows/s", own / sdk, AGAINST_SDK)


@benchmark("spark-microbatch")
def spark_microbatch() -> Iterator[Result]:
    """What a batch of two events in two tasks takes longer than one of Spark's own source."""
    with scene() as its:
        rate = its.stream("rate-micro-batch", rowsPerBatch=2, numPartitions=2)
        own = its.stream("eventhubs", hub=its.local, startingPosition="earliest", maxEventsPerTrigger=2)
        # The least of several rounds, in turns: what else the machine does only adds.
        rounds = [[tiny_batch_ms(its, frame) for frame in (rate, own)] for _ in range(TINY_ROUNDS)]
        rate_ms, own_ms = map(min, zip(*rounds, strict=True))
    yield Result("spark-microbatch", own_ms - rate_ms, "ms added", rate_ms / own_ms, AGAINST_RATE)


# Measuring


def medians(its: Scene, *frames: Callable[[], DataFrame]) -> list[float]:
    """Rows a second of each, as the median over batches of several queries, in turns, once Java has compiled."""
    rates: list[list[float]] = [[] for _ in frames]
    for number in range(WARM_ROUNDS + ROUNDS):
        for found, frame in zip(rates, frames, strict=True):
            query = started(its, frame(), availableNow=True)
            query.awaitTermination()
            full = [p for p in query.recentProgress if p["numInputRows"] == BATCH_EVENTS]
            if number >= WARM_ROUNDS:
                found.extend(p["numInputRows"] / p["durationMs"]["addBatch"] * 1000 for p in full[1:])
    return [statistics.median(found) for found in rates]


def tiny_batch_ms(its: Scene, frame: DataFrame) -> float:
    query = started(its, frame, processingTime="0 seconds")
    while (query.lastProgress or {"batchId": 0})["batchId"] < TINY_BATCHES:
        time.sleep(0.1)
    query.stop()
    return float(statistics.median(p["durationMs"]["triggerExecution"] for p in query.recentProgress[WARM_UP:]))


def started(its: Scene, frame: DataFrame, **trigger: Any) -> StreamingQuery:
    checkpoint = tempfile.mkdtemp(dir=its.folder)
    return frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(**trigger).start()


def _seconds(work: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


SDK_SCHEMA: Final = StructType(
    [
        StructField("body", BinaryType()),
        StructField("partition", StringType()),
        StructField("offset", StringType()),
        StructField("sequenceNumber", LongType()),
        StructField("enqueuedTime", TimestampType()),
        StructField("partitionKey", StringType()),
    ]
)


def read_by_sdk(its: Scene) -> None:
    """What people write without a connector: the driver receives, and makes a DataFrame of it."""
    from azure.eventhub import EventHubConsumerClient

    received: list[tuple[Any, ...]] = []
    done = threading.Event()

    def take(context: Any, events: list[Any]) -> None:
        for event in events:
            key = event.partition_key.decode() if event.partition_key else None
            place = (context.partition_id, event.offset, event.sequence_number, event.enqueued_time)
            received.append((bytearray(event.body_as_str(encoding="latin-1"), "latin-1"), *place, key))
        if len(received) >= SDK_COUNT:
            done.set()

    client = EventHubConsumerClient.from_connection_string(its.served, "$Default")
    reading = threading.Thread(
        target=client.receive_batch,
        kwargs={"on_event_batch": take, "starting_position": "-1", "max_batch_size": 1000, "prefetch": 3000},
    )
    reading.start()
    done.wait()
    client.close()
    reading.join()
    its.spark.createDataFrame(received[:SDK_COUNT], SDK_SCHEMA).write.format("noop").mode("overwrite").save()


# The scene


@contextmanager
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as name:
        folder = Path(name)
        asyncio.run(_fill(folder / "hubs"))
        _write_parquet(folder / "parquet")
        hubs = folder / "hubs"
        with serving(hubs) as served:
            spark = _session(folder)
            try:
                yield Scene(spark, f"local:{hubs}/{HUB}", served, folder / "parquet", folder)
            finally:
                spark.stop()


def _session(folder: Path) -> SparkSession:
    import hubline.spark

    # The workers need this package, for the source that is ready in memory.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    spark = hubline.spark.session(
        "benchmarks",
        master="local[2]",
        **{"spark.ui.enabled": False, "spark.log.level": "ERROR", "spark.local.dir": str(folder / "scratch")},
    )
    spark.dataSource.register(Ready)
    return spark


async def _fill(folder: Path) -> None:
    await create_hub(folder, HUB, partitions=PARTITIONS)
    hub = LocalHub(folder, HUB)
    sender = await hub.open_sender()
    supply = batches(Load(200, COUNT, has_properties=True))
    for number in range(COUNT // len(supply[0])):
        await sender.send(supply[number % len(supply)], partition=str(number % PARTITIONS))
    await hub.close()


def _write_parquet(folder: Path) -> None:
    folder.mkdir()
    table = pa.Table.from_pylist(rows(BATCH_COUNT), schema=Layout(SOURCE_SCHEMA).schema)
    for number in range(COUNT // BATCH_COUNT):
        pq.write_table(table, folder / f"{number:04d}.parquet")
