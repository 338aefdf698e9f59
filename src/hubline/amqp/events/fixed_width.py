"""Columns of messages that fixed-width templates found: each of their strings has one width in each template.

Nothing has to be cut out piece by piece then. What a column has of a template's messages are rows of bytes, which are
copied to where they belong as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.amqp.codec.property_types import CODES
from hubline.amqp.events.byte_rows import (
    Octets,
    Positions,
    equal_offsets,
    equal_slices,
    put_rows,
    scatter_rows,
    strings,
    take_slices,
    validity,
)
from hubline.amqp.events.templates import FixedField, Match, Place, Property, Template, VariableField
from hubline.amqp.service_names import OFFSET, PARTITION_KEY
from hubline.model.events import EVENT_SCHEMA

MAP_TYPE: Final = EVENT_SCHEMA.field("properties").type
ENTRY_FIELDS: Final = (MAP_TYPE.key_field, MAP_TYPE.item_field)

# The properties of a template's messages: the key of each and how long its value is; None for null.
_Shape: TypeAlias = tuple[tuple[bytes, int | None], ...]


class FixedWidthColumns:
    """Columns of ``data``, in which the matches found all messages. See the module."""

    def __init__(self, data: Octets, matches: Sequence[Match], shape: _Shape) -> None:
        self._data = data
        self._matches = matches
        self._shape = shape
        self._count = sum(map(len, matches))

    @classmethod
    def of(cls, data: Octets, matches: Sequence[Match], *, notes_types: bool) -> FixedWidthColumns | None:
        """None if a template is of variable width, or if their properties are not alike, or are more than texts."""
        if not all(_is_plain(match.template, notes_types=notes_types) for match in matches):
            return None
        shape, *others = map(_shape, matches)
        return cls(data, matches, shape) if all(other == shape for other in others) else None

    def body(self) -> pa.BinaryArray:
        starts, lengths = np.empty(self._count, np.int64), np.empty(self._count, np.int64)
        for match in self._matches:
            starts[match.indexes], lengths[match.indexes] = match.text(match.template.body)
        return take_slices(pa.py_buffer(self._data), starts, lengths)

    def offset(self) -> pa.StringArray:
        return self._texts([match.template.offset for match in self._matches], OFFSET)

    def sequence_number(self) -> npt.NDArray[np.int64]:
        return self._numbers([match.template.sequence_number for match in self._matches])

    def enqueued_ms(self) -> npt.NDArray[np.int64]:
        return self._numbers([match.template.enqueued_ms for match in self._matches])

    def partition_key(self) -> pa.StringArray:
        return self._texts([match.template.partition_key for match in self._matches], PARTITION_KEY)

    def properties(self) -> pa.MapArray:
        if not self._shape:
            return pa.nulls(self._count, MAP_TYPE)
        keys = [key for key, _ in self._shape]
        widths = [width or 0 for _, width in self._shape]
        entries = pa.StructArray.from_arrays(
            [
                strings(
                    self._entries([len(key) for key in keys], b"".join(keys) * self._count), "the key of a property"
                ),
                strings(self._entries(widths, self._values(sum(widths)), self._entry_validity()), "a property"),
            ],
            fields=ENTRY_FIELDS,
        )
        buffers = [None, equal_offsets((len(keys),), self._count)]
        return pa.MapArray.from_buffers(MAP_TYPE, self._count, buffers, children=[entries])

    def _numbers(self, places: Sequence[Place | None]) -> npt.NDArray[np.int64]:
        """0 where a template has none."""
        numbers = np.zeros(self._count, np.int64)
        for match, place in zip(self._matches, places, strict=True):
            if place is not None:
                numbers[match.indexes] = match.numbers(place)
        return numbers

    def _texts(self, fields: Sequence[VariableField | FixedField | None], name: str) -> pa.StringArray:
        """Null where a template has none."""
        parts = [
            (match.indexes, match.octets(field))
            for match, field in zip(self._matches, fields, strict=True)
            if isinstance(field, FixedField)
        ]
        if not parts:
            return pa.nulls(self._count, pa.string())
        if len({field.width if isinstance(field, FixedField) else None for field in fields}) == 1:
            return strings(equal_slices(self._rows(parts)), name)
        lengths, is_there = np.zeros(self._count, np.int64), np.zeros(self._count, np.bool_)
        for indexes, rows in parts:
            lengths[indexes], is_there[indexes] = rows.shape[1], True
        offsets = np.zeros(self._count + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        octets = np.empty(int(offsets[-1]), np.uint8)
        for indexes, rows in parts:
            scatter_rows(octets, offsets[indexes], rows)
        valid = None if is_there.all() else validity(is_there)
        buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(octets)]
        return strings(pa.BinaryArray.from_buffers(pa.binary(), self._count, buffers), name)

    def _entries(self, widths: Sequence[int], octets: bytes | Octets, valid: pa.Buffer | None = None) -> pa.BinaryArray:
        """Texts of all events, one after the other: as many of each, of these widths."""
        buffers = [valid, equal_offsets(tuple(widths), self._count), pa.py_buffer(octets)]
        return pa.BinaryArray.from_buffers(pa.binary(), self._count * len(widths), buffers)

    def _entry_validity(self) -> pa.Buffer | None:
        is_there = [width is not None for _, width in self._shape]
        return None if all(is_there) else validity(np.tile(is_there, self._count))

    def _rows(self, parts: Sequence[tuple[Positions, Octets]]) -> Octets:
        """Rows of one width, of all matches, in the order of the messages."""
        if len(parts) == 1:
            return parts[0][1]
        rows = np.empty((self._count, parts[0][1].shape[1]), np.uint8)
        for indexes, part in parts:
            put_rows(rows, indexes, part)
        return rows

    def _values(self, width: int) -> Octets:
        """The texts of each event's properties as one: all have the same width."""
        return self._rows([(match.indexes, _joined_values(match, width)) for match in self._matches]).ravel()


def _joined_values(match: Match, width: int) -> Octets:
    rows = np.empty((len(match), width), np.uint8)
    start = 0
    for item in match.template.properties:
        if isinstance(item.value, FixedField):
            rows[:, start : start + item.value.width] = match.octets(item.value)
            start += item.value.width
    return rows


def _is_plain(template: Template, *, notes_types: bool) -> bool:
    """Whether it is of fixed width, with properties that are texts, and nothing to be noted of their types."""
    return template.is_fixed_width and all(
        (item.value is None or item.is_text) and not (notes_types and item.code in CODES)
        for item in template.properties
    )


def _shape(match: Match) -> _Shape:
    return tuple((_key(match, item), _width(item)) for item in match.template.properties)


def _key(match: Match, item: Property) -> bytes:
    return item.key.encode() if isinstance(item.key, str) else match.octets(item.key)[0].tobytes()


def _width(item: Property) -> int | None:
    return item.value.width if isinstance(item.value, FixedField) else None
