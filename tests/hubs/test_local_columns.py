"""How the local hub lays out events and offsets."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.errors import EventTooLarge
from hubline.hubs.local.stored_batch import (
    BATCH_BYTES_MAX,
    EVENT_BYTES_MAX,
    TAG_MAX,
    TAG_MIN,
    PayloadDamaged,
    decode,
    encode,
    offset_sequence,
    offset_text,
    require_sizes,
)
from hubline.model.events import new_events

TAG = 48_213
SEQUENCES = st.integers(0, 10**13 - 1)

ROWS = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=20),
        "partitionKey": st.none() | st.text(max_size=10),
        "properties": st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    }
)


@given(st.integers(TAG_MIN, TAG_MAX), SEQUENCES, SEQUENCES)
def test_offsets_increase_as_text_and_as_numbers(tag: int, one: int, other: int) -> None:
    first, second = offset_text(tag, one), offset_text(tag, other)

    assert (first < second) == (int(first) < int(second)) == (one < other)
    assert int(first) < 2**63


@given(st.integers(TAG_MIN, TAG_MAX), SEQUENCES)
def test_an_offset_gives_its_sequence_number_back_to_its_own_hub_alone(tag: int, sequence: int) -> None:
    offset = offset_text(tag, sequence)

    assert offset_sequence(tag, offset) == sequence
    assert offset_sequence(TAG_MIN if tag != TAG_MIN else TAG_MAX, offset) is None


@pytest.mark.parametrize(
    "offset",
    ["", "-1", "@latest", "48213", "4821300000000000\u06600", "0482130000000000000", " 482130000000000001", "1e17"],
)
def test_text_that_is_no_offset_of_ours_is_recognised(offset: str) -> None:
    assert offset_sequence(TAG, offset) is None


@given(st.lists(ROWS, min_size=1, max_size=20), st.integers(0, 5))
def test_payloads_give_back_what_was_encoded_also_of_a_slice(rows: list[dict[str, Any]], skipped: int) -> None:
    events = new_events(rows).slice(min(skipped, len(rows) - 1))

    (payload,) = encode(events)

    assert decode(payload.data, count=payload.count, checksum=payload.checksum).equals(events)


def test_a_large_send_is_stored_as_several_batches() -> None:
    bodies = [bytes([n]) * 300_000 for n in range(50)]

    payloads = encode(new_events(bodies))

    assert len(payloads) == 4
    assert all(payload.data.size < BATCH_BYTES_MAX + 10_000 for payload in payloads)
    decoded = [
        body
        for payload in payloads
        for body in decode(payload.data, count=payload.count, checksum=payload.checksum).column("body").to_pylist()
    ]
    assert decoded == bodies


def test_a_great_many_empty_events_are_stored_as_several_batches() -> None:
    payloads = encode(pa.RecordBatch.from_pylist([{"body": b""}] * 600_000, schema=new_events([]).schema))

    assert len(payloads) > 1
    assert sum(payload.count for payload in payloads) == 600_000


def test_an_events_size_counts_body_key_and_properties_also_of_a_slice() -> None:
    third = EVENT_BYTES_MAX // 3
    just_fits: dict[str, Any] = {"body": bytes(third), "partitionKey": "k" * third, "properties": {"n": "v" * third}}
    too_large = {**just_fits, "properties": {"name": "v" * third}}
    rows: list[dict[str, Any]] = [{"body": bytes(EVENT_BYTES_MAX)}, just_fits, too_large]

    require_sizes(new_events(rows[:2]), hub="local:/x/y")
    with pytest.raises(EventTooLarge, match="event 1 of 2") as refused:
        require_sizes(new_events(rows).slice(1), hub="local:/x/y")

    assert refused.value.bytes_count == 3 * third + len("name")


@pytest.mark.parametrize("place", [0, 8, 100, -1])
def test_a_changed_byte_is_noticed(place: int) -> None:
    (payload,) = encode(new_events(["some", "events"]))
    data = bytearray(payload.data.to_pybytes())
    data[place] ^= 1

    with pytest.raises(PayloadDamaged, match="checksum"):
        decode(pa.py_buffer(data), count=payload.count, checksum=payload.checksum)


def test_a_payload_that_is_no_arrow_message_is_noticed() -> None:
    data = b"\xff" * 100

    with pytest.raises(PayloadDamaged):
        decode(pa.py_buffer(data), count=1, checksum=zlib.crc32(data))


def test_a_payload_with_another_count_is_noticed() -> None:
    (payload,) = encode(new_events(["some", "events"]))

    with pytest.raises(PayloadDamaged, match="2 events instead of 3"):
        decode(payload.data, count=3, checksum=payload.checksum)
