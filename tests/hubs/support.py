"""What the tests of the local hub share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubline.hubs.local import LocalHub, Retention, create_hub
from hubline.hubs.local.receiver import LocalReceiver
from hubline.model.events import new_events
from hubline.model.positions import Position

GROUP = "$Default"
# Far longer than anything takes: a slow machine fails no test.
ARRIVAL_SECONDS = 30.0


@dataclass
class ManualClock:
    """A time of day that only tests move."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@asynccontextmanager
async def new_hub(
    root: Path,
    *,
    partitions: int = 1,
    name: str = "orders",
    retention: Retention | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[LocalHub]:
    await create_hub(root, name, partitions=partitions, retention=retention)
    async with opened_hub(root, name=name, clock=clock) as hub:
        yield hub


@asynccontextmanager
async def opened_hub(
    root: Path, *, name: str = "orders", clock: Callable[[], float] = time.time
) -> AsyncIterator[LocalHub]:
    hub = LocalHub(root, name, clock=clock)
    try:
        yield hub
    finally:
        await hub.close()


async def send(hub: LocalHub, *bodies: str, partition: str = "0") -> None:
    sender = await hub.open_sender()
    await sender.send(new_events(bodies), partition=partition)


async def opened(
    hub: LocalHub, position: Position | None = None, *, partition: str = "0", epoch: int | None = None
) -> LocalReceiver:
    return await hub.open_receiver(partition, group=GROUP, position=position or Position.earliest(), epoch=epoch)


async def texts(receiver: LocalReceiver, count: int) -> list[str]:
    """The next events' bodies, as many as asked for; fails if they do not come."""
    received: list[str] = []
    while len(received) < count:
        batch = await receiver.receive(max_count=count - len(received), wait_seconds=ARRIVAL_SECONDS)
        assert len(batch), f"only {len(received)} of {count} events came"
        received += [body.decode() for body in batch.bodies]
    return received


def partition_file(root: Path, partition: int, *, name: str = "orders") -> Path:
    (path,) = (root / name).glob(f"{partition}.*.db")
    return path


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a condition that will come true; the test's time limit bounds it."""
    while not await condition():  # noqa: ASYNC110  (nobody in this process could set an event)
        await asyncio.sleep(0.005)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
