"""What a connection has to send: frames of one moment joined, then kept until the transport has room for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

from hubline.amqp.codec.decode import Bytes

# Senders wait while more than this is not written: enough to keep a fast peer busy.
WRITE_BYTES_HIGH: Final = 1024 * 1024

# What the transport gets at once. It copies what its socket does not take, and moves it about; so it gets little.
WRITE_PIECE_BYTES: Final = 256 * 1024

# Frames of one moment are joined, except those as large as this: they are written by themselves, without a copy.
LARGE_BYTES_MIN: Final = 64 * 1024

# Answers that a peer asks for and does not read: beyond this it is cut off.
WRITE_BYTES_MAX: Final = 16 * 1024 * 1024


class OutputBuffer:
    """Writes to one transport. ``on_overflow`` is called when the peer leaves more unread than is kept for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, on_overflow: Callable[[], None]) -> None:
        self.written_at = loop.time()
        """When something was last written, by the loop's clock."""
        self._loop = loop
        self._on_overflow = on_overflow
        self._transport: asyncio.Transport | None = None
        self._pending: list[Bytes] = []
        self._is_flush_scheduled = False
        self._outgoing: deque[memoryview] = deque()
        self._outgoing_bytes = 0
        self._is_transport_full = False
        self._is_closing = False

    @property
    def has_room(self) -> bool:
        """Whether senders may send more."""
        return self._outgoing_bytes < WRITE_BYTES_HIGH

    def connect(self, transport: asyncio.Transport) -> None:
        """Writes to this transport from now on."""
        self._transport = transport
        # Full as soon as it keeps anything. With 0, that of TLS would take itself for full when it is empty.
        transport.set_write_buffer_limits(high=1, low=0)

    def add(self, frame: Bytes) -> None:
        """Writes a frame together with others of the same moment."""
        self._pending.append(frame)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self.flush)

    def extend(self, frames: Iterable[Bytes]) -> None:
        """Writes frames now, after all that was added before."""
        self._pending.extend(frames)
        self.flush()

    def flush(self) -> None:
        """Writes what was added."""
        self._is_flush_scheduled = False
        pending, self._pending = self._pending, []
        for is_large, pieces in groupby(pending, lambda data: len(data) >= LARGE_BYTES_MIN):
            for data in pieces if is_large else [b"".join(pieces)]:
                self.write(data)

    def write(self, data: Bytes) -> None:
        """Writes bytes now, before what was added and is not flushed."""
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._outgoing.append(memoryview(data))
        self._outgoing_bytes += len(data)
        self.written_at = self._loop.time()
        self._write_outgoing()
        if self._outgoing_bytes > WRITE_BYTES_MAX:
            self._on_overflow()

    def pause(self) -> None:
        """The transport is full."""
        self._is_transport_full = True

    def resume(self) -> bool:
        """The transport is empty. Whether senders may send again that could not before."""
        self._is_transport_full = False
        had_room = self.has_room
        self._write_outgoing()
        return self.has_room and not had_room

    def close(self) -> None:
        """Closes the transport once everything is written."""
        self._is_closing = True
        self._write_outgoing()

    def _write_outgoing(self) -> None:
        """Gives the transport what it takes without copying much."""
        assert self._transport is not None  # noqa: S101
        while self._outgoing and not self._is_transport_full:
            data = self._outgoing.popleft()
            if len(data) > WRITE_PIECE_BYTES:
                self._outgoing.appendleft(data[WRITE_PIECE_BYTES:])
                data = data[:WRITE_PIECE_BYTES]
            self._outgoing_bytes -= len(data)
            self._transport.write(data)
        if self._is_closing and not self._outgoing:
            self._transport.close()
