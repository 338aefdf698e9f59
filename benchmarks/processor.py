"""The processor: from the hub to the handler, beside bare receivers of the same partitions.

Events of 200 bytes. The handler looks at the columns, as a fast one does; checkpoints go to SQLite every second.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.harness import Result, benchmark
from benchmarks.local_hub import EVENT_COUNT, PARTITION_COUNT, best, drained, filled_hub, new_hub
from hubline import CheckpointPolicy, EventBatch, LeaseOptions, Position, Processor, ProcessorOptions, new_events
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.hubs.local import LocalHub

BATCH_COUNT_MAX: Final = 1_000
LATENCY_COUNT: Final = 200


@benchmark("processor-throughput")
def processor_throughput() -> Iterator[Result]:
    """Events from the hub through the processor into a handler that reads their columns."""
    bare_seconds = best(lambda folder: asyncio.run(_bare(folder)))
    seconds = best(lambda folder: asyncio.run(_through_processor(folder)))
    yield Result(
        "processor-throughput",
        EVENT_COUNT / seconds,
        "events/s",
        bare_seconds / seconds,
        "bare receivers of the same partitions, without ownership, batching or checkpoints",
    )


@benchmark("processor-latency")
def processor_latency() -> Iterator[Result]:
    """Milliseconds from the acknowledged append to the handler, median."""
    bare_ms = best(lambda folder: asyncio.run(_latency(folder, is_bare=True)))
    processor_ms = best(lambda folder: asyncio.run(_latency(folder, is_bare=False)))
    yield Result("processor-latency", processor_ms, "ms (p50)", bare_ms / processor_ms, "a bare receiver")


async def _bare(folder: Path) -> float:
    async with filled_hub(folder, PARTITION_COUNT) as hub:
        started_at = time.perf_counter()
        await drained(hub, PARTITION_COUNT)
        return time.perf_counter() - started_at


async def _through_processor(folder: Path) -> float:
    async with filled_hub(folder, PARTITION_COUNT) as hub:
        processor = _processor(hub, folder)
        begun, done = asyncio.Event(), asyncio.Event()
        handled = bytes_count = 0

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            nonlocal handled, bytes_count
            handled += len(batch)
            bytes_count += batch.arrow.column("body").nbytes
            begun.set()
            if handled >= EVENT_COUNT:
                done.set()

        await processor.start()
        await begun.wait()
        started_at, already = time.perf_counter(), handled
        await done.wait()
        seconds = time.perf_counter() - started_at
        await processor.stop()
        # Joining the group is not what is measured: the clock starts with the first batch.
        return seconds * EVENT_COUNT / (EVENT_COUNT - already)


async def _latency(folder: Path, *, is_bare: bool) -> float:
    arrived: asyncio.Queue[float] = asyncio.Queue()
    async with new_hub(folder, 1) as hub:
        if is_bare:
            receiving = asyncio.create_task(_receive(hub, arrived))
            latencies = await _send_one_by_one(hub, arrived)
            receiving.cancel()
        else:
            processor = _processor(hub, folder)

            @processor.on_batch
            async def handle(_: EventBatch) -> None:
                await arrived.put(time.perf_counter())

            async with processor:
                latencies = await _send_one_by_one(hub, arrived)
    return statistics.median(latencies) * 1000


async def _receive(hub: LocalHub, arrived: asyncio.Queue[float]) -> None:
    receiver = await hub.open_receiver("0", group="bench", position=Position.earliest())
    try:
        while True:
            if len(await receiver.receive(max_count=BATCH_COUNT_MAX, wait_seconds=10)):
                await arrived.put(time.perf_counter())
    finally:
        await receiver.close()


async def _send_one_by_one(hub: LocalHub, arrived: asyncio.Queue[float]) -> list[float]:
    sender = await hub.open_sender()
    event = new_events([b"x" * 200])
    await sender.send(event, partition="0")
    await arrived.get()  # the receiver is up
    latencies: list[float] = []
    for _ in range(LATENCY_COUNT):
        await sender.send(event, partition="0")
        acknowledged_at = time.perf_counter()
        latencies.append(max(0.0, await arrived.get() - acknowledged_at))
    await sender.close()
    return latencies


def _processor(hub: LocalHub, folder: Path) -> Processor:
    return Processor(
        hub,
        SqliteStore(folder / "state.db"),
        consumer_group="bench",
        starting_position=Position.earliest(),
        options=ProcessorOptions(
            max_batch_size=BATCH_COUNT_MAX,
            checkpoint_policy=CheckpointPolicy.every(seconds=1.0),
            lease=LeaseOptions(startup_delay_seconds=0.0),
        ),
    )
