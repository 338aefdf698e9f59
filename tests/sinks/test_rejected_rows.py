"""Bad rows are found among good ones, whatever the database says of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.sinks.sql_sink.rejected_rows import insert_skipping_rejected
from hubline.sinks.sql_sink.table_schema import Rejection


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    bad_rows=st.sets(st.integers(0, 100)),
    is_named=st.booleans(),
)
def test_the_rows_of_every_event_are_written_whole_and_once_and_in_order_or_refused(
    lengths: list[int], bad_rows: set[int], is_named: bool
) -> None:
    row_events = np.repeat(np.arange(len(lengths)) * 3, lengths)
    rows = pa.table({"row": list(range(len(row_events)))})
    bad_events = {int(row_events[row]) for row in bad_rows if row < len(row_events)}
    written: list[int] = []

    def attempt(part: pa.Table) -> None:
        numbers = part.column("row").to_pylist()
        found = [place for place, number in enumerate(numbers) if number in bad_rows]
        if found:
            raise Rejection("bad", kind="Bad", row=found[0] if is_named else None)
        written.extend(numbers)

    rejected = insert_skipping_rejected(rows, row_events, attempt)

    assert [one.event for one in rejected] == sorted(bad_events)
    assert written == [row for row, event in enumerate(row_events) if int(event) not in bad_events]


@pytest.mark.parametrize("is_named", [True, False])
def test_a_few_bad_rows_cost_little(is_named: bool) -> None:
    """The rows that are sent in all: not many times those that there are."""
    bad_rows = set(range(50, 5_000, 500))
    sent = attempts = 0

    def attempt(part: pa.Table) -> None:
        nonlocal sent, attempts
        sent, attempts = sent + len(part), attempts + 1
        found = [place for place, number in enumerate(part.column("row").to_pylist()) if number in bad_rows]
        if found:
            raise Rejection("bad", kind="Bad", row=found[0] if is_named else None)

    insert_skipping_rejected(pa.table({"row": list(range(5_000))}), np.arange(5_000), attempt)

    assert sent < (4 if is_named else 12) * 5_000
    assert attempts < (4 if is_named else 30) * len(bad_rows)
