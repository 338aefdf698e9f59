"""Several clients of one store at the same time: calls that overlap, are cancelled, or come from another event loop."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from hubline.errors import Fenced
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store.support import (
    CLIENT_COUNT,
    GROUP,
    KEY,
    RACER_COUNT,
    StoreFactory,
    _await,
    at_once,
    claim,
    listed_ownership,
    race,
    scenario,
)


class RaceContract(StoreFactory):
    @race
    async def test_a_fresh_record_has_one_winner(self, stores: list[CheckpointStore]) -> None:
        for number in range(self.round_count):
            key = GROUP.partition(str(number))

            winners = await at_once(
                stores[racer % CLIENT_COUNT].claim_ownership([Ownership(key, f"owner{racer}", epoch=1)])
                for racer in range(RACER_COUNT)
            )

            ((won,),) = [claims for claims in winners if claims]
            assert self.stored(await listed_ownership(stores[0], key.partition)) == self.stored(won)

    @race
    async def test_a_stale_record_has_one_winner(self, stores: list[CheckpointStore]) -> None:
        held = await claim(stores[0], "nobody", epoch=0)
        for number in range(self.round_count):
            epoch = number + 1
            await self.lapse(held)

            winners = await at_once(
                stores[racer % CLIENT_COUNT].claim_ownership([replace(held, owner_id=f"owner{racer}", epoch=epoch)])
                for racer in range(RACER_COUNT)
            )

            ((held,),) = [claims for claims in winners if claims]
            assert self.stored(await listed_ownership(stores[0])) == self.stored(held)

    @race
    async def test_either_the_renewal_or_the_claim_holds(self, stores: list[CheckpointStore]) -> None:
        keys = [GROUP.partition(str(number)) for number in range(RACER_COUNT)]
        held = await stores[0].claim_ownership([Ownership(key, "a", epoch=0) for key in keys])
        for number in range(self.round_count):
            taking = [replace(one, owner_id="b", epoch=number + 1) for one in held]

            async def renew(held: list[Ownership]) -> list[Ownership]:
                return (await stores[0].renew_ownership(GROUP, Member("a"), held)).renewed

            async def take(place: int, one: Ownership) -> list[Ownership]:
                return await stores[1 + place % 3].claim_ownership([one])

            renewed, *claimed = await at_once([renew(held), *(take(*each) for each in enumerate(reversed(taking)))])

            won = {one.key: one for claims in claimed for one in claims}
            kept = {one.key: one for one in renewed}
            assert won.keys() | kept.keys() == {one.key for one in held}
            assert won.keys().isdisjoint(kept) or not self.renewal_is_a_write
            held = list((await stores[0].list_ownership(GROUP)).ownerships)
            assert {self.stored(one) for one in held} == {self.stored(one) for one in (kept | won).values()}

    @race
    async def test_overlapping_calls_in_any_order_all_get_through(self, stores: list[CheckpointStore]) -> None:
        keys = [GROUP.partition(str(number)) for number in range(min(48, self.partition_count))]
        await stores[0].claim_ownership([Ownership(key, "nobody", epoch=0) for key in keys])
        order = random.Random(7)

        async def contend(store: CheckpointStore, owner_id: str) -> None:
            for _ in range(self.round_count):
                listed = list((await store.list_ownership(GROUP)).ownerships)
                order.shuffle(listed)
                fresh = [Ownership(GROUP.partition(f"{owner_id}{number}"), owner_id, 0) for number in range(4)]
                taking = [replace(one, owner_id=owner_id, epoch=one.epoch + 1) for one in listed]
                won = await store.claim_ownership([*taking, *fresh])
                order.shuffle(won)
                await store.request_handover([one.key for one in listed], owner_id=owner_id)
                await store.renew_ownership(GROUP, Member(owner_id), won)

        await at_once(contend(store, f"owner{number}") for number, store in enumerate(stores * 2))

    @race
    async def test_racing_updates_end_at_the_highest(self, stores: list[CheckpointStore]) -> None:
        await stores[0].fence(KEY, 1)
        sequences = list(range(RACER_COUNT))
        random.Random(7).shuffle(sequences)

        async def watch() -> None:
            seen = -1
            while seen < RACER_COUNT - 1:
                for checkpoint in await stores[0].list_checkpoints(GROUP):
                    assert checkpoint.offset == str(checkpoint.sequence_number)
                    assert checkpoint.sequence_number >= seen
                    seen = checkpoint.sequence_number
                await asyncio.sleep(0)

        await at_once(
            [
                watch(),
                *(
                    stores[sequence % CLIENT_COUNT].update_checkpoint(Checkpoint(KEY, str(sequence), sequence), epoch=1)
                    for sequence in sequences
                ),
            ]
        )

    @race
    async def test_nothing_of_the_old_owner_lands_after_the_fence(self, stores: list[CheckpointStore]) -> None:
        for epoch in range(self.round_count):
            key = GROUP.partition(str(epoch))
            await stores[0].fence(key, epoch)

            async def write_until_fenced(key: PartitionKey = key, epoch: int = epoch) -> int:
                for sequence in range(10_000):
                    try:
                        await stores[0].update_checkpoint(Checkpoint(key, str(sequence), sequence), epoch=epoch)
                    except Fenced:
                        return sequence - 1
                    await asyncio.sleep(0)
                pytest.fail("the old owner was never fenced")

            async def take_over(key: PartitionKey = key, epoch: int = epoch) -> Checkpoint | None:
                await asyncio.sleep(0)
                return await stores[1].fence(key, epoch + 1)

            last_written, resumed = await asyncio.gather(write_until_fenced(), take_over())

            assert (-1 if resumed is None else resumed.sequence_number) == last_written

    @race
    async def test_racing_fences_end_at_the_highest_epoch(self, stores: list[CheckpointStore]) -> None:
        async def take(epoch: int) -> bool:
            try:
                await stores[epoch % CLIENT_COUNT].fence(KEY, epoch)
            except Fenced:
                return False
            return True

        epochs = list(range(RACER_COUNT))
        random.Random(7).shuffle(epochs)
        taken = dict(zip(epochs, await at_once(take(epoch) for epoch in epochs), strict=True))

        assert taken[RACER_COUNT - 1]
        await stores[0].update_checkpoint(Checkpoint(KEY, "1", 1), epoch=RACER_COUNT - 1)

    @scenario
    async def test_a_cancelled_call_leaves_the_store_usable(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)
        for _ in range(RACER_COUNT):
            call = asyncio.create_task(store.renew_ownership(GROUP, Member("a"), [held]))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])  # it may or may not have taken effect, also later
            held = await listed_ownership(store)

        renewed: list[Ownership] = []
        while not renewed:
            renewed = (await store.renew_ownership(GROUP, Member("a"), [await listed_ownership(store)])).renewed
        assert renewed[0].owner_id == "a"

    def test_one_event_loop_after_another_may_use_the_store(self) -> None:
        store = self.open_store()
        asyncio.run(_await(store.fence(KEY, 1)))
        asyncio.run(_await(store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)))

        async def last() -> list[Checkpoint]:
            try:
                return await store.list_checkpoints(GROUP)
            finally:
                await store.close()

        assert asyncio.run(last()) == [Checkpoint(KEY, "1", 1)]

    @scenario
    async def test_closing_twice_is_fine(self, store: CheckpointStore) -> None:
        await store.list_ownership(GROUP)
        await store.close()
        await store.close()
