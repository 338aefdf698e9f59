"""The store's contract, over Azurite."""

from __future__ import annotations

import asyncio

import pytest

from hubline.stores.blob import BlobStore
from hubline.testing.contracts.store import (
    CheckpointStoreContract,
    HandoverContract,
    MembershipContract,
    OwnershipContract,
    RaceContract,
    StoreFactory,
)
from tests.stores.blob.support import blob_store

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

    def open_store(self) -> BlobStore:
        return blob_store(self.container, refresh_seconds=0)


class TestPacedBlobStore(BlobFactory, OwnershipContract, MembershipContract, HandoverContract):
    """As it is by default: heartbeats, and every ownership blob in its turn."""

    renewal_is_a_write = False
    test_either_the_renewal_or_the_claim_holds = RaceContract.test_either_the_renewal_or_the_claim_holds
    test_a_request_never_makes_a_renewal_fail = RaceContract.test_a_request_never_makes_a_renewal_fail

    def open_store(self) -> BlobStore:
        return blob_store(self.container)
