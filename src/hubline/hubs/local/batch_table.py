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
from hubline.hubs.local.sqlite_files import Where
from hubline.hubs.local.stored_batch import Payload, PayloadDamaged, StoredBatch, decode

# What one read takes into memory at most, beside a batch that is larger by itself.
READ_BYTES_MAX: Final = 16 * 1024 * 1024

# A read that asks for less than this gets the next batches as well: going to a thread and to the database costs as much
# as some hundred events. More would gain little, cost memory for every reader, and delay the first event.
READ_AHEAD_BYTES: Final = 1024 * 1024
READ_AHEAD_BATCHES: Final = 16

# A larger payload is read in pieces of this size: small enough to come from memory that the process has already.
PIECE_BYTES: Final = 64 * 1024

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

    def stored_batch(self, partition: str, tag: int, connection: sqlite3.Connection) -> StoredBatch:
        """The events. Raises PayloadDamaged."""
        payload = (
            _large_payload(connection, self.first_sequence) if self.payload is None else pa.py_buffer(self.payload)
        )
        made = decode(payload, count=self.count, checksum=self.checksum)
        count, time_us = np.array([self.count]), np.array([self.enqueued_us])
        return StoredBatch(partition, self.first_sequence, str(tag), count, time_us, made)


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


def read_batches(
    connection: sqlite3.Connection, where: Where, next_sequence: int, *, max_count: int, tag: int
) -> list[StoredBatch]:
    """The good batches up to the first that is damaged. Raises HubDamaged if that is the one at ``next_sequence``."""
    batches: list[StoredBatch] = []
    expected_sequence = next_sequence
    rows = connection.execute(
        "SELECT first_sequence, count, enqueued_us, checksum, CASE WHEN bytes <= ? THEN payload END FROM batches "
        "WHERE first_sequence >= ? AND first_sequence < ? ORDER BY first_sequence",
        (PIECE_BYTES, *_span(connection, next_sequence, max_count)),
    )
    with closing(rows):
        try:
            for row in starmap(_Row, rows):
                skipped_count = expected_sequence - row.first_sequence
                if not 0 <= skipped_count < row.count:
                    raise PayloadDamaged("a batch is missing")
                batches.append(row.stored_batch(where.partition or "", tag, connection).slice(skipped_count))
                expected_sequence = row.first_sequence + row.count
        except PayloadDamaged as error:
            if not batches:
                raise _damaged_at(where, next_sequence, str(error)) from error
    if not batches:
        raise _damaged_at(where, next_sequence, "a batch is missing")
    return batches


def first_sequence_at(connection: sqlite3.Connection, enqueued_us: int) -> int | None:
    """The first sequence number that was enqueued at the time or later, if there is one."""
    row = connection.execute(
        # Times never go back, so the first by time is also the first by sequence number.
        "SELECT first_sequence FROM batches WHERE enqueued_us >= ? ORDER BY enqueued_us, first_sequence LIMIT 1",
        (enqueued_us,),
    ).fetchone()
    return int(row[0]) if row else None


def _span(connection: sqlite3.Connection, next_sequence: int, max_count: int) -> tuple[int, int]:
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


def _damaged_at(where: Where, sequence: int, how: str) -> HubDamaged:
    return HubDamaged(
        f"{where} is damaged at sequence number {sequence}: {how}. The events before and after it are "
        "not affected: restore the file from a backup, or read on from a later position",
        hub=where.hub,
        partition=where.partition,
    )
