"""Handlers as tasks run them, over Arrow batches and without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from hubline.errors import ConfigError
from hubline.model.events import Event
from hubline.pipeline.handlers import BatchHandler, EventHandler

Row = dict[str, Any]

EVENTS = pa.schema(
    [
        pa.field("body", pa.binary()),
        pa.field("partition", pa.string()),
        pa.field("offset", pa.string()),
        pa.field("sequenceNumber", pa.int64()),
        pa.field("enqueuedTime", pa.timestamp("us", "UTC")),
        pa.field("partitionKey", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("eventId", pa.string()),
    ]
)
NUMBER = pa.schema([pa.field("number", pa.int32())])
ERROR = pa.field("_error", pa.string())


def events(*bodies: bytes, partition: str = "0") -> pa.RecordBatch:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "body": body,
            "partition": partition,
            "offset": str(place),
            "sequenceNumber": place,
            "enqueuedTime": now,
            "properties": [("a", "b")],
            "eventId": f"x/{partition}/{place}/0",
        }
        for place, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EVENTS)


def by_event(function: Callable[[Event], Any], *batches: pa.RecordBatch, own: pa.Schema = NUMBER) -> list[Row]:
    kept = [field for field in [*EVENTS, ERROR] if field.name not in own.names]
    handler = EventHandler("stage", function, own, pa.schema([*own, *kept]))
    rows: list[Row] = pa.Table.from_batches(handler(batches)).to_pylist()
    return rows


def by_batch(function: Callable[[pa.Table], Any], *batches: pa.RecordBatch, own: pa.Schema = NUMBER) -> list[Row]:
    kept = [field for field in EVENTS if field.name not in own.names]
    handler = BatchHandler("stage", function, own, pa.schema([*own, *kept]))
    rows: list[Row] = pa.Table.from_batches(handler(batches), handler.output).to_pylist()
    return rows


def test_each_event_becomes_its_row_or_none() -> None:
    def number(event: Event) -> dict[str, int] | None:
        assert event.properties == {"a": "b"}
        return None if event.body == b"no" else {"number": int(event.body)}

    rows = by_event(number, events(b"1", b"no", b"3"))
    assert [(row["number"], row["sequenceNumber"], row["eventId"], row["_error"]) for row in rows] == [
        (1, 0, "x/0/0/0", None),
        (3, 2, "x/0/2/0", None),
    ]


def test_events_are_the_same_where_spark_has_large_types() -> None:
    """By the setting spark.sql.execution.arrow.useLargeVarTypes."""
    text, texts = pa.large_string(), pa.map_(pa.large_string(), pa.large_string())
    kinds = {"body": pa.large_binary(), "properties": texts, **dict.fromkeys(("partition", "offset", "eventId"), text)}
    large = events(b"\xff").cast(pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in EVENTS]))
    own = pa.schema([EVENTS.field("body")])

    for given in (large, events(b"\xff")):
        (row,) = by_event(lambda event: {"body": event.body * 2}, given, own=own)
        assert row == {**events(b"\xff\xff").to_pylist()[0], "_error": None}
    by_batch(lambda table: pa.table({"number": [1] * table.schema.equals(EVENTS)}), large)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"number": "many"}, "number does not fit int32"),
        ({"number": 2**40}, "number does not fit int32"),
        ({"number": 1.5}, "number does not fit int32: 1.5 would become 1"),
        ({"nubmer": 1}, "'nubmer', which schema does not name"),
        (["number"], "must return a dictionary or None, not list"),
    ],
)
def test_row_that_does_not_fit_makes_its_event_a_dead_letter_and_no_other(given: Any, says: str) -> None:
    rows = by_event(lambda event: given if event.body == b"bad" else {"number": 1}, events(b"a", b"bad", b"c"))
    assert [(row["number"], row["body"]) for row in rows] == [(1, b"a"), (None, b"bad"), (1, b"c")]
    assert rows[0]["_error"] is None
    assert says in rows[1]["_error"]


@pytest.mark.parametrize("own", [NUMBER, pa.schema([*NUMBER, ERROR])])
def test_row_with_an_error_of_its_own_is_a_dead_letter_whether_or_not_schema_names_it(own: pa.Schema) -> None:
    def number(event: Event) -> dict[str, Any]:
        value = int(event.body)
        return {"number": value, "_error": f"{value} is odd" if value % 2 else None}

    rows = by_event(number, events(b"2", b"3"), own=own)
    assert [(row["number"], row["body"], row["_error"]) for row in rows] == [(2, b"2", None), (None, b"3", "3 is odd")]


NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))])
COUNTS = pa.map_(pa.string(), pa.int32())
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "says"),
    [
        (pa.int32(), 1.0, Decimal("1.5"), "Decimal('1.5') would become 1"),
        (pa.list_(pa.int32()), [1, None, 2.0], [1, 1.5], "1.5 would become 1"),
        (NESTED, {"a": 1, "b": [2]}, {"a": 1.5}, "1.5 would become 1"),
        (NESTED, {"a": 1}, {"a": 1, "b": [2, 2.5]}, "2.5 would become 2"),
        (NESTED, {"b": None}, {"a": 1, "c": 2}, "'c' is none of its fields"),
        (COUNTS, {"a": 1}, {"a": 1, "b": 1.5}, "1.5 would become 1"),
        (pa.list_(NESTED), [{"a": 1}], [None, {"a": 1.5}], "1.5 would become 1"),
        (pa.float32(), 0.1, 1e40, "1e+40 would become inf"),
        (pa.float32(), 0, 1e-300, "1e-300 would become 0.0"),
        (pa.date32(), NOON.date(), NOON, "would become datetime.date(2026, 1, 1)"),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=None), 1_767_268_800, "would become datetime.datetime(1970,"),
    ],
)
def test_value_that_arrow_would_change_in_silence_does_not_fit(
    kind: pa.DataType, good: Any, bad: Any, says: str
) -> None:
    own = pa.schema([pa.field("value", kind)])
    rows = by_event(lambda event: {"value": bad if event.body == b"bad" else good}, events(b"a", b"bad", b"c"), own=own)
    kept = pa.array([good], kind).to_pylist()[0]
    assert [row["value"] for row in rows] == [kept, None, kept]
    assert rows[0]["_error"] is None
    assert says in rows[1]["_error"]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.float32(), float("inf")),
        (pa.float64(), 7),
        (pa.decimal128(10, 2), 7),
        (pa.date32(), datetime(2026, 1, 1)),  # noqa: DTZ001 - a date is of no zone
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
        (pa.binary(), "text"),
        (pa.string(), b"text"),
        (NESTED, (1, [2])),
        (NESTED, [("a", 1)]),
        (COUNTS, [("a", 1)]),
        (COUNTS, {}),
        (pa.list_(pa.string()), ()),
    ],
)
def test_value_of_another_type_that_says_the_same_fits(kind: pa.DataType, given: Any) -> None:
    (row,) = by_event(lambda _: {"value": given}, events(b"a"), own=pa.schema([pa.field("value", kind)]))
    assert row["_error"] is None
    assert row["value"] == pa.array([given], kind).to_pylist()[0]


def test_event_whose_handler_raises_keeps_its_own_body_though_rows_have_another() -> None:
    def shout(event: Event) -> dict[str, bytes]:
        return {"body": event.text().upper().encode()}

    rows = by_event(shout, events(b"a", b"\xff"), own=pa.schema([pa.field("body", pa.binary())]))
    assert [row["body"] for row in rows] == [b"A", b"\xff"]
    assert rows[1]["_error"].startswith("UnicodeDecodeError")


def test_event_that_fails_keeps_all_that_a_dead_letter_is_made_of_though_rows_have_other() -> None:
    """Without a partition and a sequence number, a dead letter would stop the stage: nobody could find its event."""
    names = ("partition", "sequenceNumber", "enqueuedTime", "partitionKey", "properties")
    zoned = EVENTS.set(4, pa.field("enqueuedTime", pa.timestamp("us", "America/New_York")))
    own = pa.schema([*(EVENTS.field(name) for name in names), pa.field("offset", pa.int64())])

    def failing(event: Event) -> dict[str, Any]:
        return dict.fromkeys(names) | {"offset": int(event.body)}

    given = events(b"1", b"no")
    good, failed = by_event(failing, given.cast(zoned), own=own)
    assert {good[name] for name in names} == {None}
    assert {name: failed[name] for name in names} == {name: given.to_pylist()[1][name] for name in names}
    assert failed["offset"] is None


def test_error_that_is_no_text_is_reported_all_the_same() -> None:
    def refuse(event: Event) -> None:
        raise ValueError(json.loads(event.body))

    (row,) = by_event(refuse, events(rb'"\ud800"'))
    assert row["_error"] == r"ValueError: \ud800"


def test_batch_without_events_that_are_kept_is_empty() -> None:
    assert by_event(lambda _: None, events(b"a")) == []


def test_table_is_of_one_partition_and_its_rows_keep_their_events() -> None:
    seen: list[list[str]] = []

    def lengths(table: pa.Table) -> pa.Table:
        seen.append(table.column("partition").to_pylist())
        return pa.table({"number": [len(body) for body in table.column("body").to_pylist()]})

    mixed = pa.Table.from_batches([events(b"a", b"bb"), events(b"ccc", partition="1")]).combine_chunks().to_batches()
    rows = by_batch(lengths, *mixed)
    assert seen == [["0", "0"], ["1"]]
    assert [(row["number"], row["eventId"]) for row in rows] == [(1, "x/0/0/0"), (2, "x/0/1/0"), (3, "x/1/0/0")]


def test_table_of_other_length_has_to_say_of_which_events_its_rows_are() -> None:
    with pytest.raises(ConfigError, match=r"returned 1 row for 2 events.* partition, sequenceNumber, eventId"):
        by_batch(lambda table: pa.table({"number": [1]}), events(b"a", b"b"))
    own = pa.schema([*NUMBER, *(EVENTS.field(name) for name in ("partition", "sequenceNumber", "eventId"))])

    def last(table: pa.Table) -> pa.Table:
        kept = table.slice(1).select(["partition", "sequenceNumber", "eventId"])
        return kept.append_column("number", pa.array([7]))

    (row,) = by_batch(last, events(b"a", b"b"), own=own)
    assert (row["number"], row["sequenceNumber"], row["body"]) == (7, 1, b"b")  # and all else that its event had
    assert by_batch(lambda _: pa.table({name: [] for name in own.names}), events(b"a", b"b"), own=own) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1], "must return a pyarrow.Table, not list"),
        (pa.table({"other": [1]}), "returned no column number"),
        (pa.table({"number": [1], "_error": ["odd"]}), "returned _error, .*schema does not name it"),
    ],
)
def test_what_is_no_such_table_is_an_error(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        by_batch(lambda _: given, events(b"a"))


@pytest.mark.parametrize(("column", "value"), [("sequenceNumber", 7), ("partition", "9")])
def test_rows_of_events_that_the_function_was_not_given_fail_the_stage(column: str, value: object) -> None:
    traced = ("partition", "sequenceNumber", "eventId")
    own = pa.schema([*NUMBER, *(EVENTS.field(name) for name in traced)])

    def strange(table: pa.Table) -> pa.Table:
        kept = table.select(traced).append_column("number", [[1] * len(table)])
        place = kept.schema.get_field_index(column)
        return kept.set_column(place, kept.schema.field(place), pa.array([value] * len(kept), kept.schema.types[place]))

    with pytest.raises(ConfigError, match=f"returned a row with {column} {value}, which none of its events has"):
        by_batch(strange, events(b"1", b"2"), own=own)
