"""Where a partition's range of a batch stands to what the database has of the partition.

Spark runs a batch again after a crash, a task again after a failure, and sometimes two copies of a task at once. The
checkpoint in the database says how much of the range is written:

    checkpoint >= end of the range      done already, by an earlier run of this batch: nothing is written
    within the range                    another instance did a part: only the rest is written
    just before the range               the usual case
    before that                         an error: what lies between would be lost; unless the source skipped it, by
                                        the user's choice, over events that are gone
    after it, by a step back            an error: the hub is another one, which uses the same numbers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hubline.errors import SinkError
from hubline.hubs.position_check import OF_ANOTHER_HUB
from hubline.sinks import OpenedPartition
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.spark.source.offsets import Entry, Gap
from hubline.spark.sql_sink.batch_rows import PARTITION, SEQUENCE

_NONE: Final[RowEvents] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class RangeRules:
    """The ranges of a batch, and the gaps that the source skipped, by partition."""

    entries: Mapping[str, Entry]
    gaps: Mapping[str, Gap]

    def first(self, opened: OpenedPartition) -> int:
        """The first event of the range that the database does not have, and the source did not hand over before."""
        done = last_sequence(opened)
        return max(self.entries[opened.key.partition].new_start, -1 if done is None else done + 1)

    def is_done(self, opened: OpenedPartition) -> bool:
        done, end = last_sequence(opened), self.entries[opened.key.partition].end
        return end == 0 or (done is not None and done >= end - 1)  # before the very first event there is nothing to do

    def is_begun(self, opened: OpenedPartition) -> bool:
        done = last_sequence(opened)
        return done is not None and done >= self.entries[opened.key.partition].new_start

    def missing_rows(self, opened: OpenedPartition, rows: pa.Table) -> pa.Table:
        """The rows that the database does not have: neither by its checkpoint, nor as the source knows."""
        first = self.first(opened)
        if first <= self.entries[opened.key.partition].start:
            return rows
        return rows.filter(pc.greater_equal(rows.column(SEQUENCE), first))

    def handled(self, opened: OpenedPartition, duplicates: RowEvents = _NONE) -> RowEvents:
        """The events that are handled: all of the range that the database did not have, also without a row."""
        sequences = np.arange(self.first(opened), self.entries[opened.key.partition].end)
        return np.setdiff1d(sequences, duplicates, assume_unique=True)

    def require_read(self, partition: str, rows: pa.Table) -> None:
        """Refuses rows of events that the batch did not read: a function over whole rows may give any number."""
        entry = self.entries[partition]
        sequences = rows.column(SEQUENCE).to_numpy()
        strange = sequences[(sequences < entry.start) | (sequences >= entry.end)]
        if len(strange):
            raise SinkError(
                f"a row is of event {strange[0]} of partition {partition}, of which the batch reads "
                f"{entry.start} to {entry.end - 1}. Keep the columns {PARTITION} and {SEQUENCE} of the events "
                "unchanged."
            )

    def require_forward(self, opened: OpenedPartition) -> None:
        """Refuses a range after a step back: the hub was re-created, or lost its newest events. The database has
        events of the hub before, and sequence numbers that are used again would pass for done."""
        partition, done = opened.key.partition, last_sequence(opened)
        gap, start = self.gaps.get(partition), self.entries[partition].start
        if gap is not None and done is not None and start < gap.next_sequence <= done + 1:
            raise SinkError(
                f"{opened.database} has {opened.key} up to sequence number {done}, and the hub now begins again "
                f"at {start}: {OF_ANOTHER_HUB}, and the checkpoint of a table does not move back. To read this "
                "hub from its start, reset the checkpoint with `hubline checkpoints reset`."
            )

    def require_next(self, opened: OpenedPartition) -> None:
        """Refuses a range that does not begin where the database ends, unless the source itself skipped it."""
        done, start = last_sequence(opened), self.entries[opened.key.partition].new_start
        if done is not None and done < start - 1 and opened.key.partition not in self.gaps:
            raise SinkError(
                f"{opened.database} has {opened.key} up to sequence number {done}, and the batch starts at "
                f"{start}: the events between would be lost. The query's checkpoint location belongs to another "
                "sink. Start with a new one, or set the checkpoint with `hubline checkpoints set`."
            )


def last_sequence(opened: OpenedPartition) -> int | None:
    """The last event that the database has of a partition."""
    return opened.checkpoint.last_sequence if opened.checkpoint else None
