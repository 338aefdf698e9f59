"""AMQP values: every legal encoding is read, everything else is refused, and nothing is taken out of proportion."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubline.amqp.codec.decode import DEPTH_MAX, ZERO_WIDTH_ITEMS_MAX, Reader, decode
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from hubline.amqp.transport.errors import AmqpDecodeError, AmqpEncodeError
from tests.amqp.encodings import fuzz, spell, typed, values

randoms = st.randoms(use_true_random=False)


@given(values, randoms)
@fuzz
def test_every_legal_encoding_of_every_value_is_read(value: object, random: Random) -> None:
    assert typed(decode(spell(value, random))) == typed(value)


@given(values)
@fuzz
def test_what_is_encoded_decodes_to_the_same_value_of_the_same_type(value: object) -> None:
    assert typed(decode(encode(value))) == typed(value)


@given(values, randoms)
@fuzz
def test_no_legal_encoding_is_shorter_than_ours_outside_of_arrays(value: object, random: Random) -> None:
    if not _has_array(value):
        assert len(encode(value)) <= len(spell(value, random))


@given(values, randoms)
@fuzz
def test_truncated_at_any_byte_is_refused(value: object, random: Random) -> None:
    data = spell(value, random)
    for length in range(len(data)):
        with pytest.raises(AmqpDecodeError):
            decode(data[:length])
        with pytest.raises(AmqpDecodeError):  # also if there are other bytes after the end
            Reader(data, 0, length).value()


@given(values, randoms)
@fuzz
def test_a_value_is_skipped_to_its_end(value: object, random: Random) -> None:
    data = spell(value, random)
    reader = Reader(data + b"\x40")
    reader.skip()
    assert reader.position == len(data)


@given(st.binary(max_size=200))
@example(b"\x00" * 200)
@example(b"\xc0\xff\xff")
@example(b"\xf0\xff\xff\xff\xff\xff\xff\xff\xff\x40")
@fuzz
def test_any_bytes_are_a_value_or_a_typed_error(data: bytes) -> None:
    for attempt in (decode, lambda data: Reader(data).skip(), lambda data: list(Reader(data).map_keys())):
        with suppress(AmqpDecodeError):
            attempt(data)


@given(values, randoms, st.data())
@fuzz
def test_a_damaged_value_is_another_value_or_a_typed_error(value: object, random: Random, data: st.DataObject) -> None:
    encoded = bytearray(spell(value, random))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(AmqpDecodeError):
        decode(encoded)


@pytest.mark.parametrize(
    "wrap", [b"\xc0\x00\x01", b"\xc1\x00\x02\x40", b"\x00\x40", b"\x00"], ids=["list", "map", "described", "descriptor"]
)
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 100, 20_000])
def test_nesting_is_bounded(wrap: bytes, depth: int) -> None:
    with pytest.raises(AmqpDecodeError):
        decode(_nested(wrap, depth))


def test_nesting_within_the_bound_is_read() -> None:
    value: object = []
    for _ in range(DEPTH_MAX - 1):
        value = [value]
    assert decode(encode(value)) == value


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
def test_an_array_of_billions_of_elements_without_bytes_takes_no_memory(code: int) -> None:
    tracemalloc.start()
    with pytest.raises(AmqpDecodeError, match="take no bytes"):
        decode(b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + bytes([code]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_many_small_arrays_of_elements_without_bytes_share_one_bound() -> None:
    array = b"\xf0" + struct.pack(">II", 5, ZERO_WIDTH_ITEMS_MAX // 2 + 1) + b"\x41"
    assert len(Reader(array).value()) == ZERO_WIDTH_ITEMS_MAX // 2 + 1  # type: ignore[arg-type]
    with pytest.raises(AmqpDecodeError, match="take no bytes"):
        decode(b"\xd0" + struct.pack(">II", 4 + 2 * len(array), 2) + 2 * array)


@pytest.mark.parametrize("code", [0xD0, 0xD1, 0xF0])
def test_a_count_beyond_the_bytes_is_refused_before_memory_is_taken(code: int) -> None:
    tracemalloc.start()
    with pytest.raises(AmqpDecodeError):
        decode(bytes([code]) + struct.pack(">II", 20, 2**32 - 2) + b"\x50" + bytes(15))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_descriptors_of_an_array_do_not_multiply_its_memory() -> None:
    constructor = b"\x00\x43" * 20 + b"\x50"
    content = constructor + bytes(100_000)
    with pytest.raises(AmqpDecodeError, match="take no bytes"):
        decode(b"\xf0" + struct.pack(">II", len(content) + 4, 100_000) + content)


@pytest.mark.parametrize(
    "data",
    [
        b"\x56\x02",  # a boolean that is neither
        b"\x73\x00\x11\x00\x00",  # beyond the last character
        b"\x73\x00\x00\xd8\x00",  # half a surrogate pair
        b"\x73\xff\xff\xff\xff",
        b"\xa1\x01\xff",  # no UTF-8
        b"\xa1\x03\xed\xa0\x80",
        b"\xc1\x02\x01\x40",  # a key without value
        b"\xc0\x03\x01\x40\x40",  # a list that is longer than its values
        b"\xc0\x01\x01",  # and one that is shorter
        b"\xc0\x00",  # no room for its count
        b"\xe0\x00",
        b"\x3f",
        b"\xff",
        b"\x46",
        b"",
        b"\x40\x40",
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(AmqpDecodeError):
        decode(data)


def test_a_key_that_is_a_list_or_a_map_becomes_a_tuple() -> None:
    keys = [1, [2]], {"a": [1]}, Described(Symbol("d"), [1])
    content = b"".join(encode(part) for part in (keys[0], True, keys[1], False, keys[2], None))
    assert decode(bytes((0xC1, len(content) + 1, 6)) + content) == {
        (1, (2,)): True,
        (("a", (1,)),): False,
        Described(Symbol("d"), (1,)): None,
    }


def test_a_number_compares_as_the_plain_one() -> None:
    assert decode(b"\x71\x00\x00\x00\xca") == 202


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UByte(-1),
        UShort(2**16),
        UInt(2**32),
        UInt(-1),
        ULong(2**64),
        Byte(128),
        Int(2**31),
        2**63,
        Timestamp(2**63),
        Array([UInt(2**32)]),
        Symbol("é"),
        Char("ab"),
        Decimal(b"123"),
        "\ud800",
        Array([1, "a"]),
        Array([1, UInt(1)]),
        Array([Described(Symbol("a"), 1), Described(Symbol("b"), 1)]),
        {1, 2},
        range(3),
    ],
    ids=repr,
)
def test_what_amqp_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(AmqpEncodeError):
        encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(AmqpEncodeError, match="holds itself"):
        encode(value)


def test_arrays_take_the_form_that_suits_all_elements() -> None:
    for array in (
        Array([Symbol("a"), Symbol("b" * 300)]),
        Array([[], [1, 2], ["x" * 300]]),
        Array([{}, {"a": 1}]),
        Array([Array([1]), Array([]), Array([2**40])]),
        Array([UUID(int=1), UUID(int=2)]),
        Array([None, None]),
        Array(range(300)),
    ):
        assert typed(decode(encode(array))) == typed(array)


def _has_array(value: object) -> bool:
    if isinstance(value, Described):
        return _has_array(value.value)
    if isinstance(value, dict):
        return any(map(_has_array, value.values()))
    return isinstance(value, Array) or (isinstance(value, list) and any(map(_has_array, value)))


def _nested(wrap: bytes, depth: int) -> bytes:
    """Lists, maps or described values inside each other, with long sizes where they have any."""
    if wrap[0] == 0:
        return wrap * depth + b"\x40"
    data = b"\x40"
    code, count, before = wrap[0] + 0x10, wrap[2], wrap[3:]
    heads = []
    length = len(data)
    for _ in range(depth):
        length += len(before)
        heads.append(bytes([code]) + struct.pack(">II", length + 4, count) + before)
        length += 9
    return b"".join(reversed(heads)) + data
