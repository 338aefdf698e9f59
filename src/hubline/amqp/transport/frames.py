"""Frames: what AMQP sends over a connection, one after the other.

    reader = FrameReader(frame_bytes_max=65536)
    count = socket.recv_into(reader.writable())
    reader.filled(count)
    header = reader.take_header()       # None: not there yet
    frame = reader.take_frame()         # one at a time, while the connection is being set up
    for item in reader.take_frames():   # then all that are there
        ...                             # a Frame; or Deliveries, thousands at once

A frame whose size or header cannot be raises AmqpFrameError: nothing that follows can be read any more.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.amqp.arrays import Positions
from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.performatives import PERFORMATIVES, SASL_PERFORMATIVES, Transfer
from hubline.amqp.core.library import Core, core
from hubline.amqp.transport.errors import AmqpEncodeError, AmqpFrameError
from hubline.amqp.transport.transfer_runs import Deliveries, Found, ImpossibleFrame, find_frames

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8
_HEADER_PREFIX: Final = b"AMQP"

# The header of a frame: its size, where its body starts (in words of four bytes), its type and its channel.
_FRAME_HEADER: Final = struct.Struct(">IBBH")
_SIZE: Final = struct.Struct(">I")
_AMQP_TYPE: Final = 0
_SASL_TYPE: Final = 1
_DATA_OFFSET_MIN: Final = 2

# Every peer has to take frames of this size, whatever it announces.
FRAME_BYTES_MIN_MAX: Final = 512

# As much as a fast peer sends while a batch is processed. A quiet connection stays at the first size.
BUFFER_BYTES_FIRST: Final = 64 * 1024
BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024

# A frame without performative: the peer is alive.
HEARTBEAT: Final = _FRAME_HEADER.pack(_FRAME_HEADER.size, _DATA_OFFSET_MIN, _AMQP_TYPE, 0)

# Frames as large as this are few, and mostly parts of what is larger still: those are none of the simple ones.
_LARGE_BYTES_MIN: Final = 32 * 1024
# Frames from this size on are received where they stay: nothing is copied.
OWN_BYTES_MIN: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """What a peer says on a channel. A heartbeat has no performative. Only a transfer has a payload.

    A payload that is read-only has memory of its own. Any other stays as it is until the next call of
    ``FrameReader.writable``.
    """

    channel: int
    performative: Composite | None
    payload: Bytes = b""


class FrameReader:
    """Collects what a connection receives, and cuts it into frames. Never holds more than one buffer and one frame.

    The bytes that ``Deliveries`` point to stay as they are until the next call of ``writable``. A large frame is
    received where it stays.
    """

    def __init__(self, *, frame_bytes_max: int, buffer_bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._frame_bytes_max = max(frame_bytes_max, FRAME_BYTES_MIN_MAX)
        self._buffer_bytes_max = max(buffer_bytes_max, self._frame_bytes_max)
        self._buffer = bytearray(min(BUFFER_BYTES_FIRST, self._buffer_bytes_max))
        self._start = 0
        self._end = 0
        self._own: memoryview | None = None  # the memory of a frame that is still arriving, and how much of it has
        self._own_end = 0
        self._core = core()
        # Links on which a delivery has begun that takes several frames: the last of them looks like a whole one.
        self._unfinished: set[tuple[int, int]] = set()
        # The last part that another has to follow: how its frame begins after the size, up to the payload.
        self._part: tuple[bytes, Frame] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything that arrived was taken."""
        return self._start == self._end and self._own is None

    def writable(self) -> memoryview:
        """Where to receive into; never empty, if what was complete was taken."""
        if self._own is not None:
            return self._own[self._own_end :]
        view = memoryview(self._buffer)
        if self._start:
            left = self._end - self._start
            view[:left] = view[self._start : self._end]
            self._start, self._end = 0, left
        if self._end == len(self._buffer):
            self._grow()
            view = memoryview(self._buffer)
        return view[self._end :]

    def filled(self, count: int) -> None:
        """So many bytes were received into what ``writable`` gave."""
        if self._own is not None:
            self._own_end += count
            return
        self._end += count
        if self._end == len(self._buffer) and (self._next_size or 0) < OWN_BYTES_MIN:
            self._grow()  # there was more than fitted: make room for the next time

    def take_header(self) -> bytes | None:
        """The protocol header that a peer starts with; None while it is incomplete."""
        data = bytes(self._buffer[self._start : min(self._start + HEADER_BYTES, self._end)])
        if not _HEADER_PREFIX.startswith(data[: len(_HEADER_PREFIX)]):
            raise AmqpFrameError("the peer does not speak AMQP: its first bytes are not a protocol header")
        if len(data) < HEADER_BYTES:
            return None
        self._start += HEADER_BYTES
        return data

    def take_frame(self) -> Frame | None:
        """The next frame; None while it is incomplete."""
        start, size = self._start, self._next_size
        if size is None:
            return None
        if not _FRAME_HEADER.size <= size <= self._frame_bytes_max:
            raise self._impossible(size)
        if start + size > self._end:
            return None
        self._start = start + size
        return self._decode(start, start + size)

    def take_frames(self) -> Iterator[Frame | Deliveries]:
        """All frames that are complete, in order per link."""
        if self._own is not None:
            if self._own_end < len(self._own):
                return
            yield self._take_own(self._own)
        while (self._next_size or 0) >= _LARGE_BYTES_MIN:
            frame = self.take_frame()
            if frame is None:
                self._own_next()
                return
            yield frame
        found = None if self._core is None else self._find(self._core)
        if found is not None:
            yield from self._in_bulk(found)
        while (frame := self.take_frame()) is not None:
            yield frame

    @property
    def _next_size(self) -> int | None:
        """How large the next frame says it is; None if that has not arrived."""
        if self._end - self._start < _SIZE.size:
            return None
        size: int = _SIZE.unpack_from(self._buffer, self._start)[0]
        return size

    def _own_next(self) -> None:
        """What has arrived of a large frame goes to memory of its own, where the rest is received.

        The buffer is small again: little is copied from it.
        """
        size, arrived = self._next_size or 0, memoryview(self._buffer)[self._start : self._end]
        if size >= OWN_BYTES_MIN:
            self._own, self._own_end = kept_memory(size), len(arrived)
            self._own[: len(arrived)] = arrived
            self._buffer, self._start, self._end = bytearray(BUFFER_BYTES_FIRST), 0, 0

    def _take_own(self, own: memoryview) -> Frame:
        self._own = None
        frame = decode_frame(own.toreadonly(), 0, len(own))
        self._note(frame)
        return frame

    def _find(self, core: Core) -> Found | None:
        """All frames that are complete, if they are many."""
        data, sizes = np.frombuffer(self._buffer, np.uint8), range(_FRAME_HEADER.size, self._frame_bytes_max + 1)
        try:
            return find_frames(core, data, slice(self._start, self._end), sizes)
        except ImpossibleFrame as impossible:
            raise self._impossible(impossible.size) from None

    def _in_bulk(self, found: Found) -> Iterator[Frame | Deliveries]:
        """Runs of simple transfers together, and what stands between them by itself. All count as taken."""
        bounds = found.bounds
        self._start = int(bounds[-1])
        first, count = 0, len(bounds) - 1
        for other in np.flatnonzero(~found.is_simple).tolist():
            yield from self._run(found, bounds, first, other)
            yield self._decode(int(bounds[other]), int(bounds[other + 1]))
            first = other + 1
        yield from self._run(found, bounds, first, count)

    def _run(self, found: Found, bounds: Positions, first: int, end: int) -> Iterator[Frame | Deliveries]:
        """Frames that are all simple transfers: together, but for what is the rest of a delivery."""
        while first < end:
            rest = found.first_of(self._unfinished, first, end)
            if first < rest:
                yield from found.deliveries(first, rest)
            if rest < end:
                yield self._decode(int(bounds[rest]), int(bounds[rest + 1]))
            first = rest + 1

    def _decode(self, start: int, end: int) -> Frame:
        part = self._next_part(start, end)
        if part is not None:
            return part
        frame = decode_frame(self._buffer, start, end)
        if self._note(frame):
            head = memoryview(self._buffer)[start + _SIZE.size : end - len(frame.payload)]
            self._part = bytes(head), Frame(frame.channel, frame.performative)
        return frame

    def _note(self, frame: Frame) -> bool:
        """Notes which deliveries are unfinished, and tells whether this is a part of one."""
        transfer = frame.performative
        if not isinstance(transfer, Transfer):
            return False
        self._part = None
        link, is_unfinished = (frame.channel, transfer.handle), transfer.more and not transfer.aborted
        if is_unfinished:
            self._unfinished.add(link)
        else:
            self._unfinished.discard(link)
        return is_unfinished

    def _next_part(self, start: int, end: int) -> Frame | None:
        """A frame that begins as the last part did says the same, and is not decoded to know it; None otherwise."""
        if self._part is None or not self._buffer.startswith(self._part[0], start + _SIZE.size, end):
            return None
        head, part = self._part
        payload = memoryview(self._buffer)[start + _SIZE.size + len(head) : end]
        return Frame(part.channel, part.performative, payload)

    def _impossible(self, size: int) -> AmqpFrameError:
        return AmqpFrameError(
            f"a frame of {size:,} bytes cannot be: at least {_FRAME_HEADER.size} and "
            f"at most {self._frame_bytes_max:,} were agreed"
        )

    def _grow(self) -> None:
        size = min(2 * len(self._buffer), self._buffer_bytes_max)
        if size > len(self._buffer):
            # A new buffer: deliveries that were taken may still point into the old one.
            grown = bytearray(size)
            grown[: self._end] = self._buffer[: self._end]
            self._buffer = grown


def kept_memory(size: int) -> memoryview:
    """Memory of Arrow's, which keeps it for others once nobody has it.

    Python would take as much from the system each time, and give it back: to fetch its pages takes longer than to fill
    them.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")


def decode_frame(data: Bytes, start: int, end: int) -> Frame:
    """The frame that a part of ``data`` is. Raises AmqpDecodeError."""
    _, data_offset, frame_type, channel = _FRAME_HEADER.unpack_from(data, start)
    body = start + 4 * data_offset
    if data_offset < _DATA_OFFSET_MIN or body > end:
        raise AmqpFrameError(f"a frame of {end - start} bytes whose body starts at byte {4 * data_offset} cannot be")
    if frame_type not in (_AMQP_TYPE, _SASL_TYPE):
        raise AmqpFrameError(f"frames of type {frame_type} are not known")
    registry = PERFORMATIVES if frame_type == _AMQP_TYPE else SASL_PERFORMATIVES
    if body == end:
        return Frame(channel, None)
    reader = Reader(data, body, end)
    performative = registry.from_value(reader.value())
    return Frame(channel, performative, memoryview(data)[reader.position : end])


def encode_frame(channel: int, performative: Composite, payload: Bytes = b"") -> bytes:
    """A frame of AMQP, or of SASL if the performative is one of its."""
    body = performative.encode()
    size = _FRAME_HEADER.size + len(body) + len(payload)
    frame_type = _AMQP_TYPE if PERFORMATIVES.has(performative) else _SASL_TYPE
    return b"".join((_FRAME_HEADER.pack(size, _DATA_OFFSET_MIN, frame_type, channel), body, payload))


def frame_header(channel: int) -> bytes:
    """What follows the size of a frame on a channel."""
    return _FRAME_HEADER.pack(0, _DATA_OFFSET_MIN, _AMQP_TYPE, channel)[_SIZE.size :]


def encode_transfer(channel: int, transfer: Transfer, message: Bytes, *, frame_bytes_max: int) -> Iterator[bytes]:
    """A delivery as the frames it takes: one, or several that all but the last say that there is more."""
    return map(b"".join, split_transfer(channel, transfer, (message,), frame_bytes_max=frame_bytes_max))


def split_transfer(
    channel: int, transfer: Transfer, message: Sequence[Bytes], *, frame_bytes_max: int
) -> Iterator[list[Bytes]]:
    """The same for a message in pieces, each frame in pieces as well: nothing is copied."""
    first_part = replace(transfer, more=True).encode()
    room = frame_bytes_max - _FRAME_HEADER.size - len(first_part)
    if room <= 0:
        raise AmqpEncodeError(
            f"a transfer does not fit into frames of {frame_bytes_max} bytes: its delivery tag is too long"
        )
    pieces, left_bytes = deque(memoryview(piece) for piece in message), sum(map(len, message))
    head = _FRAME_HEADER.pack(frame_bytes_max, _DATA_OFFSET_MIN, _AMQP_TYPE, channel) + first_part
    while left_bytes > room:
        yield [head, *_taken(pieces, room)]
        left_bytes -= room
    last_part = transfer.encode()
    size = _FRAME_HEADER.size + len(last_part) + left_bytes
    yield [_FRAME_HEADER.pack(size, _DATA_OFFSET_MIN, _AMQP_TYPE, channel) + last_part, *pieces]


def _taken(pieces: deque[memoryview], bytes_count: int) -> Iterator[memoryview]:
    """So many bytes from the front of the pieces, which have more."""
    while bytes_count:
        piece = pieces.popleft()
        if len(piece) > bytes_count:
            pieces.appendleft(piece[bytes_count:])
            piece = piece[:bytes_count]
        yield piece
        bytes_count -= len(piece)
