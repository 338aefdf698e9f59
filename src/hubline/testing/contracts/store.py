"""What every :class:`~hubline.ports.CheckpointStore` must do, as pytest tests over a factory.

    class TestMyStore(CheckpointStoreContract):
        @pytest.fixture(autouse=True)
        def _database(self, tmp_path):
            self.path = tmp_path / "store"

        def open_store(self):
            return MyStore(self.path)

The suite needs pytest and nothing else. It assumes no clock: give ``pass_time`` a way to move yours.
"""

from __future__ import annotations

import asyncio
import functools
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from hubline.errors import Fenced
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore

GROUP = GroupKey("namespace.example", "orders", "$Default")
KEY = GROUP.partition("0")
NEVER_FENCED = -1  # the held epoch of a checkpoint that nobody has fenced

# Enough to make a lost update likely: over 4 clients, 20 calls are in flight at once and several truly overlap.
RACER_COUNT = 20
CLIENT_COUNT = 4

# Longer than the resolution of any store's clock (a millisecond), short enough to wait for.
TICK_SECONDS = 0.02


class StoreFactory(ABC):
    """Where the stores under test come from.

    ``round_count`` is how often a race is run, and ``partition_count`` how many partitions "many" are: fewer for a
    store whose calls take long. ``renewal_is_a_write`` says whether each renewal changes the version of each record, so
    that a claim of what was listed before is lost. Where it does not, a renewal proves that the record is still its
    owner's, and makes it young.

    Most stores leave it to the caller to judge whether a lease has run out, and give a partition to whoever claims it
    under its current version. One that keeps leases itself does so only once the lease has lapsed: its factory makes
    that happen in ``lapse``, and leaves out :class:`HandoverContract`, for nothing is ever asked for there.
    """

    round_count = 12
    partition_count = 1024
    renewal_is_a_write = True

    @abstractmethod
    def open_store(self) -> CheckpointStore:
        """A client of the test's store, which is empty at first. All clients of a test see the same data."""

    async def pass_time(self, seconds: float) -> None:
        """Lets the store's own clock advance by at least that much. Sleeps, unless overridden."""
        await asyncio.sleep(seconds)

    async def lapse(self, ownership: Ownership) -> None:  # noqa: B027 - most stores have nothing to do
        """Lets the lease of a record end, in a store that keeps leases itself; the record stays as it is."""

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[CheckpointStore]]:
        async with AsyncExitStack() as closing:
            stores = [self.open_store() for _ in range(count)]
            for store in stores:
                closing.push_async_callback(store.close)
            yield stores


Factory = TypeVar("Factory", bound=StoreFactory)
Result = TypeVar("Result")


def scenario(test: Callable[[Factory, CheckpointStore], Awaitable[None]]) -> Callable[[Factory], None]:
    """Makes a plain test of a coroutine function that takes an open store."""

    async def play(factory: Factory) -> None:
        async with factory.clients(1) as (store,):
            await test(factory, store)

    return _plain_test(test, play)


def race(test: Callable[[Factory, list[CheckpointStore]], Awaitable[None]]) -> Callable[[Factory], None]:
    """Makes a plain test of a coroutine function that takes several clients of one store."""

    async def play(factory: Factory) -> None:
        async with factory.clients(CLIENT_COUNT) as stores:
            await test(factory, stores)

    return _plain_test(test, play)


def _plain_test(
    test: Callable[..., Awaitable[None]], play: Callable[[Factory], Awaitable[None]]
) -> Callable[[Factory], None]:
    @functools.wraps(test)
    def run(self: Factory) -> None:
        asyncio.run(_await(play(self)))

    del run.__wrapped__  # pytest would take the test's parameters for fixtures
    return run


async def _await(call: Awaitable[Result]) -> Result:
    return await call


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
        for version in ("", "0x8DCF", f" {first.version}", f"{first.version}.0", "9" * 30):
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
    async def test_a_claim_with_no_owner_relinquishes(self, store: CheckpointStore) -> None:
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
            await store.renew_ownership(group, Member(f"member{number}"), [])
            await store.fence(group.partition("0"), number)
            await store.update_checkpoint(Checkpoint(group.partition("0"), "7", number), epoch=number)

        for number, group in enumerate(groups):
            state = await store.list_ownership(group)
            assert [one.owner_id for one in state.ownerships] == [f"owner{number}"]
            assert [one.key for one in state.ownerships] == [group.partition("0")]
            assert [one.owner_id for one in state.members] == [f"member{number}"]
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
        (renewed,) = await store.renew_ownership(GROUP, Member("a"), [held])

        assert 0 <= held.age_seconds < young.age_seconds < old.age_seconds
        assert renewed.age_seconds < old.age_seconds

    @scenario
    async def test_many_partitions_are_claimed_renewed_and_listed_at_once(self, store: CheckpointStore) -> None:
        keys = [GROUP.partition(str(number)) for number in range(self.partition_count)]

        claimed = await store.claim_ownership([Ownership(key, "a", epoch=1) for key in keys])
        renewed = await store.renew_ownership(GROUP, Member("a"), claimed)
        state = await store.list_ownership(GROUP)

        assert {one.key for one in claimed} == {one.key for one in renewed} == set(keys)
        assert {untimed(one) for one in state.ownerships} == {untimed(one) for one in renewed}


class MembershipContract(StoreFactory):
    @scenario
    async def test_a_member_without_partitions_is_listed(self, store: CheckpointStore) -> None:
        assert await store.renew_ownership(GROUP, Member("a", max_partitions=3), []) == []

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

        await store.leave(GROUP, "a")
        await store.leave(GROUP, "a")

        assert [one.owner_id for one in (await store.list_ownership(GROUP)).members] == ["b"]

    @scenario
    async def test_renewing_keeps_owner_and_epoch(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=5)

        (renewed,) = await store.renew_ownership(GROUP, Member("a"), [replace(held, owner_id="x", epoch=9)])

        assert (renewed.owner_id, renewed.epoch) == ("a", 5)
        assert (renewed.version != held.version) == self.renewal_is_a_write
        assert untimed(await listed_ownership(store)) == untimed(renewed)

    @scenario
    async def test_what_was_taken_meanwhile_is_not_renewed(self, store: CheckpointStore) -> None:
        kept = await claim(store, "a", epoch=1, partition="0")
        lost = await claim(store, "a", epoch=1, partition="1")
        await self.lapse(lost)
        (taken,) = await store.claim_ownership([replace(lost, owner_id="b", epoch=2)])

        renewed = await store.renew_ownership(GROUP, Member("a"), [lost, kept])

        assert [one.key.partition for one in renewed] == ["0"]
        assert untimed(await listed_ownership(store, "1")) == untimed(taken)

    @scenario
    async def test_a_renewal_works_once(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)

        assert len(await store.renew_ownership(GROUP, Member("a"), [held])) == 1
        assert len(await store.renew_ownership(GROUP, Member("a"), [held])) == (0 if self.renewal_is_a_write else 1)


class HandoverContract(StoreFactory):
    @scenario
    async def test_a_request_reaches_the_owner_at_its_renewal(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)

        await store.request_handover([KEY], owner_id="b")
        await self.pass_time(TICK_SECONDS)
        (renewed,) = await store.renew_ownership(GROUP, Member("a"), [held])

        assert renewed.requested_by == "b"
        assert renewed.request_age_seconds > 0
        assert (await listed_ownership(store)).requested_by == "b"

    @scenario
    async def test_a_request_changes_nothing_else(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)

        await store.request_handover([KEY], owner_id="b")

        asked = await listed_ownership(store)
        assert untimed(replace(asked, requested_by=None)) == untimed(held)

    @scenario
    async def test_the_newest_request_stands_and_is_as_young_as_it_is(self, store: CheckpointStore) -> None:
        await claim(store, "a", epoch=1)
        await store.request_handover([KEY], owner_id="b")
        await self.pass_time(TICK_SECONDS)
        of_b = await listed_ownership(store)

        await store.request_handover([KEY], owner_id="c")

        of_c = await listed_ownership(store)
        assert (of_b.requested_by, of_c.requested_by) == ("b", "c")
        assert of_c.request_age_seconds < of_b.request_age_seconds + TICK_SECONDS

    @scenario
    async def test_asking_for_a_partition_without_a_record_is_fine(self, store: CheckpointStore) -> None:
        await store.request_handover([KEY], owner_id="b")
        await store.request_handover([], owner_id="b")

        assert (await store.list_ownership(GROUP)).ownerships == ()

    @scenario
    async def test_relinquishing_keeps_the_request_in_any_epoch(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)
        await store.request_handover([KEY], owner_id="b")

        (given_up,) = await store.claim_ownership([replace(held, owner_id="")])
        (raised,) = await store.claim_ownership([replace(given_up, epoch=7)])

        assert (given_up.owner_id, given_up.requested_by) == ("", "b")
        assert (raised.epoch, raised.requested_by) == (7, "b")
        assert (await listed_ownership(store)).requested_by == "b"

    @scenario
    async def test_a_claim_that_changes_the_epoch_clears_the_request(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)
        await store.request_handover([KEY], owner_id="b")

        (same_epoch,) = await store.claim_ownership([held])
        (next_epoch,) = await store.claim_ownership([replace(same_epoch, owner_id="b", epoch=2)])

        assert same_epoch.requested_by == "b"
        assert (next_epoch.requested_by, next_epoch.request_age_seconds) == (None, 0.0)
        assert (await listed_ownership(store)).requested_by is None

    @race
    async def test_a_request_never_makes_a_renewal_fail(self, stores: list[CheckpointStore]) -> None:
        keys = [GROUP.partition(str(number)) for number in range(8)]
        held = await stores[0].claim_ownership([Ownership(key, "a", epoch=1) for key in keys])

        async def renew() -> None:
            nonlocal held
            for _ in range(self.round_count):
                held = await stores[0].renew_ownership(GROUP, Member("a"), held)
                assert len(held) == len(keys)

        async def ask(store: CheckpointStore) -> None:
            for key in reversed(keys):
                await store.request_handover([key], owner_id="b")

        await at_once([renew(), *(ask(store) for store in stores[1:])])

        (held,) = await at_once([stores[0].renew_ownership(GROUP, Member("a"), held)])
        assert [one.requested_by for one in held] == ["b"] * len(keys)

    @race
    async def test_racing_askers_leave_one_whole_request(self, stores: list[CheckpointStore]) -> None:
        await claim(stores[0], "a", epoch=1)
        askers = [f"asker{number}" for number in range(RACER_COUNT)]

        await at_once(
            stores[number % CLIENT_COUNT].request_handover([KEY], owner_id=asker) for number, asker in enumerate(askers)
        )

        assert (await listed_ownership(stores[0])).requested_by in askers


class CheckpointContract(StoreFactory):
    @scenario
    async def test_a_new_partition_has_no_checkpoint(self, store: CheckpointStore) -> None:
        assert await store.fence(KEY, 1) is None
        assert await store.list_checkpoints(GROUP) == []

    @scenario
    async def test_the_next_epoch_resumes_where_the_last_one_was(self, store: CheckpointStore) -> None:
        done = Checkpoint(KEY, "0001@x", 2**62)
        await store.fence(KEY, 1)
        await store.update_checkpoint(done, epoch=1)

        assert await store.list_checkpoints(GROUP) == [done]
        assert await store.fence(KEY, 2) == done
        assert await store.fence(KEY, 2) == done

    @scenario
    async def test_a_lower_epoch_cannot_take_the_fence(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 4)

        with pytest.raises(Fenced) as refused:
            await store.fence(KEY, 3)

        assert (refused.value.partition, refused.value.epoch, refused.value.held_epoch) == ("0", 3, 4)
        await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=4)

    @scenario
    async def test_a_fenced_epoch_can_write_nothing(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)
        await store.fence(KEY, 2)

        with pytest.raises(Fenced) as refused:
            await store.update_checkpoint(Checkpoint(KEY, "2", 2), epoch=1)

        assert (refused.value.partition, refused.value.epoch, refused.value.held_epoch) == ("0", 1, 2)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "1", 1)]

    @scenario
    async def test_an_epoch_writes_only_once_it_took_the_fence(self, store: CheckpointStore) -> None:
        with pytest.raises(Fenced) as nobody:
            await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)
        await store.fence(KEY, 1)
        with pytest.raises(Fenced) as too_early:
            await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=2)

        assert (nobody.value.held_epoch, too_early.value.held_epoch) == (NEVER_FENCED, 1)
        assert await store.list_checkpoints(GROUP) == []

    @scenario
    async def test_a_checkpoint_never_goes_back(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.update_checkpoint(Checkpoint(KEY, "behind", 19), epoch=1)
        await store.update_checkpoint(Checkpoint(KEY, "the same", 20), epoch=1)

        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "20", 20)]

    @scenario
    async def test_the_first_event_can_be_checkpointed(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 0)
        await store.update_checkpoint(Checkpoint(KEY, "0", 0), epoch=0)

        assert await store.fence(KEY, 1) == Checkpoint(KEY, "0", 0)

    @scenario
    async def test_before_the_first_event_is_a_checkpoint_too(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint.before_first(KEY), epoch=1)

        assert await store.fence(KEY, 2) == Checkpoint.before_first(KEY)
        await store.update_checkpoint(Checkpoint(KEY, "0", 0), epoch=2)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "0", 0)]

    @scenario
    async def test_an_operator_sets_a_checkpoint_back(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]
        assert await store.fence(KEY, 2) == Checkpoint(KEY, "5", 5)

    @scenario
    async def test_an_operator_sets_a_checkpoint_before_the_first_event(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.reset_checkpoint(KEY, Checkpoint.before_first(KEY))

        assert await store.list_checkpoints(GROUP) == [Checkpoint.before_first(KEY)]
        assert await store.fence(KEY, 2) == Checkpoint.before_first(KEY)

    @scenario
    async def test_a_reset_fences_the_running_owner(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        with pytest.raises(Fenced) as refused:
            await store.update_checkpoint(Checkpoint(KEY, "21", 21), epoch=1)

        assert refused.value.held_epoch == 2
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]

    @scenario
    async def test_a_reset_takes_the_partition_from_its_owner(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)
        await store.fence(KEY, 1)

        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        assert await store.renew_ownership(GROUP, Member("a"), [held]) == []
        free = await listed_ownership(store)
        assert (free.owner_id, free.epoch) == ("", 2)
        assert await store.fence(KEY, free.epoch + 1) == Checkpoint(KEY, "5", 5)

    @scenario
    async def test_an_operator_removes_a_checkpoint(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.reset_checkpoint(KEY, None)

        assert await store.list_checkpoints(GROUP) == []
        with pytest.raises(Fenced):
            await store.update_checkpoint(Checkpoint(KEY, "21", 21), epoch=1)
        assert await store.fence(KEY, 2) is None

    @scenario
    async def test_an_operator_sets_a_checkpoint_before_anyone_reads(self, store: CheckpointStore) -> None:
        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]
        assert await store.fence(KEY, 0) == Checkpoint(KEY, "5", 5)


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
            assert untimed(await listed_ownership(stores[0], key.partition)) == untimed(won)

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
            assert untimed(await listed_ownership(stores[0])) == untimed(held)

    @race
    async def test_either_the_renewal_or_the_claim_holds(self, stores: list[CheckpointStore]) -> None:
        keys = [GROUP.partition(str(number)) for number in range(RACER_COUNT)]
        held = await stores[0].claim_ownership([Ownership(key, "a", epoch=0) for key in keys])
        for number in range(self.round_count):
            taking = [replace(one, owner_id="b", epoch=number + 1) for one in held]

            renewed, *claimed = await at_once(
                [
                    stores[0].renew_ownership(GROUP, Member("a"), held),
                    *(stores[1 + place % 3].claim_ownership([one]) for place, one in enumerate(reversed(taking))),
                ]
            )

            won = {one.key: one for claims in claimed for one in claims}
            kept = {one.key: one for one in renewed}
            assert won.keys() | kept.keys() == {one.key for one in held}
            assert won.keys().isdisjoint(kept) or not self.renewal_is_a_write
            held = list((await stores[0].list_ownership(GROUP)).ownerships)
            assert {untimed(one) for one in held} == {untimed(one) for one in (kept | won).values()}

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
            renewed = await store.renew_ownership(GROUP, Member("a"), [await listed_ownership(store)])
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


class CheckpointStoreContract(
    OwnershipContract, MembershipContract, HandoverContract, CheckpointContract, RaceContract
):
    """The whole contract. Subclass it under a name that starts with ``Test``."""


async def claim(store: CheckpointStore, owner_id: str, *, epoch: int, partition: str = "0") -> Ownership:
    """Claims a partition that has no record yet."""
    (claimed,) = await store.claim_ownership([Ownership(GROUP.partition(partition), owner_id, epoch)])
    return claimed


async def listed_ownership(store: CheckpointStore, partition: str = "0") -> Ownership:
    """The record of one partition as the store lists it."""
    (found,) = [one for one in (await store.list_ownership(GROUP)).ownerships if one.key.partition == partition]
    return found


def untimed(ownership: Ownership) -> Ownership:
    """The record without its ages, to compare what two calls returned."""
    return replace(ownership, age_seconds=0.0, request_age_seconds=0.0)


async def at_once(calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """Runs the calls side by side and returns their results in order."""
    return list(await asyncio.gather(*calls))
