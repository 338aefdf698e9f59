"""WebSockets at ``hubline serve``: official clients connect by them, and others get an error that says why not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import closing
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient, TransportType, aio

from hubline.amqp.transport import connection as connections
from hubline.amqp.transport.websocket import PATH, SUBPROTOCOL
from hubline.emulator import protocol_switch
from tests.amqp.connections import everything, until
from tests.emulator.serving import PATIENCE_SECONDS, Server, endpoint, local_hub, serving
from tests.support.certificates import self_signed

Producer: Any = EventHubProducerClient
Consumer: Any = EventHubConsumerClient
AioProducer: Any = aio.EventHubProducerClient
AioConsumer: Any = aio.EventHubConsumerClient

EARLIEST = "-1"
UPGRADE = (
    f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
).encode()


def through(port: int, *, scheme: str = "http") -> dict[str, Any]:
    """What an official client needs to be given: it would look for WebSockets on port 443."""
    return {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"{scheme}://localhost:{port}",
        "retry_total": 0,
    }


def test_official_client_sends_and_receives(server: Server, hub: str) -> None:
    with Producer.from_connection_string(hub, **through(server.port)) as producer:
        batch = producer.create_batch(partition_id="1")
        for number in range(100):
            batch.add(EventData(f"event {number}"))
        producer.send_batch(batch)
    received: list[str] = []
    enough = threading.Event()

    def on_batch(_context: Any, events: list[Any]) -> None:
        received.extend(event.body_as_str() for event in events)
        if len(received) >= 100:
            enough.set()

    consumer = Consumer.from_connection_string(hub, "$Default", **through(server.port))
    worker = threading.Thread(target=consumer.receive_batch, args=(on_batch,), kwargs={"starting_position": EARLIEST})
    worker.start()
    assert enough.wait(PATIENCE_SECONDS)
    consumer.close()
    worker.join(PATIENCE_SECONDS)
    assert received == [f"event {number}" for number in range(100)]


async def exchange(connection_string: str, how: dict[str, Any]) -> list[str]:
    """The bodies of a few events, one of them large, that an asynchronous client sent and received."""
    async with AioProducer.from_connection_string(connection_string, **how) as producer:
        batch = await producer.create_batch()
        for body in ("small", "x" * 900_000, "last"):
            batch.add(EventData(body))
        await producer.send_batch(batch)
    received: list[str] = []
    enough = asyncio.Event()

    async def on_batch(_context: Any, events: list[Any]) -> None:
        received.extend(event.body_as_str() for event in events)
        if len(received) >= 3:
            enough.set()

    async with AioConsumer.from_connection_string(connection_string, "$Default", **how) as consumer:
        receiving = asyncio.create_task(consumer.receive_batch(on_batch, starting_position=EARLIEST))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await enough.wait()
        receiving.cancel()
        await asyncio.wait([receiving])
    return received


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # the SDK says it to aiohttp where there is no TLS
def test_asynchronous_official_client_sends_and_receives(server: Server, hub: str) -> None:
    assert asyncio.run(exchange(hub, through(server.port))) == ["small", "x" * 900_000, "last"]


def test_official_client_comes_in_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with serving(tmp_path / "data", "--create", "telemetry:1", "--tls", str(certificate), str(key)) as server:
        text = server.connection_string("telemetry").removesuffix(";UseDevelopmentEmulator=true")
        how = through(server.port, scheme="https")
        context = ssl.create_default_context(cafile=str(certificate))
        bodies = asyncio.run(exchange(text, {**how, "ssl_context": context}))
    assert bodies == ["small", "x" * 900_000, "last"]


def answers(root: Path, *said: bytes) -> bytes:
    """Everything that the server answers, up to its end."""

    async def run() -> bytes:
        async with local_hub(root) as hub, endpoint(hub) as (_, port):
            with closing(socket.create_connection(("127.0.0.1", port))) as sock:
                sock.setblocking(False)
                for part in said:
                    await asyncio.get_running_loop().sock_sendall(sock, part)
                    await asyncio.sleep(0.01)
                return await everything(sock)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("request_bytes", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n", b"AMQP is served under /$servicebus/websocket"),
        (UPGRADE.replace(b"Upgrade: websocket", b"Upgrade: h2c"), b"HTTP/1.1 426"),
        (UPGRADE.replace(SUBPROTOCOL.encode(), b"mqtt"), b"HTTP/1.1 400"),
        (b"GET " + b"x" * 20_000, b""),  # some versions of the package answer, others only close
        (b"GET nonsense\r\n\r\n", b""),
    ],
    ids=["root", "path", "upgrade", "subprotocol", "endless", "nonsense"],
)
def test_other_requests_are_answered_and_closed(tmp_path: Path, request_bytes: bytes, says: bytes) -> None:
    answer = answers(tmp_path, request_bytes)
    assert says in answer
    assert b"101" not in answer


def test_request_may_come_in_pieces_and_the_path_may_end_with_a_slash_or_a_query(tmp_path: Path) -> None:
    request = UPGRADE.replace(b"websocket HTTP", b"websocket/?sb-hc-action=connect HTTP")
    close = b"\x88\x80\x00\x00\x00\x00"
    answer = answers(tmp_path, request[:1], request[1:3], request[3:50], request[50:], close)
    assert answer.startswith(b"HTTP/1.1 101")
    assert answer.endswith(b"\x88\x00")


def test_frame_that_is_not_amqp_is_closed(tmp_path: Path) -> None:
    """Both for the WebSocket, in text, and inside of it, where AMQP answers with its header first."""
    text = b"\x81\x82\x00\x00\x00\x00hi"
    assert b"\x88" in answers(tmp_path, UPGRADE, text).partition(b"\r\n\r\n")[2]
    garbage = b"\x82\x88\x00\x00\x00\x00HELLO..."
    assert b"AMQP\x00\x01\x00\x00" in answers(tmp_path, UPGRADE, garbage).partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("said", [b"", b"G", b"GET / HT", UPGRADE])
def test_client_that_goes_silent_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(connections, "OPEN_SECONDS", 0.1)

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (served, port):
            with closing(socket.create_connection(("127.0.0.1", port))) as sock:
                sock.sendall(said)
                await until(lambda: served.connections_count == 1)
                await until(lambda: served.connections_count == 0)

    asyncio.run(run())


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == "websockets" else util.find_spec(name)

    monkeypatch.setattr(protocol_switch, "find_spec", find)
    answer = answers(tmp_path, UPGRADE)
    assert answer.startswith(b"HTTP/1.1 501")
    assert b"pip install 'hubline[websocket]'" in answer
