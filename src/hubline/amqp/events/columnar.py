"""Columns as they are, between hubline's own endpoint and its own client, in place of a message for each event.

A receiver says in its attach that it desires :data:`COLUMNS_CAPABILITY`; a sender that does not know it, such as the
service, passes it over. One that does offers :data:`COLUMNS_OFFER`, and may then send deliveries of the format
:data:`COLUMNS_FORMAT`, each of which counts as many messages as it holds events: towards the link's credit and its
delivery count. Such a delivery is

    one Arrow IPC record batch message      what senders made of the events (OUTGOING_SCHEMA)
    one section of what the hub adds        told once for all events: see _Added
    one section of delivery annotations     the runtime metrics, if the receiver desires them

So a hub that stores such messages sends them as they lie on its disk. The schema is known, and no schema message goes
with it. Nothing is compressed, and nothing is a dictionary.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hubline.amqp.codec.composites import BINARY, STRING, ULONG, Composite, Registry
from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.property_types import TYPES
from hubline.amqp.events.decoder import TIME_MS_MAX, TIME_MS_MIN
from hubline.amqp.events.reference_decoder import RuntimeMetrics, read_runtime_metrics
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.amqp.transport.frames import ALIGNMENT_BYTES
from hubline.hubs.local.stored_batch import SEQUENCE_DIGITS, StoredBatch
from hubline.model.events import OUTGOING_SCHEMA

# The number is that of the format: who knows another one gets messages.
COLUMNS_CAPABILITY: Final = "hubline:columns-1"
# Another word than what is desired: there are peers that offer whatever is, and send on what they were sent. Columns
# are believed to be the hub's own word, and must not be what somebody made who may only send to it.
COLUMNS_OFFER: Final = "hubline:columns-1-offered"

# AMQP gives the upper three bytes to who makes a format, and the lowest to its version. Nobody else's begins so.
COLUMNS_FORMAT: Final = 0x4855_4201

# What senders made, as if no text had to be valid.
_AS_BYTES: Final = pa.schema(
    [
        pa.field("body", pa.binary()),
        pa.field("partitionKey", pa.binary()),
        pa.field("properties", pa.map_(pa.binary(), pa.binary())),
    ]
)
_ASCII_END: Final = 0x80

_RECORD_BATCH: Final = "record batch"
_PREFIX_LENGTH_MAX: Final = 32

# Places in the tables of Arrow's messages: what the message is about, and how a record batch is compressed.
_HEADER_SLOT: Final = 2
_COMPRESSION_SLOT: Final = 3
_UINT16: Final = struct.Struct("<H")
_INT32: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class _Added(Composite):
    """What the hub adds to the events, as a section: see :class:`~hubline.stretches.StoredBatch`."""

    CODE: ClassVar[int] = COLUMNS_FORMAT << 32 | 1
    NAME: ClassVar[str] = "hubline:added:list"
    first_sequence: Annotated[int, ULONG]
    offset_prefix: Annotated[str, STRING]
    counts: Annotated[bytes, BINARY]
    times_ms: Annotated[bytes, BINARY]


_SECTION: Final = Registry(_Added)
_COUNTS: Final = np.dtype("<u4")
_TIMES: Final = np.dtype("<i8")


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What a delivery holds: events, and the partition's newest if it was told."""

    stretch: StoredBatch
    metrics: RuntimeMetrics | None


def encode_columns(stretch: StoredBatch, *, delivery_annotations: bytes = b"") -> tuple[Bytes, ...]:
    """The events as one delivery, in pieces."""
    added = _Added(
        stretch.first_sequence,
        stretch.offset_prefix,
        stretch.counts.astype(_COUNTS).tobytes(),
        (stretch.times_us // 1000).astype(_TIMES).tobytes(),
    )
    return memoryview(stretch.encode()), added.encode(), delivery_annotations


def decode_columns(payload: Bytes, partition: str) -> Columns:
    """What :func:`encode_columns` made. The events share the payload. Raises AmqpDecodeError for anything else.

    Arrow believes what it reads: the offsets in a payload, and that text is UTF-8. So all of it is looked at.
    """
    buffer = pa.py_buffer(payload)
    if buffer.address % ALIGNMENT_BYTES:  # which our own endpoint sees to
        buffer = pa.py_buffer(bytes(payload))
    stream = pa.BufferReader(buffer)
    try:
        message = pa.ipc.read_message(stream)
        if message.type != _RECORD_BATCH or _is_compressed(message.metadata):
            raise AmqpDecodeError("columns come as one record batch that is not compressed")
        made = _sound(message)
    except (pa.ArrowException, struct.error, OSError, EOFError) as error:
        raise AmqpDecodeError(f"these are no columns of events: {error}") from error
    reader = Reader(payload, stream.tell())
    added = _SECTION.from_value(reader.value())
    assert isinstance(added, _Added)  # noqa: S101 (the registry knows no other)
    return Columns(_stretch(partition, added, made), read_runtime_metrics(payload, reader.position, len(payload)))


def _sound(message: pa.Message) -> pa.RecordBatch:
    """What senders made, once it is sure that all of it is there and that text is text. Raises pa.ArrowInvalid."""
    pa.ipc.read_record_batch(message, _AS_BYTES).validate(full=True)
    made = pa.ipc.read_record_batch(message, OUTGOING_SCHEMA)
    _, key, properties = made.columns
    if not all(map(_is_ascii, (key, properties.keys, properties.items))):
        # Text by text, which takes five times as long as all the rest.
        made.validate(full=True)
    return made


def _is_ascii(column: pa.StringArray) -> bool:
    """Whether all that the texts are made of is ASCII: then each of them is valid, wherever it begins and ends."""
    octets = column.buffers()[2]
    return octets is None or not octets.size or bool(np.frombuffer(octets, np.uint8).max() < _ASCII_END)


def _stretch(partition: str, added: _Added, made: pa.RecordBatch) -> StoredBatch:
    """The events, unless they are what columns can say and no message of a hub does."""
    if not len(made):
        raise AmqpDecodeError("columns hold one event at least")
    body, key, properties = made.columns
    if body.null_count:
        raise AmqpDecodeError("an event has no body")
    if added.first_sequence + len(made) > 10**SEQUENCE_DIGITS:
        raise AmqpDecodeError(f"a sequence number has more than {SEQUENCE_DIGITS} digits")
    if not added.offset_prefix.isascii() or len(added.offset_prefix) > _PREFIX_LENGTH_MAX:
        raise AmqpDecodeError(f"offsets begin with up to {_PREFIX_LENGTH_MAX} characters of ASCII")
    try:
        counts = np.frombuffer(added.counts, _COUNTS).astype(np.int64)
        times_ms = np.frombuffer(added.times_ms, _TIMES).astype(np.int64)
    except ValueError as error:
        raise AmqpDecodeError(f"counts and times are no numbers: {error}") from error
    if len(counts) != len(times_ms) or counts.sum() != len(made):
        raise AmqpDecodeError("the times are not those of so many events")
    if times_ms.min() < TIME_MS_MIN or times_ms.max() > TIME_MS_MAX:
        raise AmqpDecodeError("an event was enqueued at no time that there is")
    made = pa.RecordBatch.from_arrays([body, key, _without_types(properties)], schema=OUTGOING_SCHEMA)
    return StoredBatch(partition, added.first_sequence, added.offset_prefix, counts, times_ms * 1000, made)


def _without_types(properties: pa.MapArray) -> pa.MapArray:
    """The properties without what an endpoint noted of them for itself: no message carries that as a property."""
    offsets = properties.offsets.to_numpy()
    # A part of a column still holds the pairs of the whole.
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = (column.slice(first, count) for column in (properties.keys, properties.items))
    is_types = pc.equal(keys, TYPES)
    if not is_types.true_count:
        return properties
    is_kept = pc.invert(is_types)
    kept_before = np.concatenate(([0], np.cumsum(is_kept.to_numpy(zero_copy_only=False))))
    return pa.MapArray.from_arrays(
        pa.array(kept_before[offsets - first], pa.int32()),
        keys.filter(is_kept),
        items.filter(is_kept),
        properties.type,
        mask=properties.is_null(),
    )


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch has to be unpacked, which Arrow would do unasked, however large that is.

    Arrow has seen to it that the tables are sound, and tells all of what they say but this.
    """
    header = _place(metadata, _target(metadata, 0), _HEADER_SLOT)
    return header is None or _place(metadata, _target(metadata, header), _COMPRESSION_SLOT) is not None


def _target(data: pa.Buffer, position: int) -> int:
    """Where a table is, by what stands at the position."""
    return position + int(_INT32.unpack_from(data, position)[0])


def _place(data: pa.Buffer, table: int, slot: int) -> int | None:
    """Where a table has one of its values; None if it has not."""
    layout = table - int(_INT32.unpack_from(data, table)[0])
    entry = _UINT16.size * (2 + slot)
    if entry >= _UINT16.unpack_from(data, layout)[0]:
        return None
    offset = int(_UINT16.unpack_from(data, layout + entry)[0])
    return table + offset if offset else None
