"""Small queries, for the classes that Java loads for them.

What most queries need: a hub is read, JSON is parsed, rows are written by tasks, and counted by key.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql.streaming.readwriter import DataStreamWriter

from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from hubline.spark.json_parsing import parse_json
from hubline.spark.sessions.session import session
from hubline.spark.sql_sink.sink import SqlBatchWriter

_PARTITIONS: Final = ("0", "1")
_BODIES: Final = ('{"device": "d1", "celsius": 21.5}', "{")


def rehearse(folder: Path) -> None:
    """Returns when Java has ended, which is when it writes the classes that it had."""
    asyncio.run(_fill(folder))
    spark = session("rehearsal", master="local[2]")
    events = spark.readStream.format("eventhubs").options(hub=f"local:{folder}/hub", startingPosition="earliest").load()
    rows = parse_json(events, "device string, celsius double")
    sink = SqlBatchWriter(f"sqlite:///{folder}/rows.db", table="rows", create_table=True)
    _drain(sink.write_stream(rows, checkpoint_location=str(folder / "rows")))
    counts = rows.groupBy("device").count().writeStream.format("noop").outputMode("update")
    _drain(counts.option("checkpointLocation", str(folder / "counts")))
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _drain(writing: DataStreamWriter) -> None:
    writing.trigger(availableNow=True).start().awaitTermination()


async def _fill(folder: Path) -> None:
    await create_hub(folder, "hub", partitions=len(_PARTITIONS))
    hub = LocalHub(folder, "hub")
    sender = await hub.open_sender()
    for partition in _PARTITIONS:
        await sender.send(new_events(_BODIES), partition=partition)
    await hub.close()
