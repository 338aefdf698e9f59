"""Which sections a body of bytes came in, as text among the properties of an event.

The body of an event is bytes. AMQP may have them in several sections, which some clients keep apart, or in one that is
null. Who keeps events for others notes it:

    amqp:data-sections      [2,2,4]     how many bytes each section has, in their order
                            [null]      one section that is null

A body in one section, as nearly all are, has no note: the event is what it would be without all this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, TypeAlias

from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import DATA, Body, Data
from hubline.amqp.codec.types import Described, ULong

DATA_SECTIONS: Final = "amqp:data-sections"

# A longer one is not written, and not read: a body in so many sections comes back as one.
_NOTE_LENGTH_MAX: Final = 64 * 1024

_Sizes: TypeAlias = Sequence[int | None]


def noted_sections(body: Body) -> str | None:
    """The text of ``amqp:data-sections``; None if there is nothing to note."""
    if not isinstance(body, Data) or not body.parts or (len(body.parts) == 1 and body.parts[0] is not None):
        return None
    note = json.dumps([None if part is None else len(part) for part in body.parts], separators=(",", ":"))
    return note if len(note) <= _NOTE_LENGTH_MAX else None


def split_body(body: bytes, note: str | None) -> list[bytes | None]:
    """The sections that a body came in; one, if the note does not fit the body, because somebody else wrote it."""
    sizes = _read(note)
    if not sizes or sum(size or 0 for size in sizes) != len(body):
        return [body]
    parts: list[bytes | None] = []
    end = 0
    for size in sizes:
        start, end = end, end + (size or 0)
        parts.append(None if size is None else body[start:end])
    return parts


def encode_body(body: bytes, note: str | None) -> bytes:
    """The sections of a message that :func:`split_body` gives."""
    return b"".join(encode(Described(ULong(DATA), part)) for part in split_body(body, note))


def _read(note: str | None) -> _Sizes:
    if note is None or len(note) > _NOTE_LENGTH_MAX:
        return ()
    try:
        sizes = json.loads(note)
    except (ValueError, RecursionError):
        return ()
    return sizes if isinstance(sizes, list) and all(map(_is_size, sizes)) else ()


def _is_size(size: object) -> bool:
    return size is None or (type(size) is int and size >= 0)
