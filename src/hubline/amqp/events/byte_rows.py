"""Many pieces of one buffer at once, without a step of Python for each.

Positions, starts and lengths are arrays of int64. Nothing here checks them against the bytes: callers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.amqp.transport.errors import AmqpDecodeError

Octets: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Looking for a run costs as much as passing over so many records one by one.
RUN_COUNT_MIN: Final = 32
RUN_PATIENCE_MAX: Final = 1024

# Looking for rows that repeat costs about a tenth of what each of them then saves.
REPEATS_MIN: Final = 4

COMPARED: Final = 0xFF
IGNORED: Final = 0x00

# Bytes are compared a word at a time, and so are the outcomes of eight words, each of which is a byte.
_WORD: Final = np.dtype(np.uint64)
_BLOCK_BYTES: Final = 64
_ALL_ALIKE: Final = np.uint64(0x0101010101010101)

# Tables of offsets are kept up to so many entries: a table of 256 KiB is made in the time of some thousand events.
_OFFSETS_KEPT_MAX: Final = 64 * 1024


def put_rows(rows: Octets, indexes: Positions, values: Octets) -> None:
    """Writes values as the rows of these indexes."""
    width = rows.shape[1]
    if width:
        item = np.dtype((np.void, width))
        rows.view(item)[:, 0][indexes] = np.ascontiguousarray(values).view(item)[:, 0]


def chosen_rows(rows: Octets, is_chosen: Mask) -> Octets:
    chosen: Octets = rows.view(np.dtype((np.void, rows.shape[1])))[:, 0][is_chosen].view(np.uint8)
    return chosen.reshape(-1, rows.shape[1])


def gather_rows(data: Octets, positions: Positions, width: int) -> Octets:
    """One row of ``width`` bytes for each position: a copy, made at the speed of memory."""
    item = np.dtype((np.void, width))
    overlapping = np.ndarray((len(data) - width + 1,), item, buffer=data, strides=(1,))
    rows: Octets = overlapping[positions].view(np.uint8)
    return rows.reshape(len(positions), width)


def scatter_rows(data: Octets, positions: Positions, rows: Octets) -> None:
    """Writes one row to each position: the way back of :func:`gather_rows`. Rows do not overlap."""
    width = rows.shape[1]
    if width:
        item = np.dtype((np.void, width))
        overlapping = np.ndarray((len(data) - width + 1,), item, buffer=data, strides=(1,))
        overlapping[positions] = np.ascontiguousarray(rows).view(item)[:, 0]


def unsigned(rows: Octets, offset: int, width: int) -> npt.NDArray[np.int64]:
    """A big-endian number of 1, 2 or 4 bytes in every row."""
    return _numbers(rows, offset, f">u{width}")


def signed(rows: Octets, offset: int, width: int) -> npt.NDArray[np.int64]:
    """A big-endian number of 1, 2, 4 or 8 bytes in every row."""
    return _numbers(rows, offset, f">i{width}")


def _numbers(rows: Octets, offset: int, number: str) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = np.ndarray(
        (len(rows),), number, buffer=rows, offset=offset, strides=(rows.shape[1],)
    )
    return numbers.astype(np.int64)


class Progressions:
    """A list of growing numbers, long stretches of which grow by the same step: where records start or end."""

    __slots__ = ("_loose", "_pieces", "append")

    def __init__(self) -> None:
        self._loose: list[int] = []
        self._pieces: list[Positions] = []
        self.append = self._loose.append  # the list's own: one call less for each number

    def extend(self, first: int, step: int, count: int) -> None:
        self._pieces += [np.array(self._loose, np.int64), np.arange(first, first + count * step, step)]
        self._loose.clear()

    def array(self) -> Positions:
        loose = np.array(self._loose, np.int64)
        return np.concatenate((*self._pieces, loose)) if self._pieces else loose


class RunFinder:
    """Finds records of one size that follow each other, where each record's size tells where the next one starts.

    Worth asking where two in a row have the same size, and from ``resume_at`` on: looking in vain makes it wait
    longer and longer, so that records of all sizes cost little more than a step each.
    """

    __slots__ = ("_data", "_end", "_patience", "resume_at")

    def __init__(self, data: Octets, end: int) -> None:
        self._data = data
        self._end = end
        self._patience = RUN_COUNT_MIN
        self.resume_at = 0

    def count(self, position: int, *, head_width: int, stride: int) -> int:
        """How many records of ``stride`` bytes from ``position`` on have the same first bytes; 0 if they are few."""
        count = (self._end - position) // stride
        for offset, number in _HEAD_NUMBERS[head_width]:
            heads = np.ndarray((count,), number, buffer=self._data, offset=position + offset, strides=(stride,))
            count = _alike_count(heads)
        if count >= RUN_COUNT_MIN:
            self._patience = RUN_COUNT_MIN
            return count
        self.resume_at = position + self._patience * stride
        self._patience = min(2 * self._patience, RUN_PATIENCE_MAX)
        return 0


# Heads are compared as the numbers that they can be seen as.
_HEAD_NUMBERS: Final[Mapping[int, Sequence[tuple[int, str]]]] = {
    5: [(0, "u4"), (4, "u1")],
    8: [(0, "u8")],
}


def _alike_count(heads: npt.NDArray[np.unsignedinteger]) -> int:
    """How many are like the first: looks at more and more of them, not at all at once."""
    window = RUN_COUNT_MIN
    while True:
        alike = heads[:window] == heads[:1]
        if not alike.all():
            return int(alike.argmin())
        if window >= len(heads):
            return len(heads)
        window *= 8


class Pattern:
    """Bytes to be found, some of which may be anything: ``mask`` says which are compared."""

    __slots__ = ("_expected", "_mask", "_padded_width", "width")

    def __init__(self, octets: bytes, mask: bytes) -> None:
        self.width = len(octets)
        self._padded_width = -(-self.width // _BLOCK_BYTES) * _BLOCK_BYTES
        padding = bytes((IGNORED,)) * (self._padded_width - self.width)
        self._mask = np.frombuffer(mask + padding, _WORD)
        self._expected = np.frombuffer(octets + padding, _WORD) & self._mask

    def rows(self, data: Octets, positions: Positions) -> Octets:
        """As many bytes as the pattern has at each position, and some more, to be compared as whole words."""
        if int(positions.max(initial=0)) + self._padded_width <= len(data):
            return gather_rows(data, positions, self._padded_width)
        rows = np.zeros((len(positions), self._padded_width), np.uint8)
        rows[:, : self.width] = gather_rows(data, positions, self.width)
        return rows

    def matches(self, rows: Octets) -> Mask:
        """Which of the rows are such bytes."""
        are_words_alike = rows.view(_WORD) & self._mask == self._expected
        are_blocks_alike = are_words_alike.view(_WORD) == _ALL_ALIKE
        matched: Mask = are_blocks_alike[:, 0].copy()
        for block in range(1, are_blocks_alike.shape[1]):
            matched &= are_blocks_alike[:, block]
        return matched


def column(values: npt.NDArray[np.int32] | npt.NDArray[np.int64], column_type: pa.DataType) -> pa.Array:
    """A column of numbers, which shares their memory."""
    return pa.Array.from_buffers(column_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def validity(valid: Mask) -> pa.Buffer:
    """Which values are not null, as Arrow has it: one bit each."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def take_slices(data: pa.Buffer, starts: Positions, lengths: Positions, valid: Mask | None = None) -> pa.BinaryArray:
    """A binary column of pieces of ``data``, null where not ``valid``. Pieces do not overlap, in whatever order.

    The pieces and the gaps between them are one Arrow array, of which every other element is taken.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    if valid is None and lengths[0] and bool((lengths == lengths[0]).all()):
        return equal_slices(gather_rows(np.frombuffer(data, np.uint8), starts, int(lengths[0])))
    if valid is not None:
        starts, lengths = _without_null(starts, lengths, valid)
    order = None if bool((starts[1:] >= starts[:-1]).all()) else np.argsort(starts, kind="stable")
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts if order is None else starts[order]
    offsets[1::2] = offsets[0::2] + (lengths if order is None else lengths[order])
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), data])
    places = np.arange(0, 2 * count, 2, dtype=np.int32)
    if order is not None:
        places[order] = np.arange(0, 2 * count, 2, dtype=np.int32)
    taken = pieces.take(column(places, pa.int32()))
    if valid is None:
        return taken
    return pa.BinaryArray.from_buffers(pa.binary(), count, [validity(valid), *taken.buffers()[1:]])


def equal_slices(rows: Octets) -> pa.BinaryArray:
    """A binary column, of which each row is a value."""
    count, width = rows.shape
    buffers = [None, equal_offsets((width,), count), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def equal_offsets(widths: tuple[int, ...], count: int) -> pa.Buffer:
    """Arrow's offsets of so many times byte strings of these widths."""
    kept_count = 1 << count.bit_length()
    if kept_count * len(widths) > _OFFSETS_KEPT_MAX:
        return _offsets_table(widths, count)
    return _kept_offsets_table(widths, kept_count).slice(0, 4 * (count * len(widths) + 1))


def _offsets_table(widths: tuple[int, ...], count: int) -> pa.Buffer:
    ends = np.cumsum(widths)
    offsets = np.zeros(count * len(widths) + 1, np.int32)
    offsets[1:] = np.add.outer(np.arange(count) * ends[-1], ends).ravel()
    return pa.py_buffer(offsets)


_kept_offsets_table = lru_cache(maxsize=32)(_offsets_table)


def _without_null(starts: Positions, lengths: Positions, valid: Mask) -> tuple[Positions, Positions]:
    """The same pieces, and for each null an empty one where the one before it ends: which keeps what is in order so."""
    ends = np.maximum.accumulate(np.where(valid, starts + lengths, 0))
    return np.where(valid, starts, ends), np.where(valid, lengths, 0)


def strings(column: pa.BinaryArray, name: str) -> pa.StringArray:
    """The column as text. Raises AmqpDecodeError, with its name, if it is not UTF-8. It is not a part of another."""
    valid, offsets, octets = column.buffers()
    if octets is None or not (np.frombuffer(octets, np.uint8) & 0x80).any():  # ASCII, which needs no closer look
        return pa.StringArray.from_buffers(len(column), offsets, octets, valid, column.null_count)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        raise AmqpDecodeError(f"{name} of a message is not UTF-8") from None


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """Rows of a few kinds: the first of each kind, and of which kind each row is."""

    firsts: Positions
    kinds: pa.Int32Array


def find_repeats(*columns: pa.Array) -> Repeats | None:
    """How rows repeat that are alike in all columns; None if they mostly do not."""
    count = len(columns[0])
    kinds = column(np.zeros(count, np.int32), pa.int32())
    kinds_count = 1
    for values in columns:
        encoded = values.dictionary_encode()
        if len(encoded.dictionary) == 1:
            continue
        if kinds_count > 1:
            both = kinds.to_numpy().astype(np.int64) * len(encoded.dictionary) + encoded.indices.to_numpy()
            encoded = column(both, pa.int64()).dictionary_encode()
        kinds, kinds_count = encoded.indices, len(encoded.dictionary)
        if kinds_count * REPEATS_MIN > count:
            return None
    firsts = np.empty(kinds_count, np.int64)
    firsts[kinds.to_numpy()[::-1]] = np.arange(count)[::-1]  # what is written last stays
    return Repeats(firsts, kinds)
