"""Learning a template from one message."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, TypeAlias

from hubline.amqp.codec.decode import DESCRIBED, EMPTY_LIST, NULL, Reader, Span
from hubline.amqp.codec.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    read_section,
)
from hubline.amqp.codec.property_types import FIELDS
from hubline.amqp.events.byte_rows import COMPARED, IGNORED, Pattern
from hubline.amqp.events.reference_decoder import BINARIES, KNOWN_ANNOTATIONS, read_event
from hubline.amqp.events.templates import FixedField, Place, Property, Segment, Size, Template, VariableField
from hubline.amqp.service_names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, SEQUENCE_NUMBER
from hubline.amqp.transport.errors import AmqpDecodeError

# Each segment costs a pass over all messages. One with that many strings is not what this is for.
SEGMENTS_MAX: Final = 64
SEGMENT_BYTES_MAX: Final = 4096

_LONGS: Final = (0x55, 0x81)
_TIMESTAMPS: Final = (0x83,)
_TEXTS: Final = (0xA1, 0xB1, 0xA3, 0xB3)
_LISTS: Final = (0xC0, 0xD0)
# Values without a size before them.
_FIXED: Final = range(0x40, 0xA0)


def learn(message: bytes, *, is_fixed_width: bool) -> Template | None:
    """How messages like this one are laid out; None if this one is unusual, or wrong."""
    try:
        read_event(message, 0, len(message))
        return _Learner(message, is_fixed_width=is_fixed_width).template()
    except (AmqpDecodeError, _Unusual):
        return None


class _Unusual(Exception):
    """A message that had better be decoded by itself."""


class _Learner:
    """Walks through one message, and notes which of its bytes are values."""

    def __init__(self, message: bytes, *, is_fixed_width: bool) -> None:
        self._message = message
        self._is_fixed_width = is_fixed_width
        self._mask = bytearray((COMPARED,)) * len(message)
        self._reader = Reader(message)
        self._segment_start = 0
        self._segments: list[Segment] = []
        self._sizes: list[Size] = []
        self._known: dict[str, Place | VariableField | FixedField | None] = {}
        self._properties: list[Property] = []
        self._body: VariableField | None = None

    def template(self) -> Template:
        while not self._reader.is_at_end:
            self._section(read_section(self._reader))
        if self._segment_start < len(self._message):
            self._end_segment(len(self._message), 0)
        if self._body is None or len(self._segments) > SEGMENTS_MAX:
            raise _Unusual
        return Template(
            segments=tuple(self._segments),
            sizes=tuple(self._sizes),
            body=self._body,
            sequence_number=_as_number(self._known.get(SEQUENCE_NUMBER)),
            offset=_as_text(self._known.get(OFFSET)),
            enqueued_ms=_as_number(self._known.get(ENQUEUED_TIME)),
            partition_key=_as_text(self._known.get(PARTITION_KEY)),
            properties=tuple(self._properties),
            is_fixed_width=self._is_fixed_width,
        )

    def _section(self, code: int) -> None:
        if code == MESSAGE_ANNOTATIONS:
            self._map(self._annotation)
        elif code == PROPERTIES:
            self._fields()
        elif code == APPLICATION_PROPERTIES:
            self._map(self._property)
        elif code == DATA and self._body is None:
            self._body = self._variable_field(self._span(BINARIES))
        elif code in (DATA, AMQP_SEQUENCE, AMQP_VALUE):
            raise _Unusual
        else:
            self._anything()

    def _map(self, pair: _Pair) -> None:
        if self._next_code() == NULL:
            self._reader.span()
            return
        span, count = self._reader.enter()
        size = self._size(span)
        for _ in range(count // 2):
            pair(self._span())
        self._end_sized(size, span)

    def _fields(self) -> None:
        """A message's own properties: a list, whose places tell their names."""
        if self._next_code() in (NULL, EMPTY_LIST):
            self._reader.span()
            return
        span, count = self._reader.enter()
        if span.code not in _LISTS or count > len(FIELDS):
            raise _Unusual
        size = self._size(span)
        for name in FIELDS[:count]:
            value = self._span()
            if value.code != NULL:
                self._add_property(name, value)
        self._end_sized(size, span)

    def _annotation(self, key: Span) -> None:
        name = self._message[key.start : key.end].decode("utf-8", "replace") if key.code in _TEXTS else ""
        if name in self._known:
            raise _Unusual
        if name not in KNOWN_ANNOTATIONS:
            self._anything()
        elif name == SEQUENCE_NUMBER:
            self._known[name] = self._value(self._span(_LONGS))
        elif name == ENQUEUED_TIME:
            self._known[name] = self._value(self._span(_TIMESTAMPS))
        elif name == PARTITION_KEY and self._next_code() == NULL:
            self._known[name] = None
            self._reader.span()
        else:
            self._known[name] = self._text(self._span(_TEXTS))

    def _property(self, key: Span) -> None:
        if key.code not in _TEXTS:
            raise _Unusual
        place = self._place(key.start, key.end)
        self._add_property(place, self._span())

    def _add_property(self, key: Place | str, value: Span) -> None:
        if value.code == NULL:
            self._properties.append(Property(key, None, value.code))
        elif value.code in _TEXTS:
            self._properties.append(Property(key, self._text(value), value.code))
        elif value.code in _FIXED:
            self._ignore(value.start, value.end)
            self._properties.append(Property(key, self._place(value.position, value.end), value.code))
        else:
            raise _Unusual

    def _anything(self) -> None:
        """Passes over a value that is of no interest."""
        span = self._span()
        if span.code in _FIXED:
            self._ignore(span.start, span.end)
        else:
            self._text(span)

    def _span(self, codes: Container[int] = range(0x100)) -> Span:
        if self._next_code() == DESCRIBED:
            raise _Unusual
        span = self._reader.span()
        if span.code not in codes:
            raise _Unusual
        return span

    def _next_code(self) -> int:
        return self._message[self._reader.position]

    def _value(self, span: Span) -> Place:
        self._ignore(span.start, span.end)
        return self._place(span.start, span.end)

    def _size(self, span: Span) -> Place:
        """The size of a list or map. Of fixed width, it is the same in all messages."""
        if not self._is_fixed_width:
            self._ignore(span.position + 1, span.start)
        return self._place(span.position + 1, span.start)

    def _end_sized(self, size: Place, span: Span) -> None:
        if not self._is_fixed_width:
            self._sizes.append(Size(size, self._place(span.end, span.end)))

    def _text(self, span: Span) -> VariableField | FixedField:
        if not self._is_fixed_width:
            return self._variable_field(span)
        self._ignore(span.start, span.end)
        place = self._place(span.start, span.end)
        return FixedField(place.segment, place.offset, place.width)

    def _variable_field(self, span: Span) -> VariableField:
        """A value of variable length ends the segment; the next one starts after it."""
        self._ignore(span.position + 1, span.start)
        self._end_segment(span.start, span.start - span.position - 1)
        self._segment_start = span.end
        return VariableField(len(self._segments) - 1)

    def _end_segment(self, end: int, size_width: int) -> None:
        if end - self._segment_start > SEGMENT_BYTES_MAX:
            raise _Unusual
        bounds = slice(self._segment_start, end)
        self._segments.append(Segment(Pattern(self._message[bounds], bytes(self._mask[bounds])), size_width))

    def _ignore(self, start: int, end: int) -> None:
        self._mask[start:end] = bytes((IGNORED,)) * (end - start)

    def _place(self, start: int, end: int) -> Place:
        return Place(len(self._segments), start - self._segment_start, end - start)


_Pair: TypeAlias = Callable[[Span], None]


def _as_text(known: Place | VariableField | FixedField | None) -> VariableField | FixedField | None:
    return known if isinstance(known, VariableField | FixedField) else None


def _as_number(known: Place | VariableField | FixedField | None) -> Place | None:
    return known if isinstance(known, Place) else None
