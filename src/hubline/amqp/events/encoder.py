"""Arrow columns to messages, thousands at a time: what a sender sends, and what a hub delivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.amqp.codec.data_sections import DATA_SECTIONS, encode_body
from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import MESSAGE_ANNOTATIONS
from hubline.amqp.codec.performatives import UINT_MAX, Transfer
from hubline.amqp.codec.types import Described, Symbol, ULong
from hubline.amqp.events.byte_rows import Positions
from hubline.amqp.events.pieces import (
    STRING,
    FixedRows,
    Lengths,
    Piece,
    join_pieces,
    lengths_of,
    map_fields,
    offsets_of,
    prefix_column,
    size_fields,
    total_lengths,
    width_of,
)
from hubline.amqp.events.property_columns import noted_of, property_pieces
from hubline.amqp.service_names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, SEQUENCE_NUMBER
from hubline.amqp.transport.frames import encode_transfer, frame_header
from hubline.errors import EventTooLarge

# Clients remember the tag of every delivery; a settled one needs none of its own.
DELIVERY_TAG: Final = b"\x00"

_DATA: Final = b"\x00\x53\x75"
_ANNOTATIONS: Final = b"\x00\x53\x72"
_BINARY: Final = 0xA0


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
    messages = _wrapped(outgoing_pieces(events), len(events))
    ends = offsets_of(messages)
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
    pieces = [*delivered_pieces(events)]
    if delivery_annotations:
        pieces.insert(0, FixedRows(len(events), delivery_annotations))
    sizes = total_lengths(pieces, len(events))
    head = _TransferHead(destination)
    frames = join_pieces([head.rows(sizes, first_delivery_id), *pieces])
    ends = offsets_of(frames)
    data = memoryview(frames.buffers()[2])
    start = 0
    for index in np.flatnonzero(sizes + head.width > destination.frame_bytes_max).tolist():
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
        self._before_id = transfer[: delivery_id.start]
        self._after_id = transfer[delivery_id.end :]
        self._frame_header = frame_header(destination.channel)
        self.width = 4 + len(self._frame_header) + len(transfer)

    def rows(self, sizes: Lengths, first_delivery_id: int) -> FixedRows:
        ids = (np.arange(len(sizes)) + first_delivery_id) & UINT_MAX
        return FixedRows(
            len(sizes),
            (sizes + self.width).astype(">u4"),
            self._frame_header,
            self._before_id,
            ids.astype(">u4"),
            self._after_id,
        )

    def split(self, message: Bytes, delivery_id: int) -> Iterator[bytes]:
        transfer = self._transfer(delivery_id & UINT_MAX)
        return encode_transfer(
            self._destination.channel, transfer, message, frame_bytes_max=self._destination.frame_bytes_max
        )

    def _transfer(self, delivery_id: int) -> Transfer:
        return Transfer(self._destination.handle, delivery_id, DELIVERY_TAG, message_format=0, settled=True)


def outgoing_pieces(events: pa.RecordBatch) -> list[Piece]:
    """What the message of each event (OUTGOING_SCHEMA) is put together from."""
    body, key, properties = events.columns
    keys = [] if key.null_count == len(key) else [_key_annotation(key)]
    return [*keys, *property_pieces(properties), *_data_pieces(body, properties)]


def delivered_pieces(events: pa.RecordBatch) -> list[Piece]:
    """The same for events of a hub (EVENT_SCHEMA), with its annotations."""
    body, _, offset, sequence_number, enqueued_time, key, properties = events.columns
    keys = _key_pieces(key)
    return [
        *_annotation_pieces(sequence_number, offset, enqueued_time, keys),
        *property_pieces(properties),
        *_data_pieces(body, properties),
    ]


def _annotation_pieces(
    sequence_number: pa.Array, offset: pa.Array, enqueued_time: pa.Array, keys: Sequence[Piece]
) -> list[Piece]:
    count = len(offset)
    offset_lengths = lengths_of(offset)
    string_code, offset_sizes = size_fields(STRING, offset_lengths)
    before = (
        _symbol(SEQUENCE_NUMBER) + b"\x81",
        _numbers(sequence_number),
        _symbol(OFFSET) + string_code,
        offset_sizes,
    )
    after = (_symbol(ENQUEUED_TIME) + b"\x83", _numbers(enqueued_time, divisor=1000))
    key_lengths = total_lengths(keys, count)
    content_lengths = offset_lengths + key_lengths + width_of(before) + width_of(after)
    value_counts = 6 + 2 * (key_lengths > 0)
    return [
        FixedRows(count, _ANNOTATIONS, *map_fields(content_lengths, value_counts), *before),
        offset,
        FixedRows(count, *after),
        *keys,
    ]


def _key_pieces(keys: pa.StringArray) -> list[Piece]:
    """Name and value of an annotation, where there is a key."""
    if keys.null_count == len(keys):
        return []
    return [_key_pair(keys)] if keys.null_count else [_key_head(keys), keys]


def _key_head(keys: pa.StringArray) -> FixedRows:
    code, sizes = size_fields(STRING, lengths_of(keys))
    return FixedRows(len(keys), _symbol(PARTITION_KEY) + code, sizes)


def _key_pair(keys: pa.StringArray) -> pa.BinaryArray:
    """Name and value of an annotation; null where there is no key."""
    return prefix_column(_key_head(keys), keys)


def _key_annotation(keys: pa.StringArray) -> pa.BinaryArray:
    """A section of annotations; null where there is no key."""
    pairs = _key_pair(keys)
    lengths = lengths_of(pairs)
    return prefix_column(FixedRows(len(keys), _ANNOTATIONS, *map_fields(lengths, np.full(len(keys), 2))), pairs)


def _data_pieces(body: pa.BinaryArray, properties: pa.MapArray) -> list[Piece]:
    noted = noted_of(properties, DATA_SECTIONS)
    code, sizes = size_fields(_BINARY, lengths_of(body))
    head = FixedRows(len(body), _DATA + code, sizes)
    return [*_noted_sections(body, head, noted)] if noted else [head, body]


def _noted_sections(body: pa.BinaryArray, head: FixedRows, noted: Mapping[int, str]) -> tuple[Piece, Piece]:
    """The sections of bodies that came in several, which are made one by one; and those of the others."""
    is_noted = np.zeros(len(body), np.bool_)
    is_noted[list(noted)] = True
    sections = pa.array([encode_body(body[event].as_py(), note) for event, note in sorted(noted.items())], pa.binary())
    places = pa.array(np.cumsum(is_noted) - 1, mask=~is_noted)
    others = pc.if_else(pa.array(is_noted), pa.scalar(None, body.type), body)
    return sections.take(places), prefix_column(head, others)


def _wrapped(pieces: Sequence[Piece], count: int) -> pa.BinaryArray:
    """Messages from their pieces, each as a Data section of a batch."""
    code, sizes = size_fields(_BINARY, total_lengths(pieces, count))
    return join_pieces([FixedRows(count, _DATA + code, sizes), *pieces])


def _batch_head(partition_key: str | None) -> bytes:
    if partition_key is None:
        return b""
    return encode(Described(ULong(MESSAGE_ANNOTATIONS), {Symbol(PARTITION_KEY): partition_key}))


def _require_sizes(sizes: Lengths, max_bytes: int, hub: str) -> None:
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
    data = memoryview(messages.buffers()[2])
    start, room = 0, max_bytes - len(head)
    while start < len(messages):
        end = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        content = data[int(ends[start]) : int(ends[end])]
        yield Batch(b"".join((head, content)) if head else content, end - start)
        start = end


def _symbol(name: str) -> bytes:
    return encode(Symbol(name))


def _numbers(column: pa.Array, *, divisor: int = 1) -> npt.NDArray[np.generic]:
    numbers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return (numbers if divisor == 1 else numbers // divisor).astype(">i8")
