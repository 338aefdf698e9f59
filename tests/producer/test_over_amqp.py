"""Producers over AMQP: in messages of the service's size, to the partitions that the service would choose."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import hubline
from hubline.errors import EventTooLarge, SendFailed
from hubline.hubs.local import LocalHub
from hubline.hubs.partition_hash import partition_index
from hubline.ports import Hub
from tests.hubs.eventhubs.support import connection_string, new_hub, serving
from tests.producer.test_producer import run

PARTITIONS = 4


async def contents(hub: Hub) -> dict[str, list[hubline.Event]]:
    """The events of a hub, by partition."""
    found: dict[str, list[hubline.Event]] = {}
    for partition in (await hub.describe()).partition_ids:
        receiver = await hub.open_receiver(partition, group="g", position=hubline.Position.earliest())
        found[partition] = []
        while batch := await receiver.receive(max_count=10_000, wait_seconds=0):
            found[partition] += batch
    return found


def test_what_is_larger_than_a_message_arrives_whole_and_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        name = await new_hub(tmp_path, PARTITIONS)
        bodies = [b"%05d" % number + bytes(2_000) for number in range(3_000)]
        async with serving(tmp_path) as port, hubline.Producer(connection_string(port, name)) as producer:
            await producer.send(bodies, partition_key="device-7")
            await producer.send(bodies[:500])
        hub = LocalHub(tmp_path, name)
        found = await contents(hub)
        await hub.close()
        own = found[str(partition_index("device-7", PARTITIONS))]
        assert [event.body for event in own if event.partition_key == "device-7"] == bodies
        assert sum(map(len, found.values())) == 3_500

    run(scenario())


def test_an_event_that_no_message_holds_is_named_and_the_others_arrive(tmp_path: Path) -> None:
    async def scenario() -> None:
        name = await new_hub(tmp_path, PARTITIONS)
        async with serving(tmp_path) as port, hubline.Producer(connection_string(port, name)) as producer:
            with pytest.raises(SendFailed, match=r"event 1 has 2,\d{3},\d{3} bytes") as caught:
                await producer.send([b"a", bytes(2_100_000), b"b"], partition_id="0")
            (failure,) = caught.value.failures
            assert isinstance(failure.error, EventTooLarge)
            assert len(failure.bodies[0]) == 2_100_000
        hub = LocalHub(tmp_path, name)
        assert [event.body for event in (await contents(hub))["0"]] == [b"a", b"b"]
        await hub.close()

    run(scenario())


def test_a_buffered_producer_sends_each_event_once_to_its_keys_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        name = await new_hub(tmp_path, PARTITIONS)
        async with serving(tmp_path) as port, hubline.BufferedProducer(connection_string(port, name)) as producer:
            for number in range(5_000):
                await producer.send(b"%d" % number, partition_key=f"device-{number % 20}")
        hub = LocalHub(tmp_path, name)
        found = await contents(hub)
        await hub.close()
        for partition, events in found.items():
            numbers = [int(event.body) for event in events]
            assert numbers == sorted(numbers)
            assert {str(partition_index(str(event.partition_key), PARTITIONS)) for event in events} <= {partition}
        assert set(Counter(event.body for events in found.values() for event in events).values()) == {1}
        assert sum(map(len, found.values())) == 5_000

    run(scenario())


def test_an_endpoint_that_is_gone_for_a_while_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        name = await new_hub(tmp_path, PARTITIONS)
        async with AsyncExitStack() as stack:
            async with serving(tmp_path) as port:
                producer = hubline.BufferedProducer(connection_string(port, name))
                await stack.enter_async_context(producer)
                await producer.send([b"%d" % number for number in range(500)], partition_key="k")
                await producer.flush()
            await producer.send([b"%d" % number for number in range(500, 1_000)], partition_key="k")
            await asyncio.sleep(0.1)
            assert producer.buffered_events == 500
            await stack.enter_async_context(serving(tmp_path, port=port))
            await producer.flush()
            await producer.close()
        hub = LocalHub(tmp_path, name)
        found = await contents(hub)
        await hub.close()
        own = found[str(partition_index("k", PARTITIONS))]
        assert [int(event.body) for event in own] == list(range(1_000))

    run(scenario())
