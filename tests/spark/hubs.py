"""Hubs to write to, and what is in them, read without Spark."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import Event
from hubline.model.hubs import HubProperties
from hubline.model.positions import Position
from tests.emulator.serving import Server

PARTITIONS = ("0", "1", "2", "3")


@dataclass(frozen=True)
class TestHub:
    """A hub with 4 partitions. ``address`` is what Spark is given; behind it is a folder."""

    __test__ = False

    address: str
    root: Path
    name: str

    @classmethod
    def local(cls, root: Path, name: str = "target", partitions: int = len(PARTITIONS)) -> TestHub:
        asyncio.run(create_hub(root, name, partitions=partitions))
        return cls(f"local:{root}/{name}", root, name)

    @classmethod
    def served(cls, server: Server, name: str) -> TestHub:
        return cls(server.create(name, len(PARTITIONS)), server.data, name)

    def events(self) -> dict[str, list[Event]]:
        """All events, by partition."""
        return asyncio.run(self._events())

    def flat(self) -> list[Event]:
        return [event for events in self.events().values() for event in events]

    def count(self) -> int:
        return asyncio.run(self._count())

    def described(self) -> HubProperties:
        return asyncio.run(self._described())

    async def _events(self) -> dict[str, list[Event]]:
        hub = LocalHub(self.root, self.name)
        found: dict[str, list[Event]] = {}
        for partition in (await hub.describe()).partition_ids:
            count = (await hub.describe_partition(partition)).last_sequence + 1
            receiver = await hub.open_receiver(partition, group="$Default", position=Position.earliest())
            found[partition] = []
            while len(found[partition]) < count:
                found[partition] += await receiver.receive(max_count=count, wait_seconds=10)
        await hub.close()
        return found

    async def _count(self) -> int:
        hub = LocalHub(self.root, self.name)
        counts = [(await hub.describe_partition(partition)).last_sequence + 1 for partition in PARTITIONS]
        await hub.close()
        return sum(counts)

    async def _described(self) -> HubProperties:
        hub = LocalHub(self.root, self.name)
        described = await hub.describe()
        await hub.close()
        return described
