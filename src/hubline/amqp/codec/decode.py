"""The AMQP 1.0 type system: from bytes to values.

The decoder accepts every valid encoding of every type, and turns any other bytes into AmqpDecodeError: it neither
hangs, nor recurses deeper than ``DEPTH_MAX``, nor takes memory out of proportion to the bytes it is given.
:mod:`hubline.amqp.codec.types` tells which Python value stands for which type.

Keys of a map have to be hashable: a list that is a key becomes a tuple, and a map that is one becomes a tuple of
pairs. Keys that Python holds for equal (``True``, ``1``, ``1.0``) fall together, and the last one stays; use
:meth:`Reader.map_keys` where that matters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from hubline.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from hubline.amqp.transport.errors import AmqpDecodeError

Bytes: TypeAlias = bytes | bytearray | memoryview

# The deepest thing that real peers send, an attach with a filter in its source, is five deep.
DEPTH_MAX: Final = 32

# Elements of some arrays take no bytes at all, so that eight bytes can ask for billions. Nobody sends such arrays.
ZERO_WIDTH_ITEMS_MAX: Final = 65_536

DESCRIBED: Final = 0x00
NULL: Final = 0x40
EMPTY_LIST: Final = 0x45


def decode(data: Bytes) -> object:
    """The one value that the bytes are. Raises AmqpDecodeError."""
    reader = Reader(data)
    value = reader.value()
    if not reader.is_at_end:
        raise AmqpDecodeError(f"{reader.end - reader.position} bytes are left after the value")
    return value


class Span(NamedTuple):
    """Where a value is: its code, then its size if it has one, then its content from ``start`` to ``end``."""

    code: int
    position: int
    start: int
    end: int


class Reader:
    """Takes values, one after the other, from a part of some bytes. Every method raises AmqpDecodeError.

    ``position`` is where the next value starts. After an error it may stand anywhere.
    """

    __slots__ = ("_zero_width_left", "data", "end", "position")

    def __init__(self, data: Bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end
        self._zero_width_left = ZERO_WIDTH_ITEMS_MAX

    @property
    def is_at_end(self) -> bool:
        return self.position >= self.end

    def value(self) -> object:
        """The next value."""
        try:
            value = self._value(DEPTH_MAX)
        except (IndexError, struct.error):
            raise _truncated(self.end) from None
        if self.position > self.end:
            raise _truncated(self.end)
        return value

    def descriptor(self) -> object:
        """The descriptor of the next value, which has to be a described one; the value itself follows."""
        if self._take_code() != DESCRIBED:
            raise AmqpDecodeError(f"a described value is expected at byte {self.position - 1}")
        return self.value()

    def map_keys(self) -> Iterator[object]:
        """The keys of the next value, a map; none if it is null. The caller takes the value after each key."""
        if self.position < self.end and self.data[self.position] == NULL:
            self.position += 1
            return
        span, count = self.enter()
        if span.code not in _MAPS or count % 2:
            raise AmqpDecodeError(f"a map is expected at byte {span.position}: a value for each key")
        for _ in range(count // 2):
            yield self.value()
        _require_end(self, span.end)

    def skip(self) -> None:
        """Passes over the next value. What is inside a list, map or array is not looked at."""
        described_count = 0
        while self.position < self.end and self.data[self.position] == DESCRIBED:
            described_count += 1
            if described_count > DEPTH_MAX:
                raise _too_deep(self.position)
            self.descriptor()
        self.span()

    def span(self) -> Span:
        """Passes over the next value, which has no descriptor, and tells where it is."""
        position = self.position
        code = self._take_code()
        if code == DESCRIBED or code not in _PAYLOADS:
            raise _unknown_code(code, self.position)
        width = code >> 4
        if width in _VARIABLE_WIDTHS:
            try:
                size = _size(self, _VARIABLE_WIDTHS[width])
            except struct.error:
                raise _truncated(self.end) from None
        else:
            size = _FIXED_WIDTHS[width]
        start = self.position
        self.position += size
        if self.position > self.end:
            raise _truncated(self.end)
        return Span(code, position, start, self.position)

    def enter(self) -> tuple[Span, int]:
        """Where the next value, a list or map, is, and how many values it holds; the first of them follows."""
        span = self.span()
        if span.code == EMPTY_LIST:
            return span, 0
        if span.code not in _COMPOUND_SIZES:
            raise AmqpDecodeError(f"a list or map is expected at byte {span.position}")
        self.position = span.start
        try:
            count = _size(self, _COMPOUND_SIZES[span.code])
        except struct.error:
            raise _truncated(self.end) from None
        return span, count

    def _take_code(self) -> int:
        if self.position >= self.end:
            raise _truncated(self.end)
        code = self.data[self.position]
        self.position += 1
        return code

    def _value(self, depth: int) -> object:
        code = self.data[self.position]
        self.position += 1
        payload = _PAYLOADS.get(code)
        if payload is None:
            raise _unknown_code(code, self.position)
        return payload(self, depth)

    def _take_zero_width(self, count: int) -> None:
        self._zero_width_left -= count
        if self._zero_width_left < 0:
            raise AmqpDecodeError(
                f"arrays hold more than {ZERO_WIDTH_ITEMS_MAX:,} elements that take no bytes (at byte {self.position})"
            )


def _truncated(end: int) -> AmqpDecodeError:
    return AmqpDecodeError(f"a value reaches beyond byte {end}, where the bytes end")


def _unknown_code(code: int, position: int) -> AmqpDecodeError:
    return AmqpDecodeError(f"0x{code:02x} at byte {position - 1} is not an AMQP type")


def _too_deep(position: int) -> AmqpDecodeError:
    return AmqpDecodeError(f"values are nested deeper than {DEPTH_MAX} at byte {position}")


# A payload reader takes what follows a constructor: of a single value, and of each element of an array.
_Payload: TypeAlias = Callable[[Reader, int], object]

_SIZE_8: Final = struct.Struct(">B")
_SIZE_32: Final = struct.Struct(">I")

# By the first digit of the type code: how many bytes follow, or how their number is given.
_FIXED_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_VARIABLE_WIDTHS: Final = {0xA: _SIZE_8, 0xB: _SIZE_32, 0xC: _SIZE_8, 0xD: _SIZE_32, 0xE: _SIZE_8, 0xF: _SIZE_32}
_COMPOUND_SIZES: Final = {0xC0: _SIZE_8, 0xD0: _SIZE_32, 0xC1: _SIZE_8, 0xD1: _SIZE_32}
_MAPS: Final = (0xC1, 0xD1)


def _size(reader: Reader, size: struct.Struct) -> int:
    number: int = size.unpack_from(reader.data, reader.position)[0]
    reader.position += size.size
    return number


def _constant(value: object) -> _Payload:
    return lambda _reader, _depth: value


def _number(layout: str, wrap: Callable[..., object] | None = None) -> _Payload:
    unpack_from, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(reader: Reader, _depth: int) -> object:
        value: object = unpack_from(reader.data, reader.position)[0]
        reader.position += width
        return value if wrap is None else wrap(value)

    return read


def _boolean(number: int) -> bool:
    if number > 1:
        raise AmqpDecodeError(f"a boolean is 0 or 1, not {number}")
    return number == 1


def _char(number: int) -> Char:
    try:
        character = chr(number)
        character.encode("utf-8")  # refuses halves of surrogate pairs
    except (ValueError, OverflowError):
        raise AmqpDecodeError(f"{number:#x} is not a Unicode character") from None
    return Char(character)


def _opaque(width: int, wrap: Callable[[bytes], object]) -> _Payload:
    def read(reader: Reader, _depth: int) -> object:
        return wrap(_take(reader, width))

    return read


def _take(reader: Reader, length: int) -> bytes:
    start, end = reader.position, reader.position + length
    if end > reader.end:
        raise _truncated(reader.end)
    reader.position = end
    return bytes(reader.data[start:end])


def _variable(size: struct.Struct, wrap: Callable[[bytes], object]) -> _Payload:
    def read(reader: Reader, _depth: int) -> object:
        return wrap(_take(reader, _size(reader, size)))

    return read


def text(data: bytes) -> str:
    """UTF-8 as a string. Raises AmqpDecodeError."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(f"a string of {len(data)} bytes is not UTF-8 from its byte {error.start} on") from None


def _symbol(data: bytes) -> Symbol:
    return Symbol(text(data))


def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def _list(size: struct.Struct) -> _Payload:
    def read(reader: Reader, depth: int) -> list[object]:
        end, count = _compound(reader, depth, size)
        values = [reader._value(depth - 1) for _ in range(count)]  # noqa: SLF001
        _require_end(reader, end)
        return values

    return read


def _map(size: struct.Struct) -> _Payload:
    def read(reader: Reader, depth: int) -> dict[object, object]:
        end, count = _compound(reader, depth, size)
        if count % 2:
            raise AmqpDecodeError(f"a map has a key without a value: {count} keys and values at byte {reader.position}")
        value = reader._value  # noqa: SLF001
        pairs = [(_hashable(value(depth - 1)), value(depth - 1)) for _ in range(count // 2)]
        _require_end(reader, end)
        return dict(pairs)

    return read


def _array(size: struct.Struct) -> _Payload:
    def read(reader: Reader, depth: int) -> Array:
        end, count = _array_head(reader, depth, size)
        descriptors, code = _array_constructor(reader, depth)
        if code >> 4 in _FIXED_WIDTHS and not _FIXED_WIDTHS[code >> 4]:
            reader._take_zero_width(count)  # noqa: SLF001
        elif count > end - reader.position:
            raise _too_many(count, reader.position)
        # A second descriptor makes another object of every element, and takes no bytes for it.
        reader._take_zero_width(count * len(descriptors[1:]))  # noqa: SLF001
        payload = _PAYLOADS[code]
        values = [payload(reader, depth - 1) for _ in range(count)]
        _require_end(reader, end)
        for descriptor in reversed(descriptors):
            values = [Described(descriptor, value) for value in values]
        return Array(values)

    return read


def _array_constructor(reader: Reader, depth: int) -> tuple[list[object], int]:
    """The descriptors, outermost first, and the type code that all elements share."""
    descriptors: list[object] = []
    while (code := reader.data[reader.position]) == DESCRIBED:
        reader.position += 1
        if len(descriptors) >= depth:
            raise _too_deep(reader.position)
        descriptors.append(reader._value(depth - 1))  # noqa: SLF001
    reader.position += 1
    if code not in _PAYLOADS:
        raise _unknown_code(code, reader.position)
    return descriptors, code


def _compound(reader: Reader, depth: int, size: struct.Struct) -> tuple[int, int]:
    """Where a list or map ends, and how many values it has."""
    end, count = _array_head(reader, depth, size)
    if count > end - reader.position:  # a value takes a byte at least
        raise _too_many(count, reader.position)
    return end, count


def _array_head(reader: Reader, depth: int, size: struct.Struct) -> tuple[int, int]:
    if depth <= 0:
        raise _too_deep(reader.position)
    bytes_count = _size(reader, size)
    end = reader.position + bytes_count
    if end > reader.end:
        raise _truncated(reader.end)
    return end, _size(reader, size)


def _too_many(count: int, position: int) -> AmqpDecodeError:
    return AmqpDecodeError(f"{count:,} values do not fit into the bytes that are there (at byte {position})")


def _require_end(reader: Reader, end: int) -> None:
    if reader.position != end:
        raise AmqpDecodeError(f"what is inside a list, map or array ends at byte {reader.position} instead of {end}")


def _described(reader: Reader, depth: int) -> Described:
    if depth <= 0:
        raise _too_deep(reader.position)
    descriptor = reader._value(depth - 1)  # noqa: SLF001
    return Described(descriptor, reader._value(depth - 1))  # noqa: SLF001


def _hashable(value: object) -> object:
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, Array):
        return Array(_hashable(item) for item in value)
    if isinstance(value, Described):
        return Described(_hashable(value.descriptor), _hashable(value.value))
    return value


_PAYLOADS: Final[dict[int, _Payload]] = {
    DESCRIBED: _described,
    NULL: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x56: _number(">B", _boolean),
    0x50: _number(">B", UByte),
    0x60: _number(">H", UShort),
    0x70: _number(">I", UInt),
    0x52: _number(">B", UInt),
    0x43: _constant(UInt(0)),
    0x80: _number(">Q", ULong),
    0x53: _number(">B", ULong),
    0x44: _constant(ULong(0)),
    0x51: _number(">b", Byte),
    0x61: _number(">h", Short),
    0x71: _number(">i", Int),
    0x54: _number(">b", Int),
    0x81: _number(">q"),
    0x55: _number(">b"),
    0x72: _number(">f", Float),
    0x82: _number(">d"),
    0x74: _opaque(4, Decimal),
    0x84: _opaque(8, Decimal),
    0x94: _opaque(16, Decimal),
    0x73: _number(">I", _char),
    0x83: _number(">q", Timestamp),
    0x98: _opaque(16, _uuid),
    0xA0: _variable(_SIZE_8, bytes),
    0xB0: _variable(_SIZE_32, bytes),
    0xA1: _variable(_SIZE_8, text),
    0xB1: _variable(_SIZE_32, text),
    0xA3: _variable(_SIZE_8, _symbol),
    0xB3: _variable(_SIZE_32, _symbol),
    EMPTY_LIST: lambda _reader, _depth: [],
    0xC0: _list(_SIZE_8),
    0xD0: _list(_SIZE_32),
    0xC1: _map(_SIZE_8),
    0xD1: _map(_SIZE_32),
    0xE0: _array(_SIZE_8),
    0xF0: _array(_SIZE_32),
}
