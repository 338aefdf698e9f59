"""Columns to messages by the compiled core: one call for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.amqp.core.library import Core, Encoding, GrowingColumn, Texts, address_of, buffer_address
from hubline.model.events import EVENT_SCHEMA

_PROPERTIES_TYPE: Final = EVENT_SCHEMA.field("properties").type

# More than stands around the strings of any event, and around each pair of properties.
_OVERHEAD_BYTES: Final = 160
_PAIR_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What is around each message: a Data section, or a frame with the bytes before and after the delivery's id.

    ``prefix`` is what each message begins with.
    """

    is_section: bool = False
    prefix: bytes = b""
    before_id: bytes | None = None
    after_id: bytes | None = None
    first_delivery_id: int = 0

    @property
    def bytes_max(self) -> int:
        return len(self.prefix) + len(self.before_id or b"") + len(self.after_id or b"") + 8


def encode_by_core(
    core: Core, events: pa.RecordBatch, wrapping: Wrapping, encode_each: Callable[[pa.RecordBatch], Iterable[bytes]]
) -> pa.BinaryArray:
    """The events, of OUTGOING_SCHEMA or of EVENT_SCHEMA, as messages. ``encode_each`` makes those that C does not."""
    count = len(events)
    body, key, properties = (events.column(name) for name in ("body", "partitionKey", "properties"))
    if properties.type != _PROPERTIES_TYPE:
        raise TypeError(f"properties are {properties.type}")
    valid, ends = properties.buffers()[:2]
    names, values = properties.keys, properties.items
    run = Encoding(
        count=count,
        body=Texts.of(body),
        key=Texts.of(key),
        map_ends=buffer_address(ends, 4 * properties.offset),
        map_valid=buffer_address(valid) if properties.null_count else None,
        map_first=properties.offset,
        pairs_count=len(names),
        names=Texts.of(names),
        values=Texts.of(values),
        prefix=wrapping.prefix,
        prefix_size=len(wrapping.prefix),
        is_section=wrapping.is_section,
        before_id=wrapping.before_id,
        after_id=wrapping.after_id,
        before_id_size=len(wrapping.before_id or b""),
        after_id_size=len(wrapping.after_id or b""),
        delivery_id=wrapping.first_delivery_id,
    )
    texts = [body, key]
    if "offset" in events.schema.names:
        offset = events.column("offset")
        numbers = [
            np.ascontiguousarray(events.column(name).cast(pa.int64()).to_numpy())
            for name in ("sequenceNumber", "enqueuedTime")
        ]
        run.offset, run.sequences, run.times = Texts.of(offset), address_of(numbers[0]), address_of(numbers[1])
        texts.append(offset)
    others = np.empty(count, np.int64)
    run.others = address_of(others)
    room = sum(map(_bytes_count, texts)) + count * (_OVERHEAD_BYTES + wrapping.bytes_max) + _pairs_room(properties)
    messages = _encoded(core, run, room)
    if run.others_count:
        indexes = others[: run.others_count]
        made = pa.array(encode_each(events.take(pa.array(indexes))), pa.binary())
        places, is_made = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        places[indexes], is_made[indexes] = np.arange(len(indexes)), True
        made_rows = made.take(pa.array(places, mask=~is_made))
        run.made, run.next, run.others_count = Texts.of(made_rows), 0, 0
        messages = _encoded(core, run, room + _bytes_count(made))
    return messages.array(pa.binary())


def _encoded(core: Core, run: Encoding, room: int) -> GrowingColumn:
    messages = GrowingColumn(run.messages, run.count, room, has_nulls=False)
    while not core.encode(run):
        messages.grow()
    return messages


def _bytes_count(texts: pa.Array) -> int:
    ends = texts.buffers()[1]
    if not len(texts) or ends is None:
        return 0
    bounds = np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset)
    return int(bounds[-1] - bounds[0])


def _pairs_room(properties: pa.MapArray) -> int:
    """More than the pairs of these events take, among those of a whole of which they may be a part."""
    if not len(properties) or properties.null_count == len(properties):
        return 0
    first, last = (int(properties.offsets[row].as_py()) for row in (0, len(properties)))
    parts = (part.slice(first, last - first) for part in (properties.keys, properties.items))
    return sum(map(_bytes_count, parts)) + (last - first) * _PAIR_BYTES
