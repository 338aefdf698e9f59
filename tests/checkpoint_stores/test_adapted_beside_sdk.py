"""An official EventHubConsumerClient and a hubline processor share a group by one store of the SDK's, wrapped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import LoadBalancingStrategy, aio
from azure.eventhub.aio._eventprocessor.in_memory_checkpoint_store import InMemoryCheckpointStore

import hubline
from hubline.checkpoint_stores import adapt
from hubline.hubs.local import LocalHub
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from tests.emulator.serving import Server, serving

PARTITIONS_COUNT = 4
GROUP = "beside"
PATIENCE_SECONDS = 60.0
SDK_EXPIRY_SECONDS = 8.0

# The SDK's types are narrower than what it takes.
Client: Any = aio.EventHubConsumerClient
Store: Any = InMemoryCheckpointStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "hubs", "--create", f"orders:{PARTITIONS_COUNT}") as running:
        yield running


async def send(server: Server) -> set[tuple[str, int]]:
    """Some events to every partition; returns all events there are."""
    hub = LocalHub(server.data, "orders")
    sender = await hub.open_sender()
    sent = set()
    for partition in map(str, range(PARTITIONS_COUNT)):
        await sender.send(new_events([b"x"] * 10), partition=partition)
        last = (await hub.describe_partition(partition)).last_sequence
        sent |= {(partition, sequence) for sequence in range(last + 1)}
    await sender.close()
    await hub.close()
    return sent


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.05)


def owned_by_hubline(store: Any, server: Server) -> Counter[bool]:
    group = GroupKey(f"localhost:{server.port}", "orders", GROUP)
    records = store._checkpoint_store_impl.list_ownership(group.namespace, group.hub, group.group)
    return Counter(record["owner_id"].startswith("hubline:") for record in records if record["owner_id"])


def test_both_share_the_partitions_and_each_resumes_where_the_other_was(server: Server) -> None:
    async def scenario() -> None:
        store = Store()
        theirs: list[tuple[str, int]] = []
        ours: list[tuple[str, int]] = []
        client = Client.from_connection_string(
            server.connection_string("orders"),
            GROUP,
            checkpoint_store=store,
            load_balancing_interval=1.0,
            partition_ownership_expiration_interval=SDK_EXPIRY_SECONDS,
            load_balancing_strategy=LoadBalancingStrategy.GREEDY,
        )
        processor = hubline.Processor(
            server.connection_string("orders"),
            adapt(store),
            consumer_group=GROUP,
            starting_position="earliest",
            options=hubline.ProcessorOptions(
                checkpoint_policy=hubline.CheckpointPolicy.every_batch(),
                lease=hubline.LeaseOptions(
                    lease_seconds=6.0,
                    load_balancing_interval_seconds=1.0,
                    startup_delay_seconds=0.5,
                    sdk_lease_seconds=SDK_EXPIRY_SECONDS,
                ),
            ),
        )

        async def on_event(context: Any, event: Any) -> None:
            theirs.append((context.partition_id, event.sequence_number))
            await context.update_checkpoint(event)

        @processor.on_batch
        async def handle(batch: hubline.EventBatch) -> None:
            ours.extend((event.partition, event.sequence_number) for event in batch)

        sent = await send(server)
        receiving = asyncio.create_task(client.receive(on_event, starting_position="-1"))
        await until(lambda: set(theirs) == sent)
        async with processor:
            await until(lambda: owned_by_hubline(store, server) == {True: 2, False: 2})
            theirs.clear()
            before, sent = sent, await send(server)
            await until(lambda: set(theirs) | set(ours) >= sent - before)
            assert theirs
            assert not set(ours) & before

            await client.close()
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await receiving
            await until(lambda: owned_by_hubline(store, server) == {True: 4})
            before, sent = sent, await send(server)
            await until(lambda: set(ours) >= sent - before)

    asyncio.run(scenario())
