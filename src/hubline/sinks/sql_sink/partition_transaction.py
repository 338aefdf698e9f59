"""The transaction that moves partitions forward: rows, dead letters and checkpoints of a batch.

What it does, and what is left behind if the process dies there:

    1. begin
    2. lock         the checkpoint row; refused unless this epoch holds it and it stands where this writer left it
    3. rows         by COPY, or one prepared statement; those that the database rejects are found and left out
    4. ids          of events that were deduplicated; dead letters that waited for events handled now are done, and
                    those of the events that failed are added
    5. checkpoint   moves forward to the last event of the batch
    6. commit       until its answer has come, nobody knows; the fence, taken again, tells

PostgreSQL gets 1 and 2 in one message, and 5 and 6 in another. Dying at 1 to 5 leaves nothing: the next owner starts
from the old checkpoint. Dying at 6 leaves all of it or nothing, and the checkpoint row says which. A former owner that
wakes up finds another epoch at 2; one that was past 2 holds the row, and the new owner's fence waits for the end of
that transaction, and then starts after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hubline.errors import Fenced, SinkError, StoreError, StoreUnavailable
from hubline.model.dead_letters import DeadLetter
from hubline.model.ownership import Checkpoint
from hubline.retry import RetryPolicy
from hubline.sinks.sql_sink.connection import CommitPlan, FenceState, SinkConnection, explained
from hubline.sinks.sql_sink.database import SinkDatabase
from hubline.sinks.sql_sink.dead_letter_writer import DeadLetterWriter
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch, Deduplication
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.sinks.sql_sink.transaction import Transaction
from hubline.sql.fence import fenced
from hubline.text import sentences

if TYPE_CHECKING:
    from hubline.sinks.sql_sink.opened_partition import OpenedPartition

IDS_FORGOTTEN_EVERY_SECONDS = 60.0
"""How often a partition's transactions remove old ids: seldom enough to cost nothing."""

SETTLE: Final = RetryPolicy(max_attempts=4, initial_backoff_seconds=0.2, max_backoff_seconds=0.8)
"""Tries to learn what became of a commit without an answer, before that is left to the next opening."""


@dataclass(frozen=True, slots=True)
class Move:
    """How far a transaction brings a partition.

    Attributes:
        partition: The partition, opened.
        checkpoint: Its new checkpoint.
    """

    partition: OpenedPartition
    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        known = self.partition.checkpoint
        if known is not None and self.checkpoint.sequence_number <= known.sequence_number:
            raise SinkError(
                f"the sink has partition {self.partition.key} up to {known.sequence_number} already, and events "
                f"up to {self.checkpoint.sequence_number} would be written twice. To process them again, move "
                "the checkpoint back with `hubline checkpoints set`."
            )

    def check(self, held_epoch: int, stored: Checkpoint | None) -> None:
        """Check that the partition's epoch still holds it, and that nobody moved its checkpoint.

        Args:
            held_epoch: The epoch that holds the partition, as the database has it.
            stored: The checkpoint, as the database has it.

        Raises:
            Fenced: Another epoch holds the partition, or another writer moved the checkpoint.
        """
        partition = self.partition
        if held_epoch != partition.epoch:
            raise fenced(partition.key, epoch=partition.epoch, held_epoch=held_epoch)
        if _sequence(stored) != _sequence(partition.checkpoint):
            raise Fenced(
                f"the checkpoint of {partition.key} is at {_sequence(stored)} and not at "
                f"{_sequence(partition.checkpoint)}, where this owner left it: another writer uses epoch "
                f"{partition.epoch}. Nothing was written. Stop the other writer.",
                partition=partition.key.partition,
                epoch=partition.epoch,
                held_epoch=held_epoch,
            )


class PartitionTransaction(Transaction):
    """What is done in the database for one batch of one partition, or of several at once."""

    def __init__(self, database: SinkDatabase, moves: Iterable[Move]) -> None:
        # Always in the same order: transactions that overlap wait for each other, and never in a circle.
        self._moves = sorted(moves, key=lambda move: move.partition.key)
        partitions = [move.partition for move in self._moves]
        super().__init__(database, [partition.key for partition in partitions])
        self._dead_letters = DeadLetterWriter(partitions, keep_bodies=database.settings.keep_dead_letter_bodies)
        self._deduplicated: list[tuple[OpenedPartition, DeduplicatedBatch | Deduplication]] = []

    def resolve_dead_letters(self, partition: OpenedPartition, sequences: RowEvents) -> None:
        if len(sequences):
            connection = self._begun()
            with explained(connection, None):
                self._dead_letters.resolve(connection, partition.key, sequences)

    def dead_letter(self, dead_letters: Sequence[DeadLetter]) -> None:
        if dead_letters:
            connection = self._begun()
            with explained(connection, None):
                self._dead_letters.add(connection, dead_letters)

    def record_ids(self, partition: OpenedPartition, deduplicated: DeduplicatedBatch | Deduplication) -> bool:
        self._deduplicated.append((partition, deduplicated))
        if not deduplicated.ids:
            return True  # marks are written with the commit
        connection, group = self._begun(), partition.key.group_key
        with explained(connection, None):
            if connection.ids.add(group, deduplicated.ids) < len(deduplicated.ids):
                return False
            if time.monotonic() - partition.ids_forgotten_at > IDS_FORGOTTEN_EVERY_SECONDS:
                connection.ids.forget(group, age_seconds_max=self._database.settings.duplicate_window_seconds)
                partition.ids_forgotten_at = time.monotonic()
        return True

    def end_at(self, checkpoint: Checkpoint) -> None:
        self._moves = [
            Move(move.partition, checkpoint) if move.partition.key == checkpoint.key else move for move in self._moves
        ]

    def commit(self) -> None:
        """Steps 5 and 6. Where the answer to 6 is lost, finds out what happened.

        Raises:
            StoreUnavailable: The transaction did not take effect, or that cannot be found out now.
        """
        try:
            failure = self._commit(self._begun())
        except BaseException:
            self.rollback()
            raise
        if failure is not None:
            for move in self._moves:
                self._settle(move, failure)
        for move in self._moves:
            move.partition.checkpoint = move.checkpoint
        for partition, deduplicated in self._deduplicated:
            partition.marks = {**partition.marks, **deduplicated.marks}

    def _on_locked(self, connection: SinkConnection, found: Sequence[FenceState]) -> None:  # noqa: ARG002 - all is there
        for move, held in zip(self._moves, found, strict=True):
            move.check(*held)

    def _on_undone(self) -> None:
        self._deduplicated.clear()

    def _commit_plan(self) -> CommitPlan:
        return CommitPlan(
            self._rows.written,
            [(partition.key, deduplicated.marks) for partition, deduplicated in self._deduplicated],
            [(move.checkpoint, move.partition.epoch) for move in self._moves],
        )

    def _settle(self, move: Move, failure: StoreError) -> None:
        """Learns what became of a commit without an answer, by taking the fence again.

        That waits for the lost transaction, should it still be running, and then shows what it left.
        """
        partition = move.partition
        for attempt in range(1, SETTLE.max_attempts + 1):
            try:
                with self._database.connection() as connection:
                    stored = connection.take_fence(partition.key, partition.epoch)
            except StoreUnavailable:
                if attempt < SETTLE.max_attempts:
                    self._database.pause(SETTLE.delay(attempt, self._database.rng))
                continue
            if _sequence(stored) == move.checkpoint.sequence_number:
                return
            problem = f"the commit of {partition.key} did not take effect: {failure}"
            raise StoreUnavailable(sentences(problem, "hubline processes these events again"))
        raise StoreUnavailable(
            f"hubline can't tell whether the commit of {partition.key} took effect ({failure}). hubline "
            "checks it when it opens the partition again."
        )


def _sequence(checkpoint: Checkpoint | None) -> int | None:
    return None if checkpoint is None else checkpoint.sequence_number
