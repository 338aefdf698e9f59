"""Consecutive events, and the columns that are made of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from hubline.hubs.local.stored_batch import StoredBatch, merge_small, offset_of
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA, new_events

PREFIX = "48213"
PREFIXES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8)


def stored(first_sequence: int, count: int, *, time_us: int = 5, prefix: str = PREFIX) -> StoredBatch:
    """Events whose bodies are their sequence numbers, sent merge_small."""
    made = new_events([str(first_sequence + number) for number in range(count)])
    counts, times_us = np.array([count]), np.array([time_us])
    return StoredBatch("7", first_sequence, prefix, counts, times_us, made)


def in_a_row(counts: list[int]) -> list[StoredBatch]:
    """Batches of so many events, from 100 on, each a microsecond after the one before it."""
    firsts = [100 + sum(counts[:number]) for number in range(len(counts))]
    return [
        stored(first, count, time_us=number) for number, (first, count) in enumerate(zip(firsts, counts, strict=True))
    ]


@given(st.integers(0, 3 * 10**4) | st.integers(0, 10**13 - 30_000), st.integers(1, 25_000), PREFIXES)
def test_offsets_are_those_of_their_sequence_numbers(first_sequence: int, count: int, prefix: str) -> None:
    made = pa.RecordBatch.from_pylist([{"body": b""}] * count, schema=OUTGOING_SCHEMA)
    events = StoredBatch("7", first_sequence, prefix, np.array([count]), np.array([5]), made).events

    ends = [0, count // 2, count - 1]
    assert [events[n].offset for n in ends] == [offset_of(prefix, first_sequence + n) for n in ends]
    assert [events[n].sequence_number for n in ends] == [first_sequence + n for n in ends]
    offsets = events.arrow.column("offset")
    assert pc.all(pc.less(offsets[:-1], offsets[1:])).as_py() is not False


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 10))
def test_small_ones_are_put_merge_small_and_no_event_is_lost(counts: list[int], max_count: int) -> None:
    sequences = list(range(100, 100 + sum(counts)))

    found = list(merge_small(in_a_row(counts), max_count=max_count))

    events = [event for each in found for event in each.events]
    assert [int(event.body) for event in events] == sequences
    assert [event.sequence_number for event in events] == sequences
    assert [event.enqueued_time.microsecond for event in events] == np.repeat(range(len(counts)), counts).tolist()
    assert all(len(each) <= max(max_count, *counts) for each in found)
    assert all(len(one) + len(next_one) > max_count for one, next_one in pairwise(found))
    assert all(each.events.arrow.schema.equals(EVENT_SCHEMA) for each in found)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.data())
def test_a_part_is_what_the_whole_has_there(counts: list[int], data: st.DataObject) -> None:
    whole = StoredBatch.concat(in_a_row(counts))
    start = data.draw(st.integers(0, len(whole) - 1))
    wanted_count = data.draw(st.none() | st.integers(1, len(whole)))

    part = whole.slice(start, wanted_count)

    assert part.events.arrow.equals(whole.events.slice(start, wanted_count).arrow)
    assert part.slice(0).events.arrow.equals(part.events.arrow)
    assert (part.counts > 0).all()
    assert len(part.counts) == len(part.times_us)
