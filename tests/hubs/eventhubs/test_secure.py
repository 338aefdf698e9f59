"""The client over TLS and inside of a WebSocket, against the same endpoint."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from hubline.addresses.hub_address import Transport
from hubline.emulator import Endpoint
from hubline.errors import HubUnavailable
from hubline.hubs.eventhubs import EventHubsHub
from hubline.model.events import new_events
from hubline.model.positions import Position
from tests.hubs.eventhubs.support import ARRIVAL_SECONDS, GROUP, KEY, Folder, address, new_hub, serving
from tests.hubs.eventhubs.test_network import serving as serving_streams
from tests.support.certificates import self_signed


async def round_trip(hub: EventHubsHub) -> None:
    """Sends events, some larger than a frame, and reads them back, which our own endpoint sends in one large frame."""
    bodies = [b"small", bytes(200_000), *(bytes([number]) * 900_000 for number in range(5)), b"last"]
    sender = await hub.open_sender()
    await sender.send(new_events(bodies), partition="0")
    receiver = await hub.open_receiver("0", group=GROUP, position=Position.earliest(), epoch=0)
    received: list[bytes] = []
    while len(received) < len(bodies):
        received += (await receiver.receive(max_count=10, wait_seconds=ARRIVAL_SECONDS)).bodies
    assert received == bodies
    await receiver.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


class TestTls:
    def test_a_trusted_certificate_lets_events_through(
        self, tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

        async def check() -> None:
            hub, endpoint, folder = await self.served(tmp_path, certificate)
            await round_trip(hub)
            await hub.close()
            await endpoint.stop()
            await folder.close()

        asyncio.run(check())

    def test_a_websocket_inside_of_tls_lets_events_through(
        self, tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

        async def check() -> None:
            hub, endpoint, folder = await self.served(tmp_path, certificate, transport=Transport.WEBSOCKET)
            await round_trip(hub)
            await hub.close()
            await endpoint.stop()
            await folder.close()

        asyncio.run(check())

    def test_a_certificate_that_nobody_trusts_is_refused(self, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
        async def check() -> None:
            hub, endpoint, folder = await self.served(tmp_path, certificate)
            with pytest.raises(HubUnavailable, match=r"is not trusted .* SSL_CERT_FILE"):
                await hub.describe()
            await asyncio.sleep(0.2)  # asyncio closes the other end's socket in its own time, and tells nobody
            await hub.close()
            await endpoint.stop()
            await folder.close()

        asyncio.run(check())

    @pytest.mark.parametrize("is_lost", [False, True], ids=["whole", "cut"])
    def test_a_proxy_carries_tls_and_sees_nothing_of_it(
        self, tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, is_lost: bool
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        asked: list[bytes] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            target_reader, target_writer = await asyncio.open_connection("localhost", int(asked[0].split()[1][10:]))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            if is_lost:
                target_writer.close()
                return
            back = asyncio.create_task(_carry(target_reader, writer))
            await _carry(reader, target_writer)
            await back

        async def check() -> None:
            hub, endpoint, folder = await self.served(tmp_path, certificate)
            async with serving_streams(proxy) as proxy_port:
                monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{proxy_port}")
                monkeypatch.setenv("NO_PROXY", "")
                if is_lost:
                    with pytest.raises(HubUnavailable):
                        await hub.describe()
                else:
                    await round_trip(hub)
                await hub.close()
            await endpoint.stop()
            await folder.close()

        asyncio.run(check())
        assert asked[0].startswith(b"CONNECT localhost:")
        assert b"Proxy-Authorization: Basic bWU6c2VjcmV0" in asked[0]

    async def served(
        self, root: Path, certificate: tuple[Path, Path], *, transport: Transport = Transport.AMQP
    ) -> tuple[EventHubsHub, Endpoint, Folder]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        name, folder = await new_hub(root), Folder(root)
        endpoint = Endpoint(folder, key=KEY)
        port = await endpoint.start(host="localhost", tls=context)
        hub = EventHubsHub(replace(address(port, name), emulator=False), transport=transport)
        return hub, endpoint, folder


def test_events_come_through_a_websocket(tmp_path: Path) -> None:
    async def check() -> None:
        name = await new_hub(tmp_path)
        async with serving(tmp_path) as port:
            hub = EventHubsHub(address(port, name), transport=Transport.WEBSOCKET)
            await round_trip(hub)
            await hub.close()

    asyncio.run(check())


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
