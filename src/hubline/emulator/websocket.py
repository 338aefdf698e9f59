"""The server's end of a WebSocket: official clients with the transport AmqpOverWebsocket connect by it."""

from __future__ import annotations

import http

from websockets.http11 import Request
from websockets.protocol import Event
from websockets.server import ServerProtocol

from hubline.amqp.transport.connection import Connection
from hubline.amqp.transport.websocket import FRAME_BYTES_MAX, PATH, SUBPROTOCOL, WebSocket, log


class ServerWebSocket(WebSocket):
    """Carries a connection that has heard nothing so far."""

    def __init__(self, connection: Connection) -> None:
        self._server = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=FRAME_BYTES_MAX, logger=log)
        super().__init__(self._server, connection)
        self._connection = connection

    def take_opening(self, event: Event) -> None:
        assert isinstance(event, Request)  # noqa: S101 (a server gets nothing else)
        if event.path.partition("?")[0].rstrip("/") == PATH:
            response = self._server.accept(event)
        else:
            response = self._server.reject(http.HTTPStatus.NOT_FOUND, f"AMQP is served under {PATH}\n")
        self._server.send_response(response)
        if response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS:
            self._connection.use_transport(self)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)
