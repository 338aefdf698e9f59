"""A hub in memory whose sends can be held up, and fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pyarrow as pa

from hubline.errors import EventTooLarge, HubUnavailable
from hubline.model.hubs import HubProperties
from hubline.ports import Sender
from hubline.testing.memory_hub import MemoryHub

PATIENCE_SECONDS = 60

Answer = Callable[[str | None, list[bytes]], Awaitable[None]]


class Hub(MemoryHub):
    """Asks ``answer`` before it keeps events, and notes what it was sent at once. ``max_bytes`` bounds a body."""

    def __init__(self, partitions_count: int = 4, *, max_bytes: int = 1_000_000) -> None:
        super().__init__(partitions_count)
        self.answer: Answer | None = None
        self.is_away = False
        self.max_bytes = max_bytes
        self.sends: list[tuple[str | None, list[bytes]]] = []
        self.is_closed = False

    async def describe(self) -> HubProperties:
        if self.is_away:
            raise HubUnavailable("the hub is away", hub=self.name)
        return await super().describe()

    async def open_sender(self) -> _Sender:  # type: ignore[override]
        return _Sender(self, await super().open_sender())

    async def close(self) -> None:
        self.is_closed = True

    def bodies(self, partition: str) -> list[bytes]:
        return [row.body for row in self._partition(partition).rows]

    def all_bodies(self) -> list[bytes]:
        return [body for number in range(len(self._partitions)) for body in self.bodies(str(number))]


class _Sender:
    def __init__(self, hub: Hub, inner: Sender) -> None:
        self._hub = hub
        self._inner = inner

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        bodies: list[bytes] = events.column("body").to_pylist()
        await asyncio.sleep(0)
        if self._hub.is_away:
            raise HubUnavailable("the hub is away", hub=self._hub.name)
        for index, body in enumerate(bodies):
            if len(body) > self._hub.max_bytes:
                raise EventTooLarge(
                    "too large", hub="hub", index=index, bytes_count=len(body), max_bytes=self._hub.max_bytes
                )
        if self._hub.answer is not None:
            await self._hub.answer(partition, bodies)
        self._hub.sends.append((partition, bodies))
        await self._inner.send(events, partition=partition, partition_key=partition_key)

    async def close(self) -> None:
        await self._inner.close()
