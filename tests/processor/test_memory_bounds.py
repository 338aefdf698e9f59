"""How much of a hub's events is in memory before handlers get them: counted on the socket and in Arrow's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.hubs.eventhubs import EventHubsHub
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import EventBatch, new_events
from hubline.ports import Hub
from hubline.processor import LeaseOptions, PartitionContext, Processor, ProcessorOptions
from hubline.read_ahead import ReadAhead
from tests.emulator.serving import KEY, serving
from tests.hubs.eventhubs.support import Proxy, address, proxied
from tests.support.scene import until

MB = 1_000_000
LARGEST_BYTES = 1_048_000
"""Of an event, nearly as large as a hub takes it."""

OVERHEAD = 1.01
"""What events take beside their bodies, and what else comes over the wire."""


class Reading:
    """A processor whose handler holds one event at a time and waits with it; and the most that there was in memory."""

    def __init__(self, hub: Hub, proxy: Proxy | None, monkeypatch: pytest.MonkeyPatch, **bounds: Any) -> None:
        self.count = 0
        self.blocked: set[str] = set()
        self.gate = asyncio.Event()
        self.peak_counted = self.peak_bytes = 0
        self._proxy = proxy
        self._allocated_before: int = pa.total_allocated_bytes()
        lease = LeaseOptions(startup_delay_seconds=0.0, load_balancing_interval_seconds=0.5)
        self.processor = Processor(
            hub,
            MemoryStore(),
            consumer_group="$Default",
            starting_position="earliest",
            options=ProcessorOptions(max_batch_size=1, lease=lease, **bounds),
        )
        self.processor.on_batch(self._handle)
        hold = ReadAhead.hold

        def noted(ahead: ReadAhead, bytes_count: int) -> None:
            hold(ahead, bytes_count)
            self._note(ahead)

        monkeypatch.setattr(ReadAhead, "hold", noted)

    @property
    def bytes_count(self) -> int:
        """What is in memory, with the handlers' own."""
        allocated: int = pa.total_allocated_bytes()
        return allocated - self._allocated_before

    async def settle(self, partitions: int) -> int:
        """Waits until all handlers wait and nothing more comes; returns what came over the wire or is in memory."""
        await until(lambda: len(self.blocked) == partitions)
        seen = -1
        while (now := self.bytes_count if self._proxy is None else self._proxy.bytes_count) != seen:
            seen = now
            await asyncio.sleep(0.3)
        return seen

    async def _handle(self, batch: EventBatch, partition: PartitionContext) -> None:
        self.peak_bytes = max(self.peak_bytes, self.bytes_count)
        self.blocked.add(partition.partition_id)
        await self.gate.wait()
        if batch.nbytes > 10_000:
            await asyncio.sleep(0.005)  # meanwhile others come
        self.count += len(batch)

    def _note(self, ahead: ReadAhead) -> None:
        assert ahead._pool is None or ahead._pool.held_bytes >= ahead.held_bytes
        self.peak_counted = max(self.peak_counted, ahead.held_bytes if ahead._pool is None else ahead._pool.held_bytes)
        self.peak_bytes = max(self.peak_bytes, self.bytes_count)


async def fill(root: Path, partitions: int, small_count: int, large_count: int, large_bytes: int) -> int:
    """Small events and then large ones, in each partition. Returns how many there are."""
    await create_hub(root, "hub", partitions=partitions)
    hub = LocalHub(root, "hub")
    sender = await hub.open_sender()
    large = new_events([bytes(large_bytes)] * large_count)
    for partition in map(str, range(partitions)):
        await sender.send(new_events([bytes(100)] * small_count), partition=partition)
        await sender.send(large, partition=partition)  # stored as batches of nearly 4 MiB
    await hub.close()
    return partitions * (small_count + large_count)


@asynccontextmanager
async def opened(kind: str, root: Path) -> AsyncIterator[tuple[Hub, Proxy | None]]:
    """The hub as it is; or over AMQP from another process, through a proxy that counts."""
    if kind == "local":
        hub: Hub = LocalHub(root, "hub")
        yield hub, None
        await hub.close()
        return
    with serving(root, "--create", "other:1") as server:
        async with proxied(server.port) as (proxy, port):
            hub = EventHubsHub(address(port, "hub", key=KEY))
            yield hub, proxy
            await hub.close()


@pytest.mark.parametrize("kind", ["local", "served"])
def test_one_partition_holds_its_bound_or_one_event(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        count = await fill(tmp_path, 1, 1, 8, LARGEST_BYTES)
        async with opened(kind, tmp_path) as (hub, proxy):
            reading = Reading(hub, proxy, monkeypatch, prefetch_bytes=MB)
            async with reading.processor:
                assert await reading.settle(1) < LARGEST_BYTES * OVERHEAD
                reading.gate.set()
                await until(lambda: reading.count == count)
            assert reading.peak_counted < LARGEST_BYTES * OVERHEAD
            assert reading.peak_bytes < 3 * LARGEST_BYTES * OVERHEAD  # with the handler's, and one that arrives

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["local", "served"])
def test_large_events_after_many_small_ones_are_held_within_the_bound(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        count = await fill(tmp_path, 1, 1_500, 8, LARGEST_BYTES)
        async with opened(kind, tmp_path) as (hub, proxy):
            reading = Reading(hub, proxy, monkeypatch, prefetch_bytes=4 * MB)
            async with reading.processor:
                await reading.settle(1)
                reading.gate.set()
                await until(lambda: reading.count == count)
            assert MB < reading.peak_counted <= 4 * MB
            assert reading.peak_bytes < 4 * MB + 2 * LARGEST_BYTES * OVERHEAD

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["local", "served"])
def test_partitions_together_hold_the_bound_of_the_processor(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        count = await fill(tmp_path, 16, 1, 20, 100_000)
        async with opened(kind, tmp_path) as (hub, proxy):
            reading = Reading(hub, proxy, monkeypatch, prefetch_bytes=MB, max_prefetch_bytes=8 * MB)
            async with reading.processor:
                assert await reading.settle(16) < 8 * MB * OVERHEAD
                reading.gate.set()
                await until(lambda: reading.count == count)
            assert MB < reading.peak_counted <= 8 * MB
            assert reading.peak_bytes < 8 * MB + 17 * 2 * 100_000

    asyncio.run(check())
