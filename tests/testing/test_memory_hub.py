"""The hub in memory keeps the contract of every hub: what passes in virtual time means something."""

from __future__ import annotations

import asyncio

import pytest

from hubline.errors import PositionInvalid
from hubline.model.positions import Position
from hubline.ports import Hub
from hubline.testing.contracts.hub import HubContract, bodies, opened
from hubline.testing.memory_hub import MemoryHub


class TestMemoryHub(HubContract):
    async def create_hub(self, partition_count: int) -> Hub:
        return MemoryHub(partition_count)


def test_a_trimmed_partition_tells_what_expired() -> None:
    async def main() -> None:
        hub = MemoryHub(1)
        hub.append("0", [b"a", b"b", b"c"])
        hub.trim("0", 2)

        with pytest.raises(PositionInvalid) as expired:
            await opened(hub, Position.sequence(0))

        assert (expired.value.reason, expired.value.begin_sequence, expired.value.last_sequence) == ("expired", 2, 2)
        assert await bodies(await opened(hub), 1) == [b"c"]

    asyncio.run(main())


def test_a_reader_that_retention_overtook_is_reported() -> None:
    async def main() -> None:
        hub = MemoryHub(1)
        hub.append("0", [b"a", b"b", b"c"])
        receiver = await opened(hub)
        hub.trim("0", 1)

        with pytest.raises(PositionInvalid) as expired:
            await receiver.receive(max_count=1, wait_seconds=0)

        assert expired.value.reason == "expired"

    asyncio.run(main())


def test_a_hub_that_grew_tells_its_new_partitions() -> None:
    async def main() -> None:
        hub = MemoryHub(1)
        hub.grow(3)

        assert (await hub.describe()).partition_ids == ("0", "1", "2")
        assert (await hub.describe_partition("2")).is_empty

    asyncio.run(main())
