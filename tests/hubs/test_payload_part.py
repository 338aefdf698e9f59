"""Parts of a stored batch, read without the rest of it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from hubline.hubs.local.payload_part import PayloadPart
from hubline.hubs.local.stored_batch import PayloadDamaged, encode
from hubline.model.events import new_events

COUNT = 2_000
ADDED_BYTES = 43


def made() -> pa.RecordBatch:
    rng = random.Random(3)
    return new_events(
        {
            "body": rng.randbytes(rng.choice([0, 5, 100, 700])),
            "partitionKey": rng.choice([None, "", f"key {number}"]),
            "properties": rng.choice([None, {"a": "b"}, {f"name {number}": "v" * rng.randrange(30), "": ""}]),
        }
        for number in range(COUNT)
    )


@contextmanager
def stored(payload: bytes) -> Iterator[sqlite3.Blob]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE batches (payload BLOB)")
    connection.execute("INSERT INTO batches VALUES (?)", (payload,))
    with connection.blobopen("batches", "payload", 1, readonly=True) as blob:
        yield blob
    connection.close()


def test_parts_one_after_the_other_are_the_whole_and_each_fits() -> None:
    events = made()
    (payload,) = encode(events)
    parts: list[pa.RecordBatch] = []
    with stored(payload.data) as blob:
        for max_bytes in (1, 100, 5_000, 70_000, 10_000_000):
            start = sum(map(len, parts))
            part = PayloadPart(blob, count=COUNT).read(start, max_bytes=max_bytes, added_bytes=ADDED_BYTES)
            assert len(part) == 1 or part.get_total_buffer_size() + len(part) * ADDED_BYTES <= max_bytes
            parts.append(part)

    assert [len(part) for part in parts[:2]] == [1, 1]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([events]))


def test_what_is_not_what_was_written_is_found() -> None:
    (payload,) = encode(made())
    damaged = bytearray(payload.data)
    damaged[-100] ^= 1

    with stored(payload.data) as blob:
        PayloadPart(blob, count=COUNT).check(payload.checksum)
    with stored(bytes(damaged)) as blob, pytest.raises(PayloadDamaged, match="do not match their checksum"):
        PayloadPart(blob, count=COUNT).check(payload.checksum)
    with stored(payload.data) as blob, pytest.raises(PayloadDamaged, match="instead of"):
        PayloadPart(blob, count=COUNT + 1).read(0, max_bytes=1, added_bytes=ADDED_BYTES)
