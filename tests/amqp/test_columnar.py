"""Columns between hubline's own: they say what messages say, and nothing else is taken for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hubline.amqp.codec.decode import decode
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.types import Described
from hubline.amqp.events.columnar import (
    COLUMNS_CAPABILITY,
    COLUMNS_FORMAT,
    COLUMNS_OFFER,
    decode_columns,
    encode_columns,
)
from hubline.amqp.events.decoder import EventDecoder
from hubline.amqp.events.encoder import encode_delivered
from hubline.amqp.events.reference_decoder import RuntimeMetrics
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.hubs.local.stored_batch import StoredBatch
from hubline.model.events import OUTGOING_SCHEMA, outgoing

PARTITION = "3"
START_US = 1_767_225_600_000_000


def stretch(count: int = 30) -> StoredBatch:
    """Events with all that they may have, and may not."""
    kinds: Sequence[dict[str, Any]] = (
        {"body": b"plain"},
        {"body": b"", "partitionKey": "device-1"},
        {"body": bytes(300), "partitionKey": "", "properties": [("kind", "reading"), ("größe", "gemäß")]},
        {"body": b"\xff", "properties": [("nothing", None), ("empty", "")]},
        {"body": b"x", "properties": [("amqp:content-type", "text/plain"), ("n", "5"), ("amqp:types", '{"n":"int"}')]},
    )
    rows = [kinds[number % len(kinds)] for number in range(count)]
    made = pa.RecordBatch.from_pylist(rows, schema=OUTGOING_SCHEMA)
    times_us = START_US + 1234 * np.arange(count)
    return StoredBatch(PARTITION, 7, "48213", np.ones(count, np.int64), times_us, made)


def by_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events as a receiver has them that gets them one by one."""
    messages = encode_delivered(batch)
    ends = np.frombuffer(messages.buffers()[1], np.int32, len(messages) + 1).astype(np.int64)
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    return EventDecoder(PARTITION).decode(data, ends[:-1], ends[1:])


def encoded(sent: StoredBatch, **details: bytes) -> bytes:
    return b"".join(encode_columns(sent, **details))


@pytest.mark.parametrize(("start", "count"), [(0, 30), (0, 1), (7, 13), (4, 1), (29, 1)])
def test_columns_say_what_messages_say(start: int, count: int) -> None:
    sent = stretch().slice(start, count)
    decoded = decode_columns(encoded(sent), PARTITION)
    assert decoded.stretch.events.arrow.equals(by_messages(sent.events.arrow))
    assert decoded.metrics is None


def test_what_is_encoded_already_is_sent_as_it_is() -> None:
    kept = stretch().made.serialize()
    columns, *_ = encode_columns(replace(stretch(), encoded=kept))
    assert pa.py_buffer(columns).address == kept.address


def test_the_newest_event_of_the_partition_is_told_once() -> None:
    metrics = RuntimeMetrics(last_sequence=99, last_offset="100", last_enqueued_ms=1, retrieved_ms=2)
    decoded = decode_columns(encoded(stretch(), delivery_annotations=metrics.encode()), PARTITION)
    assert decoded.metrics == metrics
    assert len(decoded.stretch) == 30


def test_the_version_is_in_the_format_and_in_what_is_asked_for() -> None:
    *name, version = COLUMNS_FORMAT.to_bytes(4)
    assert bytes(name) == b"HUB"
    assert f"hubline:columns-{version}" == COLUMNS_CAPABILITY
    assert COLUMNS_CAPABILITY in COLUMNS_OFFER


def test_what_is_cut_off_is_refused_wherever_that_is() -> None:
    payload = encoded(stretch())
    for length in range(len(payload)):
        with pytest.raises(AmqpDecodeError):
            decode_columns(payload[:length], PARTITION)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_columns_are_refused_or_can_be_read_to_their_end(seed: int) -> None:
    good, rng = encoded(stretch()), random.Random(seed)
    outcomes = set()
    for _ in range(500):
        payload = bytearray(good)
        # Most of the damage where Arrow says what is where, and in what the hub adds.
        for _ in range(rng.choice((1, 2, 8))):
            position = rng.choice((rng.randrange(700), rng.randrange(len(payload)), -rng.randrange(1, 400)))
            payload[position] = rng.choice((0, 0xFF, payload[position] ^ 1 << rng.randrange(8)))
        try:
            read = list(decode_columns(bytes(payload), PARTITION).stretch.events)
        except AmqpDecodeError:
            outcomes.add("refused")
        else:
            assert read
            outcomes.add("read")
    assert outcomes == {"refused", "read"}


def offsets(*values: int) -> pa.Buffer:
    return pa.py_buffer(np.array(values, np.int32))


NOT_UTF8 = pa.StringArray.from_buffers(3, offsets(0, 1, 2, 3), pa.py_buffer(b"a\xffc"))
# Valid as a whole, and cut in the middle of a character.
CUT_UTF8 = pa.StringArray.from_buffers(3, offsets(0, 1, 2, 3), pa.py_buffer("éc".encode()))
NOT_RISING_TEXT = pa.StringArray.from_buffers(3, offsets(0, 3, 1, 3), pa.py_buffer(b"abc"))


def properties_of(keys: pa.StringArray, items: pa.StringArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), keys, items)


TEXT = pa.array(["a", "b", "c"])
NOT_RISING = pa.BinaryArray.from_buffers(pa.binary(), 3, [None, offsets(0, 3, 1, 3), pa.py_buffer(b"abc")])


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("body", pa.array([b"a", None, b"c"]), "no body"),
        ("body", NOT_RISING, "Offset"),
        ("partitionKey", NOT_UTF8, "UTF8"),
        ("partitionKey", CUT_UTF8, "UTF8"),
        ("partitionKey", NOT_RISING_TEXT, "Offset"),
        ("properties", properties_of(CUT_UTF8, TEXT), "UTF8"),
        ("properties", properties_of(TEXT, NOT_UTF8), "UTF8"),
        ("properties", properties_of(TEXT, NOT_RISING_TEXT), "Offset"),
    ],
)
def test_columns_that_no_hub_sends_are_refused(column: str, values: pa.Array, reason: str) -> None:
    sent = stretch(3)
    place = OUTGOING_SCHEMA.get_field_index(column)
    schema = pa.schema([pa.field(field.name, field.type) for field in OUTGOING_SCHEMA])
    columns = [*sent.made.columns[:place], values, *sent.made.columns[place + 1 :]]
    made = pa.RecordBatch.from_arrays(columns, schema=schema)
    with pytest.raises(AmqpDecodeError, match=reason):
        decode_columns(encoded(replace(sent, made=made)), PARTITION)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_sequence": 10**13 - 2}, "more than 13 digits"),
        ({"offset_prefix": "x" * 33}, "up to 32 characters"),
        ({"offset_prefix": "größe"}, "of ASCII"),
        ({"counts": np.array([1, 1])}, "not those of so many events"),
        ({"counts": np.array([1, 1, 2])}, "not those of so many events"),
        ({"counts": np.array([], np.int64), "times_us": np.array([], np.int64)}, "not those of so many events"),
        ({"times_us": np.array([0, 0, 2**63 - 1])}, "at no time"),
        ({"times_us": np.array([0, -(2**63), 0])}, "at no time"),
    ],
)
def test_what_no_hub_adds_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(AmqpDecodeError, match=reason):
        decode_columns(encoded(replace(stretch(3), **changes)), PARTITION)


@pytest.mark.parametrize("shift", range(9))
def test_columns_are_read_wherever_they_begin(shift: int) -> None:
    """Arrow reads numbers where they are, which a peer that is not ours need not see to."""
    payload = encoded(stretch(1000))
    taken = decode_columns(memoryview(bytes(shift) + payload)[shift:], PARTITION).stretch
    assert taken.made.equals(decode_columns(payload, PARTITION).stretch.made)
    buffers = [buffer for column in taken.made.columns for buffer in column.buffers() if buffer is not None]
    assert all(buffer.address % 8 == 0 for buffer in buffers)


def test_numbers_that_are_cut_are_refused() -> None:
    columns, added, _ = encode_columns(stretch(3))
    section = decode(added)
    assert isinstance(section, Described)
    assert isinstance(section.value, list)
    section.value[3] = section.value[3][:-1]
    with pytest.raises(AmqpDecodeError, match="no numbers"):
        decode_columns(bytes(columns) + encode(section), PARTITION)


def test_no_events_are_no_columns() -> None:
    with pytest.raises(AmqpDecodeError, match="one event at least"):
        decode_columns(encoded(replace(stretch(3), made=stretch(3).made.slice(0, 0))), PARTITION)


def test_a_schema_is_no_record_batch() -> None:
    with pytest.raises(AmqpDecodeError, match="one record batch"):
        decode_columns(bytes(OUTGOING_SCHEMA.serialize()), PARTITION)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_is_compressed_is_refused_before_it_is_unpacked(compression: str) -> None:
    bomb = outgoing([bytes(64 * 1024 * 1024)])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, bomb.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write(bomb)
    messages = pa.ipc.MessageReader.open_stream(stream.getvalue())
    messages.read_next_message()  # the schema
    payload = bytes(messages.read_next_message().serialize())
    assert len(payload) < 1024 * 1024
    before = pa.total_allocated_bytes()
    with pytest.raises(AmqpDecodeError, match="not compressed"):
        decode_columns(payload, PARTITION)
    assert pa.total_allocated_bytes() == before
