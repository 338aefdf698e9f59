"""Requests for a partition that another member owns."""

from __future__ import annotations

from dataclasses import replace

from hubline.model.ownership import Member, Ownership
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store.support import (
    CLIENT_COUNT,
    GROUP,
    KEY,
    RACER_COUNT,
    TICK_SECONDS,
    StoreFactory,
    at_once,
    claim,
    listed_ownership,
    race,
    scenario,
    untimed,
)


class HandoverContract(StoreFactory):
    @scenario
    async def test_a_request_reaches_the_owner_at_its_renewal(self, store: CheckpointStore) -> None:
        first = await claim(store, "a", epoch=1)
        (held,) = (await store.renew_ownership(GROUP, Member("a"), [first])).renewed  # with nothing requested yet

        await store.request_handover([KEY], owner_id="b")
        await self.pass_time(TICK_SECONDS)
        (renewed,) = (await store.renew_ownership(GROUP, Member("a"), [held])).renewed

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
    async def test_releasing_keeps_the_request_in_any_epoch(self, store: CheckpointStore) -> None:
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
                held = (await stores[0].renew_ownership(GROUP, Member("a"), held)).renewed
                assert len(held) == len(keys)

        async def ask(store: CheckpointStore) -> None:
            for key in reversed(keys):
                await store.request_handover([key], owner_id="b")

        await at_once([renew(), *(ask(store) for store in stores[1:])])

        await renew()
        assert [one.requested_by for one in held] == ["b"] * len(keys)

    @race
    async def test_racing_requesters_leave_one_whole_request(self, stores: list[CheckpointStore]) -> None:
        await claim(stores[0], "a", epoch=1)
        requesters = [f"requester{number}" for number in range(RACER_COUNT)]

        await at_once(
            stores[number % CLIENT_COUNT].request_handover([KEY], owner_id=requester)
            for number, requester in enumerate(requesters)
        )

        assert (await listed_ownership(stores[0])).requested_by in requesters
