"""Messages to Arrow columns, thousands at a time.

    decoder = EventDecoder("3")
    batch = decoder.decode(deliveries.data, deliveries.starts, deliveries.ends)     # EVENT_SCHEMA

Messages that are laid out as others before them go through numpy and Arrow together; the rest one by one through
:func:`.reference_decoder.read_event`. The columns are the same either way, and so is what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.amqp.codec.decode import Bytes, decode
from hubline.amqp.codec.property_types import CODES, TYPES, noted_types
from hubline.amqp.codec.text import to_text
from hubline.amqp.events.byte_rows import Mask, Octets, Positions, column, strings, take_slices, validity
from hubline.amqp.events.fixed_width import ENTRY_FIELDS, MAP_TYPE, FixedWidthColumns
from hubline.amqp.events.known_templates import KnownTemplates
from hubline.amqp.events.reference_decoder import (
    BATCH_FORMAT,
    ENQUEUED_TIME,
    OFFSET,
    PARTITION_KEY,
    SEQUENCE_NUMBER,
    EventFields,
    read_batch,
    read_event,
)
from hubline.amqp.events.templates import FixedField, Match, Place, VariableField
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.arrow_helpers import repeated
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA

# Python's calendar, which whoever looks at an event needs: a time beyond it becomes its first or last millisecond.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999

# A column of Arrow holds no more; far less is decoded at once.
BYTES_MAX: Final = 2**30

# Fewer messages are decoded sooner one by one.
BULK_COUNT_MIN: Final = 16

_TIME_TYPE: Final = EVENT_SCHEMA.field("enqueuedTime").type

# Integers by type code: their digits are made by Arrow, all at once.
_INTEGERS: Final = {
    0x50: ">u1",
    0x60: ">u2",
    0x70: ">u4",
    0x52: ">u1",
    0x80: ">u8",
    0x53: ">u1",
    0x51: ">i1",
    0x61: ">i2",
    0x71: ">i4",
    0x54: ">i1",
    0x81: ">i8",
    0x55: ">i1",
}


class EventDecoder:
    """Decodes what one receiver gets. It remembers how events are laid out, which is all the state it has."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._templates = KnownTemplates(lambda template: template.has_position)

    def decode(self, data: Octets, starts: Positions, ends: Positions) -> pa.RecordBatch:
        """The events ``data[start:end]``, in order, as columns of EVENT_SCHEMA. Nothing of ``data`` is kept.

        Raises AmqpDecodeError if a message is no AMQP, or is none that a hub delivers: each has a sequence number,
        an offset and an enqueued time.
        """
        messages = _Messages(data, starts, ends, _read_delivered)
        if len(starts) < BULK_COUNT_MIN:
            return _event_batch(messages.read(range(len(starts))), self._partition)
        columns = _columns(messages, self._templates)
        return pa.RecordBatch.from_arrays(
            [
                columns.body(),
                repeated(self._partition, len(starts)),
                columns.offset(),
                column(columns.sequence_number(), pa.int64()),
                column(np.clip(columns.enqueued_ms(), TIME_MS_MIN, TIME_MS_MAX) * 1000, _TIME_TYPE),
                columns.partition_key(),
                columns.properties(),
            ],
            schema=EVENT_SCHEMA,
        )


class SentDecoder:
    """Decodes what one sender sends. It remembers how events are laid out, which is all the state it has."""

    def __init__(self) -> None:
        self._templates = KnownTemplates(lambda _template: True)

    def decode(self, payload: Bytes, message_format: int) -> pa.RecordBatch:
        """The events of a message, which is a batch or a single one, as columns of OUTGOING_SCHEMA.

        The types of properties are noted beside them (:mod:`hubline.amqp.codec.property_types`). The key of a batch is
        that of each of its events that has none itself. Raises AmqpDecodeError.
        """
        data = np.frombuffer(payload, np.uint8)
        if message_format != BATCH_FORMAT:
            return self._decode(data, np.zeros(1, np.int64), np.array([len(data)]))
        sent = read_batch(payload)
        events = self._decode(data, sent.starts, sent.ends)
        return events if sent.partition_key is None else _with_key(events, sent.partition_key)

    def _decode(self, data: Octets, starts: Positions, ends: Positions) -> pa.RecordBatch:
        messages = _Messages(data, starts, ends, _read_sent)
        if len(starts) < BULK_COUNT_MIN:
            return _outgoing_batch(messages.read(range(len(starts))))
        columns = _columns(messages, self._templates, notes_types=True)
        return pa.RecordBatch.from_arrays(
            [columns.body(), columns.partition_key(), columns.properties()], schema=OUTGOING_SCHEMA
        )


def _with_key(events: pa.RecordBatch, partition_key: str) -> pa.RecordBatch:
    body, key, properties = events.columns
    filled = repeated(partition_key, len(key)) if key.null_count == len(key) else key.fill_null(partition_key)
    return pa.RecordBatch.from_arrays([body, filled, properties], schema=OUTGOING_SCHEMA)


def join_messages(messages: Sequence[Bytes]) -> tuple[Octets, Positions, Positions]:
    """Messages that are apart, as a decoder takes them: data, starts and ends."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(lengths)
    return np.frombuffer(b"".join(messages), np.uint8), ends - lengths, ends


def _read_sent(data: Bytes, start: int, end: int) -> EventFields:
    return read_event(data, start, end, notes_types=True)


def _read_delivered(data: Bytes, start: int, end: int) -> EventFields:
    event = read_event(data, start, end)
    for name, value in (
        (SEQUENCE_NUMBER, event.sequence_number),
        (OFFSET, event.offset),
        (ENQUEUED_TIME, event.enqueued_ms),
    ):
        if value is None:
            raise AmqpDecodeError(f"a message without {name} is no event of a hub")
    return event


class _Messages:
    """Messages in a buffer, of which no more is looked at than they take."""

    def __init__(self, data: Octets, starts: Positions, ends: Positions, read: _Read) -> None:
        first, last = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        if last - first > BYTES_MAX:
            raise AmqpDecodeError(f"{last - first:,} bytes of messages at once are too many: take fewer")
        self.data = data[first:last]
        self.starts = starts - first
        self.ends = ends - first
        self._read = read

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, indexes: Sequence[int]) -> Iterator[EventFields]:
        """Some of them, one by one."""
        view = self.data.data
        for index in indexes:
            try:
                yield self._read(view, int(self.starts[index]), int(self.ends[index]))
            except AmqpDecodeError as error:
                raise AmqpDecodeError(f"message {index + 1} of {len(self)}: {error}") from None


def _event_batch(events: Iterable[EventFields], partition: str) -> pa.RecordBatch:
    rows = [
        (
            event.body,
            partition,
            event.offset,
            event.sequence_number,
            min(max(event.enqueued_ms or 0, TIME_MS_MIN), TIME_MS_MAX) * 1000,
            event.partition_key,
            event.properties,
        )
        for event in events
    ]
    return _batch(rows, EVENT_SCHEMA)


def _outgoing_batch(events: Iterable[EventFields]) -> pa.RecordBatch:
    return _batch([(event.body, event.partition_key, event.properties) for event in events], OUTGOING_SCHEMA)


def _batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Pieces:
    """A column of byte strings, as pieces of some buffer."""

    __slots__ = ("lengths", "starts")

    def __init__(self, shape: int | tuple[int, int]) -> None:
        self.starts = np.zeros(shape, np.int64)
        self.lengths = np.zeros(shape, np.int64)

    def put(self, where: _Where, starts: Positions | int, lengths: Positions | int) -> None:
        self.starts[where] = starts
        self.lengths[where] = lengths


_Where: TypeAlias = npt.NDArray[np.int64] | int | tuple[slice, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Properties of some events, which have equally many: one row an event, one column a property."""

    events: npt.NDArray[np.int64]
    keys: _Pieces
    values: _Pieces
    is_null: Mask


def _columns(
    messages: _Messages, templates: KnownTemplates, *, notes_types: bool = False
) -> FixedWidthColumns | _Columns:
    matches, others = templates.find(messages.data, messages.starts, messages.ends)
    fixed_width = None if others else FixedWidthColumns.of(messages.data, matches, notes_types=notes_types)
    return fixed_width or _Columns(messages, matches, others, notes_types=notes_types)


class _Columns:
    """Columns of any messages. A byte string is a piece of ``data``, or of what was added because it is not there."""

    def __init__(
        self, messages: _Messages, matches: Sequence[Match], others: Sequence[int], *, notes_types: bool
    ) -> None:
        count = len(messages)
        self._notes_types = notes_types
        self._data = messages.data
        self._count = count
        self._added = bytearray()
        self._body = _Pieces(count)
        self._offset = _Pieces(count)
        self._key = _Pieces(count)
        self._has_key = np.zeros(count, np.bool_)
        self._sequence_number = np.zeros(count, np.int64)
        self._enqueued_ms = np.zeros(count, np.int64)
        self._pairs: list[_Pairs] = []
        for match in matches:
            self._add_match(match)
        for index, event in zip(others, messages.read(others), strict=True):
            self._add_event(index, event)
        self._source = self._all_octets()

    def body(self) -> pa.BinaryArray:
        return take_slices(self._source, self._body.starts, self._body.lengths)

    def offset(self) -> pa.StringArray:
        return strings(take_slices(self._source, self._offset.starts, self._offset.lengths), OFFSET)

    def sequence_number(self) -> npt.NDArray[np.int64]:
        return self._sequence_number

    def enqueued_ms(self) -> npt.NDArray[np.int64]:
        return self._enqueued_ms

    def partition_key(self) -> pa.StringArray:
        if not self._has_key.any():
            return pa.nulls(self._count, pa.string())
        return strings(take_slices(self._source, self._key.starts, self._key.lengths, self._has_key), PARTITION_KEY)

    def properties(self) -> pa.MapArray:
        if not self._pairs:
            return pa.nulls(self._count, MAP_TYPE)
        counts = np.zeros(self._count, np.int64)
        for pairs in self._pairs:
            counts[pairs.events] = pairs.keys.starts.shape[1]
        offsets = np.zeros(self._count + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])
        keys, values, is_null = _Pieces(total), _Pieces(total), np.zeros(total, np.bool_)
        for pairs in self._pairs:
            places = offsets[pairs.events][:, None] + np.arange(pairs.keys.starts.shape[1])
            keys.put(places, pairs.keys.starts, pairs.keys.lengths)
            values.put(places, pairs.values.starts, pairs.values.lengths)
            is_null[places] = pairs.is_null
        entries = pa.StructArray.from_arrays(
            [
                strings(take_slices(self._source, keys.starts, keys.lengths), "the key of a property"),
                strings(take_slices(self._source, values.starts, values.lengths, ~is_null), "a property"),
            ],
            fields=ENTRY_FIELDS,
        )
        buffers = [validity(counts > 0), pa.py_buffer(offsets.astype(np.int32))]
        return pa.MapArray.from_buffers(MAP_TYPE, self._count, buffers, children=[entries])

    def _all_octets(self) -> pa.Buffer:
        if not self._added:
            return pa.py_buffer(self._data)
        return pa.py_buffer(np.concatenate((self._data, np.frombuffer(self._added, np.uint8))))

    def _add_match(self, match: Match) -> None:
        template, indexes = match.template, match.indexes
        self._body.put(indexes, *match.text(template.body))
        if template.offset is not None:
            self._offset.put(indexes, *match.text(template.offset))
        if template.partition_key is not None:
            self._key.put(indexes, *match.text(template.partition_key))
            self._has_key[indexes] = True
        if template.sequence_number is not None:
            self._sequence_number[indexes] = match.numbers(template.sequence_number)
        if template.enqueued_ms is not None:
            self._enqueued_ms[indexes] = match.numbers(template.enqueued_ms)
        if template.properties:
            self._pairs.append(self._matched_pairs(match))

    def _matched_pairs(self, match: Match) -> _Pairs:
        properties = match.template.properties
        types = _types(match) if self._notes_types else None
        shape = (len(match), len(properties) + (types is not None))
        pairs = _Pairs(match.indexes, _Pieces(shape), _Pieces(shape), np.zeros(shape, np.bool_))
        for number, item in enumerate(properties):
            where = np.s_[:, number]
            if isinstance(item.key, str):
                pairs.keys.put(where, *self._add_repeated(item.key, len(match)))
            else:
                pairs.keys.put(where, match.starts(item.key), item.key.width)
            if item.value is None:
                pairs.is_null[where] = True
            elif isinstance(item.value, VariableField | FixedField):
                pairs.values.put(where, *match.text(item.value))
            else:
                pairs.values.put(where, *self._add_texts(_texts(match.octets(item.value))))
        if types is not None:
            pairs.keys.put(np.s_[:, -1], *self._add_repeated(TYPES, len(match)))
            pairs.values.put(np.s_[:, -1], *self._add_repeated(types, len(match)))
        return pairs

    def _add_event(self, index: int, event: EventFields) -> None:
        self._body.put(index, *self._add(event.body))
        self._offset.put(index, *self._add((event.offset or "").encode()))
        self._sequence_number[index] = event.sequence_number or 0
        self._enqueued_ms[index] = event.enqueued_ms or 0
        if event.partition_key is not None:
            self._key.put(index, *self._add(event.partition_key.encode()))
            self._has_key[index] = True
        if event.properties:
            self._pairs.append(self._event_pairs(index, event.properties))

    def _event_pairs(self, index: int, properties: Sequence[tuple[str, str | None]]) -> _Pairs:
        shape = (1, len(properties))
        pairs = _Pairs(np.array([index]), _Pieces(shape), _Pieces(shape), np.zeros(shape, np.bool_))
        for number, (key, value) in enumerate(properties):
            where = np.s_[:, number]
            pairs.keys.put(where, *self._add(key.encode()))
            pairs.values.put(where, *self._add((value or "").encode()))
            pairs.is_null[where] = value is None
        return pairs

    def _add(self, octets: bytes) -> tuple[int, int]:
        """Takes bytes that are not in the data; returns where they start, and their length."""
        start = len(self._data) + len(self._added)
        self._added += octets
        return start, len(octets)

    def _add_repeated(self, text: str, count: int) -> tuple[Positions, int]:
        """Takes a text that so many events have."""
        octets = text.encode()
        start, _ = self._add(octets * count)
        return start + np.arange(count) * len(octets), len(octets)

    def _add_texts(self, texts: pa.StringArray) -> tuple[Positions, Positions]:
        _, offsets_buffer, octets = texts.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1).astype(np.int64)
        start, _ = self._add(octets.to_pybytes() if octets else b"")
        return start + offsets[:-1], np.diff(offsets)


_Read: TypeAlias = Callable[[Bytes, int, int], EventFields]


def _types(match: Match) -> str | None:
    """What is to be noted of the types of properties: the same for all of these messages."""
    return noted_types((_key(match, item.key), CODES.get(item.code)) for item in match.template.properties)


def _key(match: Match, key: Place | str) -> str:
    try:
        return key if isinstance(key, str) else match.octets(key)[0].tobytes().decode()
    except UnicodeDecodeError:
        raise AmqpDecodeError("the key of a property of a message is no UTF-8") from None


def _texts(values: Octets) -> pa.StringArray:
    """The text of values of one type, of fixed width: one a row, with its type code."""
    code = int(values[0, 0])
    if code in _INTEGERS:
        numbers = np.ascontiguousarray(values[:, 1:]).view(_INTEGERS[code])[:, 0]
        native = numbers.astype(numbers.dtype.newbyteorder("="))
        return column(native, pa.from_numpy_dtype(native.dtype)).cast(pa.string())
    return pa.array([to_text(decode(value.tobytes())) for value in values], pa.string())
