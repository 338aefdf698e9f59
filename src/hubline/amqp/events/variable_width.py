"""Columns of messages whose strings are of many lengths, or that are like no others: made of pieces of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.amqp.codec.decode import decode
from hubline.amqp.codec.property_types import CODES, TYPES, noted_types
from hubline.amqp.codec.text import to_text
from hubline.amqp.events.byte_rows import Mask, Octets, Positions, column, strings, take_slices, validity
from hubline.amqp.events.fixed_width import ENTRY_FIELDS, MAP_TYPE
from hubline.amqp.events.reference_decoder import EventFields
from hubline.amqp.events.templates import FixedField, Match, Place, VariableField
from hubline.amqp.service_names import OFFSET, PARTITION_KEY
from hubline.amqp.transport.errors import AmqpDecodeError

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


class VariableWidthColumns:
    """Columns of ``count`` messages: those that the matches found, and others that are decoded already.

    A byte string is a piece of ``data``, or of what was added because it is not there.
    """

    def __init__(
        self,
        data: Octets,
        count: int,
        matches: Sequence[Match],
        others: Iterable[tuple[int, EventFields]],
        *,
        notes_types: bool,
    ) -> None:
        self._notes_types = notes_types
        self._data = data
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
        for index, event in others:
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


def _types(match: Match) -> str | None:
    """What is to be noted of the types of properties: the same for all of these messages."""
    return noted_types((_key(match, item.key), CODES.get(item.code)) for item in match.template.properties)


def _key(match: Match, key: Place | str) -> str:
    try:
        return key if isinstance(key, str) else match.octets(key)[0].tobytes().decode()
    except UnicodeDecodeError:
        raise AmqpDecodeError("the key of a property of a message is not UTF-8") from None


def _texts(values: Octets) -> pa.StringArray:
    """The text of values of one type, of fixed width: one a row, with its type code."""
    code = int(values[0, 0])
    if code in _INTEGERS:
        numbers = np.ascontiguousarray(values[:, 1:]).view(_INTEGERS[code])[:, 0]
        native = numbers.astype(numbers.dtype.newbyteorder("="))
        return column(native, pa.from_numpy_dtype(native.dtype)).cast(pa.string())
    return pa.array([to_text(decode(value.tobytes())) for value in values], pa.string())
