"""The Spark sink, beside the official SDK in foreachPartition, and the limit of Spark's Python transport.

One session of two cores; rows of 200 bytes with a key and three properties, held in Spark's memory; into a hub of four
partitions. A figure is that of the best round; all take turns: the machine is shared, and never the same.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks.amqp_client import FOLDER, HUB, Load, batches, serving
from benchmarks.harness import Result, benchmark
from benchmarks.spark_source import PARTITIONS, _session
from hubline.hubs.local import create_hub

COUNT: Final = 400_000
SDK_COUNT: Final = 20_000
ROUNDS: Final = 3
TASKS: Final = 4

AGAINST_SDK: Final = "azure-eventhub send_batch in foreachPartition, same endpoint"
AGAINST_LIMIT: Final = "a Python Arrow sink that drops the rows"


@benchmark("spark-sink")
def spark_sink() -> Iterator[Result]:
    """Over AMQP, to ``hubline serve`` on the same machine, which takes its part of the two cores."""
    with scene() as its:
        own, dropped, sdk = best(
            Work(lambda: its.write(its.served), COUNT),
            Work(its.drop, COUNT),
            Work(lambda: its.few.foreachPartition(sending_by_sdk(its.served)), SDK_COUNT),
        )
    yield Result("spark-sink", own, "rows/s", own / sdk, AGAINST_SDK)
    yield Result("spark-sink", own, "rows/s", own / dropped, AGAINST_LIMIT)


@benchmark("spark-sink-local")
def spark_sink_local() -> Iterator[Result]:
    """To the local hub."""
    with scene() as its:
        own, dropped = best(Work(lambda: its.write(its.local), COUNT), Work(its.drop, COUNT))
    yield Result("spark-sink-local", own, "rows/s", own / dropped, AGAINST_LIMIT)


@dataclass(frozen=True, slots=True)
class Scene:
    """A session with rows in its memory, and a hub, as a folder and over AMQP. ``few`` are for the SDK."""

    rows: DataFrame
    few: DataFrame
    local: str
    served: str

    def write(self, hub: str) -> None:
        self.rows.write.format("eventhubs").option("hub", hub).mode("append").save()

    def drop(self) -> None:
        self.rows.write.format("drop").mode("append").save()


@dataclass(frozen=True, slots=True)
class Work:
    run: Callable[[], None]
    count: int


def best(*works: Work) -> list[float]:
    """Rows a second of each, in its best round. The first round, in which workers start, does not count."""
    rates = [0.0] * len(works)
    for number in range(ROUNDS + 1):
        for place, work in enumerate(works):
            start = time.perf_counter()
            work.run()
            if number:
                rates[place] = max(rates[place], work.count / (time.perf_counter() - start))
    return rates


class Drop(DataSource):
    """A sink that takes rows as Arrow, and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return DropWriter()


class DropWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def sending_by_sdk(connection_string: str) -> Callable[[Iterable[Any]], None]:
    """What people write without a connector: a client for each task, and a batch for each key."""

    def send(rows: Iterable[Any]) -> None:
        from azure.eventhub import EventData, EventHubProducerClient

        by_key: dict[str, list[Any]] = {}
        for row in rows:
            by_key.setdefault(row.partitionKey, []).append(row)
        with EventHubProducerClient.from_connection_string(connection_string) as client:
            for key, own in by_key.items():
                batch = client.create_batch(partition_key=key)
                for row in own:
                    event = EventData(bytes(row.body))
                    event.properties = row.properties
                    try:
                        batch.add(event)
                    except ValueError:  # it is full
                        client.send_batch(batch)
                        batch = client.create_batch(partition_key=key)
                        batch.add(event)
                client.send_batch(batch)

    return send


@contextmanager
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as name:
        folder = Path(name)
        asyncio.run(create_hub(folder / "hubs", HUB, partitions=PARTITIONS))
        with serving(folder / "hubs") as served:
            spark = _session(folder)
            spark.dataSource.register(Drop)
            try:
                everything = in_memory(spark, folder, COUNT)
                yield Scene(everything, in_memory(spark, folder, SDK_COUNT), f"local:{folder}/hubs/{HUB}", served)
            finally:
                spark.stop()


def in_memory(spark: SparkSession, folder: Path, count: int) -> DataFrame:
    """So many rows, in as many parts as there are tasks."""
    files = folder / f"rows-{count}"
    files.mkdir()
    supply = pa.Table.from_batches(batches(Load(200, count, has_properties=True)))
    for number in range(count // len(supply)):
        pq.write_table(supply, files / f"{number:04d}.parquet")
    rows = spark.read.parquet(str(files)).repartition(TASKS).cache()
    assert rows.count() == count
    return rows
