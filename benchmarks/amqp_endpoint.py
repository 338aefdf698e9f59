"""The endpoint: events served and taken in, for each second of CPU of the process that serves.

``hubline serve`` runs by itself; its clients are hubline's own engine in this process, which neither decodes what comes
nor encodes again what goes. Events of 200 bytes over 4 partitions, durable as the local hub makes them. The ratio is
to the local hub read or written without AMQP, by CPU time too. Best of several rounds: the machine is shared.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.harness import Result, benchmark
from benchmarks.local_hub import (
    EVENT_COUNT,
    FOLDER,
    PARTITION_COUNT,
    ROUNDS,
    batches,
    drained,
    fill,
    filled_hub,
    new_hub,
)
from hubline.amqp.codec.performatives import (
    Accepted,
    Attach,
    DeliveryState,
    Error,
    Open,
    Source,
    Target,
)
from hubline.amqp.events.encoder import encode_batches
from hubline.amqp.events.reference_decoder import BATCH_FORMAT
from hubline.amqp.transport.connection import Connection, ConnectionOptions
from hubline.amqp.transport.handshake import ClientHandshake
from hubline.amqp.transport.link import Link, Message
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.hubs.local import LocalHub, create_hub

HUB: Final = "bench"
CREDIT: Final = 50_000
# Events of a message: what fits into the service's 1 MiB.
MESSAGE_EVENTS: Final = 4_000
# Messages of a sender on their way: enough that the server never waits for the client.
MESSAGES_AHEAD: Final = 8
EVENTS_PER_PARTITION: Final = EVENT_COUNT // PARTITION_COUNT


@benchmark("amqp-serve-200b")
def amqp_serve() -> Iterator[Result]:
    """Events from the endpoint to readers."""
    limit = _best(_read_cpu)
    seconds = _best(lambda folder: _server_cpu(folder, _receive_all, is_filled=True))
    yield _result("amqp-serve-200b", seconds, limit, "reading the local hub into Arrow, without AMQP")


@benchmark("amqp-take-in-200b")
def amqp_take_in() -> Iterator[Result]:
    """Events from senders to the endpoint, until they are durable."""
    limit = _best(_append_cpu)
    seconds = _best(lambda folder: _server_cpu(folder, _send_all, is_filled=False))
    yield _result("amqp-take-in-200b", seconds, limit, "appending to the local hub, without AMQP")


def _result(name: str, seconds: float, limit_seconds: float, against: str) -> Result:
    return Result(name, EVENT_COUNT / seconds, "events/CPU-s", limit_seconds / seconds, against)


def _best(measure: Callable[[Path], float]) -> float:
    return min(_in_folder(measure) for _ in range(ROUNDS))


def _in_folder(measure: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as folder:
        return measure(Path(folder))


def _read_cpu(folder: Path) -> float:
    """CPU seconds to read all events without AMQP."""

    async def measured() -> float:
        async with filled_hub(folder, PARTITION_COUNT) as hub:
            started = time.process_time()
            await drained(hub, PARTITION_COUNT)
            return time.process_time() - started

    return asyncio.run(measured())


def _append_cpu(folder: Path) -> float:
    """CPU seconds to append all events without AMQP."""

    async def measured() -> float:
        async with new_hub(folder, PARTITION_COUNT) as hub:
            started = time.process_time()
            await fill(hub, PARTITION_COUNT)
            return time.process_time() - started

    return asyncio.run(measured())


def _server_cpu(folder: Path, work: Callable[[int], Awaitable[None]], *, is_filled: bool) -> float:
    """CPU seconds that the serving process takes for the work."""
    asyncio.run(_prepare(folder, is_filled=is_filled))
    with _serving(folder) as (process_id, port):
        asyncio.run(_warm_up(port, is_filled=is_filled))
        before = _cpu_seconds(process_id)

        async def run() -> None:
            await work(port)

        asyncio.run(run())
        return _cpu_seconds(process_id) - before


async def _prepare(folder: Path, *, is_filled: bool) -> None:
    await create_hub(folder, HUB, partitions=PARTITION_COUNT)
    if not is_filled:
        return
    hub = LocalHub(folder, HUB)
    sender = await hub.open_sender()
    for index in range(PARTITION_COUNT):
        for batch in _messages_events():
            await sender.send(batch, partition=str(index))
    await hub.close()


def _messages_events() -> Iterator[pa.RecordBatch]:
    """The events of one partition, in pieces of the size of a message."""
    piece = pa.concat_batches(batches()[: MESSAGE_EVENTS // 1000])
    for _ in range(EVENTS_PER_PARTITION // MESSAGE_EVENTS):
        yield piece


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[int, int]]:
    """A ``hubline serve``: its process id and its port."""
    command = [sys.executable, "-c", "import sys; from hubline.cli.app import main; sys.exit(main())"]
    command += ["serve", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, json.loads(process.stdout.readline())["port"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _cpu_seconds(process_id: int) -> float:
    """User and system time of a process so far, all its threads together."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class _Counter:
    """A client that counts what happens, as cheaply as can be."""

    expected: int
    count: int = 0

    def __post_init__(self) -> None:
        self.done = asyncio.Event()
        self.room = asyncio.Semaphore(MESSAGES_AHEAD)

    def on_open(self, connection: Connection, remote: Open) -> None: ...

    def on_link(self, link: Link) -> None: ...

    def on_closed(self, connection: Connection, error: Error | None) -> None: ...

    def on_attached(self, link: Link, _attach: Attach) -> None:
        if isinstance(link, ReceiverLink):
            link.grant(CREDIT)

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        self._add(len(deliveries))
        if link.credit < CREDIT // 2:
            link.grant(CREDIT)

    def on_message(self, _link: Link, _message: Message) -> None:
        self._add(1)

    def on_outcome(self, _link: Link, _delivery_id: int, state: DeliveryState | None) -> None:
        assert state == Accepted()
        self.room.release()
        self._add(1)

    def on_detached(self, _link: Link, error: Error | None) -> None:
        assert self.count >= self.expected, error

    def _add(self, count: int) -> None:
        self.count += count
        if self.count >= self.expected:
            self.done.set()


async def _connected(port: int, counter: _Counter) -> Connection:
    connection = Connection(ConnectionOptions("bench"), handshake=ClientHandshake("localhost"), handler=counter)
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    await connection.opened()
    return connection


async def _warm_up(port: int, *, is_filled: bool) -> None:
    """Lets the server load what it loads once."""
    counter = _Counter(CREDIT if is_filled else 0)
    connection = await _connected(port, counter)
    await _receiver(connection, 0, counter).attached()
    if is_filled:
        await counter.done.wait()
    await _sender(connection, 0, counter).attached()
    connection.close()
    await connection.closed()


def _receiver(connection: Connection, partition: int, counter: _Counter) -> ReceiverLink:
    source = Source(f"{HUB}/ConsumerGroups/$Default/Partitions/{partition}")
    return connection.begin().attach_receiver("in", source=source, target=Target("me"), handler=counter)


def _sender(connection: Connection, partition: int, counter: _Counter) -> SenderLink:
    target = Target(f"{HUB}/Partitions/{partition}")
    return connection.begin().attach_sender("out", source=Source("me"), target=target, handler=counter)


async def _receive_all(port: int) -> None:
    async def receive(partition: int) -> None:
        counter = _Counter(EVENTS_PER_PARTITION)
        connection = await _connected(port, counter)
        _receiver(connection, partition, counter)
        await counter.done.wait()
        connection.close()
        await connection.closed()

    await asyncio.gather(*(receive(partition) for partition in range(PARTITION_COUNT)))


async def _send_all(port: int) -> None:
    (payload,) = (batch.payload for batch in encode_batches(next(_messages_events()), max_bytes=1024 * 1024))
    messages_count = EVENTS_PER_PARTITION // MESSAGE_EVENTS

    async def send(partition: int) -> None:
        counter = _Counter(messages_count)
        connection = await _connected(port, counter)
        link = _sender(connection, partition, counter)
        for _ in range(messages_count):
            await counter.room.acquire()
            await link.sendable()
            link.send(payload, message_format=BATCH_FORMAT)
        await counter.done.wait()
        connection.close()
        await connection.closed()

    await asyncio.gather(*(send(partition) for partition in range(PARTITION_COUNT)))
