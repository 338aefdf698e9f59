"""One message with all its sections: for the few that are requests and answers. Events go through ``amqp.events``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar

from hubline.amqp.codec.composites import (
    ANY,
    BINARY,
    BOOLEAN,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    Composite,
)
from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.types import Described, Symbol, ULong
from hubline.amqp.transport.errors import AmqpDecodeError

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78

_SECTIONS: Final[Mapping[str, int]] = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": AMQP_SEQUENCE,
    "amqp:amqp-value:*": AMQP_VALUE,
    "amqp:footer:map": FOOTER,
}


@dataclass(frozen=True, slots=True)
class Header(Composite):
    CODE: ClassVar[int] = HEADER
    NAME: ClassVar[str] = "amqp:header:list"
    durable: Annotated[bool, BOOLEAN] = False
    priority: Annotated[int, UBYTE] = 4
    ttl: Annotated[int | None, UINT] = None
    first_acquirer: Annotated[bool, BOOLEAN] = False
    delivery_count: Annotated[int, UINT] = 0


@dataclass(frozen=True, slots=True)
class Properties(Composite):
    """``message_id`` and ``correlation_id`` keep the type they came with: an answer has to repeat it."""

    CODE: ClassVar[int] = PROPERTIES
    NAME: ClassVar[str] = "amqp:properties:list"
    message_id: Annotated[object, ANY] = None
    user_id: Annotated[bytes | None, BINARY] = None
    to: Annotated[str | None, STRING] = None
    subject: Annotated[str | None, STRING] = None
    reply_to: Annotated[str | None, STRING] = None
    correlation_id: Annotated[object, ANY] = None
    content_type: Annotated[str | None, SYMBOL] = None
    content_encoding: Annotated[str | None, SYMBOL] = None
    absolute_expiry_time: Annotated[int | None, TIMESTAMP] = None
    creation_time: Annotated[int | None, TIMESTAMP] = None
    group_id: Annotated[str | None, STRING] = None
    group_sequence: Annotated[int | None, UINT] = None
    reply_to_group_id: Annotated[str | None, STRING] = None


@dataclass(frozen=True, slots=True)
class Value:
    """A body that is one value."""

    value: object


@dataclass(frozen=True, slots=True)
class Data:
    """A body of bytes, in one section or several. One that is null is of JavaScript, which sends a null body so."""

    parts: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Sequences:
    """A body of lists."""

    parts: tuple[list[object], ...]


Body: TypeAlias = Value | Data | Sequences
Map: TypeAlias = Mapping[object, object]


@dataclass(frozen=True, slots=True)
class Message:
    """A message with all its sections; those that are None are not there."""

    body: Body
    properties: Properties | None = None
    application_properties: Map | None = None
    message_annotations: Map | None = None
    delivery_annotations: Map | None = None
    header: Header | None = None
    footer: Map | None = None

    def encode(self) -> bytes:
        return b"".join(
            [
                b"" if self.header is None else self.header.encode(),
                _encode_section(DELIVERY_ANNOTATIONS, self.delivery_annotations),
                _encode_section(MESSAGE_ANNOTATIONS, self.message_annotations),
                b"" if self.properties is None else self.properties.encode(),
                _encode_section(APPLICATION_PROPERTIES, self.application_properties),
                *_encode_body(self.body),
                _encode_section(FOOTER, self.footer),
            ]
        )

    @classmethod
    def decode(cls, data: Bytes) -> Message:
        """Raises AmqpDecodeError."""
        sections: dict[int, object] = {}
        parts: list[tuple[int, object]] = []
        reader = Reader(data)
        while not reader.is_at_end:
            code = read_section(reader)
            value = reader.value()
            if code in (DATA, AMQP_SEQUENCE, AMQP_VALUE):
                parts.append((code, value))
            else:
                sections[code] = value
        return cls(
            body=body_of(parts),
            properties=_composite(Properties, sections.get(PROPERTIES)),
            application_properties=_map(sections, APPLICATION_PROPERTIES),
            message_annotations=_map(sections, MESSAGE_ANNOTATIONS),
            delivery_annotations=_map(sections, DELIVERY_ANNOTATIONS),
            header=_composite(Header, sections.get(HEADER)),
            footer=_map(sections, FOOTER),
        )


def read_section(reader: Reader) -> int:
    """Which section follows."""
    descriptor = reader.descriptor()
    if type(descriptor) is ULong and HEADER <= descriptor <= FOOTER:
        return int(descriptor)
    if type(descriptor) is Symbol and descriptor in _SECTIONS:
        return _SECTIONS[descriptor]
    raise AmqpDecodeError(f"a message has no section with the descriptor {str(descriptor)[:64]!r}")


def body_of(parts: list[tuple[int, object]]) -> Body:
    """The body out of its sections, each with its descriptor: all of one kind. Raises AmqpDecodeError."""
    kinds = {code for code, _ in parts}
    values = [value for _, value in parts]
    if len(kinds) > 1 or (kinds == {AMQP_VALUE} and len(values) > 1):
        raise AmqpDecodeError("the body of a message is either data, or sequences, or one value")
    if kinds == {AMQP_VALUE}:
        return Value(values[0])
    if kinds == {AMQP_SEQUENCE}:
        return Sequences(tuple(_list(value) for value in values))
    return Data(tuple(_bytes(value) for value in values))


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise AmqpDecodeError(f"a sequence in a body is a list, not {type(value).__name__}")
    return value


def _bytes(value: object) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise AmqpDecodeError(f"data in a body is binary, not {type(value).__name__}")
    return value


def _encode_section(code: int, value: object) -> bytes:
    return b"" if value is None else encode(Described(ULong(code), value))


def _encode_body(body: Body) -> list[bytes]:
    if isinstance(body, Value):
        return [encode(Described(ULong(AMQP_VALUE), body.value))]
    code = DATA if isinstance(body, Data) else AMQP_SEQUENCE
    return [encode(Described(ULong(code), part)) for part in body.parts]


def _map(sections: Mapping[int, object], code: int) -> Map | None:
    value = sections.get(code)
    if value is not None and not isinstance(value, dict):
        raise AmqpDecodeError(f"section {code:#x} of a message is a map, not {type(value).__name__}")
    return value


_Section = TypeVar("_Section", Header, Properties)


def _composite(kind: type[_Section], value: object) -> _Section | None:
    return None if value is None else kind.from_fields(_list(value))
