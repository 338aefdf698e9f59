from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from rich.console import Console
from rich.table import Table

import hubline.spark
from benchmarks.nexmark.generator import EVENTS_PER_SECOND, LATER_MS, STARTED_MS, generate
from benchmarks.nexmark.queries import QUERIES, WINDOWED, parsed
from hubline.hubs.local import LocalHub, create_hub

PARTITIONS: Final = 4
BATCH_EVENTS: Final = 200_000
DIFFERENT_EXIT_CODE: Final = 1
SHUFFLE_PARTITIONS: Final = 4
"""As many as the hub has; Spark's 200 are for clusters, and each costs a task and its state in every batch."""

CONSOLE: Final = Console()


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as a whole: how many, and what they add up to in whatever order."""

    rows: int
    total: object


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    stream: Answer
    stream_seconds: float
    batch: Answer
    batch_seconds: float

    @property
    def is_same(self) -> bool:
        return self.stream == self.batch


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="hubline-nexmark-", dir="/var/tmp") as name:
        folder = Path(name)
        CONSOLE.print(f"generating {options.events:,} events (seed {options.seed}) ...")
        asyncio.run(_fill(folder, options.events, options.seed))
        spark = hubline.spark.session(
            "nexmark",
            master="local[2]",
            **{
                "spark.ui.enabled": False,
                "spark.ui.showConsoleProgress": False,
                "spark.log.level": "ERROR",
                "spark.local.dir": str(folder / "scratch"),
                "spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS,
            },
        )
        try:
            outcomes = [_run(spark, folder, query, options.events) for query in options.queries or QUERIES]
        finally:
            spark.stop()
    CONSOLE.print(_table(outcomes, options.events))
    return 0 if all(outcome.is_same for outcome in outcomes) else DIFFERENT_EXIT_CODE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nexmark",
        description="Nexmark's queries over a hub, each as a stream and as a batch, whose answers have to agree.",
        epilog="exit code 1: some answers differ",
    )
    parser.add_argument("queries", nargs="*", choices=[[], *QUERIES], metavar="QUERY", help=", ".join(QUERIES))
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    return parser


async def _fill(folder: Path, count: int, seed: int) -> None:
    await create_hub(folder, "nexmark", partitions=PARTITIONS)
    hub = LocalHub(folder, "nexmark")
    sender = await hub.open_sender()
    for batch in generate(count, seed=seed):
        await sender.send(batch)
    await hub.close()


def _run(spark: SparkSession, folder: Path, name: str, count: int) -> Outcome:
    query, address = QUERIES[name], f"local:{folder}/nexmark"
    CONSOLE.print(f"{name} {query.__name__.replace('_', ' ')} ...")
    started_at = time.perf_counter()
    whole = query(parsed(spark.read.format("eventhubs").option("hub", address).load()))
    batch = _answer(name, whole, count)
    batch_seconds, started_at = time.perf_counter() - started_at, time.perf_counter()
    stream = (
        spark.readStream.format("eventhubs")
        .options(hub=address, startingPosition="earliest", maxEventsPerTrigger=BATCH_EVENTS)
        .load()
    )
    writing = query(parsed(stream)).writeStream.format("parquet").trigger(availableNow=True)
    writing.option("checkpointLocation", f"{folder}/{name}-state").start(f"{folder}/{name}").awaitTermination()
    stream_seconds = time.perf_counter() - started_at
    written = spark.read.schema(whole.schema).parquet(f"{folder}/{name}")
    return Outcome(name, _answer(name, written, count), stream_seconds, batch, batch_seconds)


def _answer(name: str, rows: DataFrame, count: int) -> Answer:
    if name in WINDOWED:
        ended_ms = STARTED_MS + count * 1000 // EVENTS_PER_SECOND + LATER_MS // 2
        rows = rows.where(F.col("start") < F.timestamp_millis(F.lit(ended_ms)))
    hashed = F.sum(F.xxhash64(*rows.columns).cast("decimal(38,0)"))
    (found,) = rows.agg(F.count("*").alias("rows"), hashed.alias("total")).collect()
    return Answer(found["rows"], found["total"])


def _table(outcomes: Sequence[Outcome], count: int) -> Table:
    table = Table("query", "events/s", "of a batch run", "rows", "the same as the batch")
    for one in outcomes:
        table.add_row(
            one.name,
            f"{count / one.stream_seconds:,.0f}",
            f"{one.batch_seconds / one.stream_seconds:.2f}",
            f"{one.stream.rows:,}",
            "yes" if one.is_same else f"no: {one.batch.rows:,} rows",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
