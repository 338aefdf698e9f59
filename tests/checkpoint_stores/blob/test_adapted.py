"""The official SDK's own store in Blob Storage, wrapped as a store of four methods, keeps their contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from hubline.ports import CheckpointStore
from hubline.testing.contracts.store import FourMethodStoreContract
from tests.support.azurite import Azurite

pytestmark = pytest.mark.xdist_group("azurite")

# Times are whole seconds.
TICK_SECONDS = 1.1

FIRST_CLAIM = "the SDK's store writes over a record that is there"


class TestSdkBlobStore(FourMethodStoreContract):
    round_count = 2
    partition_count = 16

    @pytest.fixture(autouse=True)
    def _container(self, azurite_server: Azurite, container: str) -> None:
        self.storage, self.container = azurite_server.connection_string, container.rpartition("/")[2]

    def make_store(self) -> object:
        self.made: Any = BlobCheckpointStore.from_connection_string(self.storage, self.container)
        return self.made

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[CheckpointStore]]:
        async with super().clients(count) as stores:
            try:
                yield stores
            finally:
                await self.made.close()

    def test_names_come_back_as_they_were_given(self) -> None:
        pytest.skip("the SDK's store takes plain names only")

    # Azurite ignores the SDK's condition of a first claim. The owner that was overwritten sees it at its next renewal.

    def test_a_first_claim_is_lost_where_a_record_is(self) -> None:
        pytest.skip(FIRST_CLAIM)

    def test_a_fresh_record_has_one_winner(self) -> None:
        pytest.skip(FIRST_CLAIM)

    def test_many_claims_at_once_have_one_winner_each(self) -> None:
        pytest.skip(FIRST_CLAIM)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, TICK_SECONDS))
