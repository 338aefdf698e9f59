"""A streaming query as the planner sees it, without Spark: a log of offsets, and batches that read what they say."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hubline.addresses.hub_address import LocalHubAddress
from hubline.model.positions import Position, StartPositions
from hubline.ports import CheckpointStore, Hub
from hubline.spark.options import Options
from hubline.spark.source.offsets import StreamOffset
from hubline.spark.source.stream_planner import StreamPlanner
from tests.support.scene import LEASE, POLL_SECONDS

Place = tuple[str, int]


class Query:
    """Runs batches. ``read`` is what its sink got; ``log`` and ``committed`` are Spark's checkpoint folder.

    ``replayed`` is the part of it that was marked as handled before.
    """

    def __init__(self, hub: Hub, store: CheckpointStore | None = None, **options: Any) -> None:
        given = Options(
            hub=LocalHubAddress(Path("/data"), hub.name),
            starting_positions=StartPositions(Position.earliest()),
            lease=LEASE,
            receiver_timeout_seconds=5.0,
        )
        self.options = replace(given, **options)
        self._hub = hub
        self._store = store
        self.replayed: list[Place] = []
        self.log: list[StreamOffset] = []
        self.committed = 0
        self.read: list[Place] = []
        self.planner: StreamPlanner

    async def start(self) -> Query:
        """Starts as Spark does: a batch that was planned and is not known to be done runs first."""
        self.planner = StreamPlanner(self.options, self._hub, self._store, now=asyncio.get_running_loop().time)
        await self.planner.start()
        if not self.log:
            self.log.append(await self.planner.initial_offset())
        if len(self.log) - 1 > self.committed:
            await self.run()
        return self

    async def plan(self, *, is_limited: bool = True) -> bool:
        """Asks for the next batch, and writes it down. Whether there is one."""
        start = self.log[-1]
        end = await self.planner.next_offset(start, is_limited=is_limited)
        if end is start:
            return False
        self.log.append(StreamOffset.from_json(json.loads(json.dumps(end.to_json()))))
        return True

    async def run(self) -> list[Place]:
        """Reads the batch that was written down last, and commits it."""
        ranges = await self.planner.ranges(self.log[-2], self.log[-1])
        places = [(found.partition, sequence) for found in ranges for sequence in range(found.start, found.end)]
        self.read += places
        self.replayed += [
            (found.partition, sequence)
            for found in ranges
            for sequence in range(found.start, min(found.end, found.replayed_to))
        ]
        self.committed = len(self.log) - 1
        return places

    async def batch(self, **limit: bool) -> list[Place]:
        return await self.run() if await self.plan(**limit) else []

    async def read_all(self, count: int) -> None:
        """Runs batches until so many events were read in all."""
        async with asyncio.timeout(300):
            while len(self.read) < count:
                if not await self.batch():
                    await asyncio.sleep(POLL_SECONDS)

    async def read_up_to(self, partition: str, last: int) -> None:
        """Runs batches until this event was read."""
        async with asyncio.timeout(300):
            while (partition, last) not in self.read:
                if not await self.batch():
                    await asyncio.sleep(POLL_SECONDS)

    async def owns(self, *partitions: str) -> None:
        """Triggers until the query owns exactly these partitions, and knows where they stand."""
        async with asyncio.timeout(300):
            while set(await self.owned()) != set(partitions):  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(POLL_SECONDS)

    async def owned(self) -> list[str]:
        assert self.planner._owned is not None
        return list(await self.planner._owned.done(self.log[-1]))

    async def stop(self) -> None:
        await self.planner.stop()

    async def kill(self) -> None:
        """Ends it as a killed process ends: nothing is given up, nothing written."""
        await self.planner._monitor.stop()
        if self.planner._owned is not None:
            await self.planner._owned._dispatcher.abort()
            for task in self.planner._owned._opening:
                task.cancel()


def places(partition: str, *sequences: int) -> list[Place]:
    return [(partition, sequence) for sequence in sequences]
