"""Claims that race: one winner each, on Azurite too."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hubline.checkpoint_stores.blob import BlobStore
from hubline.model.ownership import Ownership
from hubline.testing.contracts.store import GROUP, at_once
from tests.checkpoint_stores.blob.support import blob_store

pytestmark = pytest.mark.xdist_group("azurite")

CLAIMER_COUNT = 20
ROUND_COUNT = 100
CLIENT_COUNT = 4


async def winners(stores: list[BlobStore], claims: list[Ownership]) -> dict[str, list[Ownership]]:
    """Every claimer goes for every partition, all in the same order: each partition is a round."""

    async def go(number: int) -> list[Ownership]:
        wanted = [Ownership(one.key, f"owner{number}", one.epoch + 1, one.version) for one in claims]
        return await stores[number % CLIENT_COUNT].claim_ownership(wanted)

    won: dict[str, list[Ownership]] = {one.key.partition: [] for one in claims}
    for claimed in await at_once(go(number) for number in range(CLAIMER_COUNT)):
        for one in claimed:
            won[one.key.partition].append(one)
    return won


def test_fresh_and_stale_records_have_exactly_one_winner_each(container: str) -> None:
    async def scenario() -> None:
        stores = [blob_store(container) for _ in range(CLIENT_COUNT)]
        try:
            nobody = [Ownership(GROUP.partition(str(number)), "", epoch=0) for number in range(ROUND_COUNT)]
            fresh = await winners(stores, nobody)
            assert Counter(map(len, fresh.values())) == {1: ROUND_COUNT}

            stale = await winners(stores, [won for (won,) in fresh.values()])
            assert Counter(map(len, stale.values())) == {1: ROUND_COUNT}

            listed = (await stores[0].list_ownership(GROUP)).ownerships
            assert {(one.key, one.owner_id, one.version) for one in listed} == {
                (won.key, won.owner_id, won.version) for (won,) in stale.values()
            }
        finally:
            for store in stores:
                await store.close()

    asyncio.run(scenario())
