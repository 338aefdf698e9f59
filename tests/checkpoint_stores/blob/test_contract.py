"""The store's contract, over Azurite."""

from __future__ import annotations

import asyncio

import pytest

from hubline.checkpoint_stores.blob import BlobStore
from hubline.checkpoint_stores.blob.layout import ownership_blob
from hubline.model.ownership import Ownership
from hubline.testing.contracts.store import (
    CheckpointContract,
    CheckpointStoreContract,
    HandoverContract,
    MembershipContract,
    OwnershipContract,
    RaceContract,
    StoreFactory,
)
from tests.checkpoint_stores.blob.support import blob_store, locking_blob_store

pytestmark = pytest.mark.xdist_group("azurite")

# Times are whole seconds, and ages never overstated: it takes two of them to be sure of one.
TICK_SECONDS = 2.1


class BlobFactory(StoreFactory):
    round_count = 2  # a claim takes some milliseconds, and one more look where it is lost

    @pytest.fixture(autouse=True)
    def _container(self, container: str) -> None:
        self.container = container

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, TICK_SECONDS))


class TestBlobStore(BlobFactory, CheckpointStoreContract):
    """Every ownership blob is written at every renewal."""

    partition_count = 32  # more than are asked for at a time

    def open_store(self) -> BlobStore:
        return blob_store(self.container, refresh_seconds=0)


class TestPacedBlobStore(BlobFactory, OwnershipContract, MembershipContract, HandoverContract):
    """As it is by default: heartbeats, and every ownership blob in its turn."""

    renewal_is_a_write = False
    test_either_the_renewal_or_the_claim_holds = RaceContract.test_either_the_renewal_or_the_claim_holds

    def open_store(self) -> BlobStore:
        return blob_store(self.container)


class TestLockingBlobStore(BlobFactory, OwnershipContract, MembershipContract, CheckpointContract, RaceContract):
    """With locks: nobody takes a locked partition, asked for or not."""

    renewal_is_a_write = False
    partition_count = 32

    def open_store(self) -> BlobStore:
        return locking_blob_store(self.container, seconds=60)

    async def lapse(self, ownership: Ownership) -> None:
        """Broken by hand, which ends it at once. That those that lapse by themselves end too is shown elsewhere."""
        store = blob_store(self.container)
        await store.container.break_lease(ownership_blob(ownership.key))
        await store.close()
