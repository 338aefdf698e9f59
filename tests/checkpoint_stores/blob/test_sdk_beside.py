"""The official store and ours on the same blobs: each reads the other's, and ours stays right whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from hubline.checkpoint_stores.blob import BlobStore
from hubline.errors import Fenced
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.testing.contracts.store import GROUP, KEY, claim, listed_ownership
from tests.checkpoint_stores.blob.support import Official, blob_store, official
from tests.support.azurite import Azurite

pytestmark = pytest.mark.xdist_group("azurite")

Scenario = Callable[[BlobStore, Official], Awaitable[None]]


@pytest.fixture
def beside(azurite_server: Azurite, container: str) -> Callable[[Scenario], None]:
    """Runs a scenario with our store and the official one."""

    async def run(scenario: Scenario) -> None:
        store = blob_store(container)
        try:
            async with official(azurite_server, container, GROUP) as theirs:
                await scenario(store, theirs)
        finally:
            await store.close()

    return lambda scenario: asyncio.run(run(scenario))


def checkpoint(sequence_number: int) -> Checkpoint:
    return Checkpoint(KEY, f"at {sequence_number}", sequence_number)


class TestOwnership:
    def test_each_sees_what_the_other_owns(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await claim(store, "ours", epoch=1, partition="0")
            assert await theirs.claim("1", "theirs")

            assert {p: one["owner_id"] for p, one in (await theirs.list_ownership()).items()} == {
                "0": "ours",
                "1": "theirs",
            }
            listed = {one.key.partition: one.owner_id for one in (await store.list_ownership(GROUP)).ownerships}
            assert listed == {"0": "ours", "1": "theirs"}

        beside(scenario)

    def test_what_is_released_here_is_free_there(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            held = await claim(store, "ours", epoch=1)
            await store.claim_ownership([replace(held, owner_id="")])

            assert not (await theirs.list_ownership())["0"]["owner_id"]
            assert await theirs.claim("0", "theirs")

        beside(scenario)

    def test_a_claim_of_theirs_is_a_change_of_owner(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            held = await claim(store, "ours", epoch=7)
            assert await theirs.claim("0", "theirs")

            taken = await listed_ownership(store)
            assert (taken.owner_id, taken.epoch > held.epoch) == ("theirs", True)
            assert (await store.renew_ownership(GROUP, Member("ours"), [held])).renewed == []
            assert await store.claim_ownership([replace(held, epoch=8)]) == []

        beside(scenario)

    def test_epochs_rise_over_owners_that_know_none(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            first = await claim(store, "ours", epoch=7)
            await store.fence(KEY, first.epoch)
            await store.update_checkpoint(checkpoint(10), epoch=first.epoch)
            assert await theirs.claim("0", "theirs")

            taken = await listed_ownership(store)
            (again,) = await store.claim_ownership([replace(taken, owner_id="ours", epoch=taken.epoch + 1)])
            assert await store.fence(KEY, again.epoch) == checkpoint(10)

        beside(scenario)

    def test_a_partition_that_they_took_is_not_opened_again(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await claim(store, "ours", epoch=7)
            await store.fence(KEY, 7)
            await store.update_checkpoint(checkpoint(10), epoch=7)
            assert await theirs.claim("0", "theirs")

            with pytest.raises(Fenced):
                await store.fence(KEY, 7)

        beside(scenario)

    def test_members_and_requests_are_out_of_their_sight(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            held = await claim(store, "ours", epoch=1)
            await store.renew_ownership(GROUP, Member("ours"), [held])
            await store.request_handover([KEY], owner_id="another")
            await store.fence(KEY, 1)

            assert list(await theirs.list_ownership()) == ["0"]
            assert await theirs.list_checkpoints() == {}

        beside(scenario)

    def test_the_case_of_names_makes_no_difference(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            shouted = replace(GROUP, namespace=GROUP.namespace.upper(), hub=GROUP.hub.upper())
            await store.claim_ownership([Ownership(shouted.partition("0"), "ours", epoch=1)])

            assert list(await theirs.list_ownership()) == ["0"]

        beside(scenario)


class TestCheckpoints:
    def test_each_resumes_where_the_other_was(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await theirs.update_checkpoint("0", 5)
            assert await store.fence(KEY, 1) == checkpoint(5)
            assert await theirs.list_checkpoints() == {"0": ("at 5", 5)}

            await store.update_checkpoint(checkpoint(9), epoch=1)
            assert await theirs.list_checkpoints() == {"0": ("at 9", 9)}

        beside(scenario)

    def test_a_fence_without_a_checkpoint_breaks_no_listing(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await store.fence(KEY, 1)
            assert await theirs.list_checkpoints() == {}

        beside(scenario)

    def test_a_late_write_of_theirs_is_overtaken_by_our_next(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await claim(store, "ours", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(checkpoint(100), epoch=1)
            await theirs.update_checkpoint("0", 50)

            await store.update_checkpoint(checkpoint(101), epoch=1)

            assert await theirs.list_checkpoints() == {"0": ("at 101", 101)}

        beside(scenario)

    def test_a_late_write_of_theirs_is_repaired_though_nothing_new_comes(
        self, beside: Callable[[Scenario], None]
    ) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            held = await claim(store, "ours", epoch=1)
            assert await theirs.claim("1", "theirs")
            await store.fence(KEY, 1)
            await store.update_checkpoint(checkpoint(100), epoch=1)
            await theirs.update_checkpoint("0", 50)

            await store.renew_ownership(GROUP, Member("ours"), [held])

            assert await theirs.list_checkpoints() == {"0": ("at 100", 100)}

        beside(scenario)

    def test_ours_never_goes_behind_theirs(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await claim(store, "ours", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(checkpoint(10), epoch=1)
            await theirs.update_checkpoint("0", 50)

            await store.update_checkpoint(checkpoint(11), epoch=1)

            assert await theirs.list_checkpoints() == {"0": ("at 50", 50)}

        beside(scenario)

    def test_after_the_partition_went_to_them_ours_is_fenced(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await claim(store, "ours", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(checkpoint(10), epoch=1)
            assert await theirs.claim("0", "theirs")
            await theirs.update_checkpoint("0", 8)

            with pytest.raises(Fenced):
                await store.update_checkpoint(checkpoint(11), epoch=1)
            assert await theirs.list_checkpoints() == {"0": ("at 8", 8)}

        beside(scenario)

    def test_writes_of_both_at_once_leave_a_whole_checkpoint(self, beside: Callable[[Scenario], None]) -> None:
        async def scenario(store: BlobStore, theirs: Official) -> None:
            await claim(store, "ours", epoch=1)
            await store.fence(KEY, 1)

            async def write_theirs() -> None:
                for number in range(0, 30, 3):
                    await theirs.update_checkpoint("0", number)

            async def write_ours() -> None:
                for number in range(1, 61):
                    await store.update_checkpoint(checkpoint(number), epoch=1)

            await asyncio.gather(write_theirs(), write_ours())
            await store.update_checkpoint(checkpoint(61), epoch=1)

            assert await store.list_checkpoints(GROUP) == [checkpoint(61)]

        beside(scenario)
