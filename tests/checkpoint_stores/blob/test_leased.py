"""The store with the service's own leases: who holds one keeps it, and who has lost it can write nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from hubline.adapters import open_store
from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob import LeasedBlobStore
from hubline.checkpoint_stores.blob import leased as leased_module
from hubline.checkpoint_stores.blob.layout import lease_blob
from hubline.coordination.strategies import Balanced, Fixed
from hubline.errors import ConfigError, Fenced, RecordDamaged
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.model.positions import Position
from hubline.processor import LeaseOptions, Processor, ProcessorOptions
from hubline.testing.contracts.store import GROUP, KEY, at_once, claim, listed_ownership
from hubline.testing.simulation.memory_hub import MemoryHub
from tests.checkpoint_stores.blob.support import leased_store, official, write
from tests.support.azurite import Azurite

azurite_only = pytest.mark.xdist_group("azurite")

URL = "https://acme.blob.core.windows.net/checkpoints"
SKEW_SECONDS = 600.0


def play(address: str, scenario: Callable[[LeasedBlobStore], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        store = leased_store(address, **settings)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


async def end_lease(store: LeasedBlobStore) -> None:
    assert await store.container.break_lease(lease_blob(KEY))


async def etag(store: LeasedBlobStore) -> str:
    found = await store.container.look(lease_blob(KEY))
    assert found is not None
    return found.etag


@azurite_only
class TestClaims:
    def test_a_lease_that_runs_is_taken_by_nobody(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            held = await claim(store, "a", epoch=1)

            assert await store.claim_ownership([replace(held, owner_id="b", epoch=2)]) == []
            assert await store.claim_ownership([Ownership(KEY, "b", epoch=2)]) == []
            assert len(await store.renew_ownership(GROUP, Member("a"), [held])) == 1
            assert (await listed_ownership(store)).owner_id == "a"

        play(container, scenario)

    def test_nobody_is_asked_to_hand_over(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await store.request_handover([KEY], owner_id="b")

            assert [one.requested_by for one in await store.renew_ownership(GROUP, Member("a"), [held])] == [None]

        play(container, scenario)

    def test_what_is_given_up_is_free_at_once_and_keeps_its_checkpoint(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            (given_up,) = await store.claim_ownership([replace(held, owner_id="")])

            assert (await listed_ownership(store)).age_seconds < store.lease_seconds
            (taken,) = await store.claim_ownership([replace(given_up, owner_id="b", epoch=2)])

            assert taken.owner_id == "b"
            assert await store.fence(KEY, 2) == Checkpoint(KEY, "7", 7)

        play(container, scenario)

    def test_a_lease_that_ended_can_still_be_given_up_by_its_owner(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            await end_lease(store)

            (given_up,) = await store.claim_ownership([replace(held, owner_id="")])

            assert (given_up.owner_id, given_up.epoch) == ("", 1)

        play(container, scenario)

    def test_a_restart_under_its_own_id_takes_its_lease_back_at_once(self, container: str) -> None:
        async def scenario(former: LeasedBlobStore) -> None:
            held = await claim(former, "a", epoch=1)
            await former.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            restarted = leased_store(container)

            listed = await listed_ownership(restarted)
            (taken,) = await restarted.claim_ownership([replace(listed, epoch=2)])

            assert await former.renew_ownership(GROUP, Member("a"), [held]) == []
            with pytest.raises(Fenced):
                await former.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            assert len(await restarted.renew_ownership(GROUP, Member("a"), [taken])) == 1
            await restarted.update_checkpoint(Checkpoint(KEY, "8", 8), epoch=2)
            await restarted.close()

        play(container, scenario)

    def test_a_claim_that_died_half_way_leaves_a_partition_that_is_free(self, container: str) -> None:
        """The blob is there, and names the owner; the lease was never acquired."""

        async def scenario(store: LeasedBlobStore) -> None:
            await write(store.container, lease_blob(KEY), {"ownerid": "dead", "hublineepoch": "1"})

            listed = await listed_ownership(store)

            assert listed.age_seconds > store.lease_seconds
            assert len(await store.claim_ownership([replace(listed, owner_id="b", epoch=2)])) == 1

        play(container, scenario)

    def test_a_running_lease_looks_younger_than_a_lease_and_an_ended_one_older(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            await claim(store, "a", epoch=1)
            assert (await listed_ownership(store)).age_seconds < store.lease_seconds

            await end_lease(store)

            assert (await listed_ownership(store)).age_seconds > store.lease_seconds

        play(container, scenario)

    def test_twenty_claimers_have_one_winner_fresh_or_stale(self, container: str) -> None:
        async def scenario(observer: LeasedBlobStore) -> None:
            stores = [leased_store(container) for _ in range(4)]
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
                    await observer.container.break_lease(lease_blob(one.key))
            for store in stores:
                await store.close()

        play(container, scenario)

    @pytest.mark.parametrize("skew_seconds", [SKEW_SECONDS, -SKEW_SECONDS])
    def test_a_clock_that_is_off_changes_nothing(self, container: str, skew_seconds: float) -> None:
        async def scenario(skewed: LeasedBlobStore) -> None:
            right = leased_store(container)
            held = await claim(right, "a", epoch=1)

            listed = await listed_ownership(skewed)
            assert listed.age_seconds < skewed.lease_seconds
            assert await skewed.claim_ownership([replace(listed, owner_id="b", epoch=2)]) == []
            assert len(await skewed.renew_ownership(GROUP, Member("a"), [held])) == 1
            await right.close()

        play(container, scenario, clock=lambda: time.time() + skew_seconds)


@azurite_only
class TestCheckpoints:
    def test_an_owner_whose_lease_passed_on_can_write_nothing(self, container: str) -> None:
        async def scenario(late: LeasedBlobStore) -> None:
            held = await claim(late, "a", epoch=1)
            await late.fence(KEY, 1)
            await late.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            await end_lease(late)
            after = leased_store(container)
            await after.claim_ownership([replace(await listed_ownership(after), owner_id="b", epoch=2)])
            before = await etag(after)

            with pytest.raises(Fenced) as refused:
                await late.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            with pytest.raises(Fenced):
                await late.fence(KEY, 1)
            assert await late.renew_ownership(GROUP, Member("a"), [held]) == []
            assert await late.claim_ownership([replace(held, owner_id="")]) == []

            assert refused.value.held_epoch == 2
            assert await etag(after) == before
            assert await after.fence(KEY, 2) == Checkpoint(KEY, "7", 7)
            await after.close()

        play(container, scenario)

    def test_an_owner_whose_lease_ended_can_write_nothing_before_it_claims_anew(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            held = await claim(store, "a", epoch=1)
            await end_lease(store)
            before = await etag(store)

            for _ in range(2):
                with pytest.raises(Fenced, match="its lease has ended"):
                    await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            with pytest.raises(Fenced):
                await store.fence(KEY, 1)

            assert await etag(store) == before
            assert len(await store.claim_ownership([replace(held, epoch=2)])) == 1
            await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=2)

        play(container, scenario)

    def test_a_write_that_was_delayed_does_not_land_after_a_later_one(self, container: str) -> None:
        """The same lease, but another ETag."""

        async def scenario(store: LeasedBlobStore) -> None:
            await claim(store, "a", epoch=1)
            (known,) = store._known.values()
            await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)

            assert await store._write(KEY, known, replace(known, checkpoint=Checkpoint(KEY, "3", 3))) is None

            assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "7", 7)]

        play(container, scenario)

    def test_a_checkpoint_without_an_offset_is_kept_as_it_is(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            await store.reset_checkpoint(KEY, Checkpoint(KEY, "", 7))
            assert await store.fence(KEY, 3) == Checkpoint(KEY, "", 7)
            assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "", 7)]

        play(container, scenario)

    def test_one_damaged_blob_stops_its_partition_only(self, container: str) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            await write(store.container, lease_blob(KEY), {"ownerid": "", "hublineepoch": "1", "sequencenumber": "x"})
            await write(store.container, lease_blob(GROUP.partition("1")), {"hublineepoch": "one"})
            sound = await claim(store, "a", epoch=1, partition="2")

            state = await store.list_ownership(GROUP)
            assert [one.key.partition for one in state.ownerships] == ["0", "2"]
            assert list(state.damaged) == ["1"]
            with pytest.raises(RecordDamaged, match="sequencenumber"):
                await store.fence(KEY, 1)
            assert list((await store.examine(GROUP)).damaged) == ["0"]
            assert len(await store.renew_ownership(GROUP, Member("a"), [sound])) == 1

            for partition in ("0", "1"):
                await store.reset_checkpoint(GROUP.partition(partition), Checkpoint(GROUP.partition(partition), "5", 5))
            assert dict((await store.list_ownership(GROUP)).damaged) == {}
            assert [one.sequence_number for one in await store.list_checkpoints(GROUP)] == [5, 5]

        play(container, scenario)

    def test_the_sdks_see_nothing_of_it(self, container: str, azurite_server: Azurite) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            await claim(store, "a", epoch=1)
            await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=1)
            async with official(azurite_server, container, GROUP) as sdk:
                assert await sdk.list_ownership() == {}
                assert await sdk.list_checkpoints() == {}

        play(container, scenario)

    def test_members_that_died_long_ago_are_forgotten(self, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario(store: LeasedBlobStore) -> None:
            await store.renew_ownership(GROUP, Member("dead"), [])
            monkeypatch.setattr(leased_module, "FORGET_SECONDS", -1.0)
            await store.renew_ownership(GROUP, Member("joins"), [])

            assert (await store.list_ownership(GROUP)).members == ()

        play(container, scenario)


class TestAddresses:
    def test_the_lease_is_part_of_the_address(self) -> None:
        address = parse_store(f"{URL}?lease=30s&sv=1&sig=x")

        assert isinstance(address, BlobAddress)
        assert (address.lease_seconds, address.signature is not None) == (30, True)
        assert str(address) == f"{URL}?lease=30s"
        assert isinstance(open_store("UseDevelopmentStorage=true;Container=state;Lease=1m"), LeasedBlobStore)

    @pytest.mark.parametrize("lease", ["14s", "61s", "0s", "15.5s", "5m"])
    def test_a_lease_that_the_service_does_not_grant_is_refused(self, lease: str) -> None:
        with pytest.raises(ConfigError, match="grants leases of 15 to 60 whole seconds"):
            parse_store(f"{URL}?lease={lease}")
        with pytest.raises(ConfigError, match="grants leases of 15 to 60 whole seconds"):
            parse_store(f"UseDevelopmentStorage=true;Container=state;Lease={lease}")

    @pytest.mark.parametrize("query", ["lease=", "lease=fixed", "lease=30s&lease=15s", "leases=30s"])
    def test_what_is_no_lease_is_refused(self, query: str) -> None:
        with pytest.raises(ConfigError):
            parse_store(f"{URL}?{query}")


class TestProcessors:
    def test_shares_that_even_out_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"strategy=Fixed\(count\)"):
            _processor(Balanced(), lease_seconds=30.0)

    def test_a_processor_that_counts_on_another_lease_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"LeaseOptions\(lease_seconds=30\)"):
            _processor(Fixed(2), lease_seconds=60.0)


def _processor(strategy: Balanced | Fixed, *, lease_seconds: float) -> Processor:
    return Processor(
        MemoryHub(2),
        "http://127.0.0.1:10000/devstoreaccount1/state?lease=30s",
        group="tests",
        start=Position.earliest(),
        strategy=strategy,
        options=ProcessorOptions(lease=LeaseOptions(lease_seconds=lease_seconds)),
    )
