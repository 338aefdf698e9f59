import asyncio

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.model.ownership import Member, Ownership
from hubline.testing.contracts.store import GROUP, KEY, CheckpointStoreContract


class TestMemoryStore(CheckpointStoreContract):
    def setup_method(self) -> None:
        self.now = 100.0
        self.store = MemoryStore(lambda: self.now)

    def open_store(self) -> MemoryStore:
        return self.store

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds


def test_ages_are_by_the_given_clock() -> None:
    now = 100.0
    store = MemoryStore(lambda: now)

    async def scenario() -> None:
        nonlocal now
        await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
        await store.renew_ownership(GROUP, Member("a"), [])
        now += 2.5
        await store.request_handover([KEY], owner_id="b")
        now += 1.5

        state = await store.list_ownership(GROUP)

        assert [(one.age_seconds, one.request_age_seconds) for one in state.ownerships] == [(4.0, 1.5)]
        assert [one.age_seconds for one in state.members] == [4.0]

    asyncio.run(scenario())


def test_a_clock_that_is_set_back_gives_no_negative_age() -> None:
    now = 100.0
    store = MemoryStore(lambda: now)

    async def scenario() -> None:
        nonlocal now
        await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
        await store.renew_ownership(GROUP, Member("a"), [])
        now -= 50

        state = await store.list_ownership(GROUP)

        assert [one.age_seconds for one in state.ownerships] == [0.0]
        assert [one.age_seconds for one in state.members] == [0.0]

    asyncio.run(scenario())


def test_everything_is_listed_in_the_order_it_came() -> None:
    store = MemoryStore()
    names = ["7", "10", "2", "1", "31"]

    async def scenario() -> None:
        for name in names:
            await store.claim_ownership([Ownership(GROUP.partition(name), "a", epoch=1)])
            await store.renew_ownership(GROUP, Member(name), [])

        state = await store.list_ownership(GROUP)

        assert [one.key.partition for one in state.ownerships] == names
        assert [one.owner_id for one in state.members] == names

    asyncio.run(scenario())
