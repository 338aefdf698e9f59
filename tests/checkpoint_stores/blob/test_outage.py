"""Azurite is stopped for a while and started again: processing stops at the end of the leases, and continues after."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import pytest

from hubline.errors import LeaseLost, StoreUnavailable
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, LeaseOptions, Processor, ProcessorOptions
from hubline.testing.memory_hub import MemoryHub
from tests.checkpoint_stores.blob.support import blob_store, eventually
from tests.support.azurite import azurite

pytestmark = pytest.mark.xdist_group("azurite")

# Whole seconds make ages uncertain by two: this lease has to outlast them, and is short enough to wait for.
LEASE = LeaseOptions(lease_seconds=4.0, load_balancing_interval_seconds=0.5, startup_delay_seconds=0.2)
PATIENCE_SECONDS = 90.0


until = functools.partial(eventually, seconds_max=PATIENCE_SECONDS)


def test_every_event_is_handled_after_an_outage(container: str) -> None:
    with azurite(is_on_disk=True) as server:
        address = server.new_container()
        asyncio.run(_scenario(server.stop, server.start, address))


async def _scenario(stop: Callable[[], None], start: Callable[[], None], address: str) -> None:
    hub = MemoryHub(4)
    group = GroupKey(hub.namespace, hub.name, "tests")
    handled: set[tuple[str, int]] = set()
    errors: list[Exception] = []
    store = blob_store(address)
    processor = Processor(
        hub,
        store,
        consumer_group="tests",
        starting_position=Position.earliest(),
        options=ProcessorOptions(lease=LEASE, checkpoint_policy=CheckpointPolicy.every_batch()),
    )

    @processor.on_batch
    async def handle(batch: EventBatch) -> None:
        handled.update((event.partition, event.sequence_number) for event in batch)

    @processor.on_error
    async def failed(error: Exception) -> None:
        errors.append(error)

    def append() -> set[tuple[str, int]]:
        for number in range(4):
            hub.append(str(number), [b"x"] * 5)
        return {(str(number), sequence) for number in range(4) for sequence in range(5)}

    sent = append()
    await processor.start()
    await until(lambda: handled == sent)

    await asyncio.to_thread(stop)
    errors.clear()
    await until(lambda: {LeaseLost, StoreUnavailable} <= {type(error) for error in errors})
    append()
    await asyncio.to_thread(start)

    await until(lambda: len(handled) == 40)
    await processor.stop()
    checkpoints = await store.list_checkpoints(group)
    assert {one.key.partition: one.sequence_number for one in checkpoints} == dict.fromkeys("0123", 9)
    await store.close()
