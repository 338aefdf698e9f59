"""Tests of the handler, without a hub or a database: python -m pytest"""

from datetime import UTC, datetime

import pytest
from project_name import store

import hubline


def event(body: bytes) -> hubline.Event:
    return hubline.Event(body, partition="0", offset="0", sequence_number=0, enqueued_time=datetime.now(UTC))


def test_a_reading_becomes_a_row() -> None:
    row = store(event(b'{"device": "kitchen", "celsius": 20.5}'))
    assert row == {"device": "kitchen", "celsius": 20.5, "fahrenheit": 68.9}


def test_another_event_fails() -> None:
    with pytest.raises(KeyError, match="celsius"):
        store(event(b'{"device": "garden"}'))
