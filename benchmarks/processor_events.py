"""What a processor's handlers cost, over AMQP messages as Event Hubs sends them: events a second of the client's CPU.

The endpoint is ``hubline serve`` in a process of its own. The peer is azure-eventhub's ``receive_batch`` on the same
endpoint, in turns, with a callback that only counts; ours are called for each event.
"""

from __future__ import annotations

import asyncio
import statistics
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
    Work,
    connected,
    receive_by_sdk,
    served,
)
from benchmarks.harness import Result, benchmark
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


def _look(*values: object) -> None:
    """What the handler does with an event."""


def _beside_sdk(name: str, connection_string: str, count: int, register: Register) -> Result:
    own = Work(lambda: asyncio.run(_process(connection_string, count, register)), count)
    sdk = Work(lambda: receive_by_sdk(connection_string, SDK_COUNT), SDK_COUNT)
    figure, peer = medians(own, sdk)
    return Result(name, figure, "events/CPU-s", figure / peer, AGAINST_RECEIVE)


def medians(own: Work, peer: Work) -> tuple[float, float]:
    """Events a CPU-second of each, in turns: the machine is shared, and never the same."""
    rates: dict[Work, list[float]] = {own: [], peer: []}
    for _ in range(ROUNDS):
        for work, seen in rates.items():
            start = time.process_time()
            work.run()
            seen.append(work.count / (time.process_time() - start))
    return statistics.median(rates[own]), statistics.median(rates[peer])


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
