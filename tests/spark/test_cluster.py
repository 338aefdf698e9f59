"""A standalone cluster, with a master and two workers as real processes, reads and writes hubs as one machine does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from hubline.hubs.local import LocalHub, create_hub
from hubline.model import outgoing
from tests.spark.hubs import TestHub

ROOT = Path(__file__).parents[2]
# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 400

PROGRAM = """
import json, os, sys
import hubline.spark

master, source, target, written, folder = sys.argv[1:]
spark = hubline.spark.session("cluster", master=master, **{
    "spark.ui.enabled": False, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR", "spark.cores.max": 2, "spark.executor.cores": 1, "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_DAEMON_JAVA_OPTS"],
})
frame = spark.readStream.format("eventhubs").options(hub=source, start="earliest", max_events="600").load()
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
    """The address of a cluster of two workers with a core each."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        ports = ["--port", str(port), "--webui-port", "0"]
        stack.enter_context(running(tmp_path, "master", "master.Master", "--host", "127.0.0.1", *ports))
        for number in range(2):
            arguments = ["--cores", "1", "--memory", "700m", "--webui-port", "0", "--host", "127.0.0.1"]
            folder = ["--work-dir", str(tmp_path / f"worker-{number}")]
            stack.enter_context(running(tmp_path, f"worker-{number}", "worker.Worker", *arguments, *folder, address))
        yield address


@contextmanager
def running(folder: Path, name: str, kind: str, *arguments: str) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def fill(root: Path, count: int) -> None:
    await create_hub(root, "source", partitions=4)
    hub = LocalHub(root, "source")
    sender = await hub.open_sender()
    await sender.send(
        outgoing([{"body": f"{n}", "partitionKey": f"k{n % 20}", "properties": {"n": str(n)}} for n in range(count)])
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
