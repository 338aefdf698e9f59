"""A standalone cluster, with a master and two workers as real processes, reads and writes hubs as one machine does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import new_events
from tests.spark.hubs import TestHub
from tests.support.cluster import PATIENCE_SECONDS, cluster

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, sys
import hubline.spark

master, source, target, written, folder = sys.argv[1:]
spark = hubline.spark.session("cluster", master=master, **{
    "spark.ui.enabled": False, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR", "spark.cores.max": 2, "spark.executor.cores": 1, "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_DAEMON_JAVA_OPTS"],
})
reader = spark.readStream.format("eventhubs").option("hub", source)
frame = reader.options(startingPosition="earliest", maxEventsPerTrigger="600").load()
query = (
    frame.selectExpr("body", "partition as partitionId", "properties").writeStream.format("eventhubs")
    .options(hub=target, checkpointLocation=folder).trigger(availableNow=True).start()
)
query.awaitTermination()
# Where tasks ran: each executor has a folder of its own.
batch = spark.read.format("eventhubs").option("hub", source).load()
copied = batch.selectExpr("body", "partition as partitionId", "properties").write.format("eventhubs")
copied.option("hub", written).mode("append").save()
executors = set(batch.rdd.map(lambda _row: os.getcwd()).collect())
print(json.dumps({"batches": len(query.recentProgress), "executors": len(executors)}))
spark.stop()
"""

pytestmark = [pytest.mark.kills, pytest.mark.timeout(2 * PATIENCE_SECONDS)]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with cluster(tmp_path) as address:
        yield address


async def fill(root: Path, count: int) -> None:
    await create_hub(root, "source", partitions=4)
    hub = LocalHub(root, "source")
    sender = await hub.open_sender()
    await sender.send(
        new_events([{"body": f"{n}", "partitionKey": f"k{n % 20}", "properties": {"n": str(n)}} for n in range(count)])
    )
    await hub.close()


def test_a_cluster_copies_a_hub_event_by_event(master: str, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path, 2_000))
    source = TestHub(f"local:{tmp_path}/source", tmp_path, "source")
    streamed, written = TestHub.local(tmp_path, "streamed"), TestHub.local(tmp_path, "written")
    addresses = [source.address, streamed.address, written.address]

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, master, *addresses, str(tmp_path / "checkpoint")],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr[-3_000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["executors"] == 2
    assert said["batches"] >= 4
    for target in (streamed, written):
        for partition, events in source.events().items():
            copied = target.events()[partition]
            assert [event.body for event in copied] == [event.body for event in events]
            assert [event.properties["n"] for event in copied] == [event.properties["n"] for event in events]
