"""Two ends of AMQP over a real socket, in one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hubline.amqp.codec.performatives import RECEIVER, Accepted, Attach, DeliveryState, Error, Open, Source, Target
from hubline.amqp.transport.connection import Connection, ConnectionOptions
from hubline.amqp.transport.handshake import ClientHandshake, ServerHandshake
from hubline.amqp.transport.link import Link, Message
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.transfer_runs import Deliveries

MESSAGE_BYTES_MAX = 1024 * 1024
PATIENCE_SECONDS = 20


@dataclass
class Recorder:
    """A handler of connections and links that notes what happens, takes every link, and accepts every message."""

    credit: int = 100
    tops_up: bool = True
    refuses: Error | None = None
    links: list[Link] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    bulks: list[int] = field(default_factory=list)
    formats: list[int] = field(default_factory=list)
    outcomes: list[tuple[int, DeliveryState | None]] = field(default_factory=list)
    detached: list[Error | None] = field(default_factory=list)
    closed: list[Error | None] = field(default_factory=list)
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def on_open(self, connection: Connection, remote: Open) -> None: ...

    def on_link(self, link: Link) -> None:
        if self.refuses is not None:
            link.refuse(self.refuses)
            return
        remote = link.remote
        assert remote is not None
        link.accept(
            Attach(
                link.name,
                link.handle,
                link.role,
                source=remote.source,
                target=remote.target,
                initial_delivery_count=None if link.role is RECEIVER else 0,
                max_message_size=MESSAGE_BYTES_MAX,
            ),
            self,
        )

    def on_attached(self, link: Link, attach: Attach) -> None:
        self.links.append(link)
        if isinstance(link, ReceiverLink):
            link.grant(self.credit)
        self._note()

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        self.bulks.append(len(deliveries))
        data = deliveries.data.tobytes()
        spans = zip(deliveries.starts.tolist(), deliveries.ends.tolist(), strict=True)
        self.received.extend(data[start:end] for start, end in spans)
        self._top_up(link)
        self._note()

    def on_message(self, link: ReceiverLink, message: Message) -> None:
        self.received.append(bytes(message.payload))
        self.formats.append(message.message_format)
        if not message.is_settled:
            link.settle(message.delivery_id, message.delivery_id, Accepted())
        self._top_up(link)
        self._note()

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:
        self.outcomes.append((delivery_id, state))
        self._note()

    def on_detached(self, link: Link, error: Error | None) -> None:
        self.detached.append(error)
        self._note()

    def on_closed(self, connection: Connection, error: Error | None) -> None:
        self.closed.append(error)
        self._note()

    def _top_up(self, link: ReceiverLink) -> None:
        if self.tops_up:
            link.grant(self.credit)

    async def until_received(self, count: int) -> None:
        await self._until(lambda: len(self.received) >= count)

    async def until_outcomes(self, count: int) -> None:
        await self._until(lambda: len(self.outcomes) >= count)

    async def until_detached(self) -> Error | None:
        await self._until(lambda: bool(self.detached))
        return self.detached[0]

    async def until_closed(self) -> Error | None:
        await self._until(lambda: bool(self.closed))
        return self.closed[0]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await self.happened.wait()

    def _note(self) -> None:
        self.happened.set()
        self.happened.clear()


def options(name: str, **changes: Any) -> ConnectionOptions:
    return ConnectionOptions(name, **changes)


@asynccontextmanager
async def connected(
    client: Recorder,
    server: Recorder,
    *,
    client_options: ConnectionOptions | None = None,
    server_options: ConnectionOptions | None = None,
) -> AsyncIterator[tuple[Connection, Connection]]:
    """A client's and a server's connection, open; closed at the end."""
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    ours = Connection(client_options or options("client"), handshake=ClientHandshake("host"), handler=client)
    theirs = Connection(
        server_options or options("server"), handshake=ServerHandshake(lambda _name, _password: False), handler=server
    )
    await loop.connect_accepted_socket(lambda: theirs, far)
    await loop.create_connection(lambda: ours, sock=near)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ours.opened()
            await theirs.opened()
        yield ours, theirs
    finally:
        ours.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ours.closed()
            await theirs.closed()


@asynccontextmanager
async def stranger(server: Recorder, **changes: Any) -> AsyncIterator[tuple[socket.socket, Connection]]:
    """A bare socket whose other end is a server's connection."""
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    near.setblocking(False)
    theirs = Connection(
        options("server", **changes), handshake=ServerHandshake(lambda _name, _password: False), handler=server
    )
    await loop.connect_accepted_socket(lambda: theirs, far)
    try:
        yield near, theirs
    finally:
        near.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await theirs.closed()


async def everything(sock: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    loop = asyncio.get_running_loop()
    data = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while part := await loop.sock_recv(sock, 65536):
            data += part
    return data


def sender_of(connection: Connection, handler: Recorder, name: str = "out") -> SenderLink:
    return connection.begin().attach_sender(name, source=Source("here"), target=Target("there"), handler=handler)


def receiver_of(connection: Connection, handler: Recorder, name: str = "in") -> ReceiverLink:
    return connection.begin().attach_receiver(name, source=Source("there"), target=Target("here"), handler=handler)


async def until(condition: Callable[[], bool]) -> None:
    """Waits, a turn of the event loop at a time."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
