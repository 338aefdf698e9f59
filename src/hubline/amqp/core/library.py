"""The compiled core: C functions that fill buffers of Arrow, called by ctypes. Nothing else calls C.

The library is built at installation (``hubline_build.py``). Where it is not there, ``core()`` is None and says so once:
what it does, Python does message by message. HUBLINE_AMQP_CORE=python leaves it out on purpose.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

log = logging.getLogger("hubline.amqp")

VARIABLE: Final = "HUBLINE_AMQP_CORE"
LIBRARY: Final = Path(__file__).with_name("libhubline.so")

# What a column of Arrow holds.
OFFSET_MAX: Final = 2**31 - 1

# Room for a little more than the last events took: a column that grows is copied.
_SPARE: Final = 1.125
_ROOM_MIN: Final = 256


class Column(ctypes.Structure):
    """``Column`` of core.h."""

    _fields_ = (
        ("ends", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("rows_max", ctypes.c_int64),
        ("bytes_max", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("bytes_count", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("rows_wanted", ctypes.c_int64),
        ("bytes_wanted", ctypes.c_int64),
    )

    rows_max: int
    bytes_max: int
    rows: int
    bytes_count: int
    null_count: int
    rows_wanted: int
    bytes_wanted: int


class Decoding(ctypes.Structure):
    """``Decoding`` of decode.c."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("has_position", ctypes.c_int64),
        ("takes_notes", ctypes.c_int64),
        ("body", Column),
        ("offset", Column),
        ("key", Column),
        ("names", Column),
        ("values", Column),
        ("map_ends", ctypes.c_void_p),
        ("map_valid", ctypes.c_void_p),
        ("map_null_count", ctypes.c_int64),
        ("sequences", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
        ("next", ctypes.c_int64),
        ("taken", ctypes.c_int64),
        ("others", ctypes.c_void_p),
        ("others_count", ctypes.c_int64),
    )

    map_null_count: int
    sequences: int
    taken: int
    others_count: int


class Frames(ctypes.Structure):
    """``Frames`` of frames.c."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("start", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("size_min", ctypes.c_int64),
        ("size_max", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("impossible", ctypes.c_int64),
        ("bounds", ctypes.c_void_p),
        ("links", ctypes.c_void_p),
        ("delivery_ids", ctypes.c_void_p),
        ("payloads", ctypes.c_void_p),
        ("is_simple", ctypes.c_void_p),
        ("is_settled", ctypes.c_void_p),
    )

    count: int
    impossible: int
    bounds: int
    is_simple: int


class Sections(ctypes.Structure):
    """``Sections`` of frames.c."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("start", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("starts", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
    )

    start: int
    count: int


class Texts(ctypes.Structure):
    """``Texts`` of encode.c."""

    _fields_ = (
        ("ends", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("bytes_count", ctypes.c_int64),
    )

    @classmethod
    def of(cls, column: pa.Array) -> Texts:
        """A column of binary or string values. It has to stay."""
        if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
            raise TypeError(f"a column of {column.type} is neither binary nor string")
        valid, ends, octets = column.buffers()
        return cls(
            ends=buffer_address(ends, 4 * column.offset),
            bytes=buffer_address(octets),
            valid=buffer_address(valid) if column.null_count else None,
            first=column.offset,
            bytes_count=octets.size if octets else 0,
        )


class Encoding(ctypes.Structure):
    """``Encoding`` of encode.c."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("body", Texts),
        ("offset", Texts),
        ("key", Texts),
        ("sequences", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
        ("map_ends", ctypes.c_void_p),
        ("map_valid", ctypes.c_void_p),
        ("map_first", ctypes.c_int64),
        ("pairs_count", ctypes.c_int64),
        ("names", Texts),
        ("values", Texts),
        ("made", Texts),
        ("prefix", ctypes.c_char_p),
        ("prefix_size", ctypes.c_int64),
        ("is_section", ctypes.c_int64),
        ("before_id", ctypes.c_char_p),
        ("after_id", ctypes.c_char_p),
        ("before_id_size", ctypes.c_int64),
        ("after_id_size", ctypes.c_int64),
        ("delivery_id", ctypes.c_uint64),
        ("messages", Column),
        ("next", ctypes.c_int64),
        ("others", ctypes.c_void_p),
        ("others_count", ctypes.c_int64),
    )

    next: int
    others_count: int


class Core(NamedTuple):
    """The functions of the library."""

    decode: Callable[[Decoding], int]
    encode: Callable[[Encoding], int]
    frames: Callable[[Frames], None]
    sections: Callable[[Sections], None]


@cache
def core() -> Core | None:
    """The library; None where there is none."""
    if os.environ.get(VARIABLE) == "python":
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        log.warning("amqp_core_missing reason=%s", error)
        return None
    return Core(
        decode=_function(library.hubline_decode, Decoding, ctypes.c_int),
        encode=_function(library.hubline_encode, Encoding, ctypes.c_int),
        frames=_function(library.hubline_frames, Frames),
        sections=_function(library.hubline_sections, Sections),
    )


def _function(function: Any, structure: type[ctypes.Structure], result: Any = None) -> Callable[[Any], Any]:
    function.argtypes, function.restype = (ctypes.POINTER(structure),), result
    return lambda argument: function(ctypes.byref(argument))


class GrowingColumn:
    """A column of texts or bytes, in memory that grows where C asks for more."""

    __slots__ = ("_bytes", "_ends", "_valid", "column")

    def __init__(self, column: Column, rows: int, bytes_count: int, *, has_nulls: bool) -> None:
        self.column = column
        bytes_count = min(bytes_count, OFFSET_MAX)
        column.rows = column.bytes_count = column.null_count = column.rows_wanted = column.bytes_wanted = 0
        self._ends = pa.allocate_buffer(4 * (rows + 1), resizable=True)
        self._bytes = pa.allocate_buffer(bytes_count, resizable=True)
        self._valid = pa.allocate_buffer(rows // 8 + 1, resizable=True) if has_nulls else None
        np.frombuffer(self._ends, np.int32, 1)[:] = 0
        self._note(rows, bytes_count)

    def grow(self) -> None:
        """Makes the room that is wanted, and more. Raises OverflowError if a column cannot have it."""
        column = self.column
        rows, bytes_count = column.rows_max, column.bytes_max
        if column.rows_wanted > rows:
            rows = _larger(column.rows_wanted)
            self._ends.resize(4 * (rows + 1))
            if self._valid is not None:
                self._valid.resize(rows // 8 + 1)
        if column.bytes_wanted > bytes_count:
            bytes_count = _larger(column.bytes_wanted)
            self._bytes.resize(bytes_count)
        self._note(rows, bytes_count)

    def array(self, kind: pa.DataType) -> pa.Array:
        """What is in it."""
        column = self.column
        valid = self._valid if column.null_count else None
        octets = self._bytes.slice(0, column.bytes_count)
        return pa.Array.from_buffers(kind, column.rows, [valid, self._ends, octets], column.null_count)

    def _note(self, rows: int, bytes_count: int) -> None:
        column = self.column
        column.ends, column.bytes = self._ends.address, self._bytes.address
        column.valid = None if self._valid is None else self._valid.address
        column.rows_max, column.bytes_max = rows, bytes_count


def _larger(wanted: int) -> int:
    if wanted > OFFSET_MAX:
        raise OverflowError(f"a column holds at most {OFFSET_MAX:,} bytes: give fewer events at once")
    return min(2 * wanted, OFFSET_MAX)


class RoomEstimate:
    """How much room a column of many events takes, by those before them."""

    __slots__ = ("_share",)

    def __init__(self, share: float) -> None:
        self._share = share

    def room(self, size: int) -> int:
        return min(int(self._share * _SPARE * size) + _ROOM_MIN, OFFSET_MAX)

    def took(self, used: int, size: int) -> None:
        self._share = used / size if size else self._share


def buffer_address(buffer: pa.Buffer | None, offset: int = 0) -> int | None:
    """Where a buffer of Arrow is, which an empty column may not have."""
    return None if buffer is None else int(buffer.address) + offset


def address_of(numbers: npt.NDArray[np.generic]) -> int:
    """Where the numbers are, one after the other."""
    address: int = numbers.__array_interface__["data"][0]  # far quicker to ask than ``numbers.ctypes``
    return address
