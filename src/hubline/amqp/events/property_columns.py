"""Application properties as pieces of messages: of one form for all events, repeated by many, or each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.amqp.codec.property_types import PREFIX, encode_properties
from hubline.amqp.events.byte_rows import Mask, Repeats, find_repeats, validity
from hubline.amqp.events.pieces import (
    STRING,
    Field,
    FixedRows,
    Lengths,
    Piece,
    join_pieces,
    lengths_of,
    map_fields,
    offsets_of,
    prefix_column,
    size_fields,
    valid_of,
    width_of,
)

# Fewer events are encoded sooner each by itself.
REPEATED_COUNT_MIN: Final = 64

# Each property takes a pass over all events, where they are of one form. So many are no longer what that is for.
UNIFORM_PAIRS_MAX: Final = 64

_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_NULL: Final = b"\x40"


def property_pieces(properties: pa.MapArray) -> Sequence[Piece]:
    """The section of application properties of each event; nothing where it has none."""
    uniform = _uniform_properties(properties)
    if uniform is not None:
        return [uniform]
    repeats = _repeated_properties(properties)
    if repeats is None:
        return _each_properties(properties)
    return [piece.take(repeats.kinds) for piece in _each_properties(properties.take(pa.array(repeats.firsts)))]


def noted_of(properties: pa.MapArray, name: str) -> dict[int, str]:
    """The value of a property that few events have, by the place of each that has it."""
    if properties.null_count == len(properties):
        return {}
    offsets = properties.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = properties.keys.slice(first, count)
    if not count or not (_lengths(keys) == len(name.encode())).any():  # mostly: lengths are compared in no time
        return {}
    places = first + np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
    events = np.searchsorted(offsets, places, side="right") - 1
    values = properties.items.take(pa.array(places)).to_pylist()
    is_valid = valid_of(properties)
    pairs = zip(events.tolist(), values, strict=True)
    return {event: value for event, value in pairs if is_valid[event] and value is not None}


def _lengths(texts: pa.StringArray) -> npt.NDArray[np.int32]:
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    return offsets[1:] - offsets[:-1]


def _uniform_properties(properties: pa.MapArray) -> FixedRows | None:
    """Sections of one form for all events: the same keys, and values as long as each other's. None if they are not."""
    count, pairs_count = len(properties), _pairs_count(properties)
    if not 0 < pairs_count <= UNIFORM_PAIRS_MAX:
        return None
    first = properties.offsets[0].as_py()
    keys, values = (_Table.of(column, first, (count, pairs_count)) for column in (properties.keys, properties.items))
    if keys is None or values is None or not keys.is_constant:
        return None
    names = keys.row(0)
    if any(name.startswith(PREFIX.encode()) for name in names):
        return None
    fields: list[Field] = []
    for number, name in enumerate(names):
        value = values.column(number)
        code, size = size_fields(STRING, np.array([value.itemsize]))
        fields += [_encoded_string(name) + code + size.tobytes(), value]
    head = map_fields(np.array([width_of(fields)]), np.array([2 * pairs_count]))
    return FixedRows(count, _APPLICATION_PROPERTIES + b"".join(map(bytes, head)), *fields)


def _encoded_string(text: bytes) -> bytes:
    code, size = size_fields(STRING, np.array([len(text)]))
    return code + size.tobytes() + text


class _Table:
    """Texts of equally many columns in each row, all texts of a column being of one length."""

    def __init__(self, octets: npt.NDArray[np.uint8], widths: Sequence[int]) -> None:
        self._octets = octets
        self._ends = np.cumsum(widths).tolist()
        self._widths = widths

    @classmethod
    def of(cls, texts: pa.StringArray, first: int, shape: tuple[int, int]) -> _Table | None:
        """The texts from the first on, if they are such; None if they are not, or if some are always empty."""
        count, columns_count = shape
        bounds = np.frombuffer(texts.buffers()[1], np.int32, count * columns_count + 1, 4 * (texts.offset + first))
        lengths = np.diff(bounds).reshape(shape)
        if not lengths[0].all() or (lengths != lengths[0]).any():
            return None
        octets = np.frombuffer(texts.buffers()[2], np.uint8, int(bounds[-1] - bounds[0]), int(bounds[0]))
        return cls(octets.reshape(count, -1), lengths[0].tolist())

    @property
    def is_constant(self) -> bool:
        return bool((self._octets == self._octets[0]).all())

    def row(self, number: int) -> list[bytes]:
        starts_ends = zip((0, *self._ends), self._ends, strict=False)
        return [self._octets[number, start:end].tobytes() for start, end in starts_ends]

    def column(self, number: int) -> npt.NDArray[np.bytes_]:
        count, stride = self._octets.shape
        width = self._widths[number]
        return np.ndarray((count,), f"S{width}", self._octets, self._ends[number] - width, (stride,))


def _repeated_properties(properties: pa.MapArray) -> Repeats | None:
    """How events repeat each other's properties, which they often do; None if that is not known at little cost."""
    if not _pairs_count(properties):
        return None
    offsets = properties.offsets.to_numpy()
    # The texts of an event's keys follow each other, as do its values; only their lengths tell where each ends.
    return find_repeats(*(part for column in (properties.keys, properties.items) for part in _whole(column, offsets)))


def _pairs_count(properties: pa.MapArray) -> int:
    """How many each event has, none of them null; 0 if not all have as many, or if the events are few."""
    if properties.null_count or properties.items.null_count or len(properties) < REPEATED_COUNT_MIN:
        return 0
    counts = np.diff(properties.offsets.to_numpy())
    return int(counts[0]) if (counts == counts[0]).all() else 0


def _whole(column: pa.StringArray, offsets: Lengths) -> tuple[pa.BinaryArray, pa.FixedSizeBinaryArray]:
    """The texts from one offset to the next as one, and the lengths of each: equally many."""
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    lengths = np.diff(bounds[offsets[0] : offsets[-1] + 1])
    count = len(offsets) - 1
    texts = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(np.ascontiguousarray(bounds[offsets])), column.buffers()[2]]
    )
    width = lengths.itemsize * len(lengths) // count
    return texts, pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(lengths)])


def _each_properties(properties: pa.MapArray) -> list[pa.BinaryArray]:
    offsets = properties.offsets.to_numpy()
    counts = np.where(valid_of(properties), np.diff(offsets), 0)
    if not counts.any():
        return []
    # A part of a column still holds the pairs of the whole: only its own are of interest.
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = (column.slice(first, count) for column in (properties.keys, properties.items))
    is_special = pc.starts_with(keys, PREFIX).to_numpy(zero_copy_only=False)
    if not is_special.any():
        return [_application_properties(keys, items, offsets - first, counts)]
    special_before = np.concatenate(([0], np.cumsum(is_special)))[offsets - first]
    return _special_properties(properties, (np.diff(special_before) > 0) & (counts > 0))


def _application_properties(
    keys: pa.StringArray, items: pa.StringArray, offsets: Lengths, counts: Lengths
) -> pa.BinaryArray:
    """Sections of application properties that are all strings; null where an event has none."""
    pairs = join_pieces([_string(keys), _string_or_null(items)])
    bounds = offsets_of(pairs)[offsets]
    content = pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [validity(counts > 0), pa.py_buffer(bounds.astype(np.int32)), pairs.buffers()[2]]
    )
    return prefix_column(
        FixedRows(len(counts), _APPLICATION_PROPERTIES, *map_fields(lengths_of(content), 2 * counts)), content
    )


def _special_properties(properties: pa.MapArray, is_special: Mask) -> list[pa.BinaryArray]:
    """The same, where some events have more than strings of the application: their sections are made one by one."""
    chosen = pa.array(is_special)
    sections = pa.array(map(encode_properties, properties.filter(chosen).to_pylist()), pa.binary())
    places = pa.array(np.cumsum(is_special) - 1, mask=~is_special)
    others = pc.if_else(chosen, pa.scalar(None, properties.type), properties)
    return [sections.take(places), *_each_properties(others)]


def _string(column: pa.StringArray) -> pa.BinaryArray:
    """Strings as AMQP values; null where there is none."""
    code, sizes = size_fields(STRING, lengths_of(column))
    return prefix_column(FixedRows(len(column), code, sizes), column)


def _string_or_null(column: pa.StringArray) -> pa.BinaryArray:
    values = _string(column)
    return values.fill_null(_NULL) if values.null_count else values
