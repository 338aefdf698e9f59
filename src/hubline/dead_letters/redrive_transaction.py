"""A sink's transaction about letters that wait, in place of events that come.

What happens for each lot of letters of a partition, and what is left behind if it dies there:

    1. begin
    2. lock        the partition's letters against other redrives, and the rows of this lot against everybody
    3. rows        whatever the handler writes; or the events are sent to a hub
    4. letters     what failed again gets its new error, and counts one more
    5. settle      what succeeded is marked, or removed
    6. commit

Dying at 1 to 5 leaves all letters waiting as they were, and nothing of their rows: running it again begins with the
same letters. Dying at 6 leaves all of it or nothing. Only what was sent to a hub at 3 stays sent: it is sent again,
with the same id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from hubline.dead_letters.repository import read_dead_letter_row
from hubline.errors import SinkError, StoreUnavailable
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, Stage
from hubline.model.keys import PartitionKey
from hubline.sinks.sql_sink.connection import FenceState, SinkConnection, explained
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch, Deduplication
from hubline.sinks.sql_sink.opened_partition import OpenedPartition
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.sinks.sql_sink.sink import SqlSink
from hubline.sinks.sql_sink.transaction import Transaction
from hubline.sql.dead_letter_queries import DeadLetterQueries
from hubline.sql.dialect import Row, Statement
from hubline.sql.fence import NOBODY

LETTERS_COUNT_MAX = 100
"""Letters in one transaction: few enough for handlers of a second each, and for a hundred of the largest bodies."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Which letters a transaction takes: the oldest of a partition that are chosen, after one and up to another."""

    key: PartitionKey
    choice: DeadLetterSelection
    after_sequence: int
    last_sequence: int
    max_count: int = LETTERS_COUNT_MAX


class PartitionBusy(StoreUnavailable):
    """Another redrive is at the letters of this partition."""


class LetterTransaction(Transaction):
    """What is done in the database for one lot of letters. Used by one thread at a time.

    Handlers use it as they use the transaction of a batch. A letter that is given to :meth:`dead_letter` stays
    waiting; those of :meth:`leave` are not touched; the others are settled by the commit.
    """

    def __init__(self, sink: SqlSink, lot: Chunk, *, removes: bool = False) -> None:
        super().__init__(sink.database, ())
        self._lot = lot
        self._removes = removes
        self._taken: list[DeadLetter] | None = None
        self._left: set[int] = set()
        self._failed: dict[int, DeadLetter] = {}
        self._followers: dict[int, DeadLetter] = {}
        self.behind: frozenset[int] = frozenset()
        """Letters that an earlier one of their key, which was not chosen, still waits before."""
        self.ahead: frozenset[int] = frozenset()
        """Letters of events that come again, since the checkpoint was set back before them."""

    def take(self) -> list[DeadLetter]:
        """The letters, oldest first, locked until the end. Raises PartitionBusy if another redrive has them."""
        self._begun()
        assert self._taken is not None  # noqa: S101 (set when it has begun)
        return self._taken

    def leave(self, letters: Iterable[DeadLetter]) -> None:
        """These were not tried: they stay as they are."""
        self._left.update(letter.event.sequence_number for letter in letters)

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
        return [letter for letter in self._taken or () if not self._is_kept(letter)]

    def mark_handled(self, partition: OpenedPartition, sequences: RowEvents) -> None:
        """Nothing: the letters of these events are what this is about."""

    def record_ids(self, partition: OpenedPartition, deduplicated: DeduplicatedBatch | Deduplication) -> bool:  # noqa: ARG002
        """Nothing: the ids of these events were recorded when they failed."""
        return True

    def dead_letter(self, dead_letters: Sequence[DeadLetter]) -> None:
        connection = self._begun()
        own = {letter.event.sequence_number for letter in self._taken or ()}
        with explained(connection, None):
            for letter in dead_letters:
                if letter.key != self._lot.key or letter.event.sequence_number not in own:
                    raise SinkError(f"the event {letter.event.sequence_number} of {letter.key} is not being redriven")
                if letter.stage == Stage.QUARANTINE:
                    self._followers[letter.event.sequence_number] = letter
                else:
                    self._failed[letter.event.sequence_number] = letter
                    _run(connection, self._queries(connection).fail_again(letter))

    def commit(self) -> None:
        """Steps 5 and 6. Raises StoreUnavailable also where the answer to 6 is lost: running it again is safe."""
        try:
            connection = self._begun()
            with explained(connection, self._database.settings.table):
                if settled := [letter.event.sequence_number for letter in self.settled]:
                    _run(connection, self._queries(connection).settle(self._lot.key, settled, removes=self._removes))
            failure = self._commit(connection)
        except BaseException:
            self.rollback()
            raise
        if failure is not None:
            raise StoreUnavailable(
                f"whether letters of {self._lot.key} were redriven is not known: run it again, and what took effect "
                f"is not repeated ({failure})"
            )

    def again(self) -> Self:
        """This one, to be used once more after it was rolled back: from its beginning, for the same letters."""
        self._is_over = False
        return self

    def _forget(self) -> None:
        self._failed.clear()
        self._followers.clear()

    def _locked(self, connection: SinkConnection, found: Sequence[FenceState]) -> None:  # noqa: ARG002 - there is none
        """Step 2."""
        lot, queries = self._lot, self._queries(connection)
        ((is_locked,),) = _run(connection, queries.try_lock(lot.key))
        if not is_locked:
            raise PartitionBusy(f"another redrive is at the letters of {lot.key}")
        if (patience := queries.allow_long_pauses()) is not None:
            _run(connection, patience)
        rows = _run(
            connection,
            queries.take(
                lot.key,
                lot.choice,
                after_sequence=lot.after_sequence,
                last_sequence=lot.last_sequence,
                max_count=lot.max_count,
            ),
        )
        taken = [read_dead_letter_row(row[:-1]) for row in rows]
        if self._taken is not None and taken != self._taken:  # begun anew, after it was undone
            raise StoreUnavailable(f"letters of {lot.key} were changed meanwhile: run it again")
        self._taken = taken
        self.behind = frozenset(
            letter.event.sequence_number for letter, row in zip(taken, rows, strict=True) if row[-1]
        )
        self.ahead = frozenset(_ahead(connection.read_fence(lot.key), taken))

    def _is_kept(self, letter: DeadLetter) -> bool:
        sequence = letter.event.sequence_number
        return sequence in self._left or sequence in self._failed or sequence in self._followers

    def _queries(self, connection: SinkConnection) -> DeadLetterQueries:
        return DeadLetterQueries(connection.dialect)


def _ahead(held: FenceState, letters: Iterable[DeadLetter]) -> Iterator[int]:
    epoch, checkpoint = held
    if epoch == NOBODY:  # whose progress is not kept here
        return
    for letter in letters:
        if checkpoint is None or letter.event.sequence_number > checkpoint.sequence_number:
            yield letter.event.sequence_number


def _run(connection: SinkConnection, statement: Statement) -> list[Row]:
    return connection.execute(statement.query, statement.params)
