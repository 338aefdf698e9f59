"""Ids of events: made, carried and split again, by the column."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.errors import ConfigError
from hubline.event_ids import (
    ID_PROPERTY,
    OUTPUTS_MAX,
    derived_ids,
    event_ids,
    filled,
    ids_of,
    is_id,
    origin_of,
    split_ids,
    with_ids,
)
from hubline.model.events import OUTGOING_SCHEMA
from hubline.model.hubs import HubProperties

ORIGIN = "local:/data/telemetry@1700000000123"
MAP = OUTGOING_SCHEMA.field("properties").type
NUMBERS = st.integers(0, 10**18 - 1)


def properties(*rows: dict[str, str] | None) -> pa.MapArray:
    return pa.array([None if row is None else list(row.items()) for row in rows], MAP)


def as_dicts(maps: pa.MapArray) -> list[dict[str, str] | None]:
    return [None if row is None else dict(row) for row in maps.to_pylist()]


def test_an_origin_names_the_hub_and_when_it_was_created() -> None:
    created = datetime(2023, 11, 14, 22, 13, 20, 123999, tzinfo=UTC)

    assert origin_of(HubProperties("local:/data", "telemetry", ("0",), created)) == ORIGIN


@given(st.lists(st.tuples(st.sampled_from(["0", "31", "a-b"]), NUMBERS, NUMBERS), max_size=20))
def test_what_ids_are_made_of_comes_back(rows: list[tuple[str, int, int]]) -> None:
    partitions, sequences, indexes = (
        pa.array([row[at] for row in rows], kind) for at, kind in enumerate((pa.string(), pa.int64(), pa.int64()))
    )

    parts = split_ids(event_ids(ORIGIN, partitions, sequences, indexes))

    assert parts.to_pylist() == [
        {"origin": ORIGIN, "partition": partition, "sequenceNumber": sequence, "index": index}
        for partition, sequence, index in rows
    ]


def test_single_values_count_for_all_and_nulls_stay_null() -> None:
    ids = event_ids(ORIGIN, "3", pa.array([7, None], pa.int64()))

    assert ids.to_pylist() == [f"{ORIGIN}/3/7/0", None]
    assert split_ids(ids).to_pylist()[1] == {"origin": None, "partition": None, "sequenceNumber": None, "index": None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "h/0/1",
        "h/0/1/",
        "h/0/-1/0",
        "h/0/1/0 ",
        "h/0/01/0",
        "/0/1/0",
        "h/0/1/0\n",
        "h/0/1000000000000000000/0",
    ],
)
def test_what_is_no_id_is_refused_with_its_row(text: str) -> None:
    ids = pa.array(["h/0/1/0", text, None])

    assert is_id(ids).to_pylist() == [True, False, None]
    with pytest.raises(ConfigError, match="row 1"):
        split_ids(ids)


def test_a_text_that_is_no_id_cannot_forge_a_log_line_or_flood_it() -> None:
    with pytest.raises(ConfigError) as caught:
        split_ids(pa.array(["\n\x1b[2J" + "x" * 100_000]))

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_outputs_of_a_later_stage_keep_the_order_of_their_origin() -> None:
    ids = event_ids(ORIGIN, "0", pa.array([1, 1, 1, 2], pa.int64()), pa.array([0, 0, 1, 0], pa.int64()))

    parts = split_ids(derived_ids(ids, pa.array([0, OUTPUTS_MAX - 1, 0, 0], pa.int64()))).to_pylist()

    order = [(part["sequenceNumber"], part["index"]) for part in parts]
    assert order == sorted(set(order))
    with pytest.raises(ConfigError, match="at most"):
        derived_ids(ids, OUTPUTS_MAX)


def test_ids_travel_in_the_properties() -> None:
    ids = pa.array(["h/0/1/0", None, "h/0/2/0", "h/0/3/0"])

    carrying = with_ids(properties({"a": "1", "b": "2"}, {"c": "3"}, None, {}), ids)

    assert carrying.type == MAP
    assert as_dicts(carrying) == [
        {"a": "1", "b": "2", ID_PROPERTY: "h/0/1/0"},
        {"c": "3"},
        {ID_PROPERTY: "h/0/2/0"},
        {ID_PROPERTY: "h/0/3/0"},
    ]
    assert ids_of(carrying).to_pylist() == ids.to_pylist()


def test_a_new_id_takes_the_place_of_an_old_one() -> None:
    old = properties({ID_PROPERTY: "old", "a": "1"}, {ID_PROPERTY: "stays"}, {"b": "2"})

    carrying = with_ids(old, pa.array(["h/0/1/0", None, "h/0/2/0"]))

    assert as_dicts(carrying) == [
        {"a": "1", ID_PROPERTY: "h/0/1/0"},
        {ID_PROPERTY: "stays"},
        {"b": "2", ID_PROPERTY: "h/0/2/0"},
    ]


MAPS = st.lists(
    st.tuples(
        st.none() | st.dictionaries(st.sampled_from([ID_PROPERTY, "a", "b"]), st.text("xyz", max_size=3)),
        st.none() | st.just("h/0/1/0"),
    ),
    max_size=12,
)


@given(MAPS, st.integers(0, 5))
def test_slices_and_nulls_carry_ids_as_rows_do(rows: list[tuple[dict[str, str] | None, str | None]], cut: int) -> None:
    maps = properties(*(row for row, _ in rows)).slice(cut)
    ids = pa.array([own for _, own in rows], pa.string()).slice(cut)

    carrying = with_ids(maps, ids)

    expected = [
        row
        if own is None
        else {**{name: text for name, text in (row or {}).items() if name != ID_PROPERTY}, ID_PROPERTY: own}
        for row, own in rows[cut:]
    ]
    assert [row or {} for row in as_dicts(carrying)] == [row or {} for row in expected]


@given(MAPS, st.integers(0, 5))
def test_nulls_become_empty_and_nothing_else_changes(
    rows: list[tuple[dict[str, str] | None, str | None]], cut: int
) -> None:
    maps = properties(*(row for row, _ in rows)).slice(cut)

    assert as_dicts(filled(maps)) == [row or {} for row, _ in rows[cut:]]
    assert filled(maps).null_count == 0


def test_what_lies_under_a_null_is_not_there() -> None:
    keys, items = pa.array(["a", "b"]), pa.array(["1", "2"])
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), keys, items, mask=pa.array([True, False]))

    assert as_dicts(filled(maps)) == [{}, {"b": "2"}]
