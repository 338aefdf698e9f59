"""One port for AMQP and WebSockets: the first bytes of a client say which of them it speaks."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Final

from hubline.amqp.transport.connection import Connection
from hubline.amqp.transport.protocols import feed

_HTTP: Final = b"GET "
_NO_WEBSOCKETS: Final = "WebSockets need the package websockets on this server: pip install 'hubline[websocket]'\n"


class ProtocolSwitch(asyncio.Protocol):
    """Hands the transport over to the connection, or to a WebSocket that carries the connection, and is gone.

    The connection knows the transport from the start: its time limit on a client that says nothing counts here, too.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (for mypy: a stream's transport is one)
        self._transport = transport
        self._connection.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._data.startswith(_HTTP):
            if not _HTTP.startswith(self._data):
                self._use_amqp()
        elif find_spec("websockets") is None:
            self._refuse_websocket()
        else:
            self._use_websocket()

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def _use_amqp(self) -> None:
        assert self._transport is not None  # noqa: S101
        self._transport.set_protocol(self._connection)
        feed(self._connection, self._data)

    def _use_websocket(self) -> None:
        from hubline.emulator.websocket import ServerWebSocket

        assert self._transport is not None  # noqa: S101
        websocket = ServerWebSocket(self._connection)
        websocket.connection_made(self._transport)
        self._transport.set_protocol(websocket)
        websocket.data_received(self._data)

    def _refuse_websocket(self) -> None:
        assert self._transport is not None  # noqa: S101
        self._transport.write(
            b"HTTP/1.1 501 Not Implemented\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(_NO_WEBSOCKETS), _NO_WEBSOCKETS.encode())
        )
        self._transport.close()
