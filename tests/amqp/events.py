"""Random messages that are events: shapes that several messages share, and messages of a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from hubline.amqp.codec.types import Described, Symbol, Timestamp, UInt, ULong
from tests.amqp.encodings import simple, spell, spell_map, values

Pairs = Sequence[tuple[object, object]]

_SECTIONS = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}


@dataclass(frozen=True)
class Shape:
    """What messages of one sender have in common. ``spelling`` makes them choose the same forms."""

    spelling: int
    annotations: Pairs
    properties: Pairs | None
    body: Sequence[tuple[int, object]]
    others: Sequence[tuple[int, object]]


@dataclass(frozen=True)
class Values:
    """What differs between them."""

    sequence_number: int
    offset: str
    enqueued_ms: int
    key: str
    text: str
    body: bytes


def spell_message(shape: Shape, these: Values) -> bytes:
    """A message with all its sections in order."""
    random = Random(shape.spelling)
    sections = [
        *((code, spell(value, random)) for code, value in shape.others if code < 0x72),
        (0x72, spell_map([(key, _filled(value, these)) for key, value in shape.annotations], random)),
        *((code, spell(value, random)) for code, value in shape.others if code == 0x73),
    ]
    if shape.properties is not None:
        sections.append((0x74, spell_map([(key, _filled(value, these)) for key, value in shape.properties], random)))
    sections += [(code, spell(_filled(value, these), random)) for code, value in shape.body]
    sections += [(code, spell(value, random)) for code, value in shape.others if code == 0x78]
    return b"".join(_section(code, data, random) for code, data in sections)


class _Place(str):
    """Stands for a value that differs between messages."""


def _filled(value: object, these: Values) -> object:
    return getattr(these, value) if isinstance(value, _Place) else _typed(value, these)


def _typed(value: object, these: Values) -> object:
    """A place inside a wrapper, as a timestamp is."""
    if isinstance(value, Described) and isinstance(value.descriptor, type):
        return value.descriptor(_filled(value.value, these))
    return value


def _section(code: int, data: bytes, random: Random) -> bytes:
    descriptor = random.choice([ULong(code), Symbol(_SECTIONS[code])])
    return b"\x00" + spell(descriptor, random) + data


_SEQUENCE, _OFFSET, _TIME, _KEY = (
    Symbol(f"x-opt-{name}") for name in ("sequence-number", "offset", "enqueued-time", "partition-key")
)
_SEQUENCE_VALUE, _OFFSET_VALUE, _KEY_VALUE, _TEXT_VALUE, _BODY_VALUE = map(
    _Place, ("sequence_number", "offset", "key", "text", "body")
)
_TIME_VALUE = Described(Timestamp, _Place("enqueued_ms"))

_long = st.integers(-(2**63), 2**63 - 1)
_names = st.one_of(st.text(max_size=8), st.sampled_from(["id", "type"]))
_others = st.lists(
    st.one_of(
        st.tuples(st.just(0x70), st.lists(simple, max_size=5)),
        st.tuples(st.just(0x71), st.dictionaries(st.text(max_size=4).map(str), simple, max_size=3)),
        st.tuples(st.just(0x73), st.lists(simple, max_size=13)),
        st.tuples(st.just(0x78), st.dictionaries(st.text(max_size=4), simple, max_size=3)),
    ),
    max_size=3,
    unique_by=lambda section: section[0],
)


def _annotations(
    sequence: st.SearchStrategy[object],
    offset: st.SearchStrategy[object],
    time: st.SearchStrategy[object],
    key: st.SearchStrategy[object],
) -> st.SearchStrategy[Pairs]:
    known = st.fixed_dictionaries(
        {_SEQUENCE: sequence, _OFFSET: offset, _TIME: time},
        optional={_KEY: key, Symbol("x-opt-other"): values, ULong(7): simple},
    )
    return known.flatmap(lambda pairs: st.permutations(list(pairs.items())))


# As hubs and clients write them, in whatever encoding.
_tame = st.builds(
    Shape,
    spelling=st.integers(0, 2**32),
    annotations=_annotations(
        st.just(_SEQUENCE_VALUE), st.just(_OFFSET_VALUE), st.just(_TIME_VALUE), st.sampled_from([_KEY_VALUE, None])
    ),
    properties=st.one_of(
        st.none(),
        st.lists(st.tuples(_names, st.one_of(st.sampled_from([_TEXT_VALUE, _SEQUENCE_VALUE]), simple)), max_size=4),
    ),
    body=st.just([(0x75, _BODY_VALUE)]),
    others=_others,
)

# As nobody writes them, and legal; or nearly so.
_wild = st.builds(
    Shape,
    spelling=st.integers(0, 2**32),
    annotations=_annotations(
        st.one_of(st.just(_SEQUENCE_VALUE), _long, st.integers(0, 255).map(UInt), simple),
        st.one_of(st.just(_OFFSET_VALUE), st.text(max_size=8), st.integers(0, 2**64 - 1).map(ULong)),
        st.one_of(st.just(_TIME_VALUE), _long.map(Timestamp), _long),
        st.one_of(st.just(_KEY_VALUE), simple),
    ),
    properties=st.lists(st.tuples(st.one_of(_names, simple), st.one_of(st.just(_TEXT_VALUE), values)), max_size=4),
    body=st.one_of(
        st.lists(st.tuples(st.just(0x75), st.one_of(st.just(_BODY_VALUE), st.binary(max_size=9))), max_size=3),
        st.lists(st.tuples(st.just(0x76), st.lists(values, max_size=3)), min_size=1, max_size=2),
        st.tuples(st.tuples(st.just(0x77), st.one_of(st.just(_TEXT_VALUE), values))),
    ),
    others=_others,
)

shapes = st.one_of(_tame, _tame, _wild)

usual_shape = Shape(
    spelling=0,
    annotations=[
        (_SEQUENCE, _SEQUENCE_VALUE),
        (_OFFSET, _OFFSET_VALUE),
        (_TIME, _TIME_VALUE),
        (_KEY, _KEY_VALUE),
    ],
    properties=[("type", _TEXT_VALUE), ("number", _SEQUENCE_VALUE)],
    body=[(0x75, _BODY_VALUE)],
    others=[],
)

# Nothing but strings, as most senders have it.
plain_shape = replace(usual_shape, properties=[("type", _TEXT_VALUE), ("unit", "celsius"), ("none", None)])

_instants = st.one_of(st.integers(0, 2_000_000_000_000), _long)
differing = st.builds(
    Values,
    sequence_number=_long,
    offset=st.text(max_size=8),
    enqueued_ms=_instants,
    key=st.text(max_size=8),
    text=st.text(max_size=8),
    body=st.binary(max_size=40),
)
