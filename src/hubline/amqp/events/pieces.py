"""What messages are put together from: columns of byte strings, and rows of one width between them.

A piece is a column that is there already, such as bodies and keys, null where an event has none; or rows of one width,
with sizes and numbers that numpy writes. Neighbours of one width are written as one: offsets nearly always are, bodies
and properties often. The rest is copied to its place, all strings of one length at once; or joined by Arrow, where they
are of many lengths. A size has one byte where all in a batch fit, and four otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.amqp.events.byte_rows import Mask, Octets, Positions, equal_slices, gather_rows, scatter_rows
from hubline.arrow_helpers import repeated

# Byte strings of more lengths, or of larger ones, are joined sooner by Arrow, one by one.
_FEW_LENGTHS: Final = 8
_FEW_BYTES_MAX: Final = 1024

# What a column of Arrow holds.
_OFFSET_MAX: Final = 2**31 - 1

# Made without a Python value: from one, Arrow would import pandas.
_NOTHING: Final = repeated("", 1).cast(pa.binary())[0]
_SIZE_8_MAX: Final = 0xFF
_MAP: Final = 0xC1
STRING: Final = 0xA1

Lengths: TypeAlias = npt.NDArray[np.int64]

Field: TypeAlias = bytes | npt.NDArray[np.generic]


class FixedRows:
    """Rows of one width: each field is the same bytes in all rows, or one number or string of one length a row."""

    def __init__(self, count: int, *fields: Field) -> None:
        self.count = count
        self.fields = fields

    @classmethod
    def of(cls, column: pa.Array) -> FixedRows | None:
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
        return width_of(self.fields)

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
            start += width_of((field,))
        return octets

    def array(self) -> pa.BinaryArray:
        return equal_slices(self.octets())


Piece: TypeAlias = FixedRows | pa.Array


def total_lengths(pieces: Sequence[Piece], count: int) -> Lengths:
    fixed = sum(width_of(piece.fields) for piece in pieces if isinstance(piece, FixedRows))
    columns = (piece for piece in pieces if not isinstance(piece, FixedRows))
    return sum(map(lengths_of, columns), np.full(count, fixed, np.int64))


def lengths_of(column: pa.Array) -> Lengths:
    if not len(column):
        return np.zeros(0, np.int64)
    lengths = np.diff(_column_bounds(column))
    if column.null_count:
        lengths[~valid_of(column)] = 0
    return lengths


def _column_bounds(column: pa.Array) -> Positions:
    """Where each byte string starts, and where the last of them ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)


def offsets_of(column: pa.BinaryArray) -> Positions:
    """Of a column that was made here, and is not a part of another."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1).astype(np.int64)


def valid_of(column: pa.Array) -> Mask:
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def size_fields(code: int, lengths: Lengths) -> tuple[bytes, npt.NDArray[np.uint8 | np.uint32]]:
    """The type code of the form that suits all lengths (``code`` is that of the short one), and the sizes in it."""
    if lengths.max(initial=0) <= _SIZE_8_MAX:
        return bytes((code,)), lengths.astype(np.uint8)
    return bytes((code + 0x10,)), lengths.astype(">u4")


def map_fields(lengths: Lengths, counts: Lengths) -> tuple[Field, Field, Field]:
    """Type code, sizes and counts of maps: the size counts the count, too."""
    if lengths.max(initial=0) < _SIZE_8_MAX and counts.max(initial=0) <= _SIZE_8_MAX:
        return bytes((_MAP,)), (lengths + 1).astype(np.uint8), counts.astype(np.uint8)
    return bytes((_MAP + 0x10,)), (lengths + 4).astype(">u4"), counts.astype(">u4")


def join_pieces(pieces: Sequence[Piece]) -> pa.BinaryArray:
    """Joins the pieces of each row, leaving out those that are null."""
    merged = _merged(pieces)
    if len(merged) == 1:
        return _array(merged[0])
    return _copied(merged) or pc.binary_join_element_wise(*map(_array, merged), _NOTHING, null_handling="skip")


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces, neighbours of one width as one."""
    merged: list[Piece] = []
    for piece in pieces:
        rows = piece if isinstance(piece, FixedRows) else FixedRows.of(piece)
        if rows is not None and merged and isinstance(merged[-1], FixedRows):
            merged[-1] = FixedRows(rows.count, *merged[-1].fields, *rows.fields)
        else:
            merged.append(piece if rows is None else rows)
    return merged


def _copied(pieces: Sequence[Piece]) -> pa.BinaryArray | None:
    """The pieces copied together, all byte strings of one length at once; None if they are of many lengths."""
    lengths = [np.int64(piece.width) if isinstance(piece, FixedRows) else lengths_of(piece) for piece in pieces]
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
        if isinstance(piece, FixedRows):
            scatter_rows(octets, places, piece.octets())
        else:
            _copy(piece, np.asarray(each), octets, places)
        places = places + each
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), data])


def _copy(column: pa.Array, lengths: Lengths, octets: Octets, places: Positions) -> None:
    source = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    starts = _column_bounds(column)[:-1]
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        if length:
            are_long = np.flatnonzero(lengths == length)
            scatter_rows(octets, places[are_long], gather_rows(source, starts[are_long], length))


def _is_of_few(lengths: Lengths) -> bool:
    if lengths.max(initial=0) > _FEW_BYTES_MAX:
        return False
    return int(np.count_nonzero(np.bincount(lengths))) <= _FEW_LENGTHS


def prefix_column(head: FixedRows, column: pa.Array) -> pa.BinaryArray:
    """The column with its heads before it; null where it is."""
    return pc.binary_join_element_wise(head.array(), _binary(column), _NOTHING, null_handling="emit_null")


def width_of(fields: Sequence[Field]) -> int:
    return sum(len(field) if isinstance(field, bytes) else field.itemsize for field in fields)


def _array(piece: Piece) -> pa.BinaryArray:
    return piece.array() if isinstance(piece, FixedRows) else _binary(piece)


def _binary(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.binary())
