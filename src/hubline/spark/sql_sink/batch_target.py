"""Where the rows of a micro-batch are written, and how: the part that tasks and the driver have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from hubline.errors import Fenced, RowsRejected, SinkError
from hubline.model.keys import GroupKey, PartitionKey
from hubline.sinks import OpenedPartition, SqlSink, Transaction
from hubline.sinks.sql_sink.connection import Altered
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.spark.sql_sink.batch_rows import (
    DeduplicatedRows,
    chosen,
    deduplicated,
    events_of,
    failed_events,
    have_failed,
    rejected_events,
)
from hubline.spark.sql_sink.range_rules import RangeRules
from hubline.spark.tasks.databases import shared_sink

FENCE_ATTEMPTS_MAX: Final = 5
"""A partition changes hands seldom: being overtaken so often in a row is a fault."""

_NONE: Final[RowEvents] = np.empty(0, np.int64)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of a micro-batch; less than the batch has, where an earlier run of it had written some.

    Attributes:
        rows: Rows that the table took.
        dead_letters: Events that were stored as dead letters.
        duplicates: Events that were left out, because an earlier stage had published them before.
    """

    rows: int = 0
    dead_letters: int = 0
    duplicates: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            self.rows + other.rows, self.dead_letters + other.dead_letters, self.duplicates + other.duplicates
        )


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """The table, the columns to write, and the ranges of the batch. Pickled with each task, without connections.

    The columns are looked up once for a batch: one that the table gets meanwhile has its values from the next batch on.
    """

    sink: SqlSink
    columns: Sequence[str]
    group: GroupKey
    rules: RangeRules

    def persist(self, attempt: Callable[[SqlSink], T], *, what: GroupKey | PartitionKey) -> T:
        """Tries again where a partition was taken or moved since it was opened: what its row says now counts.

        So, too, where the table was altered, which may be harmless: each process finds that out for itself, and would
        fail the query once. And where a commit was rejected: now that it is known that constraints wait for it, the
        rows are tried one by one.
        """
        with shared_sink(self.sink) as sink:
            for number in range(FENCE_ATTEMPTS_MAX):
                try:
                    return attempt(sink)
                except (Fenced, _Overtaken):
                    continue
                except Altered:
                    if number == FENCE_ATTEMPTS_MAX - 1:
                        raise
                except RowsRejected:
                    if number > 0:
                        raise
        raise SinkError(
            f"{what} changed its owner {FENCE_ATTEMPTS_MAX} times while a batch was being written. Run only "
            "one query for the consumer group and table."
        )

    def write(
        self,
        transaction: Transaction,
        opened: Mapping[str, OpenedPartition],
        rows: pa.Table,
        *,
        has_events: bool = True,
    ) -> Written:
        """Writes the rows of these partitions without duplicates, and dead letters for those that failed.

        Raises EventsMissing if there is a dead letter, and the rows came without what it keeps of its event.
        """
        fresh = DeduplicatedRows(rows)
        if self.sink.drop_duplicates != "off":
            first = {each: (partition, self.rules.first(partition)) for each, partition in opened.items()}
            fresh = deduplicated(first, rows)
        failed = have_failed(fresh.rows)
        good = chosen(fresh.rows, ~failed)
        row_events = events_of(good)
        _require_events(has_events, needed=bool(failed.any()))
        transaction.insert(good.select(self.columns), row_events=row_events)
        _require_events(has_events, needed=bool(transaction.rejected))
        dead_letters = failed_events(self.group, chosen(fresh.rows, failed))
        rows_count = len(good)
        if row_events is not None:
            dead_letters += rejected_events(self.group, good, row_events, transaction.rejected)
            rows_count -= int(np.isin(row_events, [each.event for each in transaction.rejected]).sum())
        for each in opened.values():
            duplicates = fresh.duplicates.get(each.key.partition, _NONE)
            transaction.resolve_dead_letters(each, self.rules.handled(each, duplicates))
        transaction.dead_letter(dead_letters)
        for partition, deduplication in fresh.deduplications:
            if not transaction.record_ids(partition, deduplication):
                raise _Overtaken
        return Written(rows_count, len(dead_letters), sum(map(len, fresh.duplicates.values())))


class EventsMissing(Exception):
    """A row is a dead letter, and came without its event: nothing is written."""


class _Overtaken(Exception):
    """Another partition took an id of this batch, meanwhile."""


def _require_events(has_events: bool, *, needed: bool) -> None:
    if needed and not has_events:
        raise EventsMissing
