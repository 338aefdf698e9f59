"""Events that wait to be given out: in order, whatever the pieces, with a count of events and bytes that adds up."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hubline.errors import ConfigError
from hubline.hubs.event_buffer import EventBuffer
from hubline.hubs.local.stored_batch import StoredBatch
from hubline.model.events import EventBatch, new_events
from hubline.read_ahead import ReadAhead


def batch(first_sequence: int, count: int) -> EventBatch:
    return StoredBatch("0", first_sequence, "10000", np.array([count]), np.array([0]), new_events(["x"] * count)).events


def sequences(events: EventBatch) -> list[int]:
    numbers: list[int] = events.arrow.column("sequenceNumber").to_pylist()
    return numbers


def test_batches_are_given_out_in_order_in_pieces_of_any_size() -> None:
    rng = random.Random(7)
    buffer, put_count = EventBuffer(ReadAhead(1)), 0
    given: list[int] = []
    while len(given) < 2_000:
        if not buffer.count or rng.random() < 0.5:
            size = rng.choice([1, 3, 70])
            buffer.put(batch(put_count, size))
            put_count += size
        given += sequences(buffer.take(rng.choice([1, 2, 40, 500])))
        assert buffer.count == put_count - len(given)

    assert given == list(range(len(given)))


def test_a_batch_counts_until_the_last_of_it_is_given_out() -> None:
    buffer = EventBuffer(ReadAhead(1))
    buffer.put(batch(0, 7), bytes_count=10_000)
    held = [buffer.bytes_count]

    while buffer.count:
        buffer.take(2)
        held.append(buffer.bytes_count)

    assert held == [10_000, 10_000, 10_000, 10_000, 0]


def test_events_count_what_they_take_in_memory_if_that_is_more_than_they_are_put_with() -> None:
    buffer, events = EventBuffer(ReadAhead(1)), batch(0, 5)

    buffer.put(events, bytes_count=1)

    assert buffer.bytes_count == events.arrow.get_total_buffer_size()


def test_the_small_rest_of_a_large_batch_does_not_keep_it_in_memory() -> None:
    buffer, events = EventBuffer(ReadAhead(1)), batch(0, 1_000)
    buffer.put(events)
    buffer.take(990)

    assert buffer.take(10).arrow.get_total_buffer_size() < events.arrow.get_total_buffer_size() / 50


def test_no_more_is_copied_together_than_asked_for() -> None:
    buffer = EventBuffer(ReadAhead(1))
    for first_sequence in range(0, 40, 10):
        buffer.put(batch(first_sequence, 10), bytes_count=10_000)

    assert len(buffer.take(1_000, copied_bytes_max=15_000)) == 20
    assert len(buffer.take(1_000, copied_bytes_max=0)) == 10
    assert len(buffer.take(5, copied_bytes_max=0)) == 5


def test_a_cleared_buffer_holds_nothing() -> None:
    buffer = EventBuffer(ReadAhead(1))
    buffer.put(batch(0, 3))

    buffer.clear()

    assert (buffer.count, buffer.bytes_count) == (0, 0)
    with pytest.raises(ConfigError):
        buffer.take(1)
