"""The local hub: appending and reading, beside the same events as one Arrow IPC file.

Events of 200 bytes in batches of 1,000. Every batch is on the disk before it is acknowledged; the file, which has
no such duty, is synced once at its end. Best of several rounds: the machine is shared.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import Result, benchmark
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import OUTGOING_SCHEMA
from hubline.model.positions import Position

EVENT_BYTES: Final = 200
BATCH_COUNT: Final = 1_000
EVENT_COUNT: Final = 400_000
# As many partitions as a small hub has, each with its own sender or receiver.
PARTITION_COUNT: Final = 4
ROUNDS: Final = 3
# Not the system's choice, which may be memory: the point is what reaches a disk.
FOLDER: Final = "/var/tmp"  # noqa: S108


@benchmark("local-append")
def local_append() -> Iterator[Result]:
    """Appending: over several partitions at once, and to a single one."""
    file_seconds = best(write_file)
    for partition_count in (PARTITION_COUNT, 1):
        seconds = best(partial(append, partition_count))
        yield result(
            "local-append", partition_count, seconds, file_seconds, "writing one Arrow IPC file, synced at its end"
        )


@benchmark("local-read")
def local_read() -> Iterator[Result]:
    """Reading into Arrow, with all columns: over several partitions at once, and from a single one."""
    file_seconds = best(read_file)
    for partition_count in (PARTITION_COUNT, 1):
        seconds = best(partial(read, partition_count))
        yield result("local-read", partition_count, seconds, file_seconds, "reading one Arrow IPC file into memory")


def result(name: str, partition_count: int, seconds: float, file_seconds: float, against: str) -> Result:
    suffix = "" if partition_count > 1 else "-single"
    return Result(f"{name}{suffix}", EVENT_COUNT / seconds, "events/s", file_seconds / seconds, against)


def best(measure: Callable[[Path], float]) -> float:
    """The shortest of several rounds, each in a folder of its own on a real disk."""
    return min(_in_folder(measure) for _ in range(ROUNDS))


def _in_folder(measure: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as folder:
        return measure(Path(folder))


def batches() -> list[pa.RecordBatch]:
    """Some batches of random bodies, to be sent over and over."""
    return [_batch(seed) for seed in range(8)]


def _batch(seed: int) -> pa.RecordBatch:
    data = np.random.default_rng(seed).bytes(EVENT_BYTES * BATCH_COUNT)
    bodies = pa.FixedSizeBinaryArray.from_buffers(pa.binary(EVENT_BYTES), BATCH_COUNT, [None, pa.py_buffer(data)])
    columns = [bodies.cast(pa.binary()), *(pa.nulls(BATCH_COUNT, field.type) for field in list(OUTGOING_SCHEMA)[1:])]
    return pa.RecordBatch.from_arrays(columns, schema=OUTGOING_SCHEMA)


def append(partition_count: int, folder: Path) -> float:
    """Seconds to append all events."""

    async def measured() -> float:
        async with new_hub(folder, partition_count) as hub:
            return await _timed(fill(hub, partition_count))

    return asyncio.run(measured())


def read(partition_count: int, folder: Path) -> float:
    """Seconds to read all events."""

    async def measured() -> float:
        async with filled_hub(folder, partition_count) as hub:
            return await _timed(drained(hub, partition_count))

    return asyncio.run(measured())


@asynccontextmanager
async def new_hub(folder: Path, partition_count: int) -> AsyncIterator[LocalHub]:
    await create_hub(folder, "bench", partitions=partition_count)
    hub = LocalHub(folder, "bench")
    try:
        yield hub
    finally:
        await hub.close()


@asynccontextmanager
async def filled_hub(folder: Path, partition_count: int) -> AsyncIterator[LocalHub]:
    """A new hub with all events, spread evenly."""
    async with new_hub(folder, partition_count) as hub:
        await fill(hub, partition_count)
        yield hub


async def fill(hub: LocalHub, partition_count: int) -> None:
    """Appends all events, with one sender a partition."""

    async def fill_one(partition: str) -> None:
        sender = await hub.open_sender()
        for number in range(EVENT_COUNT // BATCH_COUNT // partition_count):
            await sender.send(supply[number % len(supply)], partition=partition)

    supply = batches()
    await asyncio.gather(*(fill_one(str(index)) for index in range(partition_count)))


async def drained(hub: LocalHub, partition_count: int) -> None:
    """Reads all events, with one receiver a partition, in batches as large as they were sent."""

    async def drain_one(partition: str) -> None:
        receiver = await hub.open_receiver(partition, group="$Default", position=Position.earliest(), epoch=1)
        left_count = EVENT_COUNT // partition_count
        while left_count:
            left_count -= len(await receiver.receive(max_count=BATCH_COUNT, wait_seconds=1))

    await asyncio.gather(*(drain_one(str(index)) for index in range(partition_count)))


async def _timed(call: Awaitable[None]) -> float:
    start = time.perf_counter()
    await call
    return time.perf_counter() - start


def write_file(folder: Path) -> float:
    """Seconds to write the same events as one Arrow IPC file."""
    supply = batches()
    start = time.perf_counter()
    _write(folder / "events.arrow", supply)
    return time.perf_counter() - start


def read_file(folder: Path) -> float:
    """Seconds to read the same events from one Arrow IPC file."""
    path = folder / "events.arrow"
    _write(path, batches())
    start = time.perf_counter()
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        count = sum(len(reader.get_batch(index)) for index in range(reader.num_record_batches))
    seconds = time.perf_counter() - start
    assert count == EVENT_COUNT
    return seconds


def _write(path: Path, supply: list[pa.RecordBatch]) -> None:
    with path.open("wb") as file:
        with pa.ipc.new_file(file, OUTGOING_SCHEMA) as writer:
            for number in range(EVENT_COUNT // BATCH_COUNT):
                writer.write_batch(supply[number % len(supply)])
        file.flush()
        os.fsync(file.fileno())
