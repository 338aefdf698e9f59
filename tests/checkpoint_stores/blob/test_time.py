"""Ages are by the service's own time, and never overstated; a heartbeat makes young what its owner wrote lately."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from hubline.checkpoint_stores.blob import Blob, BlobStore
from hubline.checkpoint_stores.blob.client import age_seconds
from hubline.checkpoint_stores.blob.records import COVER_SECONDS, OwnRecords, read_ownership
from hubline.coordination.strategies import Greedy
from hubline.model.keys import GroupKey
from hubline.model.ownership import Member, Ownership
from hubline.model.positions import Position
from hubline.processor import LeaseOptions, Processor, ProcessorOptions
from hubline.testing.contracts.store import GROUP, KEY, listed_ownership
from hubline.testing.memory_hub import MemoryHub
from tests.checkpoint_stores.blob.support import blob_store, play, write

SKEW_SECONDS = 600.0
NOW = 1_800_000_000.0

azurite_only = pytest.mark.xdist_group("azurite")


def blob(*, written_ago: float, owner_id: str = "a") -> Blob:
    metadata = {"ownerid": owner_id, "hublineepoch": "1"}
    return Blob("name", "0x1", NOW - written_ago, age_seconds(NOW - written_ago, NOW), metadata)


def age(*, written_ago: float, heard_ago: float | None) -> float:
    members = {} if heard_ago is None else {"a": blob(written_ago=heard_ago)}
    return read_ownership(KEY, blob(written_ago=written_ago), OwnRecords(members, {}), now=NOW).age_seconds


class TestAges:
    def test_whole_seconds_never_make_a_lease_older_than_it_is(self) -> None:
        # Written at 9.99 and looked at at 20.0, as whole seconds: 9 and 20. It is 10.01 old.
        assert age_seconds(9.0, 20.0) == 10.0

    def test_a_clock_that_is_set_back_gives_no_negative_age(self) -> None:
        assert age_seconds(20.0, 9.0) == 0.0

    def test_a_heartbeat_makes_young(self) -> None:
        assert age(written_ago=31, heard_ago=6) == 5

    def test_without_one_the_blob_is_as_old_as_it_is(self) -> None:
        assert age(written_ago=31, heard_ago=None) == 30

    def test_a_heartbeat_from_before_makes_nothing_older(self) -> None:
        assert age(written_ago=6, heard_ago=100) == 5

    def test_what_its_owner_does_not_write_any_more_gets_old_beside_a_living_owner(self) -> None:
        assert age(written_ago=COVER_SECONDS + 41, heard_ago=1) == 40


@azurite_only
class TestSkewedClock:
    @pytest.mark.parametrize("skew_seconds", [SKEW_SECONDS, -SKEW_SECONDS])
    def test_a_host_whose_clock_is_off_sees_the_same_ages(self, container: str, skew_seconds: float) -> None:
        async def scenario(skewed: BlobStore) -> None:
            right = blob_store(container)
            await right.claim_ownership([Ownership(KEY, "a", epoch=1)])
            await skewed.renew_ownership(GROUP, Member("b"), [])

            assert (await listed_ownership(skewed)).age_seconds < SKEW_SECONDS / 10
            (member,) = (await right.list_ownership(GROUP)).members
            assert member.age_seconds < SKEW_SECONDS / 10
            assert abs(skewed.container.skew_seconds + skew_seconds) < SKEW_SECONDS / 10
            await right.close()

        play(container, scenario, clock=lambda: time.time() + skew_seconds)

    def test_it_moves_nothing(self, container: str) -> None:
        """Two processors, one with a clock that is off by many leases, for several cycles."""

        async def scenario() -> None:
            hub = MemoryHub(6)
            group = GroupKey(hub.namespace, hub.name, "tests")
            clocks = (time.time, lambda: time.time() + SKEW_SECONDS)
            stores = [blob_store(container, clock=clock) for clock in clocks]
            # Long enough for a busy machine: a consumer that judged by its own clock would see every lease end at once.
            lease = LeaseOptions(
                lease_seconds=60.0,
                renew_interval_seconds=0.5,
                load_balancing_interval_seconds=0.3,
                startup_delay_seconds=0.2,
            )
            processors = [
                Processor(
                    hub,
                    store,
                    consumer_group="tests",
                    starting_position=Position.earliest(),
                    load_balancing=Greedy(),
                    owner_id=name,
                    options=ProcessorOptions(lease=lease),
                )
                for name, store in zip(("right", "off"), stores, strict=True)
            ]
            for processor in processors:
                processor.on_batch(lambda batch: None)
                await processor.start()
            observer = blob_store(container)
            balanced = await _balanced_epochs(observer, group)

            await asyncio.sleep(10 * lease.load_balancing_interval_seconds)

            assert await _epochs(observer, group) == balanced
            for processor in processors:
                await processor.stop()
            for store in (*stores, observer):
                await store.close()

        asyncio.run(scenario())


async def _epochs(store: BlobStore, group: GroupKey) -> dict[str, tuple[str, int]]:
    listed = (await store.list_ownership(group)).ownerships
    return {one.key.partition: (one.owner_id, one.epoch) for one in listed}


async def _balanced_epochs(store: BlobStore, group: GroupKey) -> dict[str, tuple[str, int]]:
    """Who owns what under which epoch, once both have their share."""
    async with asyncio.timeout(60):
        while True:
            epochs = await _epochs(store, group)
            owners = [owner for owner, _ in epochs.values()]
            if owners.count("right") == owners.count("off") == 3:
                return epochs
            await asyncio.sleep(0.1)


@azurite_only
class TestPace:
    def test_a_renewal_writes_its_part_and_a_turn_writes_all(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            keys = [GROUP.partition(str(number)) for number in range(8)]
            held = await store.claim_ownership([Ownership(key, "a", epoch=1) for key in keys])
            first = {one.key: one.version for one in held}
            changed = []
            for _ in range(4):
                # As if ten of the forty seconds had passed.
                now = asyncio.get_running_loop().time()
                store._ownership._renewed_at[GROUP, "a"] = now - 10
                before = {one.key: one.version for one in held}
                held = (await store.renew_ownership(GROUP, Member("a"), held)).renewed
                changed.append(sum(one.version != before[one.key] for one in held))
                await asyncio.sleep(1.1)  # so that the oldest differs from the others

            assert len(held) == len(keys)
            assert all(count in (2, 3) for count in changed)  # a quarter, and time does not stand still
            assert all(one.version != first[one.key] for one in held)

        play(container, scenario)

    def test_beside_an_sdk_every_renewal_writes_all(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await store.claim_ownership([Ownership(GROUP.partition(p), "a", epoch=1) for p in "012"])
            alone = (await store.renew_ownership(GROUP, Member("a"), held)).renewed
            await write(store.container, "namespace.example/orders/$default/ownership/3", {"ownerid": "an-sdk"})

            beside = (await store.renew_ownership(GROUP, Member("a"), alone)).renewed

            assert {one.version for one in alone} == {one.version for one in held}
            assert len(beside) == 3
            assert {one.version for one in beside}.isdisjoint(one.version for one in held)

        play(container, scenario)

    def test_what_was_taken_is_not_renewed_though_nothing_is_written(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await store.claim_ownership([Ownership(GROUP.partition(p), "a", epoch=1) for p in ("0", "1")])
            (taken,) = await store.claim_ownership([replace(held[0], owner_id="b", epoch=2)])

            renewed = (await store.renew_ownership(GROUP, Member("a"), held)).renewed

            assert [one.key.partition for one in renewed] == ["1"]
            assert (await listed_ownership(store, "0")).version == taken.version

        play(container, scenario)

    def test_a_blob_that_vanished_is_made_again(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            held = await store.claim_ownership([Ownership(KEY, "a", epoch=5)])
            await store.container.delete("namespace.example/orders/$default/ownership/0")

            (renewed,) = (await store.renew_ownership(GROUP, Member("a"), held)).renewed

            assert (renewed.owner_id, renewed.epoch) == ("a", 5)
            assert (await listed_ownership(store)).version == renewed.version

        play(container, scenario)
