"""Random AMQP values, and random legal ways to write them: what any peer might send.

Written from the specification alone; it shares nothing with the encoder of hubline.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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
from hubline.amqp.core import library

# For every test with random values: no test is about time, and the machine may be busy.
fuzz = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

needs_core = pytest.mark.skipif(library.core() is None, reason="the core is not built: there is no C compiler")

Payload = Callable[[], bytes]


def spell(value: object, random: Random) -> bytes:
    """One of the legal encodings of a value."""
    if isinstance(value, Described):
        return b"\x00" + spell(value.descriptor, random) + spell(value.value, random)
    forms = _forms(value, random)
    code = random.choice(sorted(forms))
    return bytes([code]) + forms[code]()


def spell_map(pairs: Sequence[tuple[object, object]], random: Random) -> bytes:
    """One of the legal encodings of a map, which may have a key twice."""
    forms = _compounds(0xC1, [part for pair in pairs for part in pair], random)
    code = random.choice(sorted(forms))
    return bytes([code]) + forms[code]()


def _forms(value: object, random: Random) -> Mapping[int, Payload]:
    """What may follow each of the type codes that the value can have."""
    kind = type(value)
    if value is None:
        return {0x40: bytes}
    if isinstance(value, bool):
        return {0x41 if value else 0x42: bytes, 0x56: partial(bytes, [value])}
    if kind in _NUMBERS:
        return _numbers(value, *_NUMBERS[kind])
    if isinstance(value, UUID):
        return {0x98: lambda: value.bytes}
    if isinstance(value, Decimal):
        return {{4: 0x74, 8: 0x84, 16: 0x94}[len(value)]: lambda: bytes(value)}
    if isinstance(value, Char):
        return {0x73: partial(struct.pack, ">I", ord(value))}
    if isinstance(value, bytes):
        return _variables(0xA0, value)
    if isinstance(value, str):
        return _variables(0xA3 if isinstance(value, Symbol) else 0xA1, value.encode())
    if isinstance(value, Array):
        return _arrays(value, random)
    if isinstance(value, dict):
        return _compounds(0xC1, [part for pair in value.items() for part in pair], random)
    assert isinstance(value, list | tuple)
    empty: Mapping[int, Payload] = {} if value else {0x45: bytes}
    return {**_compounds(0xC0, value, random), **empty}


# Full form, short form, and the code that is 0 by itself.
_NUMBERS: Mapping[type, tuple[tuple[int, str], tuple[int, str] | None, int | None]] = {
    UByte: ((0x50, ">B"), None, None),
    UShort: ((0x60, ">H"), None, None),
    UInt: ((0x70, ">I"), (0x52, ">B"), 0x43),
    ULong: ((0x80, ">Q"), (0x53, ">B"), 0x44),
    Byte: ((0x51, ">b"), None, None),
    Short: ((0x61, ">h"), None, None),
    Int: ((0x71, ">i"), (0x54, ">b"), None),
    int: ((0x81, ">q"), (0x55, ">b"), None),
    Timestamp: ((0x83, ">q"), None, None),
    Float: ((0x72, ">f"), None, None),
    float: ((0x82, ">d"), None, None),
}


def _numbers(
    value: object, full: tuple[int, str], short: tuple[int, str] | None, zero: int | None
) -> Mapping[int, Payload]:
    forms: dict[int, Payload] = {full[0]: partial(struct.pack, full[1], value)}
    if short is not None:
        with suppress(struct.error):
            forms[short[0]] = partial(bytes, struct.pack(short[1], value))
    if zero is not None and value == 0:
        forms[zero] = bytes
    return forms


def _variables(code: int, data: bytes) -> Mapping[int, Payload]:
    forms: dict[int, Payload] = {code + 0x10: lambda: struct.pack(">I", len(data)) + data}
    if len(data) <= 255:
        forms[code] = lambda: bytes([len(data)]) + data
    return forms


def _compounds(code: int, values: Sequence[object], random: Random) -> Mapping[int, Payload]:
    return _sized(code, len(values), b"".join(spell(value, random) for value in values))


def _sized(code: int, count: int, content: bytes) -> Mapping[int, Payload]:
    forms: dict[int, Payload] = {code + 0x10: lambda: struct.pack(">II", len(content) + 4, count) + content}
    if count <= 255 and len(content) <= 254:
        forms[code] = lambda: bytes([len(content) + 1, count]) + content
    return forms


def _arrays(values: Array, random: Random) -> Mapping[int, Payload]:
    return _sized(0xE0, len(values), b"".join(_elements(values, random)))


def _elements(values: Sequence[object], random: Random) -> tuple[bytes, bytes]:
    """A constructor that suits all, and what follows it for each."""
    if not values:
        return random.choice([b"\x40", b"\xa3", b"\x70", b"\x00\xa3\x01x\xc0"]), b""
    if isinstance(values[0], Described):
        descriptor = values[0].descriptor
        inner = [value.value for value in values if isinstance(value, Described)]
        constructor, payloads = _elements(inner, random)
        return b"\x00" + spell(descriptor, random) + constructor, payloads
    forms = [_forms(value, random) for value in values]
    code = random.choice(sorted(set.intersection(*(set(form) for form in forms))))
    return bytes([code]), b"".join(form[code]() for form in forms)


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    """Numbers of a range, often those that the short forms just hold."""
    edges = [edge for edge in (-129, -128, -1, 0, 1, 127, 128, 255, 256) if low <= edge <= high]
    return st.one_of(st.sampled_from([*edges, low, high]), st.integers(low, high))


# Often just as long as the short form holds.
_texts = st.one_of(st.text(max_size=12), st.sampled_from(["", "a" * 255, "a" * 256, "é" * 128]))
_ascii = st.text(st.characters(max_codepoint=127), max_size=12)

simple_values: Sequence[st.SearchStrategy[object]] = [
    st.none(),
    st.booleans(),
    integers(0, 2**8 - 1).map(UByte),
    integers(0, 2**16 - 1).map(UShort),
    integers(0, 2**32 - 1).map(UInt),
    integers(0, 2**64 - 1).map(ULong),
    integers(-(2**7), 2**7 - 1).map(Byte),
    integers(-(2**15), 2**15 - 1).map(Short),
    integers(-(2**31), 2**31 - 1).map(Int),
    integers(-(2**63), 2**63 - 1),
    integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    *(st.binary(min_size=width, max_size=width).map(Decimal) for width in (4, 8, 16)),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.uuids(),
    st.one_of(st.binary(max_size=12), st.sampled_from([bytes(255), bytes(256)])),
    _texts,
    _ascii.map(Symbol),
]
simple = st.one_of(*simple_values)

# Of one type, as the elements of an array are.
_alike = st.sampled_from(simple_values).flatmap(lambda strategy: st.lists(strategy, max_size=4))


def _nested(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(values, max_size=4)
    return st.one_of(
        lists,
        st.dictionaries(st.one_of(_texts, _ascii.map(Symbol), integers(0, 999)), values, max_size=4),
        st.builds(Described, st.one_of(_ascii.map(Symbol), integers(0, 2**64 - 1).map(ULong)), values),
        st.lists(lists, max_size=3).map(Array),
    )


_arrays_of_simple = st.one_of(
    _alike.map(Array),
    st.builds(
        lambda descriptor, items: Array([Described(descriptor, item) for item in items]),
        _ascii.map(Symbol),
        _alike,
    ),
)

values = st.recursive(st.one_of(simple, _arrays_of_simple), _nested, max_leaves=12)


def typed(value: object) -> object:
    """A value together with the type of everything in it, so that 1, True and UInt(1) differ."""
    if isinstance(value, Described):
        return Described, typed(value.descriptor), typed(value.value)
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    return type(value), repr(value)
