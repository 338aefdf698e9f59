"""A message's own properties, and the types of its application properties, in a map of text.

The columns of an event have one place for properties: a map of names to text. What AMQP keeps apart goes there, too,
under names that begin with ``amqp:``

    amqp:message-id, amqp:content-type, ...     the fields of a message's properties section (FIELDS)
    amqp:types                                  the types of values that are not strings, as JSON: {"number":"int"}
    amqp:data-sections                          which sections the body came in (:mod:`.data_sections`)

and back to where it came from when the event becomes a message. The last two are noted by who keeps events for others,
an endpoint, and by nobody else: so a map of strings is never more than that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Final, TypeAlias

from hubline.amqp.codec.data_sections import DATA_SECTIONS
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import APPLICATION_PROPERTIES, Properties
from hubline.amqp.codec.text import from_text
from hubline.amqp.codec.types import SIMPLE_TYPES, Described, ULong
from hubline.amqp.transport.errors import AmqpEncodeError

PREFIX: Final = "amqp:"
TYPES: Final = "amqp:types"

# What is said of the message, and is not one of its properties.
_NOTES: Final = (TYPES, DATA_SECTIONS)

# The fields of a properties section, in their order, as names in the map.
FIELDS: Final = tuple(PREFIX + field.name.replace("_", "-") for field in fields(Properties))

Pairs: TypeAlias = Sequence[tuple[str, str | None]]

# Longer ones are none that were noted here: names have to fit into a message, too.
_TYPES_LENGTH_MAX: Final = 64 * 1024

_TYPE_NAMES: Final[Mapping[type, str]] = {kind: name for name, kind in SIMPLE_TYPES.items() if kind is not str}

# Of those fields that are not strings; the two ids may be of several types, and are noted as other values are.
_FIELD_TYPES: Final[Mapping[str, str]] = {
    "amqp:user-id": "binary",
    "amqp:content-type": "symbol",
    "amqp:content-encoding": "symbol",
    "amqp:absolute-expiry-time": "timestamp",
    "amqp:creation-time": "timestamp",
    "amqp:group-sequence": "uint",
}
_IDS: Final = ("amqp:message-id", "amqp:correlation-id")
_ATTRIBUTES: Final = {name: name.removeprefix(PREFIX).replace("-", "_") for name in FIELDS}


def named_fields(values: object) -> list[tuple[str, object]]:
    """The fields of a properties section that are there, by name."""
    if not isinstance(values, list):
        return []
    return [(name, value) for name, value in zip(FIELDS, values, strict=False) if value is not None]


def type_name(value: object) -> str | None:
    """The type of a value that its text does not tell; None if it is a string, null, or of no simple type."""
    return _TYPE_NAMES.get(type(value))


def noted_types(types: Iterable[tuple[str, str | None]]) -> str | None:
    """The text of ``amqp:types`` for names and their types; None if there is nothing to note."""
    noted = {name: kind for name, kind in types if kind is not None and (name in _IDS or name not in _ATTRIBUTES)}
    return json.dumps(noted, ensure_ascii=False, separators=(",", ":")) if noted else None


def encode_properties(pairs: Pairs) -> bytes:
    """The properties sections of a message: its own, and those of the application.

    What does not fit where its name says, because somebody else wrote it, is an application property as any other.
    """
    types = _read_types(pairs)
    own: dict[str, object] = {}
    others: dict[str, object] = {}
    for name, text in pairs:
        value = None if text is None else _value(text, _FIELD_TYPES.get(name) or types.get(name))
        if name in _ATTRIBUTES and text is not None and value is not None:
            own[_ATTRIBUTES[name]] = value
        elif name not in _NOTES:
            others[name] = text if value is None else value
    sections = [Properties(**own).encode()] if own else []  # type: ignore[arg-type]
    if others:
        sections.append(encode(Described(ULong(APPLICATION_PROPERTIES), others)))
    return b"".join(sections)


def _value(text: str, kind: object) -> object:
    """The value of a type that has this text; the text itself if it is to be a string; None if there is none."""
    if kind is None:
        return text
    value = from_text(text, str(kind))
    try:
        encode(value)
    except AmqpEncodeError:
        return None
    return value


def _read_types(pairs: Pairs) -> Mapping[str, object]:
    text = next((text for name, text in pairs if name == TYPES), None)
    if text is None or len(text) > _TYPES_LENGTH_MAX:
        return {}
    try:
        types = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return types if isinstance(types, dict) else {}
