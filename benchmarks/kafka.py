"""A Kafka broker and confluent-kafka's consumer, to measure beside: both are fetched by their packages.

The broker comes from Maven (`mvn` and Java must be there) and is kept in the folder for temporary files. The consumer
runs in a process of its own: ``python -m benchmarks.kafka``, by this Python, or by the one that the variable
``HUBLINE_BENCH_KAFKA_PYTHON`` names, if confluent-kafka is installed there alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = "4.0.0"
TOPIC: Final = "bench"
CONSUME_COUNT: Final = 500
START_SECONDS_MAX: Final = 60.0
PYTHON: Final = os.environ.get("HUBLINE_BENCH_KAFKA_PYTHON", sys.executable)

_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""


class KafkaMissing(Exception):
    """Why there is nothing to measure beside."""


class Kafka:
    """A broker with one topic of one partition.

    Attributes:
        address: Its host and port.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def fill(self, count: int, *, has_properties: bool) -> None:
        """Sends the events of `benchmarks.amqp_client.batches`, key and headers included."""
        self._call("fill", count, has_properties=has_properties)

    def cpu_seconds(self, count: int, *, reads_all: bool) -> float:
        """What it takes the consumer to get so many messages by `consume`, and to read key and headers of each."""
        return float(self._call("consume", count, has_properties=reads_all))

    def _call(self, what: str, count: int, *, has_properties: bool) -> str:
        command = [PYTHON, "-m", "benchmarks.kafka", what, self.address, str(count), str(int(has_properties))]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def broker() -> Iterator[Kafka]:
    """Raises KafkaMissing where it, or the consumer, cannot be had."""
    if subprocess.run([PYTHON, "-c", "import confluent_kafka"], capture_output=True, check=False).returncode:
        raise KafkaMissing(f"confluent-kafka is not installed for {PYTHON}")
    jars = _jars()
    with tempfile.TemporaryDirectory(prefix="hubline-kafka-", dir="/var/tmp") as folder:
        port, controller = _free_port(), _free_port()
        settings = Path(folder) / "server.properties"
        settings.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            f"log.dirs={folder}/logs\nnum.partitions=1\noffsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        )
        java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
        subprocess.run(formatting, check=True, capture_output=True)
        server = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for(port)
            yield Kafka(f"127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()


def _jars() -> Path:
    folder = Path(tempfile.gettempdir()) / f"hubline-bench-kafka-{VERSION}"
    jars = folder / "lib"
    if jars.exists():
        return jars
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise KafkaMissing("mvn and java are needed to fetch and run a Kafka broker")
    folder.mkdir(exist_ok=True)
    (folder / "pom.xml").write_text(_POM)
    fetched = subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/new"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    if fetched.returncode:
        raise KafkaMissing("mvn could not fetch the Kafka broker")
    (folder / "new").rename(jars)
    return jars


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise KafkaMissing(f"the Kafka broker did not start within {START_SECONDS_MAX:g} s")


# In the process of the consumer


def _fill(address: str, count: int, *, has_properties: bool) -> None:
    from confluent_kafka import Producer  # type: ignore[import-not-found]

    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    headers = [("kind", b"reading"), ("site", b"site 3"), ("unit", b"celsius")]
    bodies = [os.urandom(200) for _ in range(1_000)]
    for number in range(count):
        if has_properties:
            producer.produce(TOPIC, bodies[number % 1_000], key=f"device-{number % 100}", headers=headers)
        else:
            producer.produce(TOPIC, bodies[number % 1_000])
    producer.flush()


def _consume(address: str, count: int, *, reads_all: bool) -> float:
    from confluent_kafka import Consumer

    begun_at = time.process_time()
    consumer = Consumer({"bootstrap.servers": address, "group.id": str(os.getpid()), "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    while count > 0:
        messages = consumer.consume(CONSUME_COUNT, timeout=10)
        if reads_all:
            for message in messages:
                _look(message.value(), message.key(), message.headers())
        count -= len(messages)
    consumer.close()
    return time.process_time() - begun_at


def _look(*values: object) -> None:
    """What is done with a message."""


if __name__ == "__main__":
    _, what, address, count, flag = sys.argv
    if what == "fill":
        _fill(address, int(count), has_properties=flag == "1")
    else:
        print(_consume(address, int(count), reads_all=flag == "1"))
