"""The table of appended batches in a partition's file: one row a batch, written and read in an open transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import starmap
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.errors import HubDamaged
from hubline.hubs.local.payload_part import PIECE_BYTES, PayloadPart
from hubline.hubs.local.sqlite_files import Where
from hubline.hubs.local.stored_batch import Payload, PayloadDamaged, StoredBatch, added_event_bytes, decode

# A read that asks for less than this gets the next batches as well: going to a thread and to the database costs as much
# as some hundred events. More would gain little, cost memory for every reader, and delay the first event.
READ_AHEAD_BYTES: Final = 1024 * 1024
READ_AHEAD_BATCHES: Final = 16

SCHEMA: Final = """
CREATE TABLE batches (
    first_sequence INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    enqueued_us INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX batches_by_time ON batches (enqueued_us);
"""


@dataclass(frozen=True, slots=True)
class _Row:
    first_sequence: int
    count: int
    enqueued_us: int
    checksum: int
    payload: bytes | None  # None: it is large


def insert_batches(
    connection: sqlite3.Connection, payloads: Sequence[Payload], *, next_sequence: int, enqueued_us: int
) -> int:
    """Adds batches in order, and returns the sequence number after them."""
    for payload in payloads:
        connection.execute(
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
            (next_sequence, payload.count, enqueued_us, payload.data.size, payload.checksum, payload.data),
        )
        next_sequence += payload.count
    return next_sequence


def first_sequence_at(connection: sqlite3.Connection, enqueued_us: int) -> int | None:
    """The first sequence number that was enqueued at the time or later, if there is one."""
    row = connection.execute(
        # Times never go back, so the first by time is also the first by sequence number.
        "SELECT first_sequence FROM batches WHERE enqueued_us >= ? ORDER BY enqueued_us, first_sequence LIMIT 1",
        (enqueued_us,),
    ).fetchone()
    return int(row[0]) if row else None


class BatchReader:
    """Reads batches in an open transaction. ``is_first``: a batch of which a part is read was not checked before."""

    def __init__(self, connection: sqlite3.Connection, where: Where, tag: int, *, is_first: bool) -> None:
        self._connection = connection
        self._where = where
        self._partition = where.partition or ""
        self._tag = tag
        self._is_first = is_first

    def read(self, next_sequence: int, *, max_count: int, max_bytes: int) -> list[StoredBatch]:
        """The good batches up to the first that is damaged. Raises HubDamaged if that is the one at ``next_sequence``.

        Of a first one that takes more than ``max_bytes`` in memory there is a part.
        """
        batches: list[StoredBatch] = []
        expected_sequence = next_sequence
        begin_sequence, end_sequence, is_whole = self._span(next_sequence, max_count, max_bytes)
        rows = self._connection.execute(
            "SELECT first_sequence, count, enqueued_us, checksum, CASE WHEN bytes <= ? AND ? THEN payload END "
            "FROM batches WHERE first_sequence >= ? AND first_sequence < ? ORDER BY first_sequence",
            (PIECE_BYTES, is_whole, begin_sequence, end_sequence),
        )
        with closing(rows):
            try:
                for row in starmap(_Row, rows):
                    skipped_count = expected_sequence - row.first_sequence
                    if not 0 <= skipped_count < row.count:
                        raise PayloadDamaged("a batch is missing")
                    if is_whole:
                        batches.append(self._batch(row).slice(skipped_count))
                    else:
                        batches.append(self._part(row, skipped_count, max_bytes))
                    expected_sequence = row.first_sequence + row.count
            except PayloadDamaged as error:
                if not batches:
                    raise _damaged_at(self._where, next_sequence, str(error)) from error
        if not batches:
            raise _damaged_at(self._where, next_sequence, "a batch is missing")
        return batches

    def _span(self, next_sequence: int, max_count: int, max_bytes: int) -> tuple[int, int, bool]:
        """Which batches to read, by their small columns alone, so that no payload is read in vain; and whether whole
        ones."""
        sizes = self._connection.execute(
            "SELECT first_sequence, count, bytes FROM batches WHERE first_sequence >= "
            "(SELECT max(first_sequence) FROM batches WHERE first_sequence <= ?) ORDER BY first_sequence",
            (next_sequence,),
        )
        added_bytes = added_event_bytes(self._partition)
        with closing(sizes):
            begin_sequence, count, size = sizes.fetchone() or (next_sequence, 0, 0)
            end_sequence, read_bytes, held_bytes = begin_sequence + count, size, size + count * added_bytes
            if held_bytes > max_bytes and count > 1:
                return begin_sequence, end_sequence, False
            for batch_count, (first_sequence, count, size) in enumerate(sizes, start=2):
                read_bytes += size
                held_bytes += size + count * added_bytes
                is_asked_for = first_sequence + count - next_sequence <= max_count
                is_small = read_bytes <= READ_AHEAD_BYTES and batch_count <= READ_AHEAD_BATCHES
                if held_bytes > max_bytes or not (is_asked_for or is_small):
                    break
                end_sequence = first_sequence + count
        return begin_sequence, end_sequence, True

    def _batch(self, row: _Row) -> StoredBatch:
        """All events of a batch. Raises PayloadDamaged, as the next."""
        payload = self._large_payload(row.first_sequence) if row.payload is None else pa.py_buffer(row.payload)
        return self._stored(row, row.first_sequence, decode(payload, count=row.count, checksum=row.checksum))

    def _part(self, row: _Row, start: int, max_bytes: int) -> StoredBatch:
        """The events of a large batch from one on, without the others in memory."""
        with self._blob(row.first_sequence) as blob:
            part = PayloadPart(blob, count=row.count)
            if not start or self._is_first:
                part.check(row.checksum)
            made = part.read(start, max_bytes=max_bytes, added_bytes=added_event_bytes(self._partition))
        return self._stored(row, row.first_sequence + start, made)

    def _stored(self, row: _Row, first_sequence: int, made: pa.RecordBatch) -> StoredBatch:
        count, time_us = np.array([made.num_rows]), np.array([row.enqueued_us])
        return StoredBatch(self._partition, first_sequence, str(self._tag), count, time_us, made)

    def _large_payload(self, first_sequence: int) -> pa.Buffer:
        """A payload, read piece by piece into memory that Arrow keeps. Fetched as one value it would pass through two
        large allocations that are given back to the system each time; to fetch their pages again takes longer than to
        read.
        """
        with self._blob(first_sequence) as blob:
            buffer = pa.allocate_buffer(len(blob))
            octets = np.frombuffer(buffer, np.uint8)
            for start in range(0, len(blob), PIECE_BYTES):
                piece = blob.read(PIECE_BYTES)  # what there is, at the end
                octets[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        return buffer

    def _blob(self, first_sequence: int) -> sqlite3.Blob:
        return self._connection.blobopen("batches", "payload", first_sequence, readonly=True)


def _damaged_at(where: Where, sequence: int, how: str) -> HubDamaged:
    return HubDamaged(
        f"{where} is damaged at sequence number {sequence}: {how}. The events before and after it are "
        "not affected. Restore the file from a backup, or read on from a later position.",
        hub=where.hub,
        partition=where.partition,
    )
