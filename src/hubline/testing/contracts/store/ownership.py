"""Claims: who owns a partition, by compare-and-swap on the record's version."""

from __future__ import annotations

from dataclasses import replace

from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store.support import (
    GROUP,
    KEY,
    TICK_SECONDS,
    StoreFactory,
    claim,
    listed_ownership,
    scenario,
    untimed,
)


class OwnershipContract(StoreFactory):
    @scenario
    async def test_a_group_that_nobody_reads_is_empty(self, store: CheckpointStore) -> None:
        state = await store.list_ownership(GROUP)

        assert (state.ownerships, state.members, dict(state.damaged)) == ((), (), {})

    @scenario
    async def test_a_first_claim_makes_the_record(self, store: CheckpointStore) -> None:
        claimed = await claim(store, "a", epoch=1)

        listed = await listed_ownership(store)
        assert (claimed.owner_id, claimed.epoch, claimed.requested_by) == ("a", 1, None)
        assert claimed.version is not None
        assert untimed(listed) == untimed(claimed)
        assert listed.age_seconds >= 0

    @scenario
    async def test_a_first_claim_is_lost_where_a_record_is(self, store: CheckpointStore) -> None:
        await claim(store, "a", epoch=1)

        assert await store.claim_ownership([Ownership(KEY, "b", epoch=1)]) == []
        assert (await listed_ownership(store)).owner_id == "a"

    @scenario
    async def test_a_claim_with_the_current_version_takes_the_partition(self, store: CheckpointStore) -> None:
        first = await claim(store, "a", epoch=1)
        await self.lapse(first)

        (second,) = await store.claim_ownership([replace(first, owner_id="b", epoch=2)])

        assert (second.owner_id, second.epoch) == ("b", 2)
        assert second.version != first.version
        assert untimed(await listed_ownership(store)) == untimed(second)

    @scenario
    async def test_a_claim_with_an_old_version_is_lost(self, store: CheckpointStore) -> None:
        first = await claim(store, "a", epoch=1)
        await self.lapse(first)
        (second,) = await store.claim_ownership([replace(first, owner_id="b", epoch=2)])
        await self.lapse(second)

        assert await store.claim_ownership([replace(first, owner_id="c", epoch=2)]) == []
        assert (await listed_ownership(store)).owner_id == "b"

    @scenario
    async def test_a_claim_with_a_version_of_a_missing_record_is_lost(self, store: CheckpointStore) -> None:
        first = await claim(store, "a", epoch=1)

        assert await store.claim_ownership([replace(first, key=GROUP.partition("1"))]) == []

    @scenario
    async def test_a_claim_with_a_version_from_elsewhere_is_lost(self, store: CheckpointStore) -> None:
        first = await claim(store, "a", epoch=1)

        await self.lapse(first)
        for version in ("", "0x8DCF", "\0", f"{first.version}\0", f" {first.version}", f"{first.version}.0", "9" * 30):
            assert await store.claim_ownership([replace(first, owner_id="b", version=version)]) == []
        assert (await listed_ownership(store)).owner_id == "a"

    @scenario
    async def test_each_claim_is_decided_by_itself(self, store: CheckpointStore) -> None:
        stale = await claim(store, "a", epoch=1)
        await self.lapse(stale)
        (held,) = await store.claim_ownership([replace(stale, owner_id="b", epoch=2)])
        other = await claim(store, "a", epoch=1, partition="1")
        await self.lapse(other)

        won = await store.claim_ownership(
            [
                Ownership(GROUP.partition("2"), "c", epoch=1),
                replace(stale, owner_id="c", epoch=2),
                replace(other, owner_id="c", epoch=2),
            ]
        )

        assert sorted((one.key.partition, one.owner_id, one.epoch) for one in won) == [("1", "c", 2), ("2", "c", 1)]
        assert untimed(await listed_ownership(store)) == untimed(held)

    @scenario
    async def test_claiming_nothing_is_fine(self, store: CheckpointStore) -> None:
        assert await store.claim_ownership([]) == []

    @scenario
    async def test_a_claim_with_no_owner_releases(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=3)

        (given_up,) = await store.claim_ownership([replace(held, owner_id="")])

        assert (given_up.owner_id, given_up.epoch) == ("", 3)
        assert untimed(await listed_ownership(store)) == untimed(given_up)

    @scenario
    async def test_groups_hubs_and_namespaces_are_apart(self, store: CheckpointStore) -> None:
        groups = [
            GROUP,
            replace(GROUP, group="other"),
            replace(GROUP, hub="other"),
            replace(GROUP, namespace="other"),
        ]
        for number, group in enumerate(groups):
            await store.claim_ownership([Ownership(group.partition("0"), f"owner{number}", epoch=number)])
            await store.renew_ownership(group, Member(f"owner{number}"), [])
            await store.fence(group.partition("0"), number)
            await store.update_checkpoint(Checkpoint(group.partition("0"), "7", number), epoch=number)

        for number, group in enumerate(groups):
            state = await store.list_ownership(group)
            assert [one.owner_id for one in state.ownerships] == [f"owner{number}"]
            assert [one.key for one in state.ownerships] == [group.partition("0")]
            assert [one.owner_id for one in state.members] == [f"owner{number}"]
            assert await store.list_checkpoints(group) == [Checkpoint(group.partition("0"), "7", number)]

    @scenario
    async def test_names_come_back_as_they_were_given(self, store: CheckpointStore) -> None:
        strange = GroupKey("näme'sp\"ace", "%s :name ?", "$Default; --")
        key = strange.partition("Ünïcode \N{OCTOPUS} 100%")

        (claimed,) = await store.claim_ownership([Ownership(key, "o'wner %(x)s\\", epoch=1)])
        await store.renew_ownership(strange, Member("o'wner %(x)s\\"), [claimed])
        await store.fence(key, 1)
        await store.update_checkpoint(Checkpoint(key, "00 'offset' %", 1), epoch=1)

        state = await store.list_ownership(strange)
        assert [(one.key, one.owner_id) for one in state.ownerships] == [(key, "o'wner %(x)s\\")]
        assert [one.owner_id for one in state.members] == ["o'wner %(x)s\\"]
        assert await store.list_checkpoints(strange) == [Checkpoint(key, "00 'offset' %", 1)]

    @scenario
    async def test_the_age_grows_until_the_next_write(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)
        await self.pass_time(TICK_SECONDS)
        young = await listed_ownership(store)
        await self.pass_time(TICK_SECONDS)
        old = await listed_ownership(store)
        (renewed,) = (await store.renew_ownership(GROUP, Member("a"), [held])).renewed

        assert 0 <= held.age_seconds < young.age_seconds < old.age_seconds
        assert renewed.age_seconds < old.age_seconds

    @scenario
    async def test_many_partitions_are_claimed_renewed_and_listed_at_once(self, store: CheckpointStore) -> None:
        keys = [GROUP.partition(str(number)) for number in range(self.partition_count)]

        claimed = await store.claim_ownership([Ownership(key, "a", epoch=1) for key in keys])
        renewed = (await store.renew_ownership(GROUP, Member("a"), claimed)).renewed
        state = await store.list_ownership(GROUP)

        assert {one.key for one in claimed} == {one.key for one in renewed} == set(keys)
        assert {untimed(one) for one in state.ownerships} == {untimed(one) for one in renewed}
