"""Commits in the driver: all rows of a micro-batch, and the checkpoints of all its partitions, in one transaction.

A query with state gives rows of earlier events, also in batches that read nothing, which Spark runs when a watermark
has ended windows. Its batches are known by their number: what the query has in the database under this number, or a
later one, is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from hubline.errors import SinkError
from hubline.model.ownership import Checkpoint
from hubline.sinks import Move, OpenedPartition, SqlSink
from hubline.spark.sql_sink.batch_target import BatchTarget, Written
from hubline.spark.sql_sink.range_rules import last_sequence

# Where the number of the last batch of a query with state is kept. Only its own query writes it.
_STATE: Final = "state"
_STATE_EPOCH: Final = 1


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """Writes the rows of a whole micro-batch."""

    target: BatchTarget

    def commit_all(self, partitions: Sequence[str], rows: pa.Table) -> Written:
        """Writes the rows and moves all partitions, or nothing if that is done."""
        rules = self.target.rules

        def attempt(sink: SqlSink) -> Written:
            opened = self._joined(sink, partitions)
            pending = [partition for partition in opened if not rules.is_done(opened[partition])]
            if not pending:
                return Written()
            if len(pending) < len(opened) or any(rules.is_begun(each) for each in opened.values()):
                raise SinkError(
                    f"another instance already wrote a part of this batch to {sink!r}. hubline cannot tell its rows "
                    "from the others, because the query moves rows between tasks. Give each instance its own "
                    "consumer group."
                )
            with sink.transaction(self._moves(opened)) as transaction:
                return self.target.write(transaction, opened, rows)

        return self.target.persist(attempt, what=self.target.group)

    def commit_state(self, query_id: str, batch_id: int, partitions: Sequence[str], rows: pa.Table) -> Written:
        """The same for a query with state, whose rows come of earlier events, too, such as windows that are over.

        There may be no event in its batch, and no range tells whether that is done; the number of the batch does. It is
        kept as the checkpoint of a partition would be, in a group of the query's own.
        """
        group, rules = self.target.group, self.target.rules
        key = replace(group, group=f"{group.group}#{query_id}").partition(_STATE)

        def attempt(sink: SqlSink) -> Written:
            state = sink.join(key, _STATE_EPOCH)
            done = last_sequence(state)
            if done is not None and done >= batch_id:
                return Written()
            opened = self._joined(sink, partitions)
            is_begun = any(rules.is_begun(each) for each in opened.values())
            if is_begun and not sink.upsert_key:
                raise SinkError(
                    "another application, or this query with another checkpoint location, already wrote events of "
                    f"this batch to {sink!r}. hubline cannot tell their rows from those of this batch. Restart with "
                    "that checkpoint location, or use a new consumer group and a new table."
                )
            opened = {each: partition for each, partition in opened.items() if not rules.is_done(partition)}
            if not (opened or len(rows)):
                return Written()
            moves = [*self._moves(opened), Move(state, Checkpoint(key, "", batch_id))]
            with sink.transaction(moves) as transaction:
                return self.target.write(transaction, opened, rows)

        return self.target.persist(attempt, what=key)

    def _joined(self, sink: SqlSink, partitions: Sequence[str]) -> dict[str, OpenedPartition]:
        """The partitions, opened; those that have had an event."""
        group, rules = self.target.group, self.target.rules
        opened = {each: sink.join(group.partition(each), rules.entries[each].epoch) for each in partitions}
        for each in opened.values():
            rules.require_forward(each)
        return {each: partition for each, partition in opened.items() if rules.entries[each].end > 0}

    def _moves(self, opened: Mapping[str, OpenedPartition]) -> list[Move]:
        """All of them to the end of the batch."""
        rules = self.target.rules
        for each in opened.values():
            rules.require_next(each)
        ends = {each: rules.entries[each].end for each in opened}
        return [Move(opened[each], Checkpoint(opened[each].key, "", end - 1)) for each, end in ends.items()]
