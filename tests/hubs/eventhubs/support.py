"""An endpoint in this process, and a proxy before it that can be cut and stalled."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from hubline.addresses.hub_address import EventHubsAddress, parse_hub
from hubline.emulator import Endpoint, SharedKey
from hubline.hubs.eventhubs import EventHubsHub
from hubline.hubs.local import LocalHub, create_hub
from hubline.ports import Hub
from hubline.secrets import Secret
from hubline.testing.contracts.hub import HubFactory

GROUP = "$Default"
# Far longer than anything takes: a slow machine fails no test.
ARRIVAL_SECONDS = 30.0
KEY = SharedKey("root", Secret("c2VjcmV0LWtleS1mb3ItdGVzdHM="))


class Folder:
    """The hubs of a folder, as an endpoint wants them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, LocalHub] = {}

    async def find(self, name: str) -> Hub | None:
        if not (self._root / name).is_dir():
            return None
        return self._open.setdefault(name, LocalHub(self._root, name))

    async def close(self) -> None:
        for hub in self._open.values():
            await hub.close()


@asynccontextmanager
async def serving(
    root: Path, *, port: int = 0, key: SharedKey | None = KEY, clock: Callable[[], float] = time.time
) -> AsyncIterator[int]:
    """An endpoint for the hubs of a folder; gives its port."""
    folder = Folder(root)
    endpoint = Endpoint(folder, key=key, clock=clock)
    try:
        yield await endpoint.start(port=port)
    finally:
        await endpoint.stop()
        await folder.close()


class EndpointHubFactory(HubFactory):
    """Hubs for the contract suites, each with an endpoint of its own."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def client(self, at: EventHubsAddress) -> Hub:
        """The adapter that is held to the contract."""
        raise NotImplementedError

    async def create_hub(self, partition_count: int) -> Hub:
        raise NotImplementedError  # an endpoint goes with every hub: see hub()

    @asynccontextmanager
    async def hub(self, partition_count: int) -> AsyncIterator[Hub]:
        name = await new_hub(self.root, partition_count)
        async with serving(self.root) as port:
            hub = self.client(address(port, name))
            try:
                yield hub
            finally:
                await hub.close()


def connection_string(port: int, name: str, *, key: str = KEY.secret.reveal(), more: str = "") -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName={KEY.name};SharedAccessKey={key};EntityPath={name};"
        f"UseDevelopmentEmulator=true{more}"
    )


def address(port: int, name: str, *, key: str = KEY.secret.reveal()) -> EventHubsAddress:
    parsed = parse_hub(connection_string(port, name, key=key))
    assert isinstance(parsed, EventHubsAddress)
    return parsed


async def new_hub(root: Path, partition_count: int = 1) -> str:
    name = f"hub-{secrets.token_hex(4)}"
    await create_hub(root, name, partitions=partition_count)
    return name


@asynccontextmanager
async def connected(port: int, name: str) -> AsyncIterator[EventHubsHub]:
    hub = EventHubsHub(address(port, name))
    try:
        yield hub
    finally:
        await hub.close()


class Proxy:
    """Carries bytes to a port, until it is stalled, cut or stopped."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections_count = 0
        self.bytes_count = 0
        """Carried from the target."""

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Ends all connections, as a broken network does: without a word."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Keeps the connections, and carries nothing any more."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_count += 1
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target_writer}
        for source, sink, counts in ((reader, target_writer, False), (target_reader, writer, True)):
            task = asyncio.create_task(self._carry(source, sink, counts=counts))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._flowing.wait()
                self.bytes_count += len(data) if counts else 0
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy before a port, and its own port."""
    proxy = Proxy(port)
    try:
        yield proxy, await proxy.start()
    finally:
        await proxy.stop()
