"""The local hub keeps the contract of every hub."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from hubline.hubs.local import LocalHub, create_hub
from hubline.ports import Hub
from hubline.testing.contracts.hub import HubContract


class TestLocalHub(HubContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.root = tmp_path

    async def create_hub(self, partition_count: int) -> Hub:
        name = f"hub-{secrets.token_hex(4)}"
        await create_hub(self.root, name, partitions=partition_count)
        return LocalHub(self.root, name)
