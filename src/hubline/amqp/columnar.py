"""Columns as they are, between hubline's own endpoint and its own client, in place of a message for each event.

A receiver says in its attach that it desires :data:`COLUMNS_CAPABILITY`; a sender that does not know it, such as the
service, passes it over. One that does offers :data:`COLUMNS_OFFER`, and may then send deliveries of the format
:data:`COLUMNS_FORMAT`, each of which counts as many messages as it holds events: towards the link's credit and its
delivery count. Such a delivery is

    one Arrow IPC record batch message      EVENT_SCHEMA but for the partition, which the link tells
    one section of delivery annotations     the runtime metrics, if the receiver desires them

The schema is known, so that no schema message goes with it. Nothing is compressed, and nothing is a dictionary.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hubline.amqp.columns import TIME_MS_MAX, TIME_MS_MIN, repeated
from hubline.amqp.decoding import Bytes
from hubline.amqp.errors import AmqpDecodeError
from hubline.amqp.events import RuntimeMetrics, read_runtime_metrics
from hubline.amqp.properties import TYPES
from hubline.model import EVENT_SCHEMA

COLUMNS_CAPABILITY: Final = "hubline:columns"
# Another word than what is desired: there are peers that offer whatever is, and send on what they were sent. Columns
# are believed to be the hub's own word, and must not be what somebody made who may only send to it.
COLUMNS_OFFER: Final = "hubline:columns-offered"

# AMQP gives the upper three bytes to who makes a format, and the lowest to its version. Nobody else's begins so.
COLUMNS_FORMAT: Final = 0x4855_4200

_PARTITION_INDEX: Final = EVENT_SCHEMA.get_field_index("partition")
_SENT_SCHEMA: Final = EVENT_SCHEMA.remove(_PARTITION_INDEX)
_REQUIRED: Final = tuple(field.name for field in _SENT_SCHEMA if not field.nullable)
_RECORD_BATCH: Final = "record batch"

# Places in the tables of Arrow's messages: what the message is about, and how a record batch is compressed.
_HEADER_SLOT: Final = 2
_COMPRESSION_SLOT: Final = 3
_UINT16: Final = struct.Struct("<H")
_INT32: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What a delivery holds: events (EVENT_SCHEMA), one at least, and the partition's newest if it was told."""

    events: pa.RecordBatch
    metrics: RuntimeMetrics | None


def encode_columns(events: pa.RecordBatch, *, delivery_annotations: bytes = b"") -> Bytes:
    """The events (EVENT_SCHEMA) as one delivery."""
    body, _, offset, sequence_number, enqueued_time, key, properties = events.columns
    columns = [body, offset, sequence_number, _in_milliseconds(enqueued_time), key, _without_types(properties)]
    encoded = memoryview(pa.RecordBatch.from_arrays(columns, schema=_SENT_SCHEMA).serialize())
    return b"".join((encoded, delivery_annotations)) if delivery_annotations else encoded


def decode_columns(payload: bytes, partition: str) -> Columns:
    """What :func:`encode_columns` made. The events share the payload. Raises AmqpDecodeError for anything else.

    Arrow believes what it reads: the offsets in a payload, and that text is UTF-8. So all of it is looked at.
    """
    stream = pa.BufferReader(payload)
    try:
        message = pa.ipc.read_message(stream)
        if message.type != _RECORD_BATCH or _is_compressed(message.metadata):
            raise AmqpDecodeError("columns come as one record batch that is not compressed")
        sent = pa.ipc.read_record_batch(message, _SENT_SCHEMA)
        sent.validate(full=True)
    except (pa.ArrowException, struct.error, OSError, EOFError) as error:
        raise AmqpDecodeError(f"these are no columns of events: {error}") from error
    _require_events(sent)
    columns = sent.columns
    columns.insert(_PARTITION_INDEX, repeated(partition, len(sent)))
    return Columns(
        pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA),
        read_runtime_metrics(payload, stream.tell(), len(payload)),
    )


def _in_milliseconds(times: pa.TimestampArray) -> pa.TimestampArray:
    """The times as a message tells them: an event's is the same however it comes."""
    return pa.array(times.view(pa.int64()).to_numpy() // 1000 * 1000).view(times.type)


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


def _require_events(sent: pa.RecordBatch) -> None:
    """Refuses what columns can say and no message of a hub does."""
    if not len(sent):
        raise AmqpDecodeError("columns hold one event at least")
    for name in _REQUIRED:
        if sent.column(name).null_count:
            raise AmqpDecodeError(f"an event has no {name}")
    sequences = sent.column("sequenceNumber").to_numpy()
    if sequences[0] < 0 or not (sequences[1:] > sequences[:-1]).all():
        raise AmqpDecodeError("the sequence numbers of events do not rise")
    microseconds = sent.column("enqueuedTime").view(pa.int64()).to_numpy()
    if microseconds.min() < TIME_MS_MIN * 1000 or microseconds.max() > TIME_MS_MAX * 1000:
        raise AmqpDecodeError("an event was enqueued at no time that there is")
