"""The AMQP 1.0 type system: from values to bytes, each in its shortest form.

:mod:`hubline.amqp.codec.types` tells which Python value stands for which type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias
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
from hubline.amqp.transport.errors import AmqpEncodeError

_DESCRIBED: Final = b"\x00"
_NULL: Final = b"\x40"
_SIZE_8_MAX: Final = 0xFF
_SIZE_32: Final = struct.Struct(">I")
_SIZE_32_MAX: Final = 0xFFFF_FFFF


def encode(value: object) -> bytes:
    """The value as bytes. Raises AmqpEncodeError if AMQP has no such type, or a number is out of its type's range."""
    try:
        return _encode(value)
    except struct.error as error:
        raise AmqpEncodeError(f"a number is out of the range of its AMQP type: {error}") from None
    except UnicodeEncodeError as error:
        raise AmqpEncodeError(f"a string holds half a surrogate pair, which is not text: {error.reason}") from None
    except RecursionError:
        raise AmqpEncodeError("a value is nested too deep, or holds itself") from None


def _encode(value: object) -> bytes:
    encoder = _ENCODERS.get(type(value)) or _encoder_of_kin(value)
    return encoder(value)


def _encoder_of_kin(value: object) -> _Encoder:
    for kind, encoder in _ENCODERS_OF_KIN:
        if isinstance(value, kind):
            return encoder
    raise AmqpEncodeError(f"AMQP has no type for {type(value).__name__}")


# Any: each encoder is called with the type that it is listed under, and no other.
_Encoder: TypeAlias = Callable[..., bytes]


def _boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def _number(code: int, layout: str) -> _Encoder:
    pack = struct.Struct(f">B{layout}").pack
    return lambda value: pack(code, value)


def _unsigned(code: int, layout: str, *, small: int, zero: int) -> _Encoder:
    pack = struct.Struct(f">B{layout}").pack

    def encode_unsigned(value: int) -> bytes:
        if value == 0:
            return bytes((zero,))
        return bytes((small, value)) if 0 < value <= _SIZE_8_MAX else pack(code, value)

    return encode_unsigned


def _signed(code: int, layout: str, *, small: int) -> _Encoder:
    pack = struct.Struct(f">B{layout}").pack

    def encode_signed(value: int) -> bytes:
        return bytes((small, value & 0xFF)) if -0x80 <= value < 0x80 else pack(code, value)

    return encode_signed


def _char(value: str) -> bytes:
    return b"\x73" + _char_payload(value)


def _char_payload(value: str) -> bytes:
    if len(value) != 1:
        raise AmqpEncodeError(f"a char is one character, not {len(value)}")
    return value.encode("utf-32-be")


def _decimal(value: bytes) -> bytes:
    if len(value) not in _DECIMAL_CODES:
        raise AmqpEncodeError(f"a decimal has 4, 8 or 16 bytes, not {len(value)}")
    return bytes((_DECIMAL_CODES[len(value)],)) + value


_DECIMAL_CODES: Final = {4: 0x74, 8: 0x84, 16: 0x94}


def _variable(code: int, to_bytes: Callable[..., bytes]) -> _Encoder:
    """Strings, symbols and binaries; ``code`` is that of the short form."""

    def encode_variable(value: object) -> bytes:
        data = to_bytes(value)
        if len(data) <= _SIZE_8_MAX:
            return bytes((code, len(data))) + data
        return bytes((code + 0x10,)) + _SIZE_32.pack(len(data)) + data

    return encode_variable


def _utf8(value: str) -> bytes:
    return value.encode("utf-8")


def _ascii(value: str) -> bytes:
    if not value.isascii():
        raise AmqpEncodeError("a symbol holds ASCII only")
    return value.encode("ascii")


def _list(values: Sequence[object]) -> bytes:
    if not values:
        return b"\x45"
    return _compound(0xC0, len(values), b"".join(map(_encode, values)))


def _map(values: Mapping[object, object]) -> bytes:
    parts = [_encode(part) for pair in values.items() for part in pair]
    return _compound(0xC1, len(parts), b"".join(parts))


def _compound(code: int, count: int, content: bytes) -> bytes:
    """A list or map; ``code`` is that of the short form."""
    if count <= _SIZE_8_MAX and len(content) < _SIZE_8_MAX:  # the size counts the count, too
        return bytes((code, len(content) + 1, count)) + content
    if len(content) > _SIZE_32_MAX - _SIZE_32.size:
        raise AmqpEncodeError(f"a value of {len(content):,} bytes is larger than AMQP has a size for")
    return bytes((code + 0x10,)) + _SIZE_32.pack(len(content) + 4) + _SIZE_32.pack(count) + content


def _described(value: Described) -> bytes:
    return _DESCRIBED + _encode(value.descriptor) + _encode(value.value)


def _array(values: Array) -> bytes:
    constructor, payloads = _array_parts(values)
    content = constructor + payloads
    if len(values) <= _SIZE_8_MAX and len(content) < _SIZE_8_MAX:
        return bytes((0xE0, len(content) + 1, len(values))) + content
    return b"\xf0" + _SIZE_32.pack(len(content) + 4) + _SIZE_32.pack(len(values)) + content


def _array_parts(values: Sequence[object]) -> tuple[bytes, bytes]:
    """The constructor that all elements share, and what follows it for each."""
    if not values:
        return _NULL, b""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise AmqpEncodeError("the elements of an array are of one type: wrap them alike")
    if isinstance(first, Described):
        return _described_array_parts([value for value in values if isinstance(value, Described)])
    if isinstance(first, Array):
        arrays = [_array_32(value) for value in values if isinstance(value, Array)]
        return b"\xf0", b"".join(arrays)
    return _plain_array_parts(values)


def _described_array_parts(values: Sequence[Described]) -> tuple[bytes, bytes]:
    descriptor = values[0].descriptor
    if any(value.descriptor != descriptor for value in values):
        raise AmqpEncodeError("the elements of an array share one descriptor")
    constructor, payloads = _array_parts([value.value for value in values])
    return _DESCRIBED + _encode(descriptor) + constructor, payloads


def _array_32(values: Array) -> bytes:
    constructor, payloads = _array_parts(values)
    return _SIZE_32.pack(len(constructor) + len(payloads) + 4) + _SIZE_32.pack(len(values)) + constructor + payloads


def _plain_array_parts(values: Sequence[object]) -> tuple[bytes, bytes]:
    """Each element is encoded by itself in the one form that suits all, and loses its constructor."""
    kind = type(values[0])
    if kind in _ARRAY_NUMBERS:
        encode_number = _ARRAY_NUMBERS[kind]
        encoded = [encode_number(value) for value in values]
    else:
        encoded = [_encode(value) for value in values]
        if len({item[0] for item in encoded}) > 1 or encoded[0][0] == 0x45:
            encoded = [_widened(item) for item in encoded]
    codes = {item[0] for item in encoded}
    if len(codes) > 1:
        raise AmqpEncodeError("the elements of an array are of one type and width")
    return encoded[0][:1], b"".join(item[1:] for item in encoded)


def _widened(item: bytes) -> bytes:
    """The same string, symbol, binary, list or map in its long form."""
    code = item[0]
    if code == 0x45:
        return b"\xd0" + _SIZE_32.pack(4) + _SIZE_32.pack(0)
    if code >> 4 == 0xA:
        return bytes((code + 0x10,)) + _SIZE_32.pack(item[1]) + item[2:]
    if code >> 4 == 0xC:
        return bytes((code + 0x10,)) + _SIZE_32.pack(item[1] + 3) + _SIZE_32.pack(item[2]) + item[3:]
    return item


# Numbers in an array have one width: the full one.
_ARRAY_NUMBERS: Final[Mapping[type, _Encoder]] = {
    bool: _number(0x56, "?"),
    UInt: _number(0x70, "I"),
    ULong: _number(0x80, "Q"),
    Int: _number(0x71, "i"),
    int: _number(0x81, "q"),
}

_ENCODERS: Final[Mapping[type, _Encoder]] = {
    type(None): lambda _value: _NULL,
    bool: _boolean,
    UByte: _number(0x50, "B"),
    UShort: _number(0x60, "H"),
    UInt: _unsigned(0x70, "I", small=0x52, zero=0x43),
    ULong: _unsigned(0x80, "Q", small=0x53, zero=0x44),
    Byte: _number(0x51, "b"),
    Short: _number(0x61, "h"),
    Int: _signed(0x71, "i", small=0x54),
    int: _signed(0x81, "q", small=0x55),
    Timestamp: _number(0x83, "q"),
    Float: _number(0x72, "f"),
    float: _number(0x82, "d"),
    Char: _char,
    Decimal: _decimal,
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: _variable(0xA0, bytes),
    bytearray: _variable(0xA0, bytes),
    memoryview: _variable(0xA0, bytes),
    str: _variable(0xA1, _utf8),
    Symbol: _variable(0xA3, _ascii),
    list: _list,
    tuple: _list,
    dict: _map,
    Array: _array,
    Described: _described,
}

# Subclasses of the plain types (an enumeration, say) go as what they derive from.
_ENCODERS_OF_KIN: Final[Sequence[tuple[type, _Encoder]]] = [
    (kind, _ENCODERS[kind]) for kind in (Symbol, bool, int, float, str, bytes, Array, list, tuple, dict)
] + [(Mapping, _map)]
