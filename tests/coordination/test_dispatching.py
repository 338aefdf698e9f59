"""How plans are carried out: store calls are few, and neither hand-overs nor clocks disturb the leases."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.dispatcher import Dispatcher
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.snapshot import Snapshot, Wait
from hubline.coordination.strategies import Greedy, Plan, Strategy
from hubline.errors import HublineError, StoreUnavailable
from hubline.model.keys import GroupKey
from hubline.model.ownership import GroupState, Member, Ownership, ReleaseReason, Renewal
from hubline.testing.simulation.virtual_loop import run_virtual
from tests.coordination.layouts import GROUP

LEASE = LeaseOptions()
STORE_SECONDS = 0.01


class Store(MemoryStore):
    """Takes a little time for each call, and notes it. ``renewals`` tells what becomes of the next ones."""

    def __init__(self) -> None:
        self.clock_offset = 0.0
        super().__init__(now=lambda: asyncio.get_running_loop().time() + self.clock_offset)
        self.calls: list[tuple[str, int]] = []
        self.renewals: Iterator[str] = iter(())

    async def list_ownership(self, group: GroupKey) -> GroupState:
        await self._note("list", 0)
        return await super().list_ownership(group)

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        await self._note("claim", len(claims))
        return await super().claim_ownership(claims)

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        await self._note("renew", len(owned))
        fate = next(self.renewals, "fine")
        if fate == "refused":
            raise StoreUnavailable("refused")
        renewed = await super().renew_ownership(group, member, owned)
        if fate == "answer lost":
            raise StoreUnavailable("the answer is lost")
        return renewed

    def counted(self, name: str) -> list[int]:
        return [count for call, count in self.calls if call == name]

    async def _note(self, name: str, count: int) -> None:
        self.calls.append((name, count))
        await asyncio.sleep(STORE_SECONDS)


class Holder:
    """Runs nothing; partitions are at rest as soon as they are asked to be."""

    def __init__(self) -> None:
        self.errors: list[HublineError] = []

    def open(self, ownership: Ownership) -> None: ...

    def renewed(self, ownership: Ownership) -> None: ...

    async def close_partition(self, partition: str, reason: ReleaseReason) -> None: ...

    def report_of(self, error: HublineError, partition: str | None) -> None:
        self.errors.append(error)


def dispatcher(
    store: Store,
    owner_id: str,
    *,
    partitions_count: int,
    strategy: Strategy | None = None,
    on_wait: Callable[[Wait], None] = lambda _: None,
) -> Dispatcher:
    return Dispatcher(
        store,
        Holder(),
        group=GROUP,
        owner_id=owner_id,
        strategy=strategy or Greedy(),
        partitions=[str(number) for number in range(partitions_count)].copy,
        lease=LEASE,
        rng=random.Random(owner_id),
        on_wait=on_wait,
    )


def test_what_comes_to_rest_together_is_given_up_in_one_call() -> None:
    async def hand_over() -> None:
        store = Store()
        first, second = (dispatcher(store, name, partitions_count=1_000) for name in "ab")
        await first.start()
        await asyncio.sleep(5)
        assert len(first.held) == 1_000
        await second.start()
        store.calls.clear()

        await asyncio.sleep(15)

        assert (len(first.held), len(second.held)) == (500, 500)
        # Given up by one, and claimed by the other.
        assert store.counted("claim") == [500, 500]
        for each in (first, second):
            await each.abort()

    run_virtual(hand_over)


def test_stopping_gives_up_everything_in_one_call() -> None:
    async def stop() -> None:
        store = Store()
        only = dispatcher(store, "a", partitions_count=1_000)
        await only.start()
        await asyncio.sleep(5)
        store.calls.clear()

        await only.stop()

        assert store.counted("claim") == [1_000]
        assert not only.held

    run_virtual(stop)


def test_after_a_crash_its_successor_says_whom_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    """Once, in its first look; nothing while it holds a partition, or one is free."""
    caplog.set_level(logging.INFO, logger="hubline.coordination")

    async def crash() -> None:
        store = Store()
        first = dispatcher(store, "first", partitions_count=2)
        await first.start()
        await asyncio.sleep(3)
        await first.abort()
        assert "waiting" not in caplog.text
        await asyncio.sleep(4)

        waits: list[Wait] = []
        second = dispatcher(store, "second", partitions_count=2, on_wait=waits.append)
        await second.start()
        await asyncio.sleep(0.1)
        (wait,) = waits
        assert re.fullmatch(
            r"waiting for partitions 0, 1: owned by first, lease expires in 2[0-9] s unless renewed", str(wait)
        )
        assert caplog.text.count("waiting partitions=0,1 owner_id=first lease_seconds_left=2") == 1
        await asyncio.sleep(30)
        assert (len(second.held), waits, caplog.text.count("waiting")) == (2, [wait], 1)
        await second.abort()

    run_virtual(crash)


def test_at_rest_a_member_lists_and_renews_once_a_cycle_and_nothing_else() -> None:
    async def rest() -> None:
        store = Store()
        only = dispatcher(store, "a", partitions_count=8)
        await only.start()
        await asyncio.sleep(5)
        # Left over from a member that is gone: it must not make this one look more often.
        await store.request_handover([GROUP.partition("0")], owner_id="gone")
        await asyncio.sleep(LEASE.handover_timeout_seconds)
        store.calls.clear()

        await asyncio.sleep(10 * LEASE.load_balancing_interval_seconds)

        assert {name for name, _ in store.calls} == {"list", "renew"}
        assert len(store.counted("renew")) == 10
        assert 10 <= len(store.counted("list")) <= 12
        await only.abort()

    run_virtual(rest)


def test_a_store_clock_that_was_set_back_makes_no_lease_longer() -> None:
    async def set_back() -> None:
        store = Store()
        only = dispatcher(store, "a", partitions_count=1)
        await only.start()
        await asyncio.sleep(2)
        [ownership] = only.held.values()

        # A renewal takes effect without its answer, so that its version is looked up at the next; then nothing works.
        store.renewals = itertools.chain(["answer lost", "fine"], itertools.repeat("refused"))
        store.clock_offset = -100.0
        await asyncio.sleep(LEASE.lease_seconds)

        assert not only.is_current("0", ownership.epoch)
        await only.abort()

    run_virtual(set_back)


def test_what_is_claimed_while_a_renewal_is_on_its_way_is_not_lost() -> None:
    async def claim() -> None:
        store = Store()
        only = dispatcher(store, "a", partitions_count=1)
        await only.start()
        await asyncio.sleep(2)

        renewing = asyncio.create_task(only._leases.renew())
        await asyncio.sleep(STORE_SECONDS / 2)
        only._leases.add(Ownership(GROUP.partition("9"), "a", epoch=1, version="1"), sent_at=2.0)
        await renewing

        assert sorted(only.held) == ["0", "9"]
        await only.abort()

    run_virtual(claim)


class Later:
    """Plans nothing, and names a moment far away."""

    max_partitions = None

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        return Plan(rerun_seconds=1_000.0)


def test_a_plan_for_later_does_not_stretch_the_interval() -> None:
    async def wait() -> None:
        store = Store()
        only = dispatcher(store, "a", partitions_count=1, strategy=Later())
        await only.start()
        await asyncio.sleep(5)
        store.calls.clear()

        await asyncio.sleep(2 * LEASE.load_balancing_interval_seconds)

        assert len(store.counted("list")) >= 2
        await only.abort()

    run_virtual(wait)
