"""Members, and renewing what they own."""

from __future__ import annotations

from dataclasses import replace

from hubline.model.ownership import Member
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store.support import (
    GROUP,
    TICK_SECONDS,
    StoreFactory,
    claim,
    listed_ownership,
    scenario,
    untimed,
)


class MembershipContract(StoreFactory):
    @scenario
    async def test_a_member_without_partitions_is_listed(self, store: CheckpointStore) -> None:
        assert (await store.renew_ownership(GROUP, Member("a", max_partitions=3), [])).renewed == []

        (member,) = (await store.list_ownership(GROUP)).members
        assert (member.owner_id, member.max_partitions) == ("a", 3)
        assert member.age_seconds >= 0

    @scenario
    async def test_a_member_may_change_its_maximum(self, store: CheckpointStore) -> None:
        await store.renew_ownership(GROUP, Member("a", max_partitions=3), [])
        await store.renew_ownership(GROUP, Member("a"), [])

        assert [one.max_partitions for one in (await store.list_ownership(GROUP)).members] == [None]

    @scenario
    async def test_a_members_age_grows_until_it_is_heard_of(self, store: CheckpointStore) -> None:
        await store.renew_ownership(GROUP, Member("a"), [])
        await self.pass_time(TICK_SECONDS)
        (silent,) = (await store.list_ownership(GROUP)).members
        await self.pass_time(2 * TICK_SECONDS)
        (older,) = (await store.list_ownership(GROUP)).members
        await store.renew_ownership(GROUP, Member("a"), [])
        (heard,) = (await store.list_ownership(GROUP)).members

        assert 0 < silent.age_seconds < older.age_seconds
        assert heard.age_seconds < older.age_seconds

    @scenario
    async def test_who_left_is_forgotten(self, store: CheckpointStore) -> None:
        await store.renew_ownership(GROUP, Member("a"), [])
        await store.renew_ownership(GROUP, Member("b"), [])

        for _ in range(2):
            await store.renew_ownership(GROUP, Member("a", max_partitions=0), [])

        assert [one.owner_id for one in (await store.list_ownership(GROUP)).members] == ["b"]

    @scenario
    async def test_renewing_keeps_owner_and_epoch(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=5)

        (renewed,) = (await store.renew_ownership(GROUP, Member("a"), [replace(held, owner_id="x", epoch=9)])).renewed

        assert (renewed.owner_id, renewed.epoch) == ("a", 5)
        assert (renewed.version != held.version) == self.renewal_is_a_write
        assert untimed(await listed_ownership(store)) == untimed(renewed)

    @scenario
    async def test_a_listing_that_comes_with_a_renewal_is_of_the_group(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1, partition="0")
        await claim(store, "b", epoch=2, partition="1")
        for _ in range(2):
            renewal = await store.renew_ownership(GROUP, Member("a"), [held])
            (held,) = renewal.renewed
            if renewal.group is not None:
                listed = (await store.list_ownership(GROUP)).ownerships
                assert {(one.key, one.owner_id, one.epoch) for one in renewal.group.ownerships} == {
                    (one.key, one.owner_id, one.epoch) for one in listed
                }
                assert "a" in {one.owner_id for one in renewal.group.members}

    @scenario
    async def test_what_was_taken_meanwhile_is_not_renewed(self, store: CheckpointStore) -> None:
        kept = await claim(store, "a", epoch=1, partition="0")
        lost = await claim(store, "a", epoch=1, partition="1")
        await self.lapse(lost)
        (taken,) = await store.claim_ownership([replace(lost, owner_id="b", epoch=2)])

        renewed = (await store.renew_ownership(GROUP, Member("a"), [lost, kept])).renewed

        assert [one.key.partition for one in renewed] == ["0"]
        assert untimed(await listed_ownership(store, "1")) == untimed(taken)

    @scenario
    async def test_a_renewal_with_a_version_from_elsewhere_renews_nothing(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)

        for version in ("", "0x8DCF", "\0", f"{held.version}\0"):
            assert (await store.renew_ownership(GROUP, Member("a"), [replace(held, version=version)])).renewed == []

    @scenario
    async def test_a_renewal_works_once(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)

        assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1
        assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == (
            0 if self.renewal_is_a_write else 1
        )
