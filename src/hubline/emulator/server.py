"""The endpoint: hubs served over AMQP to all its clients, as the Event Hubs service does."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import time
from collections.abc import Callable
from typing import Final

from hubline.amqp import conditions
from hubline.amqp.codec.performatives import Error
from hubline.amqp.transport.connection import Connection, ConnectionOptions
from hubline.amqp.transport.handshake import ServerHandshake
from hubline.emulator.authorization import Grants, SharedKey
from hubline.emulator.client_session import ClientSession, Shared
from hubline.emulator.hubs import Hubs
from hubline.emulator.protocol_switch import ProtocolSwitch
from hubline.emulator.receivers import ReaderCount, ReceiverLinks
from hubline.errors import ConfigError, HubUnavailable

CONTAINER_ID: Final = "hubline"

# As the service has it. Clients that are not used for long are silent for minutes, and come back by themselves.
IDLE_SECONDS: Final = 240.0

# As many as the service's standard tier has; each takes some 100 kB.
CONNECTIONS_MAX: Final = 5000

# A client that has not shaken hands by then is not going to.
TLS_SECONDS: Final = 15.0

# Clients that connect at the same moment, as a fleet does after a restart.
BACKLOG: Final = 1024


class Endpoint:
    """Serves hubs. Made, started, and stopped once; used from one event loop.

    Without a key, it accepts any key, so it listens on loopback only.
    """

    def __init__(self, hubs: Hubs, *, key: SharedKey | None = None, clock: Callable[[], float] = time.time) -> None:
        self._shared = Shared(hubs, ReaderCount(), ReceiverLinks())
        self._key = key
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._clients: dict[Connection, ClientSession] = {}
        self._is_stopping = False

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> int:
        """Listens, and returns the port: with 0 one that is free. Raises ConfigError, HubUnavailable."""
        if self._key is None and not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other machines. Set a key, or listen on 127.0.0.1, where none is needed."
            )
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._new_protocol,
                host,
                port,
                ssl=tls,
                ssl_handshake_timeout=TLS_SECONDS if tls else None,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise HubUnavailable(
                f"cannot listen on {host}, port {port}: {error.strerror or error}. Choose another port, or 0 for any."
            ) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def connections_count(self) -> int:
        return len(self._clients)

    async def stop(self) -> None:
        """Takes no more connections, answers what was sent, closes all connections, and waits until they are closed.

        Stopping twice is fine.
        """
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        clients = dict(self._clients)
        await asyncio.gather(*(self._dismiss(connection, client) for connection, client in clients.items()))

    async def _dismiss(self, connection: Connection, client: ClientSession) -> None:
        await client.drain()
        connection.close(Error(conditions.CONNECTION_FORCED, "the endpoint stops: connect again later"))
        await connection.closed()
        await client.finish()

    def _new_protocol(self) -> ProtocolSwitch:
        return ProtocolSwitch(_ServedConnection(self._shared, Grants(self._key, self._clock), self._admit))

    def _admit(self, connection: Connection, client: ClientSession) -> None:
        """A client is there: known from now until its connection is over."""
        if self._is_stopping or len(self._clients) >= CONNECTIONS_MAX:
            connection.close(
                Error(conditions.RESOURCE_LIMIT_EXCEEDED, f"there are {CONNECTIONS_MAX} connections already")
            )
            return
        self._clients[connection] = client
        client.on_gone = lambda: self._clients.pop(connection, None)


class _ServedConnection(Connection):
    """A connection that is taken note of when it is made: where TLS fails it never is."""

    def __init__(self, shared: Shared, grants: Grants, admit: Callable[[Connection, ClientSession], None]) -> None:
        self._client = ClientSession(shared, grants)
        self._admit = admit
        super().__init__(
            ConnectionOptions(CONTAINER_ID, idle_seconds=IDLE_SECONDS),
            handshake=ServerHandshake(grants.is_password_right),
            handler=self._client,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admit(self, self._client)
        super().connection_made(transport)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
