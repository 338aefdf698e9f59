"""Columns between hubline's own: they say what messages say, and nothing else is taken for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hubline.amqp.columnar import COLUMNS_FORMAT, decode_columns, encode_columns
from hubline.amqp.columns import EventDecoder
from hubline.amqp.errors import AmqpDecodeError
from hubline.amqp.events import RuntimeMetrics
from hubline.amqp.outgoing import encode_delivered
from hubline.model import EVENT_SCHEMA, EventBatch

PARTITION = "3"
START = datetime(2026, 1, 1, tzinfo=UTC)


def events(count: int = 30) -> pa.RecordBatch:
    """Events with all that they may have, and may not."""
    kinds: Sequence[dict[str, Any]] = (
        {"body": b"plain"},
        {"body": b"", "partitionKey": "device-1"},
        {"body": bytes(300), "partitionKey": "", "properties": [("kind", "reading"), ("größe", "gemäß")]},
        {"body": b"\xff", "properties": [("nothing", None), ("empty", "")]},
        {"body": b"x", "properties": [("amqp:content-type", "text/plain"), ("n", "5"), ("amqp:types", '{"n":"int"}')]},
    )
    rows = [
        {
            "partition": PARTITION,
            "offset": f"{number + 10**17}",
            "sequenceNumber": number,
            "enqueuedTime": START + timedelta(microseconds=1234 * number),
            **kinds[number % len(kinds)],
        }
        for number in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA)


def by_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events as a receiver has them that gets them one by one."""
    messages = encode_delivered(batch)
    ends = np.frombuffer(messages.buffers()[1], np.int32, len(messages) + 1).astype(np.int64)
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    return EventDecoder(PARTITION).decode(data, ends[:-1], ends[1:])


@pytest.mark.parametrize(("start", "count"), [(0, 30), (0, 1), (7, 13), (4, 1), (29, 1)])
def test_columns_say_what_messages_say(start: int, count: int) -> None:
    batch = events().slice(start, count)
    decoded = decode_columns(bytes(encode_columns(batch)), PARTITION)
    assert decoded.events.equals(by_messages(batch))
    assert decoded.metrics is None


def test_the_newest_event_of_the_partition_is_told_once() -> None:
    metrics = RuntimeMetrics(last_sequence=99, last_offset="100", last_enqueued_ms=1, retrieved_ms=2)
    payload = bytes(encode_columns(events(), delivery_annotations=metrics.encode()))
    decoded = decode_columns(payload, PARTITION)
    assert decoded.metrics == metrics
    assert len(decoded.events) == 30


def test_the_format_leaves_the_version_to_its_lowest_byte() -> None:
    assert COLUMNS_FORMAT.to_bytes(4) == b"HUB\0"


def test_what_is_cut_off_is_refused_wherever_that_is() -> None:
    payload = bytes(encode_columns(events()))
    for length in range(len(payload)):
        with pytest.raises(AmqpDecodeError):
            decode_columns(payload[:length], PARTITION)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_columns_are_refused_or_can_be_read_to_their_end(seed: int) -> None:
    good, rng = bytes(encode_columns(events())), random.Random(seed)
    outcomes = set()
    for _ in range(500):
        payload = bytearray(good)
        # Half of the damage where Arrow says what is where.
        for _ in range(rng.choice((1, 2, 8))):
            position = rng.randrange(rng.choice((700, len(payload))))
            payload[position] = rng.choice((0, 0xFF, payload[position] ^ 1 << rng.randrange(8)))
        try:
            read = list(EventBatch(PARTITION, decode_columns(bytes(payload), PARTITION).events))
        except AmqpDecodeError:
            outcomes.add("refused")
        else:
            assert read
            outcomes.add("read")
    assert outcomes == {"refused", "read"}


def sent(batch: pa.RecordBatch, **changes: pa.Array) -> pa.RecordBatch:
    """What goes over the wire, with some columns changed."""
    columns = {name: batch.column(name) for name in batch.schema.names if name != "partition"} | changes
    schema = EVENT_SCHEMA.remove(EVENT_SCHEMA.get_field_index("partition"))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def numbers(*values: int) -> Callable[[pa.DataType], pa.Array]:
    return lambda kind: pa.array(values, pa.int64()).cast(kind)


def offsets(*values: int) -> pa.Buffer:
    return pa.py_buffer(np.array(values, np.int32))


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("sequenceNumber", numbers(1, 2, 2), "do not rise"),
        ("sequenceNumber", numbers(3, 2, 1), "do not rise"),
        ("sequenceNumber", numbers(-1, 0, 1), "do not rise"),
        ("enqueuedTime", numbers(0, 1, 2**63 - 1), "at no time"),
        ("enqueuedTime", numbers(0, 1, -(2**63)), "at no time"),
        ("body", lambda kind: pa.array([b"a", None, b"c"], kind), "no body"),
        ("offset", lambda kind: pa.array(["a", None, "c"], kind), "no offset"),
        ("offset", lambda _: pa.StringArray.from_buffers(3, offsets(0, 1, 2, 3), pa.py_buffer(b"a\xffc")), "UTF8"),
        (
            "body",
            lambda _: pa.BinaryArray.from_buffers(pa.binary(), 3, [None, offsets(0, 3, 1, 3), pa.py_buffer(b"abc")]),
            "Offset",
        ),
    ],
)
def test_columns_that_no_hub_sends_are_refused(
    column: str, values: Callable[[pa.DataType], pa.Array], reason: str
) -> None:
    batch = sent(events(3), **{column: values(EVENT_SCHEMA.field(column).type)})
    with pytest.raises(AmqpDecodeError, match=reason):
        decode_columns(bytes(batch.serialize()), PARTITION)


def test_no_events_are_no_columns() -> None:
    with pytest.raises(AmqpDecodeError, match="one event at least"):
        decode_columns(bytes(sent(events(3)).slice(0, 0).serialize()), PARTITION)


def test_a_schema_is_no_record_batch() -> None:
    with pytest.raises(AmqpDecodeError, match="one record batch"):
        decode_columns(bytes(EVENT_SCHEMA.serialize()), PARTITION)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_is_compressed_is_refused_before_it_is_unpacked(compression: str) -> None:
    bomb = sent(events(1), body=pa.array([bytes(64 * 1024 * 1024)]))
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
