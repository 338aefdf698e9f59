"""Producers: sending lists, and events one by one in the background, beside azure-eventhub, to the same endpoint.

Events of 200 bytes, made of bodies as a program has them: the columns are made, too. What counts is what the client
costs: events for each second of CPU time of its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import hubline
from benchmarks.amqp_client import AGAINST_SEND, BATCH_COUNT, SDK_SEND_COUNT, Load, Work, batches, best, served
from benchmarks.harness import Result, benchmark

LOAD: Final = Load(200, BATCH_COUNT)
LISTS_COUNT: Final = 200_000
ONE_BY_ONE_COUNT: Final = 100_000


@benchmark("producer-200b")
def producer_200b() -> Iterator[Result]:
    """Sending lists of 1,000 events."""
    with served(LOAD) as hub:
        own, sdk = best(
            Work(lambda: asyncio.run(send_lists(hub, LISTS_COUNT)), LISTS_COUNT),
            Work(lambda: send_lists_by_sdk(hub, SDK_SEND_COUNT), SDK_SEND_COUNT),
        )
    yield Result("producer-200b", own, "events/CPU-s", own / sdk, AGAINST_SEND)


@benchmark("producer-buffered-200b")
def producer_buffered_200b() -> Iterator[Result]:
    """Sending events one by one, in the background, until all are kept."""
    with served(LOAD) as hub:
        own, sdk = best(
            Work(lambda: asyncio.run(send_one_by_one(hub, ONE_BY_ONE_COUNT)), ONE_BY_ONE_COUNT),
            Work(lambda: send_one_by_one_by_sdk(hub, SDK_SEND_COUNT), SDK_SEND_COUNT),
        )
    yield Result(
        "producer-buffered-200b", own, "events/CPU-s", own / sdk, "azure-eventhub buffered_mode, same endpoint"
    )


def bodies() -> list[list[bytes]]:
    """Some lists of random bodies, to be sent over and over."""
    return [batch.column("body").to_pylist() for batch in batches(LOAD)]


async def send_lists(hub: str, count: int) -> None:
    supply = bodies()
    async with hubline.Producer(hub) as producer:
        for number in range(count // BATCH_COUNT):
            await producer.send(supply[number % len(supply)], partition_id="0")


def send_lists_by_sdk(hub: str, count: int) -> None:
    from azure.eventhub import EventData, EventHubProducerClient

    supply = bodies()
    with EventHubProducerClient.from_connection_string(hub) as client:
        for number in range(count // BATCH_COUNT):
            client.send_batch([EventData(body) for body in supply[number % len(supply)]], partition_id="0")


async def send_one_by_one(hub: str, count: int) -> None:
    supply = bodies()
    async with hubline.BufferedProducer(hub) as producer:
        for number in range(count // BATCH_COUNT):
            for body in supply[number % len(supply)]:
                await producer.send(body, partition_id="0")


def send_one_by_one_by_sdk(hub: str, count: int) -> None:
    from azure.eventhub import EventData, EventHubProducerClient

    def on_error(_events: Any, _partition: Any, error: Exception) -> None:
        failures.append(error)

    def on_success(_events: Any, _partition: Any) -> None:
        pass

    failures: list[Exception] = []
    supply = bodies()
    client = EventHubProducerClient.from_connection_string(
        hub, buffered_mode=True, on_success=on_success, on_error=on_error
    )
    with client:
        for number in range(count // BATCH_COUNT):
            for body in supply[number % len(supply)]:
                client.send_event(EventData(body), partition_id="0")
        client.flush()
    assert not failures
