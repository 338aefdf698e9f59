"""Events to send are made of what people have, and what cannot be sent is named; events of a batch are its columns."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import hubline
from hubline.errors import ConfigError
from hubline.model.events import EVENT_SCHEMA


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"properties": {"a": "b"}}, "the body of event 1 is missing. Give bytes or str"),
        ({"body": None}, "the body of event 1 is missing"),
        ({"body": 5}, "the body of event 1 is int"),
        ("\ud800", "the body of event 1 is not text that UTF-8 can encode"),
        ({"body": "x", "partitionKey": "\ud800"}, "the partitionKey of event 1 cannot be sent .*surrogates"),
        ({"body": "x", "partitionKey": 5}, "the partitionKey of event 1 cannot be sent .*int"),
        (
            {"body": "x", "properties": [("a", "1"), ("a", "2")]},
            "the properties of event 1 must be a mapping, not list",
        ),
        ({"body": "x", "properties": {"a": "\ud800"}}, "the properties of event 1 cannot be sent .*surrogates"),
        ({"body": "x", "partition_key": "k"}, "event 1 has the unknown key 'partition_key': .* body, partitionKey and"),
        ({"body": "x", "properties": {"a": 5}}, "the properties of event 1 cannot be sent .*int.*Give text"),
    ],
)
def test_what_cannot_be_sent_is_reported_with_its_event(event: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hubline.new_events(["good", event, event])


@pytest.mark.parametrize("event", ["text", b"text", {"body": "text"}])
def test_one_event_is_no_series_of_its_parts(event: Any) -> None:
    assert hubline.new_events(event).column("body").to_pylist() == [b"text"]


def test_what_cannot_be_several_events_is_named() -> None:
    with pytest.raises(ConfigError, match=r"events to send cannot be of type int. Give an event, or several in a list"):
        hubline.new_events(5)  # type: ignore[arg-type]


def test_an_event_that_was_received_keeps_its_body_key_and_properties() -> None:
    received = hubline.Event(b"x", "3", "77", 7, datetime(2026, 11, 19, tzinfo=UTC), "k", {"a": "b"})
    (row,) = hubline.new_events(received, partition_key="other").to_pylist()
    assert row == {"body": b"x", "partitionKey": "k", "properties": [("a", "b")]}


def test_a_key_for_all_is_that_of_events_without_one() -> None:
    events: list[Any] = ["a", {"body": "b", "partitionKey": "own"}, {"body": "c", "partitionKey": None}]
    keys = hubline.new_events(events, partition_key="all").column("partitionKey").to_pylist()
    assert keys == ["all", "own", "all"]


# Events of a batch: values are made of the columns when they are read

MAPS: list[list[list[tuple[str, str | None]] | None]] = [
    [None, None, None],
    [[("a", "1"), ("b", "2")], [("a", "3"), ("b", "4")], [("a", "5"), ("b", "")]],
    [[("a", "1")], None, [("b", "2"), ("a", None)]],
    [[], [("a", "1")], [("a", "1"), ("c", "x")]],
    [[("b", "1"), ("a", "2")], [("a", "1"), ("b", "2")], [("a", "1"), ("b", "2")]],
]


def batch_with(maps: Sequence[Any]) -> hubline.EventBatch:
    count = len(maps)
    times = [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) + timedelta(microseconds=n) for n in range(count)]
    columns = [
        [b"body %d" % number for number in range(count)],
        ["3"] * count,
        [f"@{number}" for number in range(count)],
        range(7, 7 + count),
        times,
        [None, "key", None][:count],
        maps,
    ]
    arrays = [pa.array(values, column.type) for values, column in zip(columns, EVENT_SCHEMA, strict=True)]
    return hubline.EventBatch("3", pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA))


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 3), slice(2, 3), slice(0, 0)])
def test_events_have_the_values_of_their_columns(maps: Sequence[Any], part: slice) -> None:
    batch = batch_with(maps).slice(part.start, part.stop - part.start)
    for event, row in zip(batch, batch.arrow.to_pylist(), strict=True):
        assert (event.body, event.partition, event.offset) == (row["body"], row["partition"], row["offset"])
        assert (event.sequence_number, event.enqueued_time) == (row["sequenceNumber"], row["enqueuedTime"])
        assert (event.partition_key, event.properties) == (row["partitionKey"], dict(row["properties"] or ()))


def test_entries_under_a_null_map_are_none_of_the_events() -> None:
    """Masking, as ``pc.if_else`` does it, leaves them in place."""
    maps = batch_with(MAPS[1]).arrow.column("properties")
    masked = pa.MapArray.from_arrays(maps.offsets, maps.keys, maps.items, mask=pa.array([False, True, False]))
    arrow = batch_with(MAPS[0]).arrow.set_column(6, EVENT_SCHEMA.field("properties"), masked)
    found = [event.properties for event in hubline.EventBatch("3", arrow)]
    assert found == [{"a": "1", "b": "2"}, {}, {"a": "5", "b": ""}]


@pytest.mark.parametrize("maps", MAPS[:2])
def test_an_event_that_is_kept_keeps_no_other_bodies(maps: Sequence[Any]) -> None:
    """Also where all columns are parts of one message, as the local hub stores them."""
    before = pa.total_allocated_bytes()
    arrow = batch_with(maps).arrow
    arrow = arrow.set_column(0, EVENT_SCHEMA.field("body"), pa.array([b"x" * 1_000_000] * 3))
    batch = hubline.EventBatch("3", pa.ipc.read_record_batch(arrow.serialize(), EVENT_SCHEMA))
    event = batch[0]
    del arrow, batch
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert event.properties == dict(maps[0] or ())


def test_an_event_of_a_batch_is_an_event_like_any_other() -> None:
    event = batch_with(MAPS[1])[1]
    alike = hubline.Event(b"body 1", "3", "@1", 8, datetime(1970, 1, 1, tzinfo=UTC), "key", {"a": "3", "b": "4"})
    assert type(event) is hubline.Event
    assert pickle.loads(pickle.dumps(batch_with(MAPS[1])[1])) == copy.copy(batch_with(MAPS[1])[1]) == event == alike  # noqa: S301
    assert repr(batch_with(MAPS[1])[1]) == repr(alike)
    assert replace(event, properties={}) == replace(alike, properties={}) != event
    assert event.properties is event.properties
    for name in ("body", "offset", "properties"):
        with pytest.raises(FrozenInstanceError):
            setattr(event, name, None)
