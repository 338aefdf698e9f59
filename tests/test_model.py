"""Events to send are made of what people have, and what cannot be sent is named."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import hubline
from hubline.errors import ConfigError


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
