"""How a message is laid out, learned from one message and found in thousands.

Messages of one hub are much alike: the same sections, the same keys, types and widths; only values differ. A
:class:`Layout` is that likeness. It is a row of segments, each some bytes of known width; after a segment may stand
something of variable length, a string or a body, whose size the segment ends with:

    00 53 72 c1 .. 06 a3 15 x-opt-sequence-number 81 ........ a3 0c x-opt-offset a1 ..      and then the offset
    a3 13 x-opt-enqueued-time 83 ........ 00 53 75 b0 ........                              and then the body

The dots are values, which may be anything; all else has to be the same, byte for byte. The sizes of lists and maps
have to agree with what they hold. So a message that matches is read exactly as :func:`.reference_decoder.read_event`
would read it; and one that does not, in whatever way, is left to that function.

Often the strings of many messages are as long as each other's, too: offsets nearly always, keys and properties much of
the time. So a layout is first learned as a rigid one, in which all sizes but that of the body are the same: it has but
one segment, which ends with the body's size. Only where few messages are like that is an elastic one looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

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
from hubline.amqp.events.byte_rows import COMPARED, IGNORED, Octets, Pattern, Positions, chosen_rows, signed, unsigned
from hubline.amqp.events.reference_decoder import (
    BINARIES,
    ENQUEUED_TIME,
    KNOWN_ANNOTATIONS,
    OFFSET,
    PARTITION_KEY,
    SEQUENCE_NUMBER,
    read_event,
)
from hubline.amqp.transport.errors import AmqpDecodeError

# Each segment costs a pass over all messages. One with that many strings is not what this is for.
SEGMENTS_MAX: Final = 64
SEGMENT_BYTES_MAX: Final = 4096

# The layouts of a link that are remembered, and that one call looks for.
LAYOUTS_MAX: Final = 16
LEARNED_MAX: Final = 8

# A rigid layout saves more than it costs where one in so many messages that it is looked for in is found.
RIGID_ONE_IN: Final = 4
# Of fewer nothing can be told.
RIGID_TRIED_MIN: Final = 64
# Elastic layouts are forgotten after so many calls: messages that were of all lengths may have become alike.
ELASTIC_CALLS_MAX: Final = 64

_LONGS: Final = (0x55, 0x81)
_TIMESTAMPS: Final = (0x83,)
_TEXTS: Final = (0xA1, 0xB1, 0xA3, 0xB3)
_LISTS: Final = (0xC0, 0xD0)
# Values without a size before them.
_FIXED: Final = range(0x40, 0xA0)


@dataclass(frozen=True, slots=True)
class Place:
    """Some bytes of a segment."""

    segment: int
    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class Cell(Place):
    """A string in a rigid layout: some bytes of a segment, of which nothing is compared."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What stands after a segment: as many bytes as the segment ends with."""

    segment: int


@dataclass(frozen=True, slots=True)
class Property:
    """A property: its key, or its name if the message does not spell it, and its value: text (Gap or Cell), or a whole
    value of fixed width (Place), or null. ``code`` is the type code of the value."""

    key: Place | str
    value: Gap | Place | None
    code: int

    @property
    def is_text(self) -> bool:
        return isinstance(self.value, Gap | Cell)


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of a list or map, and where that ends."""

    place: Place
    end: Place


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Bytes to be found, and the width of the size that they end with; 0 if nothing variable follows."""

    pattern: Pattern
    size_width: int

    @property
    def width(self) -> int:
        return self.pattern.width


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """See the module. What the messages do not have is None."""

    segments: tuple[Segment, ...]
    sizes: tuple[_Size, ...]
    body: Gap
    sequence_number: Place | None
    offset: Gap | Cell | None
    enqueued_ms: Place | None
    partition_key: Gap | Cell | None
    properties: tuple[Property, ...]
    is_rigid: bool

    @property
    def has_position(self) -> bool:
        """Whether it tells where in its partition an event is."""
        return not (self.sequence_number is None or self.offset is None or self.enqueued_ms is None)

    def find(self, data: Octets, starts: Positions, ends: Positions) -> Match | None:
        """The messages that are laid out like this, if any."""
        match = Match(self, starts)
        cursor, is_found = starts, np.ones(len(starts), np.bool_)
        for segment in self.segments:
            fits = cursor + segment.width <= ends
            is_found &= fits
            if not is_found.any():
                return None
            if not fits.all():  # what is not found is looked at all the same, but at some place that is there
                cursor = np.where(fits, cursor, starts[np.argmax(is_found)])
            rows = segment.pattern.rows(data, cursor)
            is_found &= segment.pattern.matches(rows)
            cursor = match.add(segment, cursor, rows)
        is_found &= cursor == ends
        for size in self.sizes:
            is_found &= match.agrees(size)
        return match.only(is_found) if is_found.any() else None


class Match:
    """Messages as a layout sees them: the start of each segment, its bytes, and the length of what follows it."""

    __slots__ = ("_lengths", "_rows", "_starts", "indexes", "layout")

    def __init__(self, layout: Layout, starts: Positions) -> None:
        self.layout = layout
        self.indexes: npt.NDArray[np.int64] = np.arange(len(starts))
        self._starts = [starts]
        self._rows: list[Octets] = []
        self._lengths: list[Positions] = []

    def __len__(self) -> int:
        return len(self.indexes)

    def add(self, segment: Segment, starts: Positions, rows: Octets) -> Positions:
        """Takes the next segment; returns where the one after it starts."""
        width, size_width = segment.width, segment.size_width
        lengths = unsigned(rows, width - size_width, size_width) if size_width else np.zeros(len(rows), np.int64)
        next_starts = starts + width + lengths
        self._starts[-1] = starts
        self._starts.append(next_starts)
        self._rows.append(rows)
        self._lengths.append(lengths)
        return next_starts

    def only(self, is_found: npt.NDArray[np.bool_]) -> Match:
        if not is_found.all():
            self.indexes = self.indexes[is_found]
            self._starts = [starts[is_found] for starts in self._starts]
            self._rows = [chosen_rows(rows, is_found) for rows in self._rows]
            self._lengths = [lengths[is_found] for lengths in self._lengths]
        return self

    def agrees(self, size: _Size) -> npt.NDArray[np.bool_]:
        place = size.place
        told = unsigned(self._rows[place.segment], place.offset, place.width)
        agrees: npt.NDArray[np.bool_] = self.starts(place) + place.width + told == self.starts(size.end)
        return agrees

    def numbers(self, place: Place) -> npt.NDArray[np.int64]:
        return signed(self._rows[place.segment], place.offset, place.width)

    def octets(self, place: Place) -> Octets:
        return self._rows[place.segment][:, place.offset : place.offset + place.width]

    def starts(self, place: Place) -> Positions:
        return self._starts[place.segment] + place.offset

    def text(self, text: Gap | Cell) -> tuple[Positions, Positions | int]:
        """Where it starts, and how long it is."""
        if isinstance(text, Cell):
            return self.starts(text), text.width
        return self._starts[text.segment] + self.layout.segments[text.segment].width, self._lengths[text.segment]


class Layouts:
    """The layouts seen on a link. ``accepts`` says which are of use."""

    def __init__(self, accepts: Callable[[Layout], bool]) -> None:
        self._accepts = accepts
        self._rigid: list[Layout] = []  # those first of which the last call found most
        self._elastic: list[Layout] = []  # the latest first
        self._calls_count = 0

    def find(self, data: Octets, starts: Positions, ends: Positions) -> tuple[list[Match], list[int]]:
        """All messages: those that are laid out as some layout says, and the indexes of the others."""
        search = _Search(data, starts, ends)
        self._look_for_rigid(search)
        self._look_for_elastic(search)
        for _ in range(LEARNED_MAX):
            if not len(search.left):
                break
            self._learn(search)
        del self._rigid[LAYOUTS_MAX:], self._elastic[LAYOUTS_MAX:]
        return search.matches, search.others + search.left.tolist()

    def _look_for_rigid(self, search: _Search) -> None:
        kept: list[tuple[int, Layout]] = []
        for layout in self._rigid:
            tried_count = len(search.left)
            found_count = search.look_for(layout)
            if _is_common(found_count, tried_count):
                kept.append((found_count, layout))
        self._rigid = [layout for _, layout in sorted(kept, key=itemgetter(0), reverse=True)]

    def _look_for_elastic(self, search: _Search) -> None:
        self._calls_count += 1
        if self._calls_count % ELASTIC_CALLS_MAX == 0:
            self._elastic.clear()
        for layout in tuple(self._elastic):
            if search.look_for(layout):
                self._elastic.remove(layout)
                self._elastic.insert(0, layout)

    def _learn(self, search: _Search) -> None:
        """Learns from a message that is left, and finds at least that one, or passes it over."""
        index, tried_count, found_count = search.typical(), len(search.left), 0
        message = search.message(index)
        rigid = self._learned(message, is_rigid=True)
        if rigid is not None:
            found_count = search.look_for(rigid)
            if _is_common(found_count, tried_count):
                self._rigid.append(rigid)
                return
        elastic = self._learned(message, is_rigid=False)
        if elastic is not None and search.look_for(elastic):
            self._elastic.insert(0, elastic)
        elif not found_count:
            search.pass_over(index)

    def _learned(self, message: bytes, *, is_rigid: bool) -> Layout | None:
        layout = learn(message, is_rigid=is_rigid)
        return layout if layout is not None and self._accepts(layout) else None


def _is_common(found_count: int, tried_count: int) -> bool:
    return tried_count < RIGID_TRIED_MIN or found_count * RIGID_ONE_IN >= tried_count


class _Search:
    """Messages, of which fewer and fewer are left to be found."""

    def __init__(self, data: Octets, starts: Positions, ends: Positions) -> None:
        self._data, self._starts, self._ends = data, starts, ends
        self.left: npt.NDArray[np.int64] = np.arange(len(starts))
        self.matches: list[Match] = []
        self.others: list[int] = []

    def typical(self) -> int:
        """The index of a message that is left: the first of those of the length that most have."""
        lengths = (self._ends - self._starts)[self.left]
        _, firsts, counts = np.unique(lengths, return_index=True, return_counts=True)
        return int(self.left[firsts[counts.argmax()]])

    def message(self, index: int) -> bytes:
        return self._data[self._starts[index] : self._ends[index]].tobytes()

    def pass_over(self, index: int) -> None:
        self.others.append(index)
        self.left = self.left[self.left != index]

    def look_for(self, layout: Layout) -> int:
        """How many are laid out like this."""
        if not len(self.left):
            return 0
        is_whole = len(self.left) == len(self._starts)
        starts, ends = (bound if is_whole else bound[self.left] for bound in (self._starts, self._ends))
        match = layout.find(self._data, starts, ends)
        if match is None:
            return 0
        found = match.indexes
        match.indexes = self.left[found]
        self.matches.append(match)
        is_left = np.ones(len(self.left), np.bool_)
        is_left[found] = False
        self.left = self.left[is_left]
        return len(match)


def learn(message: bytes, *, is_rigid: bool) -> Layout | None:
    """How messages like this one are laid out; None if this one is unusual, or wrong."""
    try:
        read_event(message, 0, len(message))
        return _Learner(message, is_rigid=is_rigid).layout()
    except (AmqpDecodeError, _Unusual):
        return None


class _Unusual(Exception):
    """A message that had better be decoded by itself."""


class _Learner:
    """Walks through one message, and notes which of its bytes are values."""

    def __init__(self, message: bytes, *, is_rigid: bool) -> None:
        self._message = message
        self._is_rigid = is_rigid
        self._mask = bytearray((COMPARED,)) * len(message)
        self._reader = Reader(message)
        self._segment_start = 0
        self._segments: list[Segment] = []
        self._sizes: list[_Size] = []
        self._known: dict[str, Place | Gap | Cell | None] = {}
        self._properties: list[Property] = []
        self._body: Gap | None = None

    def layout(self) -> Layout:
        while not self._reader.is_at_end:
            self._section(read_section(self._reader))
        if self._segment_start < len(self._message):
            self._end_segment(len(self._message), 0)
        if self._body is None or len(self._segments) > SEGMENTS_MAX:
            raise _Unusual
        return Layout(
            segments=tuple(self._segments),
            sizes=tuple(self._sizes),
            body=self._body,
            sequence_number=_as_number(self._known.get(SEQUENCE_NUMBER)),
            offset=_as_text(self._known.get(OFFSET)),
            enqueued_ms=_as_number(self._known.get(ENQUEUED_TIME)),
            partition_key=_as_text(self._known.get(PARTITION_KEY)),
            properties=tuple(self._properties),
            is_rigid=self._is_rigid,
        )

    def _section(self, code: int) -> None:
        if code == MESSAGE_ANNOTATIONS:
            self._map(self._annotation)
        elif code == PROPERTIES:
            self._fields()
        elif code == APPLICATION_PROPERTIES:
            self._map(self._property)
        elif code == DATA and self._body is None:
            self._body = self._gap(self._span(BINARIES))
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
        """The size of a list or map. What is rigid has the same everywhere."""
        if not self._is_rigid:
            self._ignore(span.position + 1, span.start)
        return self._place(span.position + 1, span.start)

    def _end_sized(self, size: Place, span: Span) -> None:
        if not self._is_rigid:
            self._sizes.append(_Size(size, self._place(span.end, span.end)))

    def _text(self, span: Span) -> Gap | Cell:
        if not self._is_rigid:
            return self._gap(span)
        self._ignore(span.start, span.end)
        place = self._place(span.start, span.end)
        return Cell(place.segment, place.offset, place.width)

    def _gap(self, span: Span) -> Gap:
        """A value of variable length ends the segment; the next one starts after it."""
        self._ignore(span.position + 1, span.start)
        self._end_segment(span.start, span.start - span.position - 1)
        self._segment_start = span.end
        return Gap(len(self._segments) - 1)

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


def _as_text(known: Place | Gap | Cell | None) -> Gap | Cell | None:
    return known if isinstance(known, Gap | Cell) else None


def _as_number(known: Place | Gap | Cell | None) -> Place | None:
    return known if isinstance(known, Place) else None
