"""Messages to columns: thousands at a time give what one by one give, whatever the messages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.amqp.codec.message import Data, Message, Value
from hubline.amqp.codec.types import Symbol, Timestamp, UInt, ULong
from hubline.amqp.events import decoder as columns
from hubline.amqp.events.decoder import (
    BULK_COUNT_MIN,
    TIME_MS_MAX,
    TIME_MS_MIN,
    EventDecoder,
    SentDecoder,
    join_messages,
)
from hubline.amqp.events.reference_decoder import BATCH_FORMAT, EventFields, read_event
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA
from tests.amqp.encodings import fuzz, needs_core, spell
from tests.amqp.events import Shape, Values, differing, shapes, spell_message, usual_shape

PARTITION = "7"


@st.composite
def _batches(draw: st.DrawFn) -> list[bytes]:
    """Messages of a few shapes, mixed, enough of them to go through numpy."""
    kinds = draw(st.lists(shapes, min_size=1, max_size=3))
    count = draw(st.integers(BULK_COUNT_MIN, 2 * BULK_COUNT_MIN))
    picks = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    values = draw(st.lists(differing, min_size=count, max_size=count))
    return [spell_message(shape, these) for shape, these in zip(picks, values, strict=True)]


@given(_batches())
@fuzz
def test_events_decoded_together_are_those_decoded_one_by_one(messages: list[bytes]) -> None:
    assert _together(messages) == _one_by_one(messages)


@given(st.lists(differing, min_size=BULK_COUNT_MIN, max_size=60), st.data())
@fuzz
def test_damaged_events_are_read_or_refused_as_one_by_one(values: list[Values], data: st.DataObject) -> None:
    messages = [bytearray(spell_message(usual_shape, these)) for these in values]
    _damage(messages, data)
    assert _together(messages) == _one_by_one(messages)


@given(_batches())
@fuzz
def test_sent_messages_decoded_together_are_those_decoded_one_by_one(messages: list[bytes]) -> None:
    payload = b"".join(b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message for message in messages)
    assert _rows_or_none(lambda: SentDecoder().decode(payload, BATCH_FORMAT)) == _sent_one_by_one(messages)


@needs_core
def test_usual_messages_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would compare the general decoder with itself."""
    messages = [spell_message(usual_shape, _values(number)) for number in range(100)]
    expected = _one_by_one(messages)
    monkeypatch.setattr(columns, "_read_delivered", _refuse)
    assert _together(messages) == expected


@needs_core
def test_messages_with_properties_of_their_own_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[object] = [None, None, None, "subject", None, ULong(7), Symbol("text/plain"), None, Timestamp(1000)]
    shape = replace(usual_shape, others=[(0x73, own)])
    messages = [spell_message(shape, _values(number)) for number in range(100)]
    expected, expected_sent = _one_by_one(messages), _sent_one_by_one(messages)
    for name in ("_read_delivered", "_read_sent"):
        monkeypatch.setattr(columns, name, _refuse)
    assert _together(messages) == expected
    payload = b"".join(b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message for message in messages)
    assert SentDecoder().decode(payload, BATCH_FORMAT).to_pylist() == expected_sent


@pytest.mark.parametrize("count", [0, 1, BULK_COUNT_MIN - 1, BULK_COUNT_MIN])
def test_any_number_of_messages_gives_columns_of_the_schema(count: int) -> None:
    batch = _decode([spell_message(usual_shape, _values(number)) for number in range(count)])
    assert batch.schema.equals(EVENT_SCHEMA)
    assert len(batch) == count
    batch.validate(full=True)


def test_one_decoder_follows_messages_that_change_their_template() -> None:
    decoder = EventDecoder(PARTITION)
    for round_number in range(40):
        shape = Shape(round_number % 25, usual_shape.annotations, None, usual_shape.body, [])
        messages = [spell_message(shape, _values(number)) for number in range(20)]
        assert decoder.decode(*join_messages(messages)).to_pylist() == _one_by_one(messages)


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("missing", ["x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"])
def test_a_message_without_its_place_in_the_partition_is_refused(missing: str, count: int) -> None:
    annotations = {key: value for key, value in _annotations().items() if key != missing}
    message = Message(Data((b"x",)), message_annotations=annotations).encode()
    with pytest.raises(AmqpDecodeError, match=missing):
        _decode([message] * count)


@pytest.mark.parametrize("count", [5, 50])
def test_the_message_that_is_refused_is_named(count: int) -> None:
    messages = [_event()] * count
    messages[3] = messages[3][:-1]
    with pytest.raises(AmqpDecodeError, match=f"message 4 of {count}: "):
        _decode(messages)


def test_messages_in_a_part_of_a_buffer_are_those_of_a_buffer_of_their_own() -> None:
    messages = [spell_message(usual_shape, _values(number)) for number in range(60)]
    data, starts, ends = join_messages(messages)
    apart = EventDecoder(PARTITION).decode(*join_messages(messages[20:40]))
    assert EventDecoder(PARTITION).decode(data, starts[20:40], ends[20:40]).equals(apart)


@pytest.mark.parametrize("count", [1, 50])
def test_times_beyond_the_calendar_become_its_ends(count: int) -> None:
    for milliseconds, expected in ((-(2**63), TIME_MS_MIN), (2**63 - 1, TIME_MS_MAX), (-1, -1)):
        batch = _decode([_event(**{"x-opt-enqueued-time": Timestamp(milliseconds)})] * count)
        times = batch.column("enqueuedTime")
        assert times.cast(pa.int64()).to_pylist() == [expected * 1000] * count
        assert len(times.to_pylist()) == count  # Python's calendar has them


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("name", ["x-opt-offset", "x-opt-partition-key"])
def test_text_that_is_no_utf8_is_refused(name: str, count: int) -> None:
    good = _event(**{name: "ab"})
    bad = good.replace(b"\xa1\x02ab", b"\xa1\x02\xff\xfe")
    with pytest.raises(AmqpDecodeError, match="UTF-8"):
        _decode([good] * (count - 1) + [bad])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (Data((b"one", b"", b"two")), b"onetwo"),
        (Data(()), b""),
        (Value("text é"), "text é".encode()),
        (Value(b"\xff"), b"\xff"),
        (Value(None), b""),
        (
            Value({"a": [1, None, True, 1.5], Symbol("t"): Timestamp(0)}),
            b'{"a":[1,null,true,1.5],"t":"1970-01-01T00:00:00.000Z"}',
        ),
        (Value(UInt(5)), b"5"),
        (Value(float("nan")), b'"nan"'),
    ],
)
def test_bodies_of_every_kind(body: Data | Value, expected: bytes) -> None:
    assert _decode([Message(body, message_annotations=_annotations()).encode()]).column("body").to_pylist() == [
        expected
    ]


@pytest.mark.parametrize("second", [(0x75, b"x"), (0x76, [1]), (0x77, 1)])
def test_a_body_of_two_kinds_is_refused(second: tuple[int, object]) -> None:
    code, value = second
    message = _event() + b"\x00\x53\x77\x41" + b"\x00\x53" + bytes([code]) + spell(value, Random(0))
    with pytest.raises(AmqpDecodeError, match="body"):
        read_event(message, 0, len(message))


_ANNOTATIONS: dict[str, object] = {
    "x-opt-sequence-number": 5,
    "x-opt-offset": "500",
    "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
}


def _annotations(**changed: object) -> dict[object, object]:
    return {Symbol(name): value for name, value in {**_ANNOTATIONS, **changed}.items()}


def _event(**changed: object) -> bytes:
    return Message(Data((b"body",)), message_annotations=_annotations(**changed)).encode()


def _values(number: int) -> Values:
    text = "x" * (number % 30)
    return Values(number * 2**40, str(number), number, f"key-{text}", text, bytes(number))


def _damage(messages: Sequence[bytearray], data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        damaged = data.draw(st.sampled_from(messages))
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))


def _together(messages: Sequence[bytes | bytearray]) -> list[dict[str, Any]] | None:
    return _rows_or_none(lambda: _decode(messages))


def _decode(messages: Sequence[bytes | bytearray]) -> pa.RecordBatch:
    return EventDecoder(PARTITION).decode(*join_messages(messages))


def _rows_or_none(decode: Any) -> list[dict[str, Any]] | None:
    try:
        batch = decode()
    except AmqpDecodeError:
        return None
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _one_by_one(messages: Sequence[bytes | bytearray]) -> list[dict[str, Any]] | None:
    """The events that the general decoder makes of the messages; None if it refuses any."""
    events = _read(messages)
    if events is None:
        return None
    if any(None in (event.sequence_number, event.offset, event.enqueued_ms) for event in events):
        return None
    rows = [
        (
            event.body,
            PARTITION,
            event.offset,
            event.sequence_number,
            int(np.clip(event.enqueued_ms or 0, TIME_MS_MIN, TIME_MS_MAX)) * 1000,
            event.partition_key,
            event.properties,
        )
        for event in events
    ]
    return _as_columns(rows, EVENT_SCHEMA)


def _sent_one_by_one(messages: Sequence[bytes | bytearray]) -> list[dict[str, Any]] | None:
    events = _read(messages, takes_notes=True)
    if events is None:
        return None
    return _as_columns([(event.body, event.partition_key, event.properties) for event in events], OUTGOING_SCHEMA)


def _read(messages: Sequence[bytes | bytearray], *, takes_notes: bool = False) -> list[EventFields] | None:
    try:
        return [read_event(message, 0, len(message), takes_notes=takes_notes) for message in messages]
    except AmqpDecodeError:
        return None


def _as_columns(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> list[dict[str, Any]]:
    columns = zip(*rows, strict=True) if rows else [[]] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    expected: list[dict[str, Any]] = pa.RecordBatch.from_arrays(arrays, schema=schema).to_pylist()
    return expected


def _refuse(*_arguments: object, **_options: object) -> None:
    raise AssertionError("decoded one by one")
