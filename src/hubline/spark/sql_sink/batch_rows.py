"""The rows of a batch, and the events that they were made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hubline.errors import SinkError
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.keys import GroupKey
from hubline.sinks import OpenedPartition, Rejected
from hubline.sinks.sql_sink.deduplication import Deduplication, Flags
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.spark.dead_letter_rows import dead_letter_of, dead_letter_rows
from hubline.spark.json_parsing import ERROR_COLUMN

PARTITION: Final = "partition"
SEQUENCE: Final = "sequenceNumber"
OFFSET: Final = "offset"
PROPERTIES: Final = "properties"


@dataclass(frozen=True, slots=True)
class DeduplicatedRows:
    """Rows of events that the database does not have, and the ids that it has to record of them."""

    rows: pa.Table
    deduplications: tuple[tuple[OpenedPartition, Deduplication], ...] = ()
    duplicates: Mapping[str, RowEvents] = field(default_factory=dict)
    """The events of each partition that were left out."""


def deduplicated(opened: Mapping[str, tuple[OpenedPartition, int]], rows: pa.Table) -> DeduplicatedRows:
    """Leaves out the events that the database knows by their ids.

    Args:
        opened: By partition, the opened one and the first event of it that the batch reads. Rows of earlier events come
            late, from a query's state: the ids recorded of events after them say nothing of them, and all of these
            rows are kept.
        rows: Those of the batch.
    """
    kept, deduplications, duplicates = [rows.slice(0, 0)], [], {}
    for partition, part in by_partition(rows):
        if partition not in opened:
            kept.append(part)
            continue
        sink_partition, first = opened[partition]
        is_late = part.column(SEQUENCE).to_numpy() < first
        if is_late.any():
            kept.append(part.filter(pa.array(is_late)))
            part = part.filter(pa.array(~is_late))  # noqa: PLW2901 (the rest of it)
        # Once for each event, however many rows the query made of it.
        sequences, firsts, events = _distinct(part.column(SEQUENCE).to_numpy())
        properties = part.column(PROPERTIES)
        if not np.array_equal(firsts, np.arange(len(part))):
            properties = properties.take(pa.array(firsts))
        deduplication = sink_partition.deduplicate_events(properties.combine_chunks())
        kept.append(chosen(part, deduplication.is_fresh[events]))
        deduplications.append((sink_partition, deduplication))
        duplicates[partition] = sequences[~deduplication.is_fresh]
    return DeduplicatedRows(pa.concat_tables(kept), tuple(deduplications), duplicates)


def _distinct(sequences: RowEvents) -> tuple[RowEvents, RowEvents, RowEvents]:
    """The events, rising, where each has its first row, and which event each row is of."""
    if (np.diff(sequences) > 0).all():  # the common case, without sorting
        rows = np.arange(len(sequences))
        return sequences, rows, rows
    return np.unique(sequences, return_index=True, return_inverse=True)


def by_partition(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, in their order. Tasks read one partition after the other: mostly they are slices."""
    runs = pc.run_end_encode(rows.column(PARTITION).combine_chunks())
    partitions, ends = runs.values.to_pylist(), [0, *runs.run_ends.to_pylist()]
    if None in partitions or rows.column(SEQUENCE).null_count:
        raise SinkError("a row has no partition or no sequenceNumber. Keep these columns of the events unchanged.")
    if len(set(partitions)) == len(partitions):
        for partition, (start, end) in zip(partitions, pairwise(ends), strict=True):
            yield partition, rows.slice(start, end - start)
    else:
        for partition in dict.fromkeys(partitions):
            yield partition, rows.filter(pc.equal(rows.column(PARTITION), partition))


def events_of(rows: pa.Table) -> RowEvents | None:
    """A number for each row's event, which tells it from the others; None where the events are not known."""
    if not {PARTITION, SEQUENCE} <= set(rows.column_names) or rows.column(SEQUENCE).null_count:
        return None
    sequences: RowEvents = rows.column(SEQUENCE).to_numpy()
    partitions = rows.column(PARTITION).combine_chunks().dictionary_encode()
    if len(partitions.dictionary) <= 1:
        return sequences
    places = np.stack([partitions.indices.to_numpy().astype(np.int64), sequences])
    return np.unique(places, axis=1, return_inverse=True)[1].astype(np.int64).reshape(-1)


def chosen(rows: pa.Table, where: Flags) -> pa.Table:
    """The rows in question; mostly that is all of them, and nothing is copied."""
    return rows if where.all() else rows.filter(pa.array(where))


def have_failed(rows: pa.Table) -> Flags:
    """Which rows are dead letters."""
    if ERROR_COLUMN not in rows.column_names:
        return np.zeros(len(rows), np.bool_)
    failed: Flags = rows.column(ERROR_COLUMN).is_valid().to_numpy()
    return failed


def failed_events(group: GroupKey, rows: pa.Table) -> list[DeadLetter]:
    """Dead letters of rows that failed in the query."""
    return [
        dead_letter_of(group, row, kind="rejected", reason=str(row[ERROR_COLUMN]), stage=Stage.QUERY)
        for row in _first_rows(rows)
    ]


def rejected_events(
    group: GroupKey, rows: pa.Table, row_events: RowEvents, rejected: Sequence[Rejected]
) -> list[DeadLetter]:
    """Dead letters of the events whose rows the database does not take."""
    dead_letters = []
    for each in rejected:
        (row,) = dead_letter_rows(rows.slice(int(np.argmax(row_events == each.event)), 1))
        dead_letters.append(dead_letter_of(group, row, kind=each.kind, reason=each.reason, stage=Stage.SINK))
    return dead_letters


def _first_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The first row of each event: it gets one dead letter, however many rows the query made of it."""
    known: set[tuple[str, int]] = set()
    for row in dead_letter_rows(rows):
        place = row[PARTITION], row[SEQUENCE]
        if place not in known:
            known.add(place)
            yield row
