"""What a store of four methods must do, once it is wrapped by `hubline.checkpoint_stores.adapt`.

It is the contract of every store, without what four methods cannot keep: those tests are skipped, with the reason. What
is done in their place has tests of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hubline.checkpoint_stores.adapted import AdaptedStore
from hubline.errors import Fenced, StoreError
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store.support import (
    GROUP,
    KEY,
    RACER_COUNT,
    TICK_SECONDS,
    at_once,
    claim,
    listed_ownership,
    race,
    scenario,
)
from hubline.testing.contracts.store.whole import CheckpointStoreContract


def _skipped(reason: str) -> Any:
    """In place of a test that a store of four methods cannot pass."""

    def test(_contract: FourMethodStoreContract) -> None:
        pytest.skip(reason)

    return test


NO_MEMBERS = "four methods keep no members: consumers are known by what they own"
NO_REQUESTS = "four methods keep no handover requests: partitions are taken without asking"
NO_FENCE = "four methods keep no fence: ownership is listed before a checkpoint is written"
NO_COMPARISON = "four methods cannot compare and write a checkpoint in one step: it is listed before it is written"
NO_REMOVAL = "four methods cannot remove a checkpoint"


class FourMethodStoreContract(CheckpointStoreContract):
    """The contract of a store of four methods. Subclass it, or use `four_method_contract`.

    Each test makes one store, which is empty at first, and all clients of a test use it.
    """

    round_count = 4
    partition_count = 64
    keeps_epochs = False

    _made: object | None = None

    @abstractmethod
    def make_store(self) -> object:
        """The object with the four methods."""

    def open_store(self) -> CheckpointStore:
        # One for each client, as each process wraps it for itself.
        if self._made is None:
            self._made = self.make_store()
        return AdaptedStore(self._made)

    test_a_member_without_partitions_is_listed = _skipped(NO_MEMBERS)
    test_a_member_may_change_its_maximum = _skipped(NO_MEMBERS)
    test_a_members_age_grows_until_it_is_heard_of = _skipped(NO_MEMBERS)
    test_who_left_is_forgotten = _skipped(NO_MEMBERS)
    test_a_request_reaches_the_owner_at_its_renewal = _skipped(NO_REQUESTS)
    test_the_newest_request_stands_and_is_as_young_as_it_is = _skipped(NO_REQUESTS)
    test_releasing_keeps_the_request_in_any_epoch = _skipped(NO_REQUESTS)
    test_a_claim_that_changes_the_epoch_clears_the_request = _skipped(NO_REQUESTS)
    test_a_request_never_makes_a_renewal_fail = _skipped(NO_REQUESTS)
    test_racing_requesters_leave_one_whole_request = _skipped(NO_REQUESTS)
    test_nothing_of_the_old_owner_lands_after_the_fence = _skipped(NO_FENCE)
    test_racing_fences_end_at_the_highest_epoch = _skipped(NO_FENCE)
    test_racing_updates_end_at_the_highest = _skipped(NO_COMPARISON)
    test_an_operator_removes_a_checkpoint = _skipped(NO_REMOVAL)
    test_one_event_loop_after_another_may_use_the_store = _skipped(
        "a client of your own may belong to the event loop that used it first: make one for each processor"
    )

    @scenario
    async def test_an_owner_is_a_member_with_its_limit(self, store: CheckpointStore) -> None:
        await store.renew_ownership(GROUP, Member("a", max_partitions=3), [])
        await claim(store, "a", epoch=1)

        (member,) = (await store.list_ownership(GROUP)).members
        assert (member.owner_id, member.max_partitions) == ("a", 3)

    @race
    async def test_all_clients_see_the_owner_and_its_limit(self, stores: list[CheckpointStore]) -> None:
        await stores[0].renew_ownership(GROUP, Member("a", max_partitions=3), [])
        held = await claim(stores[0], "a", epoch=1)

        seen = await stores[1].list_ownership(GROUP)
        assert [(one.owner_id, one.version) for one in seen.ownerships] == [("a", held.version)]
        assert [(one.owner_id, one.max_partitions) for one in seen.members] == [("a", 3)]

    @race
    async def test_epochs_rise_from_owner_to_owner(self, stores: list[CheckpointStore]) -> None:
        held = await claim(stores[0], "a", epoch=1)
        for number, store in enumerate([*stores[1:], stores[0]]):
            await self.pass_time(TICK_SECONDS)
            found = await listed_ownership(store)
            (taken,) = await store.claim_ownership([replace(found, owner_id=f"b{number}", epoch=found.epoch + 1)])
            assert taken.epoch > held.epoch
            held = taken

    @race
    async def test_an_owner_sees_that_its_partition_was_taken(self, stores: list[CheckpointStore]) -> None:
        held = await claim(stores[0], "a", epoch=1)
        found = await listed_ownership(stores[1])
        await stores[1].claim_ownership([replace(found, owner_id="b", epoch=found.epoch + 1)])

        assert (await stores[0].renew_ownership(GROUP, Member("a"), [held])).renewed == []
        record = await listed_ownership(stores[0])
        assert record.owner_id == "b"
        assert record.epoch > held.epoch

    @race
    async def test_an_owner_whose_partition_was_taken_writes_no_checkpoint(self, stores: list[CheckpointStore]) -> None:
        await claim(stores[0], "a", epoch=1)
        await stores[0].fence(KEY, 1)
        found = await listed_ownership(stores[1])
        (taken,) = await stores[1].claim_ownership([replace(found, owner_id="b", epoch=found.epoch + 1)])
        await stores[1].fence(KEY, taken.epoch)
        await stores[1].update_checkpoint(Checkpoint(KEY, "1", 1), epoch=taken.epoch)

        with pytest.raises(Fenced) as refused:
            await stores[0].update_checkpoint(Checkpoint(KEY, "2", 2), epoch=1)
        with pytest.raises(Fenced):
            await stores[0].fence(KEY, 1)

        assert refused.value.held_epoch > 1
        assert await stores[0].list_checkpoints(GROUP) == [Checkpoint(KEY, "1", 1)]

    @race
    async def test_an_operator_elsewhere_sets_a_checkpoint_back(self, stores: list[CheckpointStore]) -> None:
        held = await claim(stores[0], "a", epoch=1)
        await stores[0].fence(KEY, 1)
        await stores[0].update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await stores[1].reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        with pytest.raises(Fenced):
            await stores[0].update_checkpoint(Checkpoint(KEY, "21", 21), epoch=1)
        assert (await stores[0].renew_ownership(GROUP, Member("a"), [held])).renewed == []
        free = await listed_ownership(stores[0])
        assert free.owner_id == ""
        (again,) = await stores[0].claim_ownership([replace(free, owner_id="a", epoch=free.epoch + 1)])
        assert await stores[0].fence(KEY, again.epoch) == Checkpoint(KEY, "5", 5)

    @race
    async def test_what_was_released_is_claimed_by_another(self, stores: list[CheckpointStore]) -> None:
        held = await claim(stores[0], "a", epoch=1)
        (released,) = await stores[0].claim_ownership([replace(held, owner_id="")])
        found = await listed_ownership(stores[1])

        (taken,) = await stores[1].claim_ownership([replace(found, owner_id="b", epoch=found.epoch + 1)])

        assert (found.owner_id, found.version) == ("", released.version)
        assert taken.owner_id == "b"

    @race
    async def test_another_process_under_the_same_owner_id_is_another_owner(
        self, stores: list[CheckpointStore]
    ) -> None:
        first = await claim(stores[0], "a", epoch=1)
        found = await listed_ownership(stores[1])
        (second,) = await stores[1].claim_ownership([replace(found, epoch=found.epoch + 1)])

        seen = await listed_ownership(stores[0])
        assert (found.owner_id, seen.owner_id, seen.version) == ("a", "a", second.version)
        assert seen.epoch > first.epoch

    @race
    async def test_a_checkpoint_never_goes_behind_that_of_another_client(self, stores: list[CheckpointStore]) -> None:
        for store in stores[:2]:
            await store.fence(KEY, 1)
        await stores[0].update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)
        await stores[1].update_checkpoint(Checkpoint(KEY, "19", 19), epoch=1)

        assert await stores[1].list_checkpoints(GROUP) == [Checkpoint(KEY, "20", 20)]

    @scenario
    async def test_removing_a_checkpoint_is_refused_and_says_what_to_do(self, store: CheckpointStore) -> None:
        with pytest.raises(StoreError, match="cannot remove the checkpoint"):
            await store.reset_checkpoint(KEY, None)

    @race
    async def test_many_claims_at_once_have_one_winner_each(self, stores: list[CheckpointStore]) -> None:
        keys = [GROUP.partition(str(number)) for number in range(RACER_COUNT)]

        won = await at_once(
            store.claim_ownership([Ownership(key, f"owner{number}", epoch=1) for key in keys])
            for number, store in enumerate(stores)
        )

        claimed = sorted(one.key.partition for claims in won for one in claims)
        assert claimed == sorted(key.partition for key in keys)


def four_method_contract(make_store: Callable[[], object]) -> type[FourMethodStoreContract]:
    """Make the contract suite of a store of four methods, for pytest.

    Args:
        make_store: Makes a store that is empty, such as the class itself. It is called once for each test.

    Returns:
        A class of tests. Give it a name that starts with `Test`.

    Example:
        TestMyStore = four_method_contract(MyStore)
    """

    class Contract(FourMethodStoreContract):
        def make_store(self) -> object:
            return make_store()

    return Contract
