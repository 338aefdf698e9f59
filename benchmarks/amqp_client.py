"""Event Hubs over AMQP: hubline's client beside azure-eventhub, on the same endpoint, in the same run.

The endpoint is ``hubline serve`` in a process of its own. What counts is what the client costs: events for each second
of CPU time of its process. With a delay on the network it is the wall that counts, since then the client waits.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import Result, benchmark
from hubline.addresses.hub_address import EventHubsAddress, parse_hub
from hubline.hubs.eventhubs import EventHubsHub
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import OUTGOING_SCHEMA
from hubline.model.positions import Position

HUB: Final = "bench"
BATCH_COUNT: Final = 1_000
# Enough for some seconds of each: the SDK is far slower.
OWN_COUNT: Final = 400_000
SDK_COUNT: Final = 40_000
OWN_SEND_COUNT: Final = 200_000
SDK_SEND_COUNT: Final = 20_000
DELAY_SECONDS: Final = 0.03
DELAYED_SDK_COUNT: Final = 15_000
ROUNDS: Final = 3
# Not the system's choice, which may be memory: the point is a hub as people have it.
FOLDER: Final = "/var/tmp"  # noqa: S108
SERVE: Final = (sys.executable, "-c", "import sys; from hubline.cli.app import main; sys.exit(main())", "serve")
AGAINST_RECEIVE: Final = "azure-eventhub receive_batch, same endpoint"
AGAINST_SEND: Final = "azure-eventhub send_batch, same endpoint"


@dataclass(frozen=True, slots=True)
class Load:
    """What the events of a hub look like, and how many each client reads."""

    event_bytes: int
    own_count: int
    has_properties: bool = False


SMALL: Final = Load(200, OWN_COUNT)
LARGE: Final = Load(1024, OWN_COUNT)
WITH_PROPERTIES: Final = Load(200, OWN_COUNT, has_properties=True)


@benchmark("amqp-receive-200b")
def receive_200b() -> Iterator[Result]:
    """Receiving events of 200 bytes."""
    yield _receiving("amqp-receive-200b", SMALL)


@benchmark("amqp-receive-1k")
def receive_1k() -> Iterator[Result]:
    """Receiving events of 1 KiB."""
    yield _receiving("amqp-receive-1k", LARGE)


@benchmark("amqp-receive-properties")
def receive_properties() -> Iterator[Result]:
    """Receiving events with a key and three properties."""
    yield _receiving("amqp-receive-properties", WITH_PROPERTIES)


@benchmark("amqp-send-200b")
def send_200b() -> Iterator[Result]:
    """Sending events of 200 bytes, in batches."""
    with served(Load(200, BATCH_COUNT)) as connection_string:
        own, sdk = best(
            Work(lambda: asyncio.run(send(connection_string, OWN_SEND_COUNT)), OWN_SEND_COUNT),
            Work(lambda: send_by_sdk(connection_string, SDK_SEND_COUNT), SDK_SEND_COUNT),
        )
    yield Result("amqp-send-200b", own, "events/CPU-s", own / sdk, AGAINST_SEND)


@benchmark("amqp-receive-delay")
def receive_delay() -> Iterator[Result]:
    """Receiving events of 200 bytes over a network with 30 ms of delay each way: wall time."""
    with served(SMALL) as direct, delayed(direct) as connection_string:
        own, sdk = best(
            Work(lambda: asyncio.run(receive(connection_string, OWN_COUNT)), OWN_COUNT),
            Work(lambda: receive_by_sdk(connection_string, DELAYED_SDK_COUNT), DELAYED_SDK_COUNT),
            clock=time.perf_counter,
            rounds=1,
        )
    yield Result("amqp-receive-delay", own, "events/s", own / sdk, f"{AGAINST_RECEIVE}, default prefetch")


def _receiving(name: str, load: Load) -> Result:
    with served(load) as connection_string:
        own, sdk = best(
            Work(lambda: asyncio.run(receive(connection_string, load.own_count)), load.own_count),
            Work(lambda: receive_by_sdk(connection_string, SDK_COUNT), SDK_COUNT),
        )
    return Result(name, own, "events/CPU-s", own / sdk, AGAINST_RECEIVE)


@dataclass(frozen=True, slots=True)
class Work:
    """Something to be measured, and how many events it moves."""

    run: Callable[[], None]
    count: int


def best(own: Work, sdk: Work, *, clock: Callable[[], float] = time.process_time, rounds: int = ROUNDS) -> list[float]:
    """Events a second of each, in its best round. They take turns: the machine is shared, and never the same."""
    rates: dict[Work, float] = {own: 0.0, sdk: 0.0}
    for _ in range(rounds):
        for work in rates:
            start = clock()
            work.run()
            rates[work] = max(rates[work], work.count / (clock() - start))
    return list(rates.values())


# The clients


async def receive(connection_string: str, count: int) -> None:
    async with connected(connection_string) as hub:
        receiver = await hub.open_receiver("0", group="$Default", position=Position.earliest())
        while count > 0:
            count -= len(await receiver.receive(max_count=count, wait_seconds=10))
        await receiver.close()


def receive_by_sdk(connection_string: str, count: int) -> None:
    from azure.eventhub import EventHubConsumerClient

    received = 0
    done = threading.Event()

    def take(_context: Any, events: list[Any]) -> None:
        nonlocal received
        received += len(events)
        if received >= count:
            done.set()

    client = EventHubConsumerClient.from_connection_string(connection_string, "$Default")
    reading = threading.Thread(
        target=client.receive_batch,
        kwargs={"on_event_batch": take, "partition_id": "0", "starting_position": "-1"},
    )
    reading.start()
    done.wait()
    client.close()
    reading.join()


async def send(connection_string: str, count: int) -> None:
    supply = batches(Load(200, BATCH_COUNT))
    async with connected(connection_string) as hub:
        sender = await hub.open_sender()
        for number in range(count // BATCH_COUNT):
            await sender.send(supply[number % len(supply)], partition="0")


def send_by_sdk(connection_string: str, count: int) -> None:
    from azure.eventhub import EventData, EventHubProducerClient

    bodies = [batch.column("body").to_pylist() for batch in batches(Load(200, BATCH_COUNT))]
    with EventHubProducerClient.from_connection_string(connection_string) as client:
        for number in range(count // BATCH_COUNT):
            batch = client.create_batch(partition_id="0")
            for body in bodies[number % len(bodies)]:
                batch.add(EventData(body))
            client.send_batch(batch)


@asynccontextmanager
async def connected(connection_string: str) -> AsyncIterator[EventHubsHub]:
    address = parse_hub(connection_string)
    assert isinstance(address, EventHubsAddress)
    hub = EventHubsHub(address)
    try:
        yield hub
    finally:
        await hub.close()


# The endpoint


@contextmanager
def served(load: Load) -> Iterator[str]:
    """A hub of one partition with the events in it, served by a process of its own; gives its connection string."""
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as folder:
        asyncio.run(_fill(Path(folder), load))
        with serving(Path(folder)) as connection_string:
            yield connection_string


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The hubs of a folder, served by a process of its own; gives the connection string of the one."""
    server = subprocess.Popen([*SERVE, str(folder), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    try:
        yield _with_hub(server.stdout.readline().decode())
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def _with_hub(line: str) -> str:
    """The connection string that the endpoint prints, with the hub's name."""
    start = line.index("Endpoint=")
    parts = [part for part in line[start:].strip().split(";") if part and not part.startswith("EntityPath=")]
    return ";".join([*parts, f"EntityPath={HUB}"])


async def _fill(folder: Path, load: Load) -> None:
    await create_hub(folder, HUB, partitions=1)
    hub = LocalHub(folder, HUB)
    sender = await hub.open_sender()
    supply = batches(load)
    for number in range(max(load.own_count, SDK_COUNT) // BATCH_COUNT):
        await sender.send(supply[number % len(supply)], partition="0")
    await hub.close()


def batches(load: Load) -> list[pa.RecordBatch]:
    """Some batches of random bodies, to be sent over and over."""
    return [_batch(load, seed) for seed in range(4)]


def _batch(load: Load, seed: int) -> pa.RecordBatch:
    data = np.random.default_rng(seed).bytes(load.event_bytes * BATCH_COUNT)
    bodies = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(load.event_bytes), BATCH_COUNT, [None, pa.py_buffer(data)]
    ).cast(pa.binary())
    columns = [bodies, *(pa.nulls(BATCH_COUNT, field.type) for field in list(OUTGOING_SCHEMA)[1:])]
    if load.has_properties:
        keys = [f"device-{number % 100}" for number in range(BATCH_COUNT)]
        pairs = [
            [("kind", "reading"), ("site", f"site {number % 7}"), ("unit", "celsius")] for number in range(BATCH_COUNT)
        ]
        columns[1:] = [
            pa.array(keys, OUTGOING_SCHEMA.field("partitionKey").type),
            pa.array(pairs, OUTGOING_SCHEMA.field("properties").type),
        ]
    return pa.RecordBatch.from_arrays(columns, schema=OUTGOING_SCHEMA)


# The delay


@contextmanager
def delayed(connection_string: str) -> Iterator[str]:
    """The same endpoint behind a proxy, in a process of its own, that holds everything back for a while."""
    address = parse_hub(connection_string)
    assert isinstance(address, EventHubsAddress)
    proxy = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.amqp_delay", str(address.port), str(DELAY_SECONDS)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
    )
    try:
        assert proxy.stdout is not None
        port = int(proxy.stdout.readline())
        yield connection_string.replace(f":{address.port}", f":{port}")
    finally:
        proxy.terminate()
        proxy.wait()
        if proxy.stdout is not None:
            proxy.stdout.close()
