"""How many requests a group makes on a real service, by the production client."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from hubline.checkpoint_stores.blob import BlobStore
from hubline.checkpoint_stores.blob.http import Answer, Transport
from hubline.coordination.dispatcher import Dispatcher
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.strategies import Greedy
from hubline.model.ownership import GroupState, Member, Ownership, Renewal
from hubline.testing.contracts.store import GROUP, KEY, claim, listed_ownership
from hubline.testing.simulation.virtual_loop import SimProcess, run_virtual
from tests.checkpoint_stores.blob.support import blob_store, eventually, play
from tests.coordination.test_dispatching import Holder
from tests.support.blob_service import BlobService

pytestmark = pytest.mark.xdist_group("azurite")

LEASE = LeaseOptions(
    lease_seconds=30.0, renew_interval_seconds=1.0, load_balancing_interval_seconds=1.0, startup_delay_seconds=0.1
)

CYCLES = 4


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is sent, by method and kind."""
    sent: Counter[str] = Counter()
    original = Transport.send

    async def send(
        self: Transport, method: str, *, blob: str | None = None, query: Mapping[str, str] | None = None, **rest: object
    ) -> Answer:
        sent[f"{method} {(query or {}).get('comp', '')}".rstrip()] += 1
        return await original(self, method, blob=blob, query=query, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Transport, "send", send)
    return sent


def test_at_rest_a_cycle_is_one_list_and_the_renewals(container: str, requests: Counter[str]) -> None:
    async def scenario() -> None:
        stores = [blob_store(container) for _ in "ab"]
        members = [
            Dispatcher(
                store,
                Holder(),
                group=GROUP,
                owner_id=name,
                strategy=Greedy(),
                partitions=lambda: [str(number) for number in range(8)],
                lease=LEASE,
                rng=random.Random(name),
            )
            for name, store in zip("ab", stores, strict=True)
        ]
        for member in members:
            await member.start()
        await eventually(lambda: [len(member.held) for member in members] == [4, 4], seconds_max=30)
        await asyncio.sleep(2 * LEASE.load_balancing_interval_seconds)
        requests.clear()
        await asyncio.sleep(CYCLES * LEASE.load_balancing_interval_seconds)
        counted = dict(requests)

        assert counted.keys() == {"GET list", "PUT metadata"}
        # On a busy machine, a renewal and a cycle may miss each other.
        assert counted["GET list"] <= 2 * CYCLES * 1.5
        # The member's own blob and one of its partitions', each time.
        assert counted["PUT metadata"] <= 2 * counted["GET list"] + 2
        for member in members:
            await member.stop()
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_a_member_looks_for_requests_only_when_it_was_rung(container: str, requests: Counter[str]) -> None:
    async def scenario(store: BlobStore) -> None:
        other = blob_store(container)
        held = [await claim(store, "a", epoch=1)]
        await store.renew_ownership(GROUP, Member("a", max_partitions=5), held)
        requests.clear()
        quiet = await store.renew_ownership(GROUP, Member("a", max_partitions=5), held)
        assert (requests["GET list"], group_of(quiet).is_partial) == (1, True)
        heard_at = (await other.list_ownership(GROUP)).members[0].age_seconds

        await other.request_handover([KEY], owner_id="b")
        rung = (await other.list_ownership(GROUP)).members[0]
        seen = await store.renew_ownership(GROUP, Member("a", max_partitions=5), quiet.renewed)

        # A ring makes nobody younger, and takes nothing from what a member has announced.
        assert (rung.max_partitions, rung.age_seconds >= heard_at) == (5, True)
        assert [one.requested_by for one in group_of(seen).ownerships] == ["b"]
        # As long as the request is young, it goes on looking: the first plan may not release the partition.
        again = await store.renew_ownership(GROUP, Member("a", max_partitions=5), seen.renewed)
        assert [one.requested_by for one in group_of(again).ownerships] == ["b"]
        await other.close()

    play(container, scenario)


def test_a_renewal_that_fails_half_way_looks_again_at_the_next(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: BlobStore) -> None:
        held = [await claim(store, "a", epoch=1)]
        await store.renew_ownership(GROUP, Member("a"), held)
        await store.request_handover([KEY], owner_id="b")
        with monkeypatch.context() as patch:
            patch.setattr(store.container, "list", _fails)
            with pytest.raises(ConnectionError):
                await store.renew_ownership(GROUP, Member("a"), held)

        seen = await store.renew_ownership(GROUP, Member("a"), held)

        assert [one.requested_by for one in group_of(seen).ownerships] == ["b"]

    play(container, scenario)


def test_a_request_that_did_not_ring_is_repeated_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a consumer that was paused before the ring would take a partition whose owner never heard of it."""

    async def scenario() -> None:
        process = asyncio.get_running_loop()
        assert isinstance(process, SimProcess)
        service = BlobService(process.world)
        store, other = service.connect(process), service.connect(process)
        held = [await claim(store, "a", epoch=1)]
        await store.renew_ownership(GROUP, Member("a"), held)
        with monkeypatch.context() as patch:
            patch.setattr(other.container, "look", _fails)
            with pytest.raises(ConnectionError):
                await other.request_handover([KEY], owner_id="b")
        quiet = await store.renew_ownership(GROUP, Member("a"), held)
        assert group_of(quiet).is_partial
        await asyncio.sleep(40)

        listed = await listed_ownership(other)

        assert (listed.requested_by, listed.request_age_seconds) == ("b", 0.0)
        (seen,) = (await store.renew_ownership(GROUP, Member("a"), quiet.renewed)).renewed
        assert seen.requested_by == "b"

    run_virtual(scenario)


def test_a_partial_listing_lacks_only_what_makes_a_share_smaller(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        limited = Member("a", max_partitions=1)
        await store.renew_ownership(GROUP, limited, [])
        held = [await claim(store, "a", epoch=1)]
        await store.claim_ownership([Ownership(GROUP.partition("1"), "b", epoch=1)])
        await store.renew_ownership(GROUP, Member("idle", max_partitions=3), [])

        partial = group_of(await store.renew_ownership(GROUP, limited, held))
        whole = await store.list_ownership(GROUP)

        assert (partial.is_partial, whole.is_partial) == (True, False)
        assert {one.owner_id: one.max_partitions for one in partial.members} == {"a": 1, "b": None}
        assert {one.owner_id for one in whole.members} == {"a", "idle"}
        assert [(one.key, one.owner_id) for one in partial.ownerships] == [
            (one.key, one.owner_id) for one in whole.ownerships
        ]

    play(container, scenario)


async def _fails(*_: object) -> None:
    raise ConnectionError("reset")


def group_of(renewal: Renewal) -> GroupState:
    assert renewal.group is not None
    return renewal.group
