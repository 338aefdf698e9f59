"""Locks on partitions, by leases of Blob Storage: nobody takes a partition from an owner that keeps its lock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob import BlobStore
from hubline.checkpoint_stores.blob.layout import ownership_blob
from hubline.coordination.dispatcher import locking_store
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.strategies import Balanced, Fixed
from hubline.errors import ConfigError, Fenced
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.model.positions import Position
from hubline.processor import Processor, ProcessorOptions
from hubline.testing.contracts.store import GROUP, KEY, at_once, claim, listed_ownership
from hubline.testing.memory_hub import MemoryHub
from tests.checkpoint_stores.blob.support import blob_store, locking_blob_store, official
from tests.support.azurite import Azurite

azurite_only = pytest.mark.xdist_group("azurite")

URL = "https://acme.blob.core.windows.net/checkpoints"
ME = Member("a")


def play(address: str, scenario: Callable[[BlobStore], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        store = locking_blob_store(address, **settings)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


async def break_lock(store: BlobStore) -> None:
    assert await store.container.break_lease(ownership_blob(KEY))


async def is_locked(store: BlobStore) -> bool:
    found = await store.container.look(ownership_blob(KEY))
    assert found is not None
    return found.is_leased


@azurite_only
class TestClaims:
    @pytest.mark.parametrize("is_locking", [True, False], ids=["another that locks", "one that does not"])
    def test_a_locked_partition_is_taken_by_nobody(self, container: str, is_locking: bool) -> None:
        async def scenario(store: BlobStore) -> None:
            other = locking_blob_store(container) if is_locking else blob_store(container)
            held = await claim(store, "a", epoch=1)

            assert await other.claim_ownership([replace(held, owner_id="b", epoch=2)]) == []
            assert await other.claim_ownership([Ownership(KEY, "b", epoch=2)]) == []
            assert len((await store.renew_ownership(GROUP, ME, [held])).renewed) == 1
            assert (await listed_ownership(other)).owner_id == "a"
            await other.close()

        play(container, scenario)

    def test_an_official_sdk_cannot_take_it(self, container: str, azurite_server: Azurite) -> None:
        """The record stays. The SDK for Python, when refused, believes that it owns the partition: see the docs."""

        async def scenario(store: BlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            async with official(azurite_server, container, GROUP) as sdk:
                assert (await sdk.list_ownership())["0"]["owner_id"] == "a"

                await sdk.claim("0", "sdk")
                assert await listed_ownership(store) == replace(held, age_seconds=0.0)

                await store.claim_ownership([replace(held, owner_id="")])
                await sdk.claim("0", "sdk")
                assert (await listed_ownership(store)).owner_id == "sdk"

        play(container, scenario)

    def test_a_request_does_not_take_it_either(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            other = blob_store(container)
            held = await claim(store, "a", epoch=1)
            await other.request_handover([KEY], owner_id="b")

            (renewed,) = (await store.renew_ownership(GROUP, ME, [held])).renewed

            assert renewed.requested_by == "b"
            assert await other.claim_ownership([replace(renewed, owner_id="b", epoch=2)]) == []
            await other.close()

        play(container, scenario)

    def test_a_released_partition_is_free_at_once(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await claim(store, "a", epoch=1)

            (released,) = await store.claim_ownership([replace(held, owner_id="")])

            assert not await is_locked(store)
            (taken,) = await store.claim_ownership([replace(released, owner_id="b", epoch=2)])
            assert (taken.owner_id, await is_locked(store)) == ("b", True)

        play(container, scenario)

    def test_a_lock_that_ended_does_not_keep_its_owner_from_releasing(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await break_lock(store)

            (released,) = await store.claim_ownership([replace(held, owner_id="")])

            assert (released.owner_id, released.epoch) == ("", 1)

        play(container, scenario)

    def test_a_restart_under_its_own_id_takes_its_partition_back_at_once(self, container: str) -> None:
        async def scenario(former: BlobStore) -> None:
            held = await claim(former, "a", epoch=1)
            restarted = locking_blob_store(container)

            (taken,) = await restarted.claim_ownership([replace(await listed_ownership(restarted), epoch=2)])

            assert (await former.renew_ownership(GROUP, ME, [held])).renewed == []
            assert await former.claim_ownership([replace(held, owner_id="")]) == []
            assert len((await restarted.renew_ownership(GROUP, ME, [taken])).renewed) == 1
            assert await is_locked(restarted)
            await restarted.close()

        play(container, scenario)

    def test_a_first_claim_that_died_before_its_lock_is_free_after_a_lease(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            dead = blob_store(container)
            held = await claim(dead, "dead", epoch=1)
            await dead.close()

            (taken,) = await store.claim_ownership([replace(held, owner_id="b", epoch=2)])

            assert (taken.owner_id, await is_locked(store)) == ("b", True)

        play(container, scenario)

    def test_twenty_claimers_have_one_winner_fresh_or_stale(self, container: str) -> None:
        async def scenario(observer: BlobStore) -> None:
            stores = [locking_blob_store(container) for _ in range(4)]
            current = [Ownership(GROUP.partition(str(number)), "", epoch=0) for number in range(25)]
            for _ in range(4):  # the first round is of fresh records, the others of stale ones
                attempts = await at_once(
                    stores[number % 4].claim_ownership(
                        [replace(one, owner_id=f"owner{number}", epoch=one.epoch + 1) for one in current]
                    )
                    for number in range(20)
                )
                won = [one for claims in attempts for one in claims]
                assert sorted(one.key.partition for one in won) == sorted(one.key.partition for one in current)
                listed = (await observer.list_ownership(GROUP)).ownerships
                assert {(one.key, one.owner_id) for one in listed} == {(one.key, one.owner_id) for one in won}
                current = won
                for one in won:
                    await observer.container.break_lease(ownership_blob(one.key))
            for store in stores:
                await store.close()

        play(container, scenario)


@azurite_only
class TestRenewals:
    @pytest.mark.parametrize("refresh_seconds", [0.0, 40.0], ids=["with the blobs", "heartbeat alone"])
    def test_a_renewal_renews_the_lock(self, container: str, refresh_seconds: float) -> None:
        async def scenario(store: BlobStore) -> None:
            renewed = [await claim(store, "a", epoch=1)]
            for _ in range(3):
                renewed = (await store.renew_ownership(GROUP, ME, renewed)).renewed
            assert len(renewed) == 1
            assert await is_locked(store)

        play(container, scenario, refresh_seconds=refresh_seconds)

    def test_a_broken_lock_is_a_lost_partition(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await break_lock(store)

            for _ in range(2):
                assert (await store.renew_ownership(GROUP, ME, [held])).renewed == []

            (taken,) = await store.claim_ownership([replace(await listed_ownership(store), epoch=2)])
            assert len((await store.renew_ownership(GROUP, ME, [taken])).renewed) == 1

        play(container, scenario)

    def test_a_blob_that_vanished_is_a_lost_partition(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await break_lock(store)
            assert await store.container.delete(ownership_blob(KEY))

            assert (await store.renew_ownership(GROUP, ME, [held])).renewed == []
            assert (await store.list_ownership(GROUP)).ownerships == ()

        play(container, scenario)

    def test_an_owner_whose_partition_passed_on_can_write_nothing(self, container: str) -> None:
        async def scenario(late: BlobStore) -> None:
            held = await claim(late, "a", epoch=1)
            await late.fence(KEY, 1)
            await late.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            await break_lock(late)
            after = locking_blob_store(container)
            await after.claim_ownership([replace(await listed_ownership(after), owner_id="b", epoch=2)])
            assert await after.fence(KEY, 2) == Checkpoint(KEY, "7", 7)

            with pytest.raises(Fenced) as refused:
                await late.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            assert (await late.renew_ownership(GROUP, ME, [held])).renewed == []
            assert await late.claim_ownership([replace(held, owner_id="")]) == []

            assert refused.value.held_epoch == 2
            assert await after.list_checkpoints(GROUP) == [Checkpoint(KEY, "7", 7)]
            assert await is_locked(after)
            await after.close()

        play(container, scenario)


@azurite_only
@pytest.mark.parametrize("checkpoint", [Checkpoint(KEY, "5", 5), None])
def test_a_reset_breaks_the_lock(container: str, checkpoint: Checkpoint | None) -> None:
    async def scenario(store: BlobStore) -> None:
        held = await claim(store, "a", epoch=1)
        await store.fence(KEY, 1)
        operator = blob_store(container)

        await operator.reset_checkpoint(KEY, checkpoint)

        assert (await store.renew_ownership(GROUP, ME, [held])).renewed == []
        listed = await listed_ownership(store)
        assert (listed.owner_id, listed.epoch) == ("", 2)
        assert len(await store.claim_ownership([replace(listed, owner_id="b", epoch=3)])) == 1
        assert await store.fence(KEY, 3) == checkpoint
        await operator.close()

    play(container, scenario)


@pytest.mark.parametrize("lease", ["14s", "61s", "0s", "15.5s", "5m", 14, 61, 0, -30])
def test_a_lease_that_blob_storage_does_not_grant_is_refused(lease: Any) -> None:
    with pytest.raises(ConfigError, match="grants leases of 15 to 60 whole seconds"):
        Fixed(2, lease=lease)


@pytest.mark.parametrize("lease", [15.5, True, b"30s", ["30s"]])
def test_a_lease_that_is_neither_text_nor_a_number_of_seconds_is_refused(lease: Any) -> None:
    with pytest.raises(ConfigError, match="lease must be text such as '30s' or seconds from 15 to 60 or None, not"):
        Fixed(2, lease=lease)


@pytest.mark.parametrize("lease", ["", "30", "thirty"])
def test_a_text_that_is_not_a_duration_is_refused(lease: str) -> None:
    with pytest.raises(ConfigError, match="as in 30s"):
        Fixed(2, lease=lease)


@pytest.mark.parametrize("lease", ["15s", "1m", "30s", 15, 60])
def test_the_leases_that_blob_storage_grants(lease: str | int) -> None:
    assert Fixed(2, lease=lease).lock_seconds in (15, 30, 60)


def test_the_lease_is_not_part_of_the_address() -> None:
    with pytest.raises(ConfigError):
        parse_store(f"{URL}?lease=30s")
    with pytest.raises(ConfigError):
        parse_store("UseDevelopmentStorage=true;Container=state;Lease=30s")


class TestProcessors:
    @pytest.mark.parametrize("store", ["memory:", "sqlite:////tmp/hubline-state.db"])
    def test_a_store_that_cannot_lock_is_refused(self, store: str) -> None:
        with pytest.raises(ConfigError, match="needs a store in Azure Blob Storage"):
            _processor(Fixed(2, lease="30s"), store=store)

    def test_a_lock_that_ends_before_the_lease_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"LeaseOptions\(lease_seconds=15\)"):
            _processor(Fixed(2, lease="15s"))

    def test_a_store_is_only_asked_to_lock_for_a_strategy_that_wants_it(self) -> None:
        store = blob_store("UseDevelopmentStorage=true;Container=state")

        assert locking_store(store, Fixed(2), LeaseOptions()) is store
        assert locking_store(store, Balanced(), LeaseOptions()) is store
        assert locking_store(store, Fixed(2, lease="30s"), LeaseOptions()) is not store


def _processor(strategy: Fixed, *, store: str = "UseDevelopmentStorage=true;Container=state") -> Processor:
    return Processor(
        MemoryHub(2),
        store,
        consumer_group="tests",
        starting_position=Position.earliest(),
        load_balancing=strategy,
        options=ProcessorOptions(lease=LeaseOptions(lease_seconds=30.0)),
    )
