"""AMQP inside of a WebSocket (RFC 6455): what AMQP sends and receives is the payload of binary frames, as a stream.

A :class:`WebSocket` stands between a socket's transport and the protocol of the AMQP connection: to the one it is the
protocol, to the other the transport.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from hubline.errors import HubUnavailable

SUBPROTOCOL: Final = "AMQPWSB10"
PATH: Final = "/$servicebus/websocket"

# RFC 6455, section 1.3: what a server adds to the key before it hashes it.
_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# As web servers have it: longer answers are no answers to an upgrade.
_HANDSHAKE_BYTES_MAX: Final = 16 * 1024

_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
# Control frames carry at most this much.
_CONTROL_BYTES_MAX: Final = 125


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """``opened`` is done once the server has agreed and ``inner`` has its transport; or has the error."""

    def __init__(self, inner: asyncio.Protocol | asyncio.BufferedProtocol, host: str) -> None:
        super().__init__()
        self.inner = inner
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._host = host
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._outer: asyncio.Transport | None = None
        self._pending = bytearray()
        self._payload_left = 0  # bytes of the current frame that are still to come
        self._opcode = _BINARY

    # Towards the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (for mypy: a stream's transport is one)
        self._outer = transport
        transport.write(
            f"GET {PATH} HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {self._key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode("ascii")
        )

    def data_received(self, data: bytes) -> None:
        if self.opened.done() and not self._pending and self._payload_left >= len(data) and self._opcode == _BINARY:
            self._payload_left -= len(data)  # the inside of a long frame: the usual case needs no copy
            feed(self.inner, data)
            return
        self._pending += data
        try:
            if not self.opened.done() and not self._finish_handshake():
                return
            self._take_frames()
        except HubUnavailable as error:
            self._fail(error)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self.opened.done() else None

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(HubUnavailable(f"{self._host} closed the connection instead of a WebSocket"))
        elif not self.opened.cancelled() and self.opened.exception() is None:
            self.inner.connection_lost(error)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # Towards the AMQP connection

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._transport.write(_frame(_BINARY, bytes(data)))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_frame(_CLOSE, b"\x03\xe8"))  # 1000: all is done
            self._transport.close()

    def abort(self) -> None:
        if self._outer is not None:
            self._outer.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def _transport(self) -> asyncio.Transport:
        if self._outer is None:
            raise HubUnavailable(f"the WebSocket to {self._host} is not connected yet")
        return self._outer

    def _finish_handshake(self) -> bool:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            if len(self._pending) > _HANDSHAKE_BYTES_MAX:
                raise HubUnavailable(f"{self._host} does not answer as a WebSocket server: its answer has no end")
            return False
        status, *lines = bytes(self._pending[:end]).decode("latin-1").split("\r\n")
        del self._pending[: end + 4]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._check(status, headers)
        self.opened.set_result(None)
        self.inner.connection_made(self)
        return True

    def _check(self, status: str, headers: dict[str, str]) -> None:
        if status.split(" ")[1:2] != ["101"]:
            raise HubUnavailable(f"{self._host} does not open a WebSocket: it answers {status[:80]!r}")
        accepted = base64.b64encode(hashlib.sha1((self._key + _GUID).encode()).digest()).decode()  # noqa: S324
        if headers.get("sec-websocket-accept") != accepted or headers.get("sec-websocket-protocol") != SUBPROTOCOL:
            raise HubUnavailable(f"{self._host} opens a WebSocket, but not one for AMQP ({SUBPROTOCOL})")

    def _take_frames(self) -> None:
        while self._pending:
            if not self._payload_left and not self._take_head():
                return
            is_data = self._opcode == _BINARY
            if not is_data and len(self._pending) < self._payload_left:
                return  # control frames are short, and taken whole
            payload = bytes(self._pending[: self._payload_left])
            del self._pending[: len(payload)]
            self._payload_left -= len(payload)
            if is_data:
                feed(self.inner, payload)
            else:
                self._control(payload)

    def _take_head(self) -> bool:
        """Reads a frame's head. What comes in several frames is one stream anyway: only the opcode matters."""
        if len(self._pending) < 2:
            return False
        opcode, length = self._pending[0] & 0x0F, self._pending[1]
        layout = {_LENGTH_16: ">H", _LENGTH_64: ">Q"}.get(length)
        size = 2 + (struct.calcsize(layout) if layout else 0)
        if len(self._pending) < size:
            return False
        is_data = opcode in (_BINARY, _CONTINUATION)
        known = is_data or (opcode in (_CLOSE, _PING, _PONG) and length <= _CONTROL_BYTES_MAX)
        if not known or length & _MASKED:
            raise HubUnavailable(f"{self._host} sends a WebSocket frame that cannot be (opcode {opcode})")
        self._payload_left = struct.unpack_from(layout, self._pending, 2)[0] if layout else length
        self._opcode = _BINARY if is_data else opcode
        del self._pending[:size]
        if not self._payload_left and not is_data:
            self._control(b"")
        return True

    def _control(self, payload: bytes) -> None:
        if self._opcode == _PING:
            self._transport.write(_frame(_PONG, payload))
        elif self._opcode == _CLOSE:
            self.close()

    def _fail(self, error: HubUnavailable) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        self._transport.abort()


def feed(protocol: asyncio.Protocol | asyncio.BufferedProtocol, data: bytes) -> None:
    """Gives bytes to a protocol of either kind."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        protocol.buffer_updated(count)
        view = view[count:]


async def open_websocket(
    connect: Callable[[Callable[[], WebSocket]], Any],
    protocol: asyncio.Protocol | asyncio.BufferedProtocol,
    *,
    host: str,
) -> WebSocket:
    """Connects with ``connect`` and agrees on AMQP. Raises HubUnavailable."""
    websocket = WebSocket(protocol, host)
    try:
        await connect(lambda: websocket)
        await websocket.opened
    except BaseException:
        websocket.abort()
        raise
    return websocket


def _frame(opcode: int, payload: bytes) -> bytes:
    length = len(payload)
    if length < _LENGTH_16:
        head = struct.pack(">BB", _FINAL | opcode, _MASKED | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _FINAL | opcode, _MASKED | _LENGTH_16, length)
    else:
        head = struct.pack(">BBQ", _FINAL | opcode, _MASKED | _LENGTH_64, length)
    mask = os.urandom(4)
    octets = np.frombuffer(payload, np.uint8)
    masked = octets ^ np.resize(np.frombuffer(mask, np.uint8), length)
    return b"".join((head, mask, masked.tobytes()))
