"""How AMQP's composite types become frozen dataclasses, and back: a described list, one place a field.

    @dataclass(frozen=True, slots=True)
    class Flow(Composite):
        CODE: ClassVar[int] = 0x13
        NAME: ClassVar[str] = "amqp:flow:list"
        incoming_window: Annotated[int, UINT]
        handle: Annotated[int | None, UINT] = None

A composite is always encoded at full length, nulls and all: some clients address the fields of what they are sent by
number. Lists that leave out what stands last decode too, and an absent field gets its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Final, Self, get_type_hints

from hubline.amqp.codec.decode import Bytes, decode
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.types import (
    Array,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from hubline.amqp.transport.errors import AmqpDecodeError, AmqpEncodeError


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field holds: how it is wrapped for the wire, and how what came is checked and unwrapped."""

    name: str
    wrap: Callable[[Any], object]
    unwrap: Callable[[object], object]


class Composite:
    """The base of all composites: see the module."""

    __slots__ = ()
    CODE: ClassVar[int]
    NAME: ClassVar[str]

    def to_described(self) -> Described:
        return Described(ULong(self.CODE), [_to_wire(self, name, kind) for name, kind, _ in _fields(type(self))])

    def encode(self) -> bytes:
        return encode(self.to_described())

    @classmethod
    def from_fields(cls, values: list[object]) -> Self:
        """From a decoded list. Raises AmqpDecodeError naming the field that is wrong or missing."""
        fields = _fields(cls)
        if len(values) > len(fields):
            raise AmqpDecodeError(f"{cls.NAME} has {len(fields)} fields, not {len(values)}")
        given = {
            name: _from_wire(cls, name, kind, value)
            for (name, kind, _), value in zip(fields, values, strict=False)
            if value is not None
        }
        for name, _, is_required in fields:
            if is_required and name not in given:
                raise AmqpDecodeError(f"{cls.NAME} needs {name}")
        return cls(**given)


class Registry:
    """Composites by descriptor, numeric or symbolic."""

    def __init__(self, *composites: type[Composite]) -> None:
        self._by_descriptor: dict[object, type[Composite]] = {}
        for composite in composites:
            self._by_descriptor[composite.CODE] = composite
            self._by_descriptor[composite.NAME] = composite

    def decode(self, data: Bytes) -> Composite:
        """One composite. Raises AmqpDecodeError, also if it is none of these."""
        return self.from_value(decode(data))

    def from_value(self, value: object) -> Composite:
        if not isinstance(value, Described):
            raise AmqpDecodeError(f"a described list is expected, not {type(value).__name__}")
        composite = self.find(value.descriptor)
        if composite is None:
            raise AmqpDecodeError(f"{_shown(value.descriptor)} is not expected here")
        if not isinstance(value.value, list):
            raise AmqpDecodeError(f"{composite.NAME} is a list, not {type(value.value).__name__}")
        return composite.from_fields(value.value)

    def has(self, composite: Composite) -> bool:
        return composite.CODE in self._by_descriptor

    def find(self, descriptor: object) -> type[Composite] | None:
        # Exact types: True and 1.0 would be found under 1 as well.
        return self._by_descriptor.get(descriptor) if type(descriptor) in (ULong, Symbol) else None


def _shown(descriptor: object) -> str:
    return f"descriptor {descriptor:#x}" if isinstance(descriptor, int) else f"descriptor {str(descriptor)[:64]!r}"


_fields_by_type: dict[type[Composite], list[tuple[str, Kind, bool]]] = {}


def _fields(composite: type[Composite]) -> list[tuple[str, Kind, bool]]:
    """Name, kind, and whether it has to be there, of each field in order."""
    if composite not in _fields_by_type:
        hints = get_type_hints(composite, include_extras=True)
        fields = dataclasses.fields(composite)  # type: ignore[arg-type]  # every composite is a dataclass
        _fields_by_type[composite] = [
            (field.name, hints[field.name].__metadata__[0], field.default is MISSING) for field in fields
        ]
    return _fields_by_type[composite]


def _to_wire(composite: Composite, name: str, kind: Kind) -> object:
    value = getattr(composite, name)
    if value is None:
        return None
    try:
        return kind.wrap(value)
    except (TypeError, ValueError) as error:
        raise AmqpEncodeError(f"{composite.NAME}: {name} has to be {kind.name}: {error}") from None


def _from_wire(composite: type[Composite], name: str, kind: Kind, value: object) -> object:
    try:
        return kind.unwrap(value)
    except TypeError:
        raise AmqpDecodeError(f"{composite.NAME}: {name} has to be {kind.name}, not {type(value).__name__}") from None


def _of_type(*accepted: type) -> Callable[[object], object]:
    """Passes values of exactly these types: a bool is not an int here."""

    def unwrap(value: object) -> object:
        if type(value) not in accepted:
            raise TypeError
        return value

    return unwrap


def _symbols(value: object) -> tuple[str, ...]:
    """A field of "multiple" symbols: one alone, or an array of them."""
    values = value if isinstance(value, Array) else (value,)
    return tuple(_name(item) for item in values)


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _mapping(value: object) -> Mapping[object, object]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _same(value: object) -> object:
    return value


def composite(registry: Registry) -> Kind:
    """One of the composites, or, where it is none of them, the described value as it came."""

    def unwrap(value: object) -> object:
        if not isinstance(value, Described):
            raise TypeError
        return value if registry.find(value.descriptor) is None else registry.from_value(value)

    def wrap(value: Composite | Described) -> object:
        return value if isinstance(value, Described) else value.to_described()

    return Kind("a described list", wrap, unwrap)


BOOLEAN: Final = Kind("boolean", bool, _of_type(bool))
UBYTE: Final = Kind("ubyte", UByte, _of_type(UByte))
USHORT: Final = Kind("ushort", UShort, _of_type(UShort))
UINT: Final = Kind("uint", UInt, _of_type(UInt))
ULONG: Final = Kind("ulong", ULong, _of_type(ULong))
TIMESTAMP: Final = Kind("timestamp", Timestamp, _of_type(Timestamp))
BINARY: Final = Kind("binary", bytes, _of_type(bytes))
STRING: Final = Kind("string", str, _name)
SYMBOL: Final = Kind("symbol", Symbol, _name)
SYMBOLS: Final = Kind("symbols", lambda names: Array(map(Symbol, names)), _symbols)
MAP: Final = Kind("map", _mapping, _mapping)
ANY: Final = Kind("any value", _same, _same)
