"""AMQP 1.0 types that Python does not tell apart.

A value without wrapper stands for the type that loses nothing:

    None  null        int    long       str    string      list, tuple  list
    bool  boolean     float  double     bytes  binary      dict         map        uuid.UUID  uuid

The wrappers are subclasses of what they hold, so that a decoded value compares and computes as the plain one
(``status == 202``), and encodes as the type that it came as.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID


class UByte(int):
    """0 to 2**8 - 1."""

    __slots__ = ()


class UShort(int):
    """0 to 2**16 - 1."""

    __slots__ = ()


class UInt(int):
    """0 to 2**32 - 1."""

    __slots__ = ()


class ULong(int):
    """0 to 2**64 - 1."""

    __slots__ = ()


class Byte(int):
    """-2**7 to 2**7 - 1."""

    __slots__ = ()


class Short(int):
    """-2**15 to 2**15 - 1."""

    __slots__ = ()


class Int(int):
    """-2**31 to 2**31 - 1. (A long is a plain ``int``.)"""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC: any 64-bit number, also such that no calendar has."""

    __slots__ = ()


class Float(float):
    """Four bytes. (A double is a plain ``float``.)"""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Symbol(str):
    """A name out of some agreed set; ASCII."""

    __slots__ = ()


class Decimal(bytes):
    """An IEEE 754 decimal of 4, 8 or 16 bytes, kept as it came: nothing here computes with it."""

    __slots__ = ()


class Array(tuple[object, ...]):
    """Values of one type, which share one constructor on the wire."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that tells what it means."""

    descriptor: object
    value: object


SIMPLE_TYPES: Final[Mapping[str, type]] = {
    "boolean": bool,
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "byte": Byte,
    "short": Short,
    "int": Int,
    "long": int,
    "float": Float,
    "double": float,
    "decimal": Decimal,
    "char": Char,
    "timestamp": Timestamp,
    "uuid": UUID,
    "binary": bytes,
    "string": str,
    "symbol": Symbol,
}
"""AMQP's names of the types that hold no others, but for null."""
