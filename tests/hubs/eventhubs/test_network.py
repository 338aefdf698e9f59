"""Connections: through proxies, inside of WebSockets, and errors that say what to do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from hubline.addresses.hub_address import EventHubsAddress, Transport, parse_hub
from hubline.amqp.transport.websocket import PATH, SUBPROTOCOL
from hubline.errors import ConfigError, HubUnavailable
from hubline.hubs.eventhubs import network
from hubline.hubs.eventhubs.network import Endpoint, Proxy, connect, proxy_for

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Collected(asyncio.Protocol):
    """What a connection has received, and its end."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()

    async def until(self, length: int) -> bytes:
        while len(self.data) < length:
            self._changed.clear()
            await self._changed.wait()
        return bytes(self.data)


class CollectedIntoBuffer(asyncio.BufferedProtocol):
    """The same, for a protocol that has a small buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(7)
        self.data = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(handle(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


# Proxies


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"http": "http://proxy:1"}, None),
        ({"https": "http://proxy:3128"}, Proxy("proxy", 3128)),
        ({"https": "proxy"}, Proxy("proxy", 8080)),
        ({"https": "http://me:s%40y@proxy:1"}, Proxy("proxy", 1, "Basic bWU6c0B5")),
        ({"https": "http://proxy:1", "no": "other,ns.servicebus.windows.net"}, None),
        ({"https": "http://proxy:1", "no": ".windows.net"}, None),
        ({"https": "http://proxy:1", "no": "*"}, None),
        ({"https": "http://proxy:1", "no": "windows.com"}, Proxy("proxy", 1)),
    ],
)
def test_proxies_are_chosen_as_the_environment_says(settings: dict[str, str], expected: Proxy | None) -> None:
    assert proxy_for(Endpoint("ns.servicebus.windows.net", 5671), proxies=lambda: settings) == expected


def test_plain_connections_use_no_proxy() -> None:
    assert proxy_for(Endpoint("localhost", 5672, is_plain=True), proxies=lambda: {"https": "http://proxy:1"}) is None


@pytest.mark.parametrize("url", ["socks5://proxy:1", "https://proxy:1", "http://"])
def test_other_kinds_of_proxies_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        proxy_for(Endpoint("ns", 5671), proxies=lambda: {"https": url})


def test_a_proxys_password_is_not_shown() -> None:
    assert "bWU6" not in repr(Proxy("proxy", 1, "Basic bWU6c0B5"))


def test_what_a_proxy_connects_carries_bytes_both_ways() -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await echo(reader, writer)

    async def check() -> None:
        async with serving(proxy) as port:
            connected = await network._through_proxy(Proxy("127.0.0.1", port, "Basic eA=="), Endpoint("far.away", 5671))
            transport, collected = await asyncio.get_running_loop().create_connection(Collected, sock=connected)
            transport.write(b"hello")
            assert await collected.until(5) == b"hello"
            transport.close()
            await collected.ended.wait()

    asyncio.run(check())
    assert asked == [
        b"CONNECT far.away:5671 HTTP/1.1\r\nHost: far.away:5671\r\nProxy-Authorization: Basic eA==\r\n\r\n"
    ]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"", b"nonsense\r\n\r\n"])
def test_a_proxy_that_refuses_is_quoted(answer: bytes) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def check() -> None:
        async with serving(proxy) as port:
            with pytest.raises(HubUnavailable, match=f"proxy 127.0.0.1:{port} does not connect to far.away:5671"):
                await network._through_proxy(Proxy("127.0.0.1", port), Endpoint("far.away", 5671))

    asyncio.run(check())


def test_a_proxy_that_is_not_there_is_named() -> None:
    async def check() -> None:
        async with serving(echo) as port:
            pass
        with pytest.raises(HubUnavailable, match=f"proxy 127.0.0.1:{port}, which HTTPS_PROXY names"):
            await network._through_proxy(Proxy("127.0.0.1", port), Endpoint("far.away", 5671))

    asyncio.run(check())


def test_a_place_where_nobody_listens_is_named() -> None:
    async def check() -> None:
        async with serving(echo) as port:
            pass
        with pytest.raises(HubUnavailable, match=f"127.0.0.1:{port} cannot be reached"):
            await connect(Endpoint("127.0.0.1", port, is_plain=True), Collected())

    asyncio.run(check())


# WebSockets


def test_websockets_use_the_port_of_https_unless_another_is_given() -> None:
    def endpoint(text: str) -> Endpoint:
        address = parse_hub(text)
        assert isinstance(address, EventHubsAddress)
        return Endpoint.of(address, Transport.WEBSOCKET)

    assert endpoint("eventhubs://ns/orders") == Endpoint("ns.servicebus.windows.net", 443, is_websocket=True)
    assert endpoint("eventhubs://ns:8443/orders").port == 8443


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, protocol: str = SUBPROTOCOL) -> None:
    request = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert request.startswith(f"GET {PATH} HTTP/1.1\r\n")
    (key,) = [line.split(": ")[1] for line in request.split("\r\n") if line.startswith("Sec-WebSocket-Key")]
    digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()  # noqa: S324
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: " + base64.b64encode(digest) + b"\r\n"
        b"Sec-WebSocket-Protocol: " + protocol.encode() + b"\r\n\r\n"
    )


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """A client's frame, unmasked."""
    first, length = await reader.readexactly(2)
    assert first & 0x80
    assert length & 0x80, "clients have to mask"
    length &= 0x7F
    if length == 126:
        (length,) = struct.unpack(">H", await reader.readexactly(2))
    elif length == 127:
        (length,) = struct.unpack(">Q", await reader.readexactly(8))
    mask = await reader.readexactly(4)
    payload = await reader.readexactly(length)
    return first & 0x0F, bytes(octet ^ mask[place % 4] for place, octet in enumerate(payload))


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    length = len(payload)
    if length < 126:
        head = struct.pack(">BB", final << 7 | opcode, length)
    elif length < 65536:
        head = struct.pack(">BBH", final << 7 | opcode, 126, length)
    else:
        head = struct.pack(">BBQ", final << 7 | opcode, 127, length)
    return head + payload


def plain(port: int) -> Endpoint:
    return Endpoint("127.0.0.1", port, is_plain=True, is_websocket=True)


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 200_000])
def test_bytes_of_every_length_cross_a_websocket(length: int) -> None:
    payload = bytes(range(256)) * (length // 256 + 1)
    payload = payload[:length]

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        opcode, received = await read_frame(reader)
        writer.write(frame(opcode, received))
        await reader.read()

    async def check() -> None:
        async with serving(server) as port:
            transport, collected = await connect(plain(port), Collected())
            transport.write(payload)
            assert await collected.until(length) == payload
            transport.close()

    asyncio.run(check())


def test_frames_in_pieces_of_any_size_are_one_stream() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        pieces = (
            frame(2, b"ab", final=False)
            + frame(9, b"?")
            + frame(0, b"", final=False)
            + frame(0, b"c" * 300)
            + frame(10, b"")
        )
        for octet in pieces:
            writer.write(bytes([octet]))
            await writer.drain()
        assert await read_frame(reader) == (10, b"?")
        writer.write(frame(2, b"answered"))
        await reader.read()

    async def check(protocol: Collected | CollectedIntoBuffer) -> bytes:
        async with serving(server) as port:
            transport, _ = await connect(plain(port), protocol)
            while not protocol.data.endswith(b"answered"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            transport.close()
            return bytes(protocol.data)

    expected = b"ab" + b"c" * 300 + b"answered"

    async def both() -> None:
        assert await check(Collected()) == expected
        assert await check(CollectedIntoBuffer()) == expected

    asyncio.run(both())


def test_a_servers_close_ends_the_connection() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.write(frame(8, b"\x03\xe8"))
        assert (await read_frame(reader))[0] == 8

    async def check() -> None:
        async with serving(server) as port:
            _, collected = await connect(plain(port), Collected())
            await collected.ended.wait()

    asyncio.run(check())


@pytest.mark.parametrize(
    "nonsense", [frame(1, b"text"), frame(3, b""), b"\x82\x81\x00\x00\x00\x00a", frame(9, bytes(256))]
)
def test_frames_that_cannot_be_end_the_connection(nonsense: bytes) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        writer.write(nonsense)
        await reader.read()

    async def check() -> None:
        async with serving(server) as port:
            _, collected = await connect(plain(port), Collected())
            await collected.ended.wait()
            assert not collected.data

    asyncio.run(check())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "it answers '403 Forbidden'"),
        (b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n", "not one for AMQP"),
        (b"x" * 20_000, "does not answer as a WebSocket server"),
        (b"", "closed the connection"),
    ],
)
def test_a_server_that_opens_no_websocket_is_quoted(answer: bytes, says: str) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def check() -> None:
        async with serving(server) as port:
            with pytest.raises(HubUnavailable, match=says):
                await connect(plain(port), Collected())

    asyncio.run(check())
