"""Connecting to the service: TCP or TLS, directly or through a proxy, bare or inside of a WebSocket."""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from socket import socket
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from hubline.addresses.hub_address import AMQPS_PORT, EventHubsAddress, Transport
from hubline.amqp.transport.protocols import AnyProtocol
from hubline.errors import ConfigError, HubUnavailable
from hubline.text import sentences

WEBSOCKET_PORT: Final = 443
PROXY_PORT: Final = 8080
# TCP, TLS and a proxy take a few round trips; what takes this long will not come.
CONNECT_SECONDS: Final = 30.0

P = TypeVar("P", bound=AnyProtocol)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect to. ``is_plain`` is for emulators on this machine."""

    host: str
    port: int
    is_plain: bool = False
    is_websocket: bool = False

    @classmethod
    def of(cls, address: EventHubsAddress, transport: Transport) -> Endpoint:
        """Where the address leads by the transport. Raises ConfigError if that needs a package that is not there."""
        is_websocket = transport is Transport.WEBSOCKET
        if is_websocket and find_spec("websockets") is None:
            raise ConfigError(
                "the transport websocket needs the package websockets. Install it: pip install 'hubline[websocket]'."
            )
        port = WEBSOCKET_PORT if is_websocket and address.port == AMQPS_PORT else address.port
        return cls(address.namespace, port, is_plain=address.emulator, is_websocket=is_websocket)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that lets connections through by CONNECT. ``authorization`` is a secret."""

    host: str
    port: int
    authorization: str | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


async def connect(endpoint: Endpoint, protocol: P) -> tuple[asyncio.Transport, P]:
    """A connection that feeds ``protocol``. Raises HubUnavailable, or ConfigError for a proxy that cannot be used."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await _connected(endpoint, protocol), protocol
    except TimeoutError:
        raise HubUnavailable(f"{endpoint} did not answer within {CONNECT_SECONDS:g} s. {_advice(endpoint)}") from None
    except ssl.SSLCertVerificationError as error:
        raise HubUnavailable(
            f"the certificate of {endpoint} is not trusted ({error.verify_message}). If it is your own, set "
            "SSL_CERT_FILE to its file."
        ) from error
    except OSError as error:
        raise HubUnavailable(sentences(f"{endpoint} cannot be reached: {error}", _advice(endpoint))) from error


def _advice(endpoint: Endpoint) -> str:
    if endpoint.is_plain or endpoint.is_websocket:
        return "Check the address and the network."
    return "Check the address and the network. If it allows only HTTPS, use transport=websocket."


async def _connected(endpoint: Endpoint, protocol: AnyProtocol) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    context = None if endpoint.is_plain else ssl.create_default_context()
    proxy = proxy_for(endpoint)
    where: dict[str, Any] = {"host": endpoint.host, "port": endpoint.port}
    if proxy is not None:
        where = {"sock": await _through_proxy(proxy, endpoint)}
    open_stream = partial(
        loop.create_connection, ssl=context, server_hostname=endpoint.host if context else None, **where
    )
    if endpoint.is_websocket:
        from hubline.hubs.eventhubs.websocket import open_websocket  # of the extra websocket

        return await open_websocket(
            open_stream, protocol, host=endpoint.host, port=endpoint.port, is_plain=endpoint.is_plain
        )
    transport: asyncio.Transport
    transport, _ = await open_stream(lambda: protocol)
    return transport


def proxy_for(endpoint: Endpoint, *, proxies: Callable[[], dict[str, str]] | None = None) -> Proxy | None:
    """The proxy that HTTPS_PROXY names, unless NO_PROXY excepts the host. Plain connections use none."""
    settings = (proxies or urllib.request.getproxies_environment)()
    url = settings.get("https")
    is_excepted = urllib.request.proxy_bypass_environment(endpoint.host, settings)  # type: ignore[attr-defined]
    if endpoint.is_plain or not url or is_excepted:
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(
            "HTTPS_PROXY is not the address of an HTTP proxy, the only kind that hubline supports. Write "
            "http://HOST:PORT."
        )
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
    return Proxy(parts.hostname, parts.port or PROXY_PORT, authorization)


async def _through_proxy(proxy: Proxy, endpoint: Endpoint) -> socket:
    """A socket that the proxy has connected to the endpoint."""
    try:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    except OSError as error:
        raise HubUnavailable(
            sentences(
                f"the proxy {proxy.host}:{proxy.port}, which HTTPS_PROXY names, cannot be reached: {error}",
                "correct HTTPS_PROXY, or list the host in NO_PROXY",
            )
        ) from error
    # A duplicate outlives the streams, which are only used to talk to the proxy.
    try:
        await _ask_proxy(reader, writer, proxy, endpoint)
        connected: socket = writer.get_extra_info("socket").dup()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    connected.setblocking(False)
    return connected


async def _ask_proxy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy, endpoint: Endpoint
) -> None:
    lines = [f"CONNECT {endpoint} HTTP/1.1", f"Host: {endpoint}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        answer = b""
    status = answer.split(b"\r\n")[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise HubUnavailable(
            f"the proxy {proxy.host}:{proxy.port} does not connect to {endpoint}: it answers "
            f"{status[:80]!r}. Allow this host and port in the proxy, or list the host in NO_PROXY."
        )
