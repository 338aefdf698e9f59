"""One partition: a database of appended batches, one row a batch, and of who reads it.

Sequence numbers start at 0 and have no gaps. What is left in the table is ``begin_sequence`` up to
``next_sequence - 1``; retention moves the former, appends the latter, and neither ever goes back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from hubline.errors import HubError
from hubline.hubs.local import batch_table, reader_table
from hubline.hubs.local.reader_table import ReaderLease
from hubline.hubs.local.sqlite_files import (
    PAGE_BYTES,
    Connections,
    FileMissing,
    Where,
    connect,
    damaged,
    hub_errors,
    transaction,
)
from hubline.hubs.local.stored_batch import Payload, StoredBatch, offset_sequence, offset_text
from hubline.hubs.position_check import PositionCheck
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position

# What retention removes in one transaction, during which appenders wait: 24 ms for 4 MiB, 1 ms for 256 batches of one
# event, measured as medians on a busy machine. A batch that is larger by itself is removed alone.
TRIM_BYTES_MAX: Final = 4 * 1024 * 1024
TRIM_BATCHES_MAX: Final = 256

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_STATE_SCHEMA: Final = """
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    tag INTEGER NOT NULL,
    begin_sequence INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    last_enqueued_us INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
"""


def create_file(path: Path, tag: int) -> None:
    """An empty partition."""
    with closing(connect(path, create=True)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        # Readers and one writer at a time do not wait for each other, and a commit is one sequential write.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_STATE_SCHEMA + batch_table.SCHEMA + reader_table.SCHEMA)
        connection.execute("INSERT INTO state VALUES (1, ?, 0, 0, 0, 0)", (tag,))


@dataclass(frozen=True, slots=True)
class OpenedReader:
    """A reader that may start."""

    lease: ReaderLease
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Read:
    """What one look at the partition gave: batches from the reader's place on, perhaps none."""

    batches: list[StoredBatch]
    last_sequence: int


@dataclass(frozen=True, slots=True)
class _State:
    begin_sequence: int
    next_sequence: int
    last_enqueued_us: int
    bytes: int

    @property
    def last_sequence(self) -> int:
        return self.next_sequence - 1


class Partition:
    """The file of one partition. Methods block; any thread may call them.

    ``missing`` says what it means that the file is gone: it is called then, and gives the error to raise.
    """

    def __init__(
        self, connections: Connections, where: Where, *, tag: int, missing: Callable[[Where], HubError]
    ) -> None:
        self._connections = connections
        self._where = where
        self.check = PositionCheck(where.hub)
        self._tag = tag
        self._missing = missing
        self.id = where.partition or ""

    def append(self, payloads: Sequence[Payload], *, now_us: int) -> None:
        """Stores the batches in order, all or none, and returns once they are on the disk."""
        with self._transaction(writes=True) as connection:
            state = self._state(connection)
            enqueued_us = max(now_us, state.last_enqueued_us)
            next_sequence = batch_table.insert_batches(
                connection, payloads, next_sequence=state.next_sequence, enqueued_us=enqueued_us
            )
            added_bytes = sum(payload.data.size for payload in payloads)
            connection.execute(
                "UPDATE state SET next_sequence = ?, last_enqueued_us = ?, bytes = bytes + ?",
                (next_sequence, enqueued_us, added_bytes),
            )
            # Dying before the commit keeps nothing; after it, everything, though the sender may not have heard.

    def describe(self) -> PartitionProperties:
        with self._transaction(writes=False) as connection:
            state = self._state(connection)
        return self._properties(state)

    def open_reader(
        self,
        group: str,
        position: Position,
        *,
        epoch: int | None,
        liveness_id: str | None,
        is_alive: Callable[[str], bool],
    ) -> OpenedReader:
        """Finds where to start and takes the partition, in one transaction: a reader that cannot start takes nothing.

        ``liveness_id`` stands for the process of the new reader, and ``is_alive`` judges that of the present one.
        """
        with self._transaction(writes=epoch is not None) as connection:
            holder = reader_table.find_holder(connection, group)
            outranks = holder is not None and (epoch is None or holder.epoch > epoch)
            if holder and outranks and holder.liveness_id and is_alive(holder.liveness_id):
                raise reader_table.refused(self._where, epoch, holder)
            next_sequence = self._resolve(connection, self._state(connection), position)
            lease = ReaderLease(group, epoch, holder.reader_id if holder else None)
            if epoch is not None:
                lease = reader_table.take_over(connection, group, epoch=epoch, liveness_id=liveness_id)
        return OpenedReader(lease, next_sequence)

    def release_reader(self, lease: ReaderLease) -> None:
        """Lets the partition go, unless another reader has taken it since."""
        with self._transaction(writes=True) as connection:
            reader_table.release(connection, lease)

    def read(self, lease: ReaderLease, next_sequence: int, *, max_count: int, max_bytes: int, is_first: bool) -> Read:
        """The batches from ``next_sequence`` on: whole ones, up to ``max_count`` events and ``max_bytes`` in memory.

        There are more events if batches are small. Of a batch that is larger by itself there is a part, of one event at
        least; a reader whose first call this is has it checked as a whole. With ``max_count`` 0 none are read: that
        asks only whether the reader still holds the partition.
        """
        with self._transaction(writes=False) as connection:
            reader_table.require_held(connection, self._where, lease)
            state = self._state(connection)
            if not max_count or next_sequence == state.next_sequence:
                return Read([], state.last_sequence)
            self._resolve(connection, state, Position.sequence(next_sequence, inclusive=True))
            table = batch_table.BatchReader(connection, self._where, self._tag, is_first=is_first)
            batches = table.read(next_sequence, max_count=max_count, max_bytes=max_bytes)
            return Read(batches, state.last_sequence)

    def trim(self, *, before_us: int | None, bytes_max: int | None) -> int:
        """Removes the oldest batches: those from before ``before_us``, and those in excess of ``bytes_max``.

        Returns how many events that were. Appenders come in between.
        """
        removed_count = 0
        while step_count := self._trim_step(before_us, bytes_max):
            removed_count += step_count
        return removed_count

    def _trim_step(self, before_us: int | None, bytes_max: int | None) -> int:
        with self._transaction(writes=True) as connection:
            state = self._state(connection)
            begin_sequence, left_bytes = state.begin_sequence, state.bytes
            oldest = connection.execute(
                "SELECT first_sequence, count, enqueued_us, bytes FROM batches ORDER BY first_sequence LIMIT ?",
                (TRIM_BATCHES_MAX,),
            )
            for first_sequence, count, enqueued_us, size in oldest:
                is_newest = first_sequence + count == state.next_sequence
                is_expired = before_us is not None and enqueued_us < before_us
                is_excess = bytes_max is not None and left_bytes > bytes_max and not is_newest
                is_full_step = (
                    begin_sequence > state.begin_sequence and state.bytes - left_bytes + size > TRIM_BYTES_MAX
                )
                if not (is_expired or is_excess) or is_full_step:
                    break
                begin_sequence = first_sequence + count
                left_bytes -= size
            if begin_sequence > state.begin_sequence:
                connection.execute("DELETE FROM batches WHERE first_sequence < ?", (begin_sequence,))
                connection.execute("UPDATE state SET begin_sequence = ?, bytes = ?", (begin_sequence, left_bytes))
        return begin_sequence - state.begin_sequence

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[sqlite3.Connection]:
        try:
            with (
                hub_errors(self._where),
                self._connections.use(self._where.path) as connection,
                transaction(connection, writes=writes),
            ):
                yield connection
        except FileMissing:
            raise self._missing(self._where) from None

    def _state(self, connection: sqlite3.Connection) -> _State:
        row = connection.execute(
            "SELECT tag, begin_sequence, next_sequence, last_enqueued_us, bytes FROM state"
        ).fetchone()
        if row is None or not all(isinstance(value, int) for value in row):
            raise damaged(self._where, "it does not say what it holds")
        tag, *rest = row
        state = _State(*rest)
        if tag != self._tag or not 0 <= state.begin_sequence <= state.next_sequence:
            raise damaged(self._where, f"what it says it holds cannot be ({state})")
        return state

    def _properties(self, state: _State) -> PartitionProperties:
        has_had_events = state.next_sequence > 0
        return PartitionProperties(
            self.id,
            begin_sequence=state.begin_sequence,
            last_sequence=state.last_sequence,
            last_offset=offset_text(self._tag, state.last_sequence) if has_had_events else None,
            last_enqueued_time=_time(state.last_enqueued_us) if has_had_events else None,
            bytes_count=state.bytes,
        )

    def _resolve(self, connection: sqlite3.Connection, state: _State, position: Position) -> int:
        """The sequence number that a reader starts with. Raises PositionInvalid."""
        value, held = position.value, self._properties(state)
        next_sequence = self.check.known_sequence(position, held)
        if next_sequence is not None:
            return next_sequence
        if isinstance(value, datetime):
            microseconds = (value - _EPOCH) // _MICROSECOND + (0 if position.inclusive else 1)
            first_sequence = batch_table.first_sequence_at(connection, microseconds)
            return state.next_sequence if first_sequence is None else first_sequence
        assert isinstance(value, str)  # noqa: S101 (the only kind left)
        sequence = offset_sequence(self._tag, value)
        if sequence is None:
            raise self.check.invalid("foreign", position, held)
        return self.check.checked_sequence(sequence if position.inclusive else sequence + 1, position, held)


def _time(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND
