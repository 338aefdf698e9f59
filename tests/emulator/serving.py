"""``hubline serve`` as a real process, and an endpoint in this one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubline.amqp.codec.performatives import RECEIVER, Attach, Source, Target
from hubline.amqp.codec.types import Described, Symbol
from hubline.amqp.transport.connection import Connection, ConnectionOptions
from hubline.amqp.transport.handshake import ClientHandshake
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.emulator import Endpoint, SharedKey
from hubline.hubs.local import LocalHub, create_hub
from hubline.ports import Hub
from hubline.secrets import Secret
from tests.amqp.connections import Recorder

HUBLINE = (sys.executable, "-c", "import sys; from hubline.cli.app import main; sys.exit(main())")
# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 60
KEY_NAME = "root"
KEY = "c2VjcmV0IGtleQ=="
SHARED_KEY = SharedKey(KEY_NAME, Secret(KEY))


@dataclass(frozen=True)
class Server:
    """A running ``hubline serve``."""

    data: Path
    port: int
    process: subprocess.Popen[str]
    announced: str
    """The connection string that it printed for its first hub."""

    def connection_string(self, hub: str, *, key: str = KEY) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={key};"
            f"EntityPath={hub};UseDevelopmentEmulator=true"
        )

    def create(self, hub: str, partitions: int = 4) -> str:
        """Creates a hub beside the running server; returns its connection string."""
        asyncio.run(create_hub(self.data, hub, partitions=partitions))
        return self.connection_string(hub)

    def stop(self) -> int:
        """Asks it to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def serving(data: Path, *args: str, key: str | None = KEY) -> Iterator[Server]:
    """A server on a free port. It does not outlive the test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HUBLINE_")}
    if key is not None:
        environment["HUBLINE_SERVE_KEY"] = key
    command = [*HUBLINE, "serve", str(data), "--port", "0", "--json", "--key-name", KEY_NAME, *args]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        announced: dict[str, Any] = json.loads(process.stdout.readline())
        yield Server(data, announced["port"], process, announced["hubs"][0]["connectionString"])
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


class FewHubs:
    """A directory of the hubs it is given."""

    def __init__(self, *hubs: Hub) -> None:
        self._hubs = {hub.name: hub for hub in hubs}

    async def find(self, name: str) -> Hub | None:
        return self._hubs.get(name)


@asynccontextmanager
async def local_hub(root: Path, name: str = "telemetry", partitions: int = 4) -> AsyncIterator[LocalHub]:
    await create_hub(root, name, partitions=partitions, exist_ok=True)
    hub = LocalHub(root, name)
    try:
        yield hub
    finally:
        await hub.close()


@asynccontextmanager
async def endpoint(*hubs: Hub, **settings: Any) -> AsyncIterator[tuple[Endpoint, int]]:
    """An endpoint in this event loop, and its port."""
    served = Endpoint(FewHubs(*hubs), **settings)
    port = await served.start()
    try:
        yield served, port
    finally:
        await served.stop()


@dataclass
class Client:
    """A client made of hubline's own engine, to say things that the SDKs do not."""

    connection: Connection
    recorder: Recorder = field(default_factory=Recorder)

    def receiver(
        self,
        address: str = "telemetry/ConsumerGroups/$Default/Partitions/0",
        *,
        name: str = "in",
        credit: int = 100,
        selector: str | None = "amqp.annotation.x-opt-offset > '-1'",
        epoch: int | None = None,
        capabilities: tuple[str, ...] | None = None,
    ) -> tuple[ReceiverLink, Recorder]:
        handler = Recorder(credit=credit)
        filters: dict[object, object] | None = None
        if selector is not None:
            label = Symbol("apache.org:selector-filter:string")
            filters = {label: Described(label, selector)}
        details = Attach(
            name,
            0,
            RECEIVER,
            desired_capabilities=capabilities,
            properties=None if epoch is None else {Symbol("com.microsoft:epoch"): epoch},
        )
        link = self.connection.begin().attach_receiver(
            name,
            source=Source(address, filter=filters),
            target=Target("me"),
            handler=handler,
            details=details,
        )
        return link, handler

    def sender(self, address: str = "telemetry/Partitions/0", *, name: str = "out") -> tuple[SenderLink, Recorder]:
        handler = Recorder()
        link = self.connection.begin().attach_sender(name, source=Source("me"), target=Target(address), handler=handler)
        return link, handler


@asynccontextmanager
async def client(port: int) -> AsyncIterator[Client]:
    recorder = Recorder()
    connection = Connection(ConnectionOptions("test"), handshake=ClientHandshake("localhost"), handler=recorder)
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connection.opened()
        yield Client(connection, recorder)
    finally:
        connection.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connection.closed()
