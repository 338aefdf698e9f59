"""AMQP inside a WebSocket (RFC 6455): what AMQP sends and receives is the payload of binary frames, as one stream.

A :class:`WebSocket` stands between a stream's transport and an AMQP connection: for the stream it is the protocol, for
the connection the transport. The frames are made and read by the package ``websockets``, without its I/O; it comes with
the extra ``websocket``. How a WebSocket opens differs by side: see ``hubs/eventhubs/websocket.py`` and
``emulator/websocket.py``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from hubline.amqp.transport.protocols import AnyProtocol, feed

SUBPROTOCOL: Final = Subprotocol("AMQPWSB10")
PATH: Final = "/$servicebus/websocket"

# A frame is kept until it is all there. Peers send a few frames of AMQP in each, of 64 KiB or so.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024

# At the level DEBUG the package logs what frames carry, and that may be a token.
log = logging.getLogger("hubline.amqp")
log.setLevel(logging.WARNING)


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """``inner`` gets what comes once the WebSocket is open. A peer that breaks the rules is closed."""

    def __init__(self, frames: ClientProtocol | ServerProtocol, inner: AnyProtocol) -> None:
        super().__init__()
        self.inner = inner
        self._frames = frames
        self._stream: asyncio.Transport | None = None

    @property
    def stream(self) -> asyncio.Transport:
        """The transport underneath."""
        assert self._stream is not None  # noqa: S101
        return self._stream

    @abstractmethod
    def take_opening(self, event: Event) -> None:
        """The peer's part of the opening handshake."""

    # Towards the stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (for mypy: a stream's transport is one)
        self._stream = transport

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        self.take_events()

    def take_events(self) -> None:
        """Handles what came, and sends the answers."""
        for event in self._frames.events_received():
            if not isinstance(event, Frame):
                self.take_opening(event)
            elif event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                feed(self.inner, event.data)
            elif event.opcode is Opcode.TEXT:
                self._frames.fail(CloseCode.UNSUPPORTED_DATA, "AMQP comes in binary frames")
                break
        self.flush()
        if self._frames.close_expected():
            self.stream.close()

    def flush(self) -> None:
        """Sends what is to be sent."""
        for data in self._frames.data_to_send():
            if data:
                self.stream.write(data)
            else:  # the end
                self.stream.close()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # Towards the AMQP connection

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self.flush()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self.flush()
        self.stream.close()

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()

    def is_closing(self) -> bool:
        return self.stream.is_closing()

    def pause_reading(self) -> None:
        self.stream.pause_reading()

    def resume_reading(self) -> None:
        self.stream.resume_reading()

    def is_reading(self) -> bool:
        return self.stream.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.stream.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.stream.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.stream.get_write_buffer_size()
