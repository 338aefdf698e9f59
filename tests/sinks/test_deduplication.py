"""Events that an earlier stage published twice are written once."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.errors import ConfigError
from hubline.event_ids import ID_PROPERTY
from hubline.model.events import EVENT_SCHEMA, EventBatch
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks import OpenedPartition, SqlSink
from hubline.sinks.sql_sink.deduplication import Deduplication, deduplicate_known, deduplicate_ordered, ids_in
from tests.sinks.conftest import SinkDatabase
from tests.sinks.test_commit import KEY, at

ORIGIN = "ns/first@17"
# Longer than what an index of PostgreSQL takes, and nothing that it could compress.
LONG = "".join(random.Random(1).choices(string.ascii_lowercase + string.ascii_uppercase, k=3_000))


def batch_of(ids: Sequence[str | None], *, first: int = 0) -> EventBatch:
    now = datetime.now(UTC)
    rows = [
        {
            "body": b"x",
            "partition": "0",
            "offset": f"o{first + place}",
            "sequenceNumber": first + place,
            "enqueuedTime": now,
            "partitionKey": None,
            "properties": None if one is None else [("other", "y"), (ID_PROPERTY, one)],
        }
        for place, one in enumerate(ids)
    ]
    return EventBatch("0", pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))


def properties_of(ids: Sequence[str | None]) -> pa.MapArray:
    return batch_of(ids).arrow.column("properties")


def kept(deduplication: Deduplication) -> list[int]:
    return [place for place, is_fresh in enumerate(deduplication.is_fresh) if is_fresh]


def sequences_of(batch: EventBatch) -> list[int]:
    found: list[int] = batch.arrow.column("sequenceNumber").to_pylist()
    return found


numbers = st.integers(0, 4)
parts = st.tuples(st.sampled_from(["a/0", "a/1", "b c/0"]), numbers, numbers)


class TestSifting:
    @given(
        st.lists(st.one_of(st.none(), parts), max_size=30), st.dictionaries(st.just("a/0"), st.tuples(numbers, numbers))
    )
    def test_in_order_only_what_is_above_the_highest_is_new(
        self, events: list[tuple[str, int, int] | None], marks: dict[str, tuple[int, int]]
    ) -> None:
        highest, fresh = dict(marks), []
        for place, event in enumerate(events):
            if event is not None:
                origin, *number = event
                if tuple(number) <= highest.get(origin, (-1, -1)):
                    continue
                highest[origin] = (number[0], number[1])
            fresh.append(place)
        ids = [None if event is None else f"{event[0]}/{event[1]}/{event[2]}" for event in events]

        deduplication = deduplicate_ordered(properties_of(ids), marks)

        assert kept(deduplication) == fresh
        assert {**marks, **deduplication.marks} == highest

    @pytest.mark.parametrize(
        ("second", "expected"),
        [
            ("ns/first@17/3/12/0", [0, 1]),
            ("ns/first@17/3/11/0", [0]),
            ("ns/first@17/3/10/0", [0]),
            ("ns/first@17/3/100/0", [0, 1]),  # of another length
            ("ns/first@17/4/10/0", [0, 1]),  # another origin, of the same length
            ("ns/first@17/3/11/1", [0, 1]),
            ("ns/first@17/3/1x/0", [0, 1]),  # no ids
            ("ns/first@17/3/09/0", [0, 1]),
            ("ns/first@17/3/-9/0", [0, 1]),
            ("ns/first@17/3-11/0", [0, 1]),
            ("", [0, 1]),
        ],
    )
    @pytest.mark.parametrize("others", [[], [("other", "y")]], ids=["alone", "beside another"])
    def test_ids_are_read_alike_whatever_stands_beside_them(
        self, second: str, expected: list[int], others: list[tuple[str, str]]
    ) -> None:
        given = [[*others, (ID_PROPERTY, one)] for one in ("ns/first@17/3/9/0", "ns/first@17/3/11/0", second)]
        properties = pa.array(given, EVENT_SCHEMA.field("properties").type)

        # A part of a batch, as it comes out of a slice.
        assert kept(deduplicate_ordered(properties.slice(1), {})) == expected
        assert kept(deduplicate_ordered(properties.slice(2), {})) == [0]

    def test_what_is_no_id_passes(self) -> None:
        ids = ["", "a/0/1", "a/0/x/0", f"{ORIGIN}/0/1/0", f"{ORIGIN}/0/1/0", "a/0/99999999999999999999/0", None]

        assert kept(deduplicate_ordered(properties_of(ids), {})) == [0, 1, 2, 3, 5, 6]
        assert kept(deduplicate_known(ids_in(properties_of([*ids, *ids])), set())) == [
            0,
            1,
            2,
            3,
            5,
            6,
            7,
            8,
            9,
            12,
            13,
        ]

    def test_ids_in_any_order_are_known_one_by_one(self) -> None:
        ids = ["a/0/5/0", "a/0/3/0", None, "a/0/5/0", "a/0/4/0"]

        deduplication = deduplicate_known(ids_in(properties_of(ids)), {"a/0/4/0"})

        assert (kept(deduplication), deduplication.ids) == ([0, 1, 2], ("a/0/3/0", "a/0/5/0"))


def write(partition: OpenedPartition, ids: Sequence[str], *, first: int) -> list[int]:
    """A batch of which only what is new is remembered and committed."""
    batch = batch_of(ids, first=first)
    checkpoint = Checkpoint(partition.key, batch.last_offset, batch.last_sequence)
    deduplicated = partition.deduplicate(batch)
    with partition.transaction(checkpoint) as transaction:
        assert transaction.record_ids(partition, deduplicated)
    return sequences_of(deduplicated.batch)


class TestRemembering:
    @pytest.mark.parametrize("how", ["ordered", "any_order"])
    def test_duplicates_are_known_across_batches_and_owners(self, database: SinkDatabase, how: str) -> None:
        sink = database.sink(drop_duplicates=how)
        partition = sink.open(KEY, 1)
        one, two, three = (f"{ORIGIN}/0/{number}/0" for number in range(3))

        assert write(partition, [one, two], first=0) == [0, 1]
        assert write(partition, [two, three], first=2) == [3]
        assert write(sink.open(KEY, 2), [one, two, three, f"{ORIGIN}/1/0/0"], first=4) == [7]

    @pytest.mark.parametrize("how", ["ordered", "any_order"])
    @pytest.mark.parametrize("others", [[], ["a/0/7/0"]], ids=["alone", "among others"])
    @pytest.mark.parametrize("hostile", ["a\x00b/0/1/0", f"{LONG}/0/1/0"], ids=["zero", "long"])
    def test_an_id_that_no_database_can_keep_is_none(
        self, database: SinkDatabase, how: str, others: Sequence[str], hostile: str
    ) -> None:
        partition = database.sink(drop_duplicates=how).open(KEY, 1)

        assert write(partition, [hostile, hostile, *others], first=0) == list(range(2 + len(others)))
        assert write(partition, [hostile, *others], first=10) == [10]

    @pytest.mark.parametrize("how", ["ordered", "any_order"])
    def test_what_is_undone_is_not_remembered(self, database: SinkDatabase, how: str) -> None:
        partition = database.sink(drop_duplicates=how).open(KEY, 1)
        transaction = partition.transaction(at(0))
        transaction.record_ids(partition, partition.deduplicate(batch_of([f"{ORIGIN}/0/0/0"])))
        transaction.rollback()

        assert write(partition, [f"{ORIGIN}/0/0/0"], first=0) == [0]

    def test_ids_in_any_order_are_known_in_every_partition(self, database: SinkDatabase) -> None:
        sink = database.sink(drop_duplicates="any_order")
        other = sink.open(PartitionKey(KEY.namespace, KEY.hub, KEY.group, "1"), 1)
        write(sink.open(KEY, 1), [f"{ORIGIN}/0/7/0"], first=0)

        assert write(other, [f"{ORIGIN}/0/7/0", f"{ORIGIN}/0/3/0"], first=0) == [1]

    def test_an_id_that_another_partition_took_meanwhile_is_noticed(self, database: SinkDatabase) -> None:
        sink = database.sink(drop_duplicates="any_order")
        partition = sink.open(KEY, 1)
        deduplicated = partition.deduplicate(batch_of([f"{ORIGIN}/0/7/0"]))
        other = sink.open(PartitionKey(KEY.namespace, KEY.hub, KEY.group, "1"), 1)
        write(other, [f"{ORIGIN}/0/7/0"], first=0)
        transaction = partition.transaction(at(0))

        assert not transaction.record_ids(partition, deduplicated)
        transaction.rollback()
        assert sequences_of(partition.deduplicate(batch_of([f"{ORIGIN}/0/7/0"])).batch) == []

    def test_old_ids_are_forgotten(self, database: SinkDatabase) -> None:
        sink = database.sink(drop_duplicates="any_order", duplicate_window_seconds=0.3)
        write(sink.open(KEY, 1), [f"{ORIGIN}/0/0/0"], first=0)
        time.sleep(0.6)  # by the database's own clock, which no test can move

        write(sink.open(KEY, 1), [f"{ORIGIN}/0/1/0"], first=1)

        assert database.execute("SELECT id FROM hubline_origin_id") == [(f"{ORIGIN}/0/1/0",)]

    def test_there_are_two_ways(self) -> None:
        with pytest.raises(ConfigError, match="drop_duplicates must be off, ordered or any_order"):
            SqlSink("sqlite:///x.db", drop_duplicates="maybe")  # type: ignore[arg-type]
