"""Arrow columns to messages, thousands at a time: what a sender sends, and what a hub delivers.

A message is put together from pieces. Some are columns of byte strings that are there already, as bodies and keys, null
where an event has none; between them stand rows of one width, with sizes and numbers written in by numpy. Neighbours of
one width are written as one: offsets nearly always are, bodies and properties often. What is left is copied to its
place, all strings of one length at once; or joined by Arrow, where they are of many lengths. A size has one byte where
all in a batch fit, and four otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import MESSAGE_ANNOTATIONS
from hubline.amqp.codec.performatives import UINT_MAX, Transfer
from hubline.amqp.codec.property_types import PREFIX, encode_properties
from hubline.amqp.codec.types import Described, Symbol, ULong
from hubline.amqp.events.byte_rows import (
    Mask,
    Octets,
    Positions,
    Repeats,
    equal_slices,
    find_repeats,
    gather_rows,
    scatter_rows,
    validity,
)
from hubline.amqp.events.reference_decoder import ENQUEUED_TIME, OFFSET, PARTITION_KEY, SEQUENCE_NUMBER
from hubline.amqp.transport.frames import encode_transfer, frame_header
from hubline.errors import EventTooLarge

# Clients remember the tag of every delivery; a settled one needs none of its own.
DELIVERY_TAG: Final = b"\x00"

# Fewer events are encoded sooner each by itself.
REPEATED_COUNT_MIN: Final = 64

# Each property takes a pass over all events, where they are of one form. So many are no longer what that is for.
UNIFORM_PAIRS_MAX: Final = 64

# Byte strings of more lengths, or of larger ones, are joined sooner by Arrow, one by one.
_FEW_LENGTHS: Final = 8
_FEW_BYTES_MAX: Final = 1024

# What a column of Arrow holds.
_OFFSET_MAX: Final = 2**31 - 1

_NOTHING: Final = pa.scalar(b"", pa.binary())
_SIZE_8_MAX: Final = 0xFF

_DATA: Final = b"\x00\x53\x75"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_ANNOTATIONS: Final = b"\x00\x53\x72"
_BINARY: Final = 0xA0
_STRING: Final = 0xA1
_MAP: Final = 0xC1
_NULL: Final = b"\x40"

_Lengths: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """``count`` events as one message of the format ``BATCH_FORMAT``."""

    payload: Bytes
    count: int


def encode_outgoing(events: pa.RecordBatch) -> pa.BinaryArray:
    """Each event (OUTGOING_SCHEMA) as a message."""
    return _joined(_outgoing_pieces(events))


def encode_batches(
    events: pa.RecordBatch, *, bytes_max: int, partition_key: str | None = None, hub: str = ""
) -> Iterator[Batch]:
    """The events (OUTGOING_SCHEMA), in order, in as few messages of at most ``bytes_max`` as they take.

    ``partition_key`` is for the batches as a whole; the service goes by it. Raises EventTooLarge at once, before
    anything was sent, if an event does not fit even alone.
    """
    head = _batch_head(partition_key)
    messages = _wrapped(_outgoing_pieces(events), len(events))
    ends = _offsets(messages)
    _require_sizes(np.diff(ends) + len(head), bytes_max, hub)
    return _batches(head, messages, ends, bytes_max)


def encode_delivered(events: pa.RecordBatch) -> pa.BinaryArray:
    """Each event (EVENT_SCHEMA) as a message of a hub, with its annotations."""
    return _joined(_delivered_pieces(events))


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
    pieces = [*_delivered_pieces(events)]
    if delivery_annotations:
        pieces.insert(0, _Rows(len(events), delivery_annotations))
    sizes = _total_lengths(pieces, len(events))
    head = _TransferHead(destination)
    frames = _joined([head.rows(sizes, first_delivery_id), *pieces])
    ends = _offsets(frames)
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

    def rows(self, sizes: _Lengths, first_delivery_id: int) -> _Rows:
        ids = (np.arange(len(sizes)) + first_delivery_id) & UINT_MAX
        return _Rows(
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


def _outgoing_pieces(events: pa.RecordBatch) -> list[HandlerOutput]:
    body, key, properties = events.columns
    keys = [] if key.null_count == len(key) else [_key_annotation(key)]
    return [*keys, *_property_pieces(properties), *_data_pieces(body)]


def _delivered_pieces(events: pa.RecordBatch) -> list[HandlerOutput]:
    body, _, offset, sequence_number, enqueued_time, key, properties = events.columns
    keys = _key_pieces(key)
    return [
        *_annotation_pieces(sequence_number, offset, enqueued_time, keys),
        *_property_pieces(properties),
        *_data_pieces(body),
    ]


def _annotation_pieces(
    sequence_number: pa.Array, offset: pa.Array, enqueued_time: pa.Array, keys: Sequence[HandlerOutput]
) -> list[HandlerOutput]:
    count = len(offset)
    offset_lengths = _lengths(offset)
    string_code, offset_sizes = _size(_STRING, offset_lengths)
    before = (
        _symbol(SEQUENCE_NUMBER) + b"\x81",
        _numbers(sequence_number),
        _symbol(OFFSET) + string_code,
        offset_sizes,
    )
    after = (_symbol(ENQUEUED_TIME) + b"\x83", _numbers(enqueued_time, divisor=1000))
    key_lengths = _total_lengths(keys, count)
    content_lengths = offset_lengths + key_lengths + _width(before) + _width(after)
    value_counts = 6 + 2 * (key_lengths > 0)
    return [
        _Rows(count, _ANNOTATIONS, *_compound(content_lengths, value_counts), *before),
        offset,
        _Rows(count, *after),
        *keys,
    ]


def _key_pieces(keys: pa.StringArray) -> list[HandlerOutput]:
    """Name and value of an annotation, where there is a key."""
    if keys.null_count == len(keys):
        return []
    return [_key_pair(keys)] if keys.null_count else [_key_head(keys), keys]


def _key_head(keys: pa.StringArray) -> _Rows:
    code, sizes = _size(_STRING, _lengths(keys))
    return _Rows(len(keys), _symbol(PARTITION_KEY) + code, sizes)


def _key_pair(keys: pa.StringArray) -> pa.BinaryArray:
    """Name and value of an annotation; null where there is no key."""
    return _emit(_key_head(keys), keys)


def _key_annotation(keys: pa.StringArray) -> pa.BinaryArray:
    """A section of annotations; null where there is no key."""
    pairs = _key_pair(keys)
    lengths = _lengths(pairs)
    return _emit(_Rows(len(keys), _ANNOTATIONS, *_compound(lengths, np.full(len(keys), 2))), pairs)


def _property_pieces(properties: pa.MapArray) -> Sequence[HandlerOutput]:
    uniform = _uniform_properties(properties)
    if uniform is not None:
        return [uniform]
    repeats = _repeated_properties(properties)
    if repeats is None:
        return _each_properties(properties)
    return [piece.take(repeats.kinds) for piece in _each_properties(properties.take(pa.array(repeats.firsts)))]


def _uniform_properties(properties: pa.MapArray) -> _Rows | None:
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
    fields: list[_Field] = []
    for number, name in enumerate(names):
        value = values.column(number)
        code, size = _size(_STRING, np.array([value.itemsize]))
        fields += [_encoded_string(name) + code + size.tobytes(), value]
    head = _compound(np.array([_width(fields)]), np.array([2 * pairs_count]))
    return _Rows(count, _APPLICATION_PROPERTIES + b"".join(map(bytes, head)), *fields)


def _encoded_string(text: bytes) -> bytes:
    code, size = _size(_STRING, np.array([len(text)]))
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


def _whole(column: pa.StringArray, offsets: _Lengths) -> tuple[pa.BinaryArray, pa.FixedSizeBinaryArray]:
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
    counts = np.where(_valid(properties), np.diff(offsets), 0)
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
    keys: pa.StringArray, items: pa.StringArray, offsets: _Lengths, counts: _Lengths
) -> pa.BinaryArray:
    """Sections of application properties that are all strings; null where an event has none."""
    pairs = _joined([_string(keys), _string_or_null(items)])
    bounds = _offsets(pairs)[offsets]
    content = pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [validity(counts > 0), pa.py_buffer(bounds.astype(np.int32)), pairs.buffers()[2]]
    )
    return _emit(_Rows(len(counts), _APPLICATION_PROPERTIES, *_compound(_lengths(content), 2 * counts)), content)


def _special_properties(properties: pa.MapArray, is_special: Mask) -> list[pa.BinaryArray]:
    """The same, where some events have more than strings of the application: their sections are made one by one."""
    chosen = pa.array(is_special)
    sections = pa.array(map(encode_properties, properties.filter(chosen).to_pylist()), pa.binary())
    places = pa.array(np.cumsum(is_special) - 1, mask=~is_special)
    others = pc.if_else(chosen, pa.scalar(None, properties.type), properties)
    return [sections.take(places), *_each_properties(others)]


def _data_pieces(body: pa.BinaryArray) -> list[HandlerOutput]:
    code, sizes = _size(_BINARY, _lengths(body))
    return [_Rows(len(body), _DATA + code, sizes), body]


def _wrapped(pieces: Sequence[HandlerOutput], count: int) -> pa.BinaryArray:
    """Messages from their pieces, each as a Data section of a batch."""
    code, sizes = _size(_BINARY, _total_lengths(pieces, count))
    return _joined([_Rows(count, _DATA + code, sizes), *pieces])


def _batch_head(partition_key: str | None) -> bytes:
    if partition_key is None:
        return b""
    return encode(Described(ULong(MESSAGE_ANNOTATIONS), {Symbol(PARTITION_KEY): partition_key}))


def _require_sizes(sizes: _Lengths, bytes_max: int, hub: str) -> None:
    too_large = np.flatnonzero(sizes > bytes_max)
    if len(too_large):
        index = int(too_large[0])
        name = f"hub {hub}" if hub else "the hub"
        raise EventTooLarge(
            f"event {index} of {len(sizes)} takes {sizes[index]:,} bytes as a message: {name} takes at most "
            f"{bytes_max:,}. Nothing was sent: split the event",
            hub=hub,
            index=index,
            bytes_count=int(sizes[index]),
            bytes_max=bytes_max,
        )


def _batches(head: bytes, messages: pa.BinaryArray, ends: Positions, bytes_max: int) -> Iterator[Batch]:
    data = memoryview(messages.buffers()[2])
    start, room = 0, bytes_max - len(head)
    while start < len(messages):
        end = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        content = data[int(ends[start]) : int(ends[end])]
        yield Batch(b"".join((head, content)) if head else content, end - start)
        start = end


def _string(column: pa.StringArray) -> pa.BinaryArray:
    """Strings as AMQP values; null where there is none."""
    code, sizes = _size(_STRING, _lengths(column))
    return _emit(_Rows(len(column), code, sizes), column)


def _string_or_null(column: pa.StringArray) -> pa.BinaryArray:
    values = _string(column)
    return values.fill_null(_NULL) if values.null_count else values


def _symbol(name: str) -> bytes:
    return encode(Symbol(name))


def _size(code: int, lengths: _Lengths) -> tuple[bytes, npt.NDArray[np.uint8 | np.uint32]]:
    """The type code of the form that suits all lengths (``code`` is that of the short one), and the sizes in it."""
    if lengths.max(initial=0) <= _SIZE_8_MAX:
        return bytes((code,)), lengths.astype(np.uint8)
    return bytes((code + 0x10,)), lengths.astype(">u4")


def _compound(lengths: _Lengths, counts: _Lengths) -> tuple[_Field, _Field, _Field]:
    """Type code, sizes and counts of maps: the size counts the count, too."""
    if lengths.max(initial=0) < _SIZE_8_MAX and counts.max(initial=0) <= _SIZE_8_MAX:
        return bytes((_MAP,)), (lengths + 1).astype(np.uint8), counts.astype(np.uint8)
    return bytes((_MAP + 0x10,)), (lengths + 4).astype(">u4"), counts.astype(">u4")


_Field: TypeAlias = bytes | npt.NDArray[np.generic]


class _Rows:
    """Rows of one width: each field is the same bytes in all rows, or one number or string of one length a row."""

    def __init__(self, count: int, *fields: _Field) -> None:
        self.count = count
        self.fields = fields

    @classmethod
    def of(cls, column: pa.Array) -> _Rows | None:
        """A column of byte strings, if they are all there and of one length."""
        if column.null_count or not len(column):
            return None
        bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
        width = int(bounds[1] - bounds[0])
        if not width or not (np.diff(bounds) == width).all():
            return None
        return cls(len(column), np.frombuffer(column.buffers()[2], f"S{width}", len(column), int(bounds[0])))

    @property
    def width(self) -> int:
        return _width(self.fields)

    def octets(self) -> Octets:
        alike = b"".join(field if isinstance(field, bytes) else bytes(field.itemsize) for field in self.fields)
        # Arrow keeps its memory: fresh one from the system takes longer to get than to write.
        octets: Octets = np.frombuffer(pa.allocate_buffer(len(alike) * self.count), np.uint8)
        octets = octets.reshape(self.count, len(alike))
        np.ndarray(self.count, f"V{len(alike)}", octets)[:] = np.void(alike)
        start = 0
        for field in self.fields:
            if self.count and not isinstance(field, bytes):
                rows = np.ndarray(self.count, field.dtype, octets, start, (len(alike),))
                rows[:] = field
            start += _width((field,))
        return octets

    def array(self) -> pa.BinaryArray:
        return equal_slices(self.octets())


HandlerOutput: TypeAlias = _Rows | pa.Array


def _width(fields: Sequence[_Field]) -> int:
    return sum(len(field) if isinstance(field, bytes) else field.itemsize for field in fields)


def _numbers(column: pa.Array, *, divisor: int = 1) -> npt.NDArray[np.generic]:
    numbers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return (numbers if divisor == 1 else numbers // divisor).astype(">i8")


def _total_lengths(pieces: Sequence[HandlerOutput], count: int) -> _Lengths:
    fixed = sum(_width(piece.fields) for piece in pieces if isinstance(piece, _Rows))
    columns = (piece for piece in pieces if not isinstance(piece, _Rows))
    return sum(map(_lengths, columns), np.full(count, fixed, np.int64))


def _lengths(column: pa.Array) -> _Lengths:
    if not len(column):
        return np.zeros(0, np.int64)
    lengths = np.diff(_column_bounds(column))
    if column.null_count:
        lengths[~_valid(column)] = 0
    return lengths


def _column_bounds(column: pa.Array) -> Positions:
    """Where each byte string starts, and where the last of them ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)


def _offsets(column: pa.BinaryArray) -> Positions:
    """Of a column that was made here, and is no part of another."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1).astype(np.int64)


def _valid(column: pa.Array) -> Mask:
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _emit(head: _Rows, column: pa.Array) -> pa.BinaryArray:
    """The column with its heads before it; null where it is."""
    return pc.binary_join_element_wise(head.array(), _binary(column), _NOTHING, null_handling="emit_null")


def _joined(pieces: Sequence[HandlerOutput]) -> pa.BinaryArray:
    """Joins the pieces of each row, leaving out those that are null."""
    merged = _merged(pieces)
    if len(merged) == 1:
        return _array(merged[0])
    return _copied(merged) or pc.binary_join_element_wise(*map(_array, merged), _NOTHING, null_handling="skip")


def _merged(pieces: Sequence[HandlerOutput]) -> list[HandlerOutput]:
    """The pieces, neighbours of one width as one."""
    merged: list[HandlerOutput] = []
    for piece in pieces:
        rows = piece if isinstance(piece, _Rows) else _Rows.of(piece)
        if rows is not None and merged and isinstance(merged[-1], _Rows):
            merged[-1] = _Rows(rows.count, *merged[-1].fields, *rows.fields)
        else:
            merged.append(piece if rows is None else rows)
    return merged


def _copied(pieces: Sequence[HandlerOutput]) -> pa.BinaryArray | None:
    """The pieces copied together, all byte strings of one length at once; None if they are of many lengths."""
    lengths = [np.int64(piece.width) if isinstance(piece, _Rows) else _lengths(piece) for piece in pieces]
    if not all(isinstance(each, np.int64) or _is_of_few(each) for each in lengths):
        return None
    ends = np.cumsum(sum(lengths))
    if not len(ends) or ends[-1] > _OFFSET_MAX:
        return None
    data = pa.allocate_buffer(int(ends[-1]))
    octets = np.frombuffer(data, np.uint8)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    places = offsets[:-1].astype(np.int64)
    for piece, each in zip(pieces, lengths, strict=True):
        if isinstance(piece, _Rows):
            scatter_rows(octets, places, piece.octets())
        else:
            _copy(piece, np.asarray(each), octets, places)
        places = places + each
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), data])


def _copy(column: pa.Array, lengths: _Lengths, octets: Octets, places: Positions) -> None:
    source = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    starts = _column_bounds(column)[:-1]
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        if length:
            are_long = np.flatnonzero(lengths == length)
            scatter_rows(octets, places[are_long], gather_rows(source, starts[are_long], length))


def _is_of_few(lengths: _Lengths) -> bool:
    if lengths.max(initial=0) > _FEW_BYTES_MAX:
        return False
    return int(np.count_nonzero(np.bincount(lengths))) <= _FEW_LENGTHS


def _array(piece: HandlerOutput) -> pa.BinaryArray:
    return piece.array() if isinstance(piece, _Rows) else _binary(piece)


def _binary(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.binary())
