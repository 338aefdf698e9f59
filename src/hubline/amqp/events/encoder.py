"""Arrow columns to messages, thousands at a time: what a sender sends, and what a hub delivers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.amqp.arrays import Positions
from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import DATA, MESSAGE_ANNOTATIONS
from hubline.amqp.codec.performatives import UINT_MAX, Transfer
from hubline.amqp.codec.types import Described, Symbol, ULong
from hubline.amqp.core.library import core
from hubline.amqp.events.compiled_encoder import Wrapping, encode_by_core
from hubline.amqp.events.reference_encoder import encode_each
from hubline.amqp.service_names import PARTITION_KEY
from hubline.amqp.transport.frames import encode_transfer, frame_header
from hubline.errors import EventTooLarge

# Clients remember the tag of every delivery; a settled one needs none of its own.
DELIVERY_TAG: Final = b"\x00"

_UINT: Final = struct.Struct(">I")
_AS_THEY_ARE: Final = Wrapping()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """``count`` events as one message of the format ``BATCH_FORMAT``."""

    payload: Bytes
    count: int


def encode_batches(
    events: pa.RecordBatch, *, max_bytes: int, partition_key: str | None = None, hub: str = ""
) -> Iterator[Batch]:
    """The events (OUTGOING_SCHEMA), in order, in as few messages of at most ``max_bytes`` as they take.

    ``partition_key`` is for the batches as a whole; the service goes by it. Raises EventTooLarge at once, before
    anything was sent, if an event does not fit even alone.
    """
    head = _batch_head(partition_key)
    messages = encode_events(events, Wrapping(is_section=True))
    ends = _ends_of(messages)
    _require_sizes(np.diff(ends) + len(head), max_bytes, hub)
    return _batches(head, messages, ends, max_bytes)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where deliveries go: a link of a session, and the largest frame its peer takes."""

    channel: int
    handle: int
    frame_bytes_max: int


def encode_deliveries(
    events: pa.RecordBatch, destination: Destination, *, first_delivery_id: int, delivery_annotations: bytes = b""
) -> Iterator[Bytes]:
    """The events (EVENT_SCHEMA) as frames, one settled delivery each, ready for the socket.

    ``delivery_annotations`` is a section that all get. An event that is larger than a frame takes several.
    """
    head = _TransferHead(destination)
    frames = encode_events(events, head.wrapping(first_delivery_id, delivery_annotations))
    ends = _ends_of(frames)
    data = memoryview(frames.buffers()[2]).cast("B")
    start = 0
    for index in np.flatnonzero(np.diff(ends) > destination.frame_bytes_max).tolist():
        if start < ends[index]:
            yield data[start : int(ends[index])]
        start = int(ends[index + 1])
        yield from head.split(data[int(ends[index]) + head.width : start], first_delivery_id + index)
    if start < ends[-1]:
        yield data[start : int(ends[-1])]


class _TransferHead:
    """What stands before a message in a frame of its own."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        transfer = self._transfer(UINT_MAX).encode()  # an id that takes four bytes
        reader = Reader(transfer)
        reader.descriptor()
        reader.enter()
        reader.span()
        delivery_id = reader.span()
        self._before_id = frame_header(destination.channel) + transfer[: delivery_id.start]
        self._after_id = transfer[delivery_id.end :]
        self.width = 4 + len(self._before_id) + 4 + len(self._after_id)

    def wrapping(self, first_delivery_id: int, prefix: bytes) -> Wrapping:
        return Wrapping(
            prefix=prefix, before_id=self._before_id, after_id=self._after_id, first_delivery_id=first_delivery_id
        )

    def split(self, message: Bytes, delivery_id: int) -> Iterator[bytes]:
        transfer = self._transfer(delivery_id & UINT_MAX)
        return encode_transfer(
            self._destination.channel, transfer, message, frame_bytes_max=self._destination.frame_bytes_max
        )

    def _transfer(self, delivery_id: int) -> Transfer:
        return Transfer(self._destination.handle, delivery_id, DELIVERY_TAG, message_format=0, settled=True)


def encode_events(events: pa.RecordBatch, wrapping: Wrapping = _AS_THEY_ARE) -> pa.BinaryArray:
    """The message of each event: of OUTGOING_SCHEMA, or of EVENT_SCHEMA with the annotations of a hub."""
    compiled = core()
    if compiled is not None:
        return encode_by_core(compiled, events, wrapping, encode_each)
    messages = enumerate(encode_each(events))
    return pa.array((_wrapped(message, wrapping, row) for row, message in messages), pa.binary())


def _wrapped(message: bytes, wrapping: Wrapping, row: int) -> bytes:
    message = wrapping.prefix + message
    if wrapping.is_section:
        return encode(Described(ULong(DATA), message))
    if wrapping.before_id is None or wrapping.after_id is None:
        return message
    delivery_id = _UINT.pack((wrapping.first_delivery_id + row) & UINT_MAX)
    frame = wrapping.before_id + delivery_id + wrapping.after_id + message
    return _UINT.pack(_UINT.size + len(frame)) + frame


def _ends_of(messages: pa.BinaryArray) -> Positions:
    """Where the first begins, and where each ends."""
    return np.frombuffer(messages.buffers()[1], np.int32, len(messages) + 1).astype(np.int64)


def _batch_head(partition_key: str | None) -> bytes:
    if partition_key is None:
        return b""
    return encode(Described(ULong(MESSAGE_ANNOTATIONS), {Symbol(PARTITION_KEY): partition_key}))


def _require_sizes(sizes: Positions, max_bytes: int, hub: str) -> None:
    too_large = np.flatnonzero(sizes > max_bytes)
    if len(too_large):
        index = int(too_large[0])
        name = f"hub {hub}" if hub else "the hub"
        raise EventTooLarge(
            f"event {index} of {len(sizes)} takes {sizes[index]:,} bytes as a message, but {name} takes at "
            f"most {max_bytes:,}. Nothing was sent. Split the event.",
            hub=hub,
            index=index,
            bytes_count=int(sizes[index]),
            max_bytes=max_bytes,
        )


def _batches(head: bytes, messages: pa.BinaryArray, ends: Positions, max_bytes: int) -> Iterator[Batch]:
    data = memoryview(messages.buffers()[2]).cast("B")
    start, room = 0, max_bytes - len(head)
    while start < len(messages):
        end = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        content = data[int(ends[start]) : int(ends[end])]
        yield Batch(b"".join((head, content)) if head else content, end - start)
        start = end
