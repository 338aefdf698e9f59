"""Event Hubs over hubline's own AMQP keeps the contract of every hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubline.hubs.eventhubs import EventHubsHub
from hubline.ports import Hub
from hubline.testing.contracts.hub import HubContract
from tests.eventhubs.support import address, new_hub, serving


class TestEventHubsHub(HubContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.root = tmp_path

    async def create_hub(self, partition_count: int) -> Hub:
        raise NotImplementedError  # an endpoint goes with every hub: see hub()

    @asynccontextmanager
    async def hub(self, partition_count: int) -> AsyncIterator[Hub]:
        name = await new_hub(self.root, partition_count)
        async with serving(self.root) as port:
            hub = EventHubsHub(address(port, name))
            try:
                yield hub
            finally:
                await hub.close()
