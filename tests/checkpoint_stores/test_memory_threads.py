"""A memory store is shared by the processors of a process, each of which calls from a thread of its own."""

from __future__ import annotations

import asyncio
import threading

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.model.keys import GroupKey
from hubline.model.ownership import Ownership

THREADS_COUNT = 8
ROUNDS_COUNT = 300
KEYS = [GroupKey("namespace", "hub", "group").partition(str(number)) for number in range(ROUNDS_COUNT)]


def test_a_claim_has_one_winner_among_threads() -> None:
    store = MemoryStore()
    winners: list[str] = []
    start = threading.Barrier(THREADS_COUNT)

    async def claim_all(owner_id: str) -> None:
        for key in KEYS:
            won = await store.claim_ownership([Ownership(key, owner_id, epoch=1)])
            winners.extend(ownership.key.partition for ownership in won)
            await store.list_ownership(key.group_key)

    def race(owner_id: str) -> None:
        start.wait()
        asyncio.run(claim_all(owner_id))

    threads = [threading.Thread(target=race, args=[f"owner{number}"]) for number in range(THREADS_COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(winners) == sorted(key.partition for key in KEYS)
