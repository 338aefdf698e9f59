"""A sink's transaction about dead letters that wait, in place of events that come.

What happens for each batch of dead letters of a partition, and what is left behind if it dies there:

    1. begin
    2. lock        the partition's dead letters against other redrives, and the rows of this batch against all others
    3. rows        whatever the handler writes; or the events are sent to a hub
    4. dead letters     what failed again gets its new error, and counts one more
    5. settle      what succeeded is marked, or removed
    6. commit

Dying at 1 to 5 leaves all dead letters waiting as they were, and nothing of their rows: running it again begins with
the same dead letters. Dying at 6 leaves all of it or nothing. Only what was sent to a hub at 3 stays sent: it is sent
again, with the same id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from hubline.errors import SinkError, StoreUnavailable
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, Stage
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.connection import FenceState, SinkConnection, explained
from hubline.sinks.sql_sink.database import SinkDatabase
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch, Deduplication
from hubline.sinks.sql_sink.opened_partition import OpenedPartition
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.sinks.sql_sink.transaction import Transaction
from hubline.sql.dead_letter_queries import DeadLetterQueries
from hubline.sql.dead_letter_table import read_dead_letter_row
from hubline.sql.dialect import Row, Statement
from hubline.sql.fence import NOBODY

MAX_BATCH_SIZE = 100
"""Dead letters in one transaction: few enough for handlers of a second each, and for a hundred of the largest
bodies."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Which dead letters a transaction takes: the oldest of a partition that are selected, after one and up to
    another."""

    key: PartitionKey
    selection: DeadLetterSelection
    after_sequence: int
    last_sequence: int
    max_count: int = MAX_BATCH_SIZE


class PartitionBusy(StoreUnavailable):
    """Another redrive is at the dead letters of this partition."""


class RedriveTransaction(Transaction):
    """What is done in the database for one batch of dead letters. Used by one thread at a time.

    Handlers use it as they use the transaction of a batch. A dead letter that is given to :meth:`dead_letter` stays
    waiting; those of :meth:`leave` are not touched; the others are settled by the commit.
    """

    def __init__(self, database: SinkDatabase, chunk: Chunk, *, removes: bool = False) -> None:
        super().__init__(database, ())
        self._chunk = chunk
        self._removes = removes
        self._taken: list[DeadLetter] | None = None
        self._left: set[int] = set()
        self._failed: dict[int, DeadLetter] = {}
        self._followers: dict[int, DeadLetter] = {}
        self.behind: frozenset[int] = frozenset()
        """Dead letters that an earlier one of their key, which was not selected, still waits before."""
        self.ahead: frozenset[int] = frozenset()
        """Dead letters of events that are replayed, since the checkpoint was moved back before them."""

    def take(self) -> list[DeadLetter]:
        """The dead letters, oldest first, locked until the end. Raises PartitionBusy if another redrive has them."""
        self._begun()
        assert self._taken is not None  # noqa: S101 (set when it has begun)
        return self._taken

    def leave(self, dead_letters: Iterable[DeadLetter]) -> None:
        """These were not tried: they stay as they are."""
        self._left.update(dead_letter.event.sequence_number for dead_letter in dead_letters)

    @property
    def failed(self) -> Sequence[DeadLetter]:
        """What failed again, with its new error."""
        return list(self._failed.values())

    @property
    def followers(self) -> Sequence[DeadLetter]:
        """What was not tried, because an earlier one of its partition key failed again."""
        return list(self._followers.values())

    @property
    def settled(self) -> list[DeadLetter]:
        """What succeeded, as far as is known before the commit."""
        return [dead_letter for dead_letter in self._taken or () if not self._is_kept(dead_letter)]

    def resolve_dead_letters(self, partition: OpenedPartition, sequences: RowEvents) -> None:
        """Nothing: the dead letters of these events are what this is about."""

    def record_ids(self, partition: OpenedPartition, deduplicated: DeduplicatedBatch | Deduplication) -> bool:  # noqa: ARG002
        """Nothing: the ids of these events were recorded when they failed."""
        return True

    def end_at(self, checkpoint: Checkpoint) -> None:
        """Nothing: it moves no checkpoint."""

    def dead_letter(self, dead_letters: Sequence[DeadLetter]) -> None:
        connection = self._begun()
        own = {dead_letter.event.sequence_number for dead_letter in self._taken or ()}
        with explained(connection, None):
            for dead_letter in dead_letters:
                if dead_letter.key != self._chunk.key or dead_letter.event.sequence_number not in own:
                    raise SinkError(
                        f"event {dead_letter.event.sequence_number} of {dead_letter.key} is not part of this redrive. "
                        "Pass dead letters of the redrive only."
                    )
                if dead_letter.stage == Stage.QUARANTINE:
                    self._followers[dead_letter.event.sequence_number] = dead_letter
                else:
                    self._failed[dead_letter.event.sequence_number] = dead_letter
                    _run(connection, self._queries(connection).fail_again(dead_letter))

    def commit(self) -> None:
        """Steps 5 and 6. Raises StoreUnavailable also where the answer to 6 is lost: running it again is safe."""
        try:
            connection = self._begun()
            with explained(connection, self._database.settings.table):
                if settled := [dead_letter.event.sequence_number for dead_letter in self.settled]:
                    _run(connection, self._queries(connection).settle(self._chunk.key, settled, removes=self._removes))
            failure = self._commit(connection)
        except BaseException:
            self.rollback()
            raise
        if failure is not None:
            raise StoreUnavailable(
                f"hubline can't tell whether dead letters of {self._chunk.key} were redriven ({failure}). Run "
                "the redrive again; it skips those that were."
            )

    def again(self) -> Self:
        """This one, to be used once more after it was rolled back: from its beginning, for the same dead letters."""
        self._is_over = False
        return self

    def _on_undone(self) -> None:
        self._failed.clear()
        self._followers.clear()

    def _on_locked(self, connection: SinkConnection, found: Sequence[FenceState]) -> None:  # noqa: ARG002 - there is none
        """Step 2."""
        chunk, queries = self._chunk, self._queries(connection)
        ((is_locked,),) = _run(connection, queries.try_lock(chunk.key))
        if not is_locked:
            raise PartitionBusy(
                f"another redrive is working on the dead letters of {chunk.key}. Run the redrive again later."
            )
        if (patience := queries.allow_long_pauses()) is not None:
            _run(connection, patience)
        rows = _run(
            connection,
            queries.take(
                chunk.key,
                chunk.selection,
                after_sequence=chunk.after_sequence,
                last_sequence=chunk.last_sequence,
                max_count=chunk.max_count,
            ),
        )
        taken = [read_dead_letter_row(row[:-1]) for row in rows]
        if self._taken is not None and taken != self._taken:  # begun again, after it was undone
            raise StoreUnavailable(f"dead letters of {chunk.key} were changed during the redrive. Run it again.")
        self._taken = taken
        self.behind = frozenset(
            dead_letter.event.sequence_number for dead_letter, row in zip(taken, rows, strict=True) if row[-1]
        )
        self.ahead = frozenset(_ahead(connection.read_fence(chunk.key), taken))

    def _is_kept(self, dead_letter: DeadLetter) -> bool:
        sequence = dead_letter.event.sequence_number
        return sequence in self._left or sequence in self._failed or sequence in self._followers

    def _queries(self, connection: SinkConnection) -> DeadLetterQueries:
        return DeadLetterQueries(connection.dialect)


def _ahead(held: FenceState, dead_letters: Iterable[DeadLetter]) -> Iterator[int]:
    epoch, checkpoint = held
    if epoch == NOBODY:  # whose progress is not kept here
        return
    for dead_letter in dead_letters:
        if checkpoint is None or dead_letter.event.sequence_number > checkpoint.sequence_number:
            yield dead_letter.event.sequence_number


def _run(connection: SinkConnection, statement: Statement) -> list[Row]:
    return connection.execute(statement.query, statement.params)
