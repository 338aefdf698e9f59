"""Columns to messages: what goes in comes out again, batches keep their bound, frames are as others write them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubline.amqp.codec.message import Data, Message
from hubline.amqp.codec.performatives import Transfer
from hubline.amqp.codec.types import Symbol, Timestamp
from hubline.amqp.events.decoder import EventDecoder, SentDecoder, join_messages
from hubline.amqp.events.encoder import (
    DELIVERY_TAG,
    Destination,
    encode_batches,
    encode_deliveries,
)
from hubline.amqp.events.reference_decoder import BATCH_FORMAT, RuntimeMetrics, read_runtime_metrics
from hubline.amqp.transport.frames import Frame, FrameReader, encode_frame
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.errors import EventTooLarge
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA, new_events
from tests.amqp.encoded import encode_delivered, encode_outgoing
from tests.amqp.encodings import fuzz

LINK = Destination(channel=3, handle=300, frame_bytes_max=1024)

_texts = st.one_of(st.text(max_size=8), st.sampled_from(["a" * 255, "é" * 128]))
_short = st.text("ab", max_size=3)
_rows = st.tuples(
    st.one_of(st.binary(max_size=12), st.sampled_from([bytes(254), bytes(255), bytes(256), bytes(2000)])),
    st.one_of(st.none(), _texts),
    st.one_of(
        st.none(),
        st.lists(st.tuples(_texts, st.one_of(st.none(), _texts)), min_size=1, max_size=4, unique_by=itemgetter(0)),
    ),
)
_sent = st.lists(_rows, min_size=1, max_size=20).map(lambda rows: _batch(rows, OUTGOING_SCHEMA))
_delivered = st.lists(
    st.tuples(_rows, _texts, st.integers(-(2**63), 2**63 - 1), st.integers(-(10**13), 10**14)), min_size=1, max_size=20
).map(
    lambda rows: _batch(
        [(row[0], "7", offset, sequence, time * 1000, *row[1:]) for row, offset, sequence, time in rows], EVENT_SCHEMA
    )
)


@given(_sent)
@fuzz
def test_sent_events_decode_to_themselves(events: pa.RecordBatch) -> None:
    messages = encode_outgoing(events).to_pylist()
    decoded = [SentDecoder().decode(message, 0) for message in messages]
    assert pa.Table.from_batches(decoded).to_pylist() == events.to_pylist()


@given(_sent, st.integers(6000, 20_000), st.one_of(st.none(), st.just("all")))
@fuzz
def test_batches_hold_all_events_in_order_and_keep_their_bound(
    events: pa.RecordBatch, max_bytes: int, key: str | None
) -> None:
    batches = list(encode_batches(events, max_bytes=max_bytes, partition_key=key))
    assert all(len(batch.payload) <= max_bytes for batch in batches)
    decoded = [SentDecoder().decode(batch.payload, BATCH_FORMAT) for batch in batches]
    assert [len(batch) for batch in decoded] == [batch.count for batch in batches]
    expected = [
        {**row, "partitionKey": key if row["partitionKey"] is None else row["partitionKey"]}
        for row in events.to_pylist()
    ]
    assert pa.Table.from_batches(decoded).to_pylist() == expected


@given(_delivered)
@fuzz
def test_delivered_events_decode_to_themselves(events: pa.RecordBatch) -> None:
    messages = encode_delivered(events).to_pylist()
    assert EventDecoder("7").decode(*join_messages(messages)).to_pylist() == events.to_pylist()


@given(_delivered, st.integers(0, 2**32 - 1))
@fuzz
def test_deliveries_arrive_whole_whatever_their_size(events: pa.RecordBatch, first_delivery_id: int) -> None:
    data = b"".join(encode_deliveries(events, LINK, first_delivery_id=first_delivery_id))
    ids, messages = _received(data)
    assert ids == [(first_delivery_id + number) % 2**32 for number in range(len(events))]
    assert messages == encode_delivered(events).to_pylist()


def test_a_frame_of_a_delivery_is_the_one_that_is_encoded_by_itself() -> None:
    events = _events(3)
    data = b"".join(encode_deliveries(events, LINK, first_delivery_id=2**31))
    transfers = [
        encode_frame(LINK.channel, Transfer(LINK.handle, 2**31 + number, DELIVERY_TAG, 0, settled=True), message)
        for number, message in enumerate(encode_delivered(events).to_pylist())
    ]
    assert data == b"".join(transfers)


def test_a_message_is_the_one_that_is_encoded_by_itself() -> None:
    (message,) = encode_delivered(_events(1)).to_pylist()
    annotations: dict[object, object] = {
        Symbol("x-opt-sequence-number"): 2**40,
        Symbol("x-opt-offset"): "0",
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000),
    }
    assert message == Message(Data((b"0",)), message_annotations=annotations).encode()


def test_no_frame_is_larger_than_agreed_and_every_delivery_reports_the_newest_event() -> None:
    events = _events(200)
    metrics = RuntimeMetrics(9, "900", 1, 2)
    data = b"".join(encode_deliveries(events, LINK, first_delivery_id=0, delivery_annotations=metrics.encode()))
    reader = _reader(data)
    while (frame := reader.take_frame()) is not None:
        assert isinstance(frame.performative, Transfer)
    _, messages = _received(data)
    assert {read_runtime_metrics(message, 0, len(message)) for message in messages} == {metrics}
    assert EventDecoder("7").decode(*join_messages(messages)).to_pylist() == events.to_pylist()


def test_an_event_that_fits_into_no_batch_is_named_before_anything_is_made() -> None:
    events = new_events([b"x", bytes(500), bytes(1001), b"y"])
    with pytest.raises(EventTooLarge, match=r"event 2 of 4 .* at most 1,000") as caught:
        encode_batches(events, max_bytes=1000, hub="telemetry")
    assert (caught.value.index, caught.value.max_bytes, caught.value.hub) == (2, 1000, "telemetry")
    assert caught.value.bytes_count > 1001


def test_an_event_that_just_fits_is_sent() -> None:
    (batch,) = encode_batches(new_events([b"x"]), max_bytes=1000)
    overhead = len(batch.payload) - 1
    (batch,) = encode_batches(new_events([b"x" * 100]), max_bytes=overhead + 100)
    assert len(batch.payload) == overhead + 100
    with pytest.raises(EventTooLarge):
        encode_batches(new_events([b"x" * 101]), max_bytes=overhead + 100)


def test_no_events_are_no_batches_and_no_frames() -> None:
    assert list(encode_batches(new_events([]), max_bytes=1000)) == []
    assert b"".join(encode_deliveries(_events(0), LINK, first_delivery_id=0)) == b""
    assert len(encode_outgoing(new_events([]))) == 0


def test_a_part_of_a_batch_is_encoded_as_that_part() -> None:
    events = _events(100)
    part = events.slice(17, 50)
    assert encode_delivered(part).to_pylist() == encode_delivered(events).to_pylist()[17:67]
    sent = events.select(OUTGOING_SCHEMA.names)
    assert encode_outgoing(sent.slice(17, 50)).to_pylist() == encode_outgoing(sent).to_pylist()[17:67]


_few_properties = st.integers(1, 3).flatmap(
    lambda count: st.lists(
        st.lists(st.tuples(_short, _short), min_size=count, max_size=count).filter(
            lambda pairs: len(dict(pairs)) == len(pairs)
        ),
        min_size=1,
        max_size=6,
    )
)


@example([[("a", "x"), ("bc", "y")], [("ab", "x"), ("c", "y")]], Random(1), 0)
@example([[("a", "x"), ("b", "yz")], [("a", "xy"), ("b", "z")]], Random(1), 0)
@given(_few_properties, st.randoms(use_true_random=False), st.integers(0, 40))
@fuzz
def test_properties_that_events_repeat_are_those_of_each(
    kinds: list[list[tuple[str, str]]], rng: Random, start: int
) -> None:
    """Also those that are the same text once they are joined: only where each ends tells them apart."""
    rows = [(b"%d" % number, None, rng.choice(kinds)) for number in range(200)]
    events = _batch(rows, OUTGOING_SCHEMA).slice(start, 120)
    messages = encode_outgoing(events).to_pylist()
    decoded = [SentDecoder().decode(message, 0) for message in messages]
    assert pa.Table.from_batches(decoded).to_pylist() == events.to_pylist()


@pytest.mark.parametrize(
    "pairs",
    [
        [("kind", "reading"), ("site", "site {}")],
        [("kind", ""), ("site", "site {}")],
        [("kind", None), ("site", "site {}")],
        [("k{}", "reading")],
        [("kind", "é{}"), ("long", "x" * 300)],
        [("amqp:message-id", "id {}"), ("kind", "reading")],
        [("kind", "site {}" + "x" * 250), ("same", "y" * 200)],
    ],
)
@pytest.mark.parametrize("key_lengths", [1, 2, 30])
def test_events_that_are_alike_are_encoded_as_each_by_itself(
    pairs: list[tuple[str, str | None]], key_lengths: int
) -> None:
    rows = [
        (
            b"%04d" % number,
            "k" * (1 + number % key_lengths),
            [(key.format(number % 7), value and value.format(number % 7)) for key, value in pairs],
        )
        for number in range(150)
    ]
    events = _batch(rows, OUTGOING_SCHEMA).slice(20, 100)
    decoded = [SentDecoder().decode(message, 0) for message in encode_outgoing(events).to_pylist()]
    assert pa.Table.from_batches(decoded).to_pylist() == events.to_pylist()
    alone = [encode_outgoing(events.slice(number, 1))[0].as_py() for number in range(len(events))]
    # The sizes of a batch are all in the form that suits the largest.
    is_short = len(max(alone, key=len)) < 256
    assert not is_short or encode_outgoing(events).to_pylist() == alone


def test_what_is_under_a_null_is_not_sent() -> None:
    """Arrow lets bytes stand where a value is null."""
    keys = pa.array(["hidden", "seen"], pa.string())
    keys = pa.StringArray.from_buffers(2, *keys.buffers()[1:], null_bitmap=pa.py_buffer(b"\x02"), null_count=1)
    properties = pa.array([[("a", "hidden")], [("b", "seen")]], OUTGOING_SCHEMA.field("properties").type)
    buffers = [pa.py_buffer(b"\x02"), properties.buffers()[1]]
    entries = pa.StructArray.from_arrays([properties.keys, properties.items], names=["key", "value"])
    properties = pa.Array.from_buffers(properties.type, 2, buffers, children=[entries.cast(_entries(properties.type))])
    events = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), keys, properties], schema=OUTGOING_SCHEMA)
    first, second = encode_outgoing(events).to_pylist()
    assert b"hidden" not in first
    assert second.count(b"seen") == 2
    assert SentDecoder().decode(first, 0).to_pylist() == [{"body": b"1", "partitionKey": None, "properties": None}]


def _entries(map_type: Any) -> pa.DataType:
    return pa.struct([map_type.key_field, map_type.item_field])


def _events(count: int) -> pa.RecordBatch:
    rows = [
        (
            str(number).encode() * (1 + number % 40 * 30),
            "7",
            str(number * 1000),
            2**40 + number,
            (1_700_000_000_000 + number) * 1000,
            f"key-{number}" if number % 3 else None,
            [("a", "b"), ("n", str(number))] if number % 2 else None,
        )
        for number in range(count)
    ]
    return _batch(rows, EVENT_SCHEMA)


def _batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[]] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _reader(data: bytes) -> FrameReader:
    reader = FrameReader(frame_bytes_max=LINK.frame_bytes_max, buffer_bytes_max=len(data) + 1)
    left = data
    while left:
        free = reader.writable()
        free[: len(left)] = left[: len(free)]
        reader.filled(min(len(free), len(left)))
        left = left[len(free) :]
    return reader


def _received(data: bytes) -> tuple[list[int], list[bytes]]:
    """Delivery ids and messages, put together from their frames."""
    ids: list[int] = []
    messages: list[bytes] = []
    parts = b""
    for item in _reader(data).take_frames():
        if isinstance(item, Deliveries):
            assert (item.channel, item.handle, item.is_settled) == (LINK.channel, LINK.handle, True)
            ids += item.delivery_ids.tolist()
            messages += [item.data[start:end].tobytes() for start, end in np.stack((item.starts, item.ends), axis=1)]
        else:
            assert isinstance(item, Frame)
            assert isinstance(item.performative, Transfer)
            parts += item.payload
            if not item.performative.more:
                ids.append(item.performative.delivery_id or 0)
                messages.append(parts)
                parts = b""
    return ids, messages
