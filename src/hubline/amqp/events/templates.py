"""What messages have in common, so that thousands are read at once.

Messages of one hub are much alike: the same sections, the same keys, types and widths; only values differ. A
:class:`Template` is what they share. It is a row of segments, each some bytes of known width; a segment may be followed
by something of variable length, a string or a body, whose size the segment ends with:

    00 53 72 c1 .. 06 a3 15 x-opt-sequence-number 81 ........ a3 0c x-opt-offset a1 ..      and then the offset
    a3 13 x-opt-enqueued-time 83 ........ 00 53 75 b0 ........                              and then the body

The dots are values, which may be anything; all else has to be the same, byte for byte. The sizes of lists and maps
have to agree with what they hold. So a message that matches is read exactly as :func:`.reference_decoder.read_event`
would read it; and one that does not, in whatever way, is left to that function.

Often the strings of many messages are also as long as each other's: offsets nearly always, keys and properties much of
the time. A fixed-width template is one in which all sizes but that of the body are the same: it has but one segment,
which ends with the body's size. See :mod:`.known_templates` for how templates are found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubline.amqp.events.byte_rows import Octets, Pattern, Positions, chosen_rows, signed, unsigned


@dataclass(frozen=True, slots=True)
class Place:
    """Some bytes of a segment."""

    segment: int
    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class FixedField(Place):
    """A string in a fixed-width template: some bytes of a segment, of which nothing is compared."""


@dataclass(frozen=True, slots=True)
class VariableField:
    """What stands after a segment: as many bytes as the segment ends with."""

    segment: int


@dataclass(frozen=True, slots=True)
class Property:
    """A property: its key, or its name if the message does not spell it, and its value: text
    (VariableField or FixedField), or a whole value of fixed width (Place), or null. ``code`` is the type code of the
    value."""

    key: Place | str
    value: VariableField | Place | None
    code: int

    @property
    def is_text(self) -> bool:
        return isinstance(self.value, VariableField | FixedField)


@dataclass(frozen=True, slots=True)
class Size:
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
class Template:
    """See the module. What the messages do not have is None."""

    segments: tuple[Segment, ...]
    sizes: tuple[Size, ...]
    body: VariableField
    sequence_number: Place | None
    offset: VariableField | FixedField | None
    enqueued_ms: Place | None
    partition_key: VariableField | FixedField | None
    properties: tuple[Property, ...]
    is_fixed_width: bool

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
    """Messages as a template sees them: the start of each segment, its bytes, and the length of what follows it."""

    __slots__ = ("_lengths", "_rows", "_starts", "indexes", "template")

    def __init__(self, template: Template, starts: Positions) -> None:
        self.template = template
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

    def agrees(self, size: Size) -> npt.NDArray[np.bool_]:
        place = size.place
        size_read = unsigned(self._rows[place.segment], place.offset, place.width)
        agrees: npt.NDArray[np.bool_] = self.starts(place) + place.width + size_read == self.starts(size.end)
        return agrees

    def numbers(self, place: Place) -> npt.NDArray[np.int64]:
        return signed(self._rows[place.segment], place.offset, place.width)

    def octets(self, place: Place) -> Octets:
        return self._rows[place.segment][:, place.offset : place.offset + place.width]

    def starts(self, place: Place) -> Positions:
        return self._starts[place.segment] + place.offset

    def text(self, text: VariableField | FixedField) -> tuple[Positions, Positions | int]:
        """Where it starts, and how long it is."""
        if isinstance(text, FixedField):
            return self.starts(text), text.width
        return self._starts[text.segment] + self.template.segments[text.segment].width, self._lengths[text.segment]
