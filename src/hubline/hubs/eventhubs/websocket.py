"""The client's end of a WebSocket: it asks for one of AMQP, and checks what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.protocol import Event
from websockets.uri import parse_uri

from hubline.amqp.transport.protocols import AnyProtocol
from hubline.amqp.transport.websocket import FRAME_BYTES_MAX, PATH, SUBPROTOCOL, WebSocket, log
from hubline.errors import HubUnavailable


class ClientWebSocket(WebSocket):
    """``opened`` is done once the server has agreed and ``inner`` has its transport; or has the error."""

    def __init__(self, inner: AnyProtocol, *, host: str, port: int, is_plain: bool) -> None:
        url = f"{'ws' if is_plain else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
        self._client = ClientProtocol(parse_uri(url), subprotocols=[SUBPROTOCOL], max_size=FRAME_BYTES_MAX, logger=log)
        super().__init__(self._client, inner)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._host = host

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.send_request(self._client.connect())
        self.flush()

    def eof_received(self) -> bool | None:
        if self.opened.done():
            return self.inner.eof_received()
        self._client.receive_eof()  # it may be the end of a refusal
        self.take_events()
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(self._refusal())
        elif not self.opened.cancelled() and self.opened.exception() is None:
            self.inner.connection_lost(error)

    def take_opening(self, event: Event) -> None:
        if self.opened.done():
            return
        if self._client.handshake_exc is not None or self._client.subprotocol != SUBPROTOCOL:
            self.opened.set_exception(self._refusal(event))
            self.abort()
            return
        self.opened.set_result(None)
        self.inner.connection_made(self)

    def _refusal(self, event: Event | None = None) -> HubUnavailable:
        problem = self._client.handshake_exc
        if isinstance(problem, InvalidStatus):
            answer = f"{problem.response.status_code} {problem.response.reason_phrase}"
            return HubUnavailable(
                f"{self._host} does not open a WebSocket: it answers {answer[:80]!r}. Check the address, or "
                "remove transport=websocket."
            )
        if isinstance(event, Response):
            return HubUnavailable(
                f"{self._host} opens a WebSocket, but not one for AMQP ({SUBPROTOCOL}). Check the address, or "
                "remove transport=websocket."
            )
        if problem is None or isinstance(problem.__cause__, EOFError):
            return HubUnavailable(
                f"{self._host} closed the connection instead of opening a WebSocket. Check the address, or "
                "remove transport=websocket."
            )
        return HubUnavailable(
            f"{self._host} does not answer as a WebSocket server ({problem.__cause__ or problem}). Check "
            "the address, or remove transport=websocket."
        )


async def open_websocket(
    connect: Callable[[Callable[[], ClientWebSocket]], Any],
    protocol: AnyProtocol,
    *,
    host: str,
    port: int,
    is_plain: bool,
) -> WebSocket:
    """Connects with ``connect`` and agrees on AMQP. Raises HubUnavailable."""
    websocket = ClientWebSocket(protocol, host=host, port=port, is_plain=is_plain)
    try:
        await connect(lambda: websocket)
        await websocket.opened
    except BaseException:
        websocket.abort()
        raise
    return websocket
