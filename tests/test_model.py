"""Events to send are made of what people have, and what cannot be sent is named."""

from __future__ import annotations

from typing import Any

import pytest

import hubline
from hubline.errors import ConfigError


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"properties": {"a": "b"}}, "the body of event 1 is missing: give bytes or str"),
        ({"body": None}, "the body of event 1 is missing"),
        ({"body": 5}, "the body of event 1 is int"),
        ("\ud800", "the body of event 1 is not text that UTF-8 has"),
        ({"body": "x", "partitionKey": "\ud800"}, "the partitionKey of event 1 cannot be sent .*surrogates"),
        ({"body": "x", "partitionKey": 5}, "the partitionKey of event 1 cannot be sent .*int"),
        ({"body": "x", "properties": [("a", "1"), ("a", "2")]}, "the properties of event 1 are list: give a mapping"),
        ({"body": "x", "properties": {"a": "\ud800"}}, "the properties of event 1 cannot be sent .*surrogates"),
        ({"body": "x", "properties": {"a": 5}}, "the properties of event 1 cannot be sent .*int.*give text"),
    ],
)
def test_what_cannot_be_sent_is_reported_with_its_event(event: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hubline.new_events(["good", event, event])
