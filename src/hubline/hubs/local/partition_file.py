"""One partition: a database of appended batches, one row a batch, and of who reads it.

Sequence numbers start at 0 and have no gaps. What is left in the table is ``begin_sequence`` up to
``next_sequence - 1``; retention moves the former, appends the latter, and neither ever goes back.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import starmap
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.errors import HubDamaged, HubError, ReaderRefused, ReaderStolen
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
from hubline.hubs.local.stored_batch import Payload, PayloadDamaged, StoredBatch, decode, offset_sequence, offset_text
from hubline.hubs.position_check import PositionCheck
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position

# What one read takes into memory at most, beside a batch that is larger by itself.
READ_BYTES_MAX: Final = 16 * 1024 * 1024

# A read that asks for less than this gets the next batches as well: going to a thread and to the database costs as much
# as some hundred events. More would gain little, cost memory for every reader, and delay the first event.
READ_AHEAD_BYTES: Final = 1024 * 1024
READ_AHEAD_BATCHES: Final = 16

# A larger payload is read in pieces of this size: small enough to come from memory that the process has already.
PIECE_BYTES: Final = 64 * 1024

# What retention removes in one transaction, during which appenders wait: 24 ms for 4 MiB, 1 ms for 256 batches of one
# event, measured as medians on a busy machine. A batch that is larger by itself is removed alone.
TRIM_BYTES_MAX: Final = 4 * 1024 * 1024
TRIM_BATCHES_MAX: Final = 256

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_SCHEMA: Final = """
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    tag INTEGER NOT NULL,
    begin_sequence INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    last_enqueued_us INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE TABLE batches (
    first_sequence INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    enqueued_us INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX batches_by_time ON batches (enqueued_us);
CREATE TABLE readers (
    group_name TEXT PRIMARY KEY,
    reader_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    liveness_id TEXT
);
"""


def create_file(path: Path, tag: int) -> None:
    """An empty partition."""
    with closing(connect(path, create=True)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        # Readers and one writer at a time do not wait for each other, and a commit is one sequential write.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)
        connection.execute("INSERT INTO state VALUES (1, ?, 0, 0, 0, 0)", (tag,))


@dataclass(frozen=True, slots=True)
class ReaderLease:
    """A reader's right to read. It lasts while ``holder_id`` is what the partition says for the group.

    That is the id of the reader itself if it has an epoch; otherwise of the last one that had (None: there was
    none), which no longer lives. Readers without an epoch thus go on side by side until one with an epoch comes.
    """

    group: str
    epoch: int | None
    holder_id: str | None


@dataclass(frozen=True, slots=True)
class OpenedReader:
    """A reader that may start."""

    hold: ReaderLease
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Read:
    """What one look at the partition gave: whole batches from the reader's place on, perhaps none."""

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


@dataclass(frozen=True, slots=True)
class _Row:
    first_sequence: int
    count: int
    enqueued_us: int
    checksum: int
    payload: bytes | None  # None: it is large

    def stored_batch(self, partition: str, tag: int, connection: sqlite3.Connection) -> StoredBatch:
        """The events. Raises PayloadDamaged."""
        payload = (
            _large_payload(connection, self.first_sequence) if self.payload is None else pa.py_buffer(self.payload)
        )
        made = decode(payload, count=self.count, checksum=self.checksum)
        count, time_us = np.array([self.count]), np.array([self.enqueued_us])
        return StoredBatch(partition, self.first_sequence, str(tag), count, time_us, made)


def _large_payload(connection: sqlite3.Connection, first_sequence: int) -> pa.Buffer:
    """A payload, read piece by piece into memory that Arrow keeps. Fetched as one value it would pass through two
    large allocations that are given back to the system each time; to fetch their pages again takes longer than to read.
    """
    with connection.blobopen("batches", "payload", first_sequence, readonly=True) as blob:
        buffer = pa.allocate_buffer(len(blob))
        octets = np.frombuffer(buffer, np.uint8)
        for start in range(0, len(blob), PIECE_BYTES):
            piece = blob.read(PIECE_BYTES)  # what there is, at the end
            octets[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
    return buffer


@dataclass(frozen=True, slots=True)
class _Holder:
    reader_id: str
    epoch: int
    liveness_id: str | None


class Partition:
    """The file of one partition. Methods block; any thread may call them.

    ``missing`` says what it means that the file is gone: it is called then, and gives the error to raise.
    """

    def __init__(
        self, connections: Connections, where: Where, *, tag: int, missing: Callable[[Where], HubError]
    ) -> None:
        self._connections = connections
        self._where = where
        self._check = PositionCheck(where.hub)
        self._tag = tag
        self._missing = missing
        self.id = where.partition or ""

    def append(self, payloads: Sequence[Payload], *, now_us: int) -> None:
        """Stores the batches in order, all or none, and returns once they are on the disk."""
        with self._transaction(writes=True) as connection:
            state = self._state(connection)
            enqueued_us = max(now_us, state.last_enqueued_us)
            sequence = state.next_sequence
            for payload in payloads:
                connection.execute(
                    "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
                    (sequence, payload.count, enqueued_us, payload.data.size, payload.checksum, payload.data),
                )
                sequence += payload.count
            added_bytes = sum(payload.data.size for payload in payloads)
            connection.execute(
                "UPDATE state SET next_sequence = ?, last_enqueued_us = ?, bytes = bytes + ?",
                (sequence, enqueued_us, added_bytes),
            )
            # Dying before the commit keeps nothing; after it, everything, though the sender may not have heard.

    def describe(self) -> PartitionProperties:
        with self._transaction(writes=False) as connection:
            state = self._state(connection)
        return self._properties(state)

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
            holder = self._holder(connection, group)
            outranks = holder is not None and (epoch is None or holder.epoch > epoch)
            if holder and outranks and holder.liveness_id and is_alive(holder.liveness_id):
                raise self._refused(epoch, holder)
            state = self._state(connection)
            next_sequence = self._resolve(connection, state, position)
            hold = ReaderLease(group, epoch, holder.reader_id if holder else None)
            if epoch is not None:
                hold = ReaderLease(group, epoch, secrets.token_hex(16))
                connection.execute(
                    "INSERT OR REPLACE INTO readers VALUES (?, ?, ?, ?)",
                    (group, hold.holder_id, epoch, liveness_id),
                )
        return OpenedReader(hold, next_sequence)

    def release_reader(self, hold: ReaderLease) -> None:
        """Lets the partition go, unless another reader has taken it since."""
        with self._transaction(writes=True) as connection:
            # The row stays, so that a reader that lost to this one still learns so.
            connection.execute(
                "UPDATE readers SET liveness_id = NULL WHERE group_name = ? AND reader_id = ?",
                (hold.group, hold.holder_id),
            )

    def read(self, hold: ReaderLease, next_sequence: int, *, max_count: int) -> Read:
        """The batches from ``next_sequence`` on: whole ones, up to ``max_count`` events and READ_BYTES_MAX.

        There are more if they are small, and at least one. With ``max_count`` 0 none are read: that asks only
        whether the reader still holds the partition.
        """
        with self._transaction(writes=False) as connection:
            holder = self._holder(connection, hold.group)
            if hold.holder_id != (holder.reader_id if holder else None):
                raise self._stolen(hold, holder)
            state = self._state(connection)
            if not max_count or next_sequence == state.next_sequence:
                return Read([], state.last_sequence)
            self._resolve(connection, state, Position.sequence(next_sequence, inclusive=True))
            return Read(self._batches(connection, next_sequence, max_count), state.last_sequence)

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

    def _holder(self, connection: sqlite3.Connection, group: str) -> _Holder | None:
        row = connection.execute(
            "SELECT reader_id, epoch, liveness_id FROM readers WHERE group_name = ?", (group,)
        ).fetchone()
        return _Holder(*row) if row else None

    def _batches(self, connection: sqlite3.Connection, next_sequence: int, max_count: int) -> list[StoredBatch]:
        """The good batches up to the first that is damaged; an error if that is the one at ``next_sequence``."""
        batches: list[StoredBatch] = []
        expected_sequence = next_sequence
        rows = connection.execute(
            "SELECT first_sequence, count, enqueued_us, checksum, CASE WHEN bytes <= ? THEN payload END FROM batches "
            "WHERE first_sequence >= ? AND first_sequence < ? ORDER BY first_sequence",
            (PIECE_BYTES, *self._span(connection, next_sequence, max_count)),
        )
        with closing(rows):
            try:
                for row in starmap(_Row, rows):
                    skipped_count = expected_sequence - row.first_sequence
                    if not 0 <= skipped_count < row.count:
                        raise PayloadDamaged("a batch is missing")
                    batches.append(row.stored_batch(self.id, self._tag, connection).slice(skipped_count))
                    expected_sequence = row.first_sequence + row.count
            except PayloadDamaged as error:
                if not batches:
                    raise self._damaged_at(next_sequence, str(error)) from error
        if not batches:
            raise self._damaged_at(next_sequence, "a batch is missing")
        return batches

    def _span(self, connection: sqlite3.Connection, next_sequence: int, max_count: int) -> tuple[int, int]:
        """Which batches to read, by their small columns alone, so that no payload is read in vain."""
        sizes = connection.execute(
            "SELECT first_sequence, count, bytes FROM batches WHERE first_sequence >= "
            "(SELECT max(first_sequence) FROM batches WHERE first_sequence <= ?) ORDER BY first_sequence",
            (next_sequence,),
        )
        with closing(sizes):
            begin_sequence, count, total_bytes = sizes.fetchone() or (next_sequence, 0, 0)
            end_sequence = begin_sequence + count
            for batch_count, (first_sequence, count, size) in enumerate(sizes, start=2):
                total_bytes += size
                fits = first_sequence + count - next_sequence <= max_count and total_bytes <= READ_BYTES_MAX
                if not fits and (total_bytes > READ_AHEAD_BYTES or batch_count > READ_AHEAD_BATCHES):
                    break
                end_sequence = first_sequence + count
        return begin_sequence, end_sequence

    def _resolve(self, connection: sqlite3.Connection, state: _State, position: Position) -> int:
        """The sequence number that a reader starts with. Raises PositionInvalid."""
        value, held = position.value, self._properties(state)
        next_sequence = self._check.known_sequence(position, held)
        if next_sequence is not None:
            return next_sequence
        if isinstance(value, datetime):
            return self._sequence_at_time(connection, state, value, inclusive=position.inclusive)
        assert isinstance(value, str)  # noqa: S101 (the only kind left)
        sequence = offset_sequence(self._tag, value)
        if sequence is None:
            raise self._check.invalid("foreign", position, held)
        return self._check.checked_sequence(sequence if position.inclusive else sequence + 1, position, held)

    def _sequence_at_time(
        self, connection: sqlite3.Connection, state: _State, time: datetime, *, inclusive: bool
    ) -> int:
        microseconds = (time - _EPOCH) // _MICROSECOND
        row = connection.execute(
            # Times never go back, so the first by time is also the first by sequence number.
            "SELECT first_sequence FROM batches WHERE enqueued_us >= ? ORDER BY enqueued_us, first_sequence LIMIT 1",
            (microseconds if inclusive else microseconds + 1,),
        ).fetchone()
        return int(row[0]) if row else state.next_sequence

    def _refused(self, epoch: int | None, holder: _Holder) -> ReaderRefused:
        own = "no epoch" if epoch is None else f"epoch {epoch}"
        return ReaderRefused(
            f"{self._where} is being read with epoch {holder.epoch}, so a reader with {own} is refused",
            hub=self._where.hub,
            partition=self.id,
            epoch=epoch,
            held_epoch=holder.epoch,
        )

    def _stolen(self, hold: ReaderLease, holder: _Holder | None) -> HubError:
        if holder is None:
            return damaged(self._where, "it has lost track of its readers")
        return ReaderStolen(
            f"another reader took {self._where} with epoch {holder.epoch}",
            hub=self._where.hub,
            partition=self.id,
            epoch=hold.epoch,
            taken_by_epoch=holder.epoch,
        )

    def _damaged_at(self, sequence: int, how: str) -> HubDamaged:
        return HubDamaged(
            f"{self._where} is damaged at sequence number {sequence}: {how}. The events before and after it are "
            "not affected: restore the file from a backup, or read on from a later position",
            hub=self._where.hub,
            partition=self.id,
        )


def _time(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND
