"""What a processor's handlers cost, over AMQP messages as Event Hubs sends them: events a second of the client's CPU.

The endpoint is ``hubline serve`` in a process of its own. The peers take turns with the processor: azure-eventhub's
``receive_batch`` on the same endpoint, with a callback that only counts, and confluent-kafka's ``consume`` on a broker
with the same messages.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.amqp_client import (
    AGAINST_RECEIVE,
    SDK_COUNT,
    SMALL,
    WITH_PROPERTIES,
    Load,
    Work,
    connected,
    receive_by_sdk,
    served,
)
from benchmarks.harness import Result, benchmark
from benchmarks.kafka import CONSUME_COUNT, KafkaMissing, broker
from hubline import Event, EventBatch, LeaseOptions, Processor, ProcessorOptions
from hubline.checkpoint_stores.sqlite import SqliteStore

ROUNDS: Final = 5

Register = Callable[[Processor, Callable[[int], None]], None]
"""Gives a processor its handler, which says how many events it has seen."""


@benchmark("processor-on-event-plain")
def on_event_plain() -> Iterator[Result]:
    """`on_event` with a plain function."""

    def register(processor: Processor, seen: Callable[[int], None]) -> None:
        @processor.on_event
        def handle(event: Event) -> None:
            _look(event.body)
            seen(1)

    with served(SMALL) as connection_string:
        yield _beside_sdk("processor-on-event-plain", connection_string, SMALL.own_count, register)


@benchmark("processor-on-event-async")
def on_event_async() -> Iterator[Result]:
    """`on_event` with an async function."""

    def register(processor: Processor, seen: Callable[[int], None]) -> None:
        @processor.on_event
        async def handle(event: Event) -> None:
            _look(event.body)
            seen(1)

    with served(SMALL) as connection_string:
        yield _beside_sdk("processor-on-event-async", connection_string, SMALL.own_count, register)


@benchmark("processor-event-objects")
def event_objects() -> Iterator[Result]:
    """`for event in batch`, reading body, key and properties of each."""

    def register(processor: Processor, seen: Callable[[int], None]) -> None:
        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            for event in batch:
                _look(event.body, event.partition_key, event.properties)
            seen(len(batch))

    with served(WITH_PROPERTIES) as connection_string:
        yield _beside_sdk("processor-event-objects", connection_string, WITH_PROPERTIES.own_count, register)
        yield from _beside_kafka("processor-event-objects", connection_string, WITH_PROPERTIES, register)


@benchmark("processor-arrow-kafka")
def arrow_beside_kafka() -> Iterator[Result]:
    """`on_batch`, reading the column of bodies, beside confluent-kafka."""

    def register(processor: Processor, seen: Callable[[int], None]) -> None:
        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            _look(batch.arrow.column("body"))
            seen(len(batch))

    with served(SMALL) as connection_string:
        yield from _beside_kafka("processor-arrow-kafka", connection_string, SMALL, register)


def _look(*values: object) -> None:
    """What the handler does with an event."""


def _beside_sdk(name: str, connection_string: str, count: int, register: Register) -> Result:
    own = Work(lambda: asyncio.run(_process(connection_string, count, register)), count)
    sdk = Work(lambda: receive_by_sdk(connection_string, SDK_COUNT), SDK_COUNT)
    figure, peer = medians(own, sdk)
    return Result(name, figure, "events/CPU-s", figure / peer, AGAINST_RECEIVE)


def _beside_kafka(name: str, connection_string: str, load: Load, register: Register) -> Iterator[Result]:
    """Nothing but the reason, where there is no broker or consumer to be had."""
    count, reads_all = load.own_count, load.has_properties
    own = Work(lambda: asyncio.run(_process(connection_string, count, register)), count)
    try:
        with broker() as kafka:
            kafka.fill(count, has_properties=reads_all)
            rates = [(own_rate(own), count / kafka.cpu_seconds(count, reads_all=reads_all)) for _ in range(ROUNDS)]
    except KafkaMissing as missing:
        print(f"{name} beside Kafka: skipped, {missing}", file=sys.stderr)
        return
    figure, peer = (statistics.median(each) for each in zip(*rates, strict=True))
    what = ", key and headers read" if reads_all else ""
    yield Result(name, figure, "events/CPU-s", figure / peer, f"confluent-kafka consume({CONSUME_COUNT}){what}")


def medians(own: Work, peer: Work) -> tuple[float, float]:
    """Events a CPU-second of each, in turns: the machine is shared, and never the same."""
    rates = [(own_rate(own), own_rate(peer)) for _ in range(ROUNDS)]
    figure, beside = (statistics.median(each) for each in zip(*rates, strict=True))
    return figure, beside


def own_rate(work: Work) -> float:
    """By the CPU time of this process, all of its threads together."""
    start = time.process_time()
    work.run()
    return work.count / (time.process_time() - start)


async def _process(connection_string: str, count: int, register: Register) -> None:
    """From the start of a processor to its stop, after so many events."""
    done, loop, left = asyncio.Event(), asyncio.get_running_loop(), count

    def seen(events: int) -> None:
        nonlocal left
        left -= events
        if left <= 0 < left + events:
            loop.call_soon_threadsafe(done.set)

    with tempfile.TemporaryDirectory(prefix="hubline-bench-") as folder:
        async with connected(connection_string) as hub:
            processor = Processor(
                hub,
                SqliteStore(Path(folder) / "state.db"),
                consumer_group="$Default",
                starting_position="earliest",
                options=ProcessorOptions(lease=LeaseOptions(startup_delay_seconds=0.0)),
            )
            register(processor, seen)
            async with processor:
                await done.wait()
