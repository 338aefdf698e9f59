"""Stores of four methods, wrapped: their contract, what they are refused for, and what their records mean."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.eventhub._eventprocessor.in_memory_checkpoint_store import InMemoryCheckpointStore
from azure.eventhub.aio._eventprocessor.in_memory_checkpoint_store import (
    InMemoryCheckpointStore as AsyncInMemoryCheckpointStore,
)

import hubline
from hubline.adapters import open_store
from hubline.checkpoint_stores import adapt
from hubline.checkpoint_stores.adapted import AdaptedStore
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.errors import ConfigError, Fenced, RecordDamaged, StoreError, StoreUnavailable
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store import (
    GROUP,
    KEY,
    FourMethodStoreContract,
    at_once,
    claim,
    four_method_contract,
    listed_ownership,
)
from hubline.testing.simulation.virtual_loop import run_now, run_virtual
from tests.support.four_methods import DictionaryStore, Record

# The SDK's own are not typed.
SdkStore: Any = InMemoryCheckpointStore
AsyncSdkStore: Any = AsyncInMemoryCheckpointStore

NAMED = {"fully_qualified_namespace": GROUP.namespace, "eventhub_name": GROUP.hub, "consumer_group": GROUP.group}


class PlainDictionaryStore:
    """The same without async, with numbers for etags and no times."""

    def __init__(self) -> None:
        self._store = DictionaryStore()
        self._lock = threading.Lock()
        self.threads: set[int] = set()

    def list_ownership(self, namespace: str, hub: str, group: str) -> Iterable[Record]:
        return [_numbered(one) for one in self._run(self._store.list_ownership(namespace, hub, group))]

    def claim_ownership(self, ownership_list: Iterable[Record]) -> Iterable[Record]:
        claims = [{**one, **({"etag": str(one["etag"])} if "etag" in one else {})} for one in ownership_list]
        return [_numbered(one) for one in self._run(self._store.claim_ownership(claims))]

    def list_checkpoints(self, namespace: str, hub: str, group: str) -> Iterable[Record]:
        return list(self._run(self._store.list_checkpoints(namespace, hub, group)))

    def update_checkpoint(self, checkpoint: Record) -> None:
        self._run(self._store.update_checkpoint(checkpoint))

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            self.threads.add(threading.get_ident())
            return run_now(call)


def _numbered(record: Record) -> Record:
    return {**record, "etag": int(record["etag"]), "last_modified_time": None}


TestDictionaryStore = four_method_contract(DictionaryStore)
TestPlainStore = four_method_contract(PlainDictionaryStore)


class TestSdkStoreInMemory(FourMethodStoreContract):
    def make_store(self) -> object:
        made: object = AsyncSdkStore()
        return made

    def test_a_claim_with_a_version_of_a_missing_record_is_lost(self) -> None:
        pytest.skip("the SDK's store in memory makes the record")


class TestPlainSdkStoreInMemory(TestSdkStoreInMemory):
    """It is not safe for several threads: all clients are one."""

    _adapted: CheckpointStore | None = None

    def make_store(self) -> object:
        made: object = SdkStore()
        return made

    def open_store(self) -> CheckpointStore:
        self._adapted = self._adapted or super().open_store()
        return self._adapted


def test_a_plain_store_is_called_in_one_thread_of_its_own() -> None:
    made = PlainDictionaryStore()

    async def scenario() -> None:
        store = adapt(made)
        await asyncio.gather(*(store.list_ownership(GROUP) for _ in range(5)))
        await claim(store, "a", epoch=1)
        await store.close()

    asyncio.run(scenario())
    assert len(made.threads) == 1
    assert threading.get_ident() not in made.threads


class TestWhatIsTaken:
    def test_a_store_of_hublines_own_is_returned_as_it_is(self) -> None:
        store = MemoryStore()
        assert adapt(store) is store

    @pytest.mark.parametrize(
        ("give", "says"),
        [
            (adapt, "^Half is not a checkpoint store: it lacks update_checkpoint"),
            (
                open_store,
                r"^store must be a CheckpointStore, and an object of class Half lacks .*, update_checkpoint",
            ),
        ],
    )
    def test_an_object_that_lacks_one_of_the_four_is_refused(self, give: Callable[[Any], object], says: str) -> None:
        class Half:
            def list_ownership(self) -> None: ...
            def claim_ownership(self) -> None: ...
            def list_checkpoints(self) -> None: ...

        with pytest.raises(ConfigError, match=says):
            give(Half())

    @pytest.mark.parametrize(
        ("give", "says"),
        [
            (adapt, r"^Unfinished lacks fence of hubline\.ports\.CheckpointStore. Add"),
            (
                open_store,
                r"object of class Unfinished lacks fence: hubline\.ports\.CheckpointStore says what each must",
            ),
        ],
    )
    def test_a_store_of_the_port_that_lacks_a_method_is_not_taken_for_one_of_four(
        self, give: Callable[[Any], object], says: str
    ) -> None:
        class Unfinished(MemoryStore):
            fence: Any = None

        with pytest.raises(ConfigError, match=says):
            give(Unfinished())

    def test_an_address_is_not_wrapped(self) -> None:
        with pytest.raises(ConfigError, match="takes an object, not the address of a store"):
            adapt("sqlite:///state.db")

    @pytest.mark.parametrize(
        ("give", "says"),
        [
            (adapt, r"DictionaryStore is a class. Write DictionaryStore\(\.\.\.\)"),
            (open_store, r"not the class DictionaryStore. Write DictionaryStore\(\.\.\.\)"),
        ],
    )
    def test_a_class_is_refused(self, give: Callable[[Any], object], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            give(DictionaryStore)

    def test_a_processor_says_how_to_wrap_a_store_of_four_methods(self) -> None:
        with pytest.raises(ConfigError, match=r"DictionaryStore. Write store=hubline\.checkpoint_stores\.adapt\("):
            hubline.Processor(
                "local:./data/x",
                DictionaryStore(),  # type: ignore[arg-type]
                consumer_group="app",
                starting_position="earliest",
            )

    def test_fixed_with_a_lock_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"adapt\(DictionaryStore\) cannot lock partitions"):
            hubline.Processor(
                "local:./data/x",
                adapt(DictionaryStore()),
                consumer_group="app",
                starting_position="earliest",
                load_balancing=hubline.Fixed(2, lease="30s"),
            )


class Clocks:
    """A store, and processes over it with clocks of their own."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.four = DictionaryStore(lambda: self.now)

    def client(self, *, ahead_seconds: float = 0.0) -> AdaptedStore:
        return AdaptedStore(self.four, monotonic=lambda: self.now, wall=lambda: self.now + ahead_seconds)


class TestAges:
    def test_a_host_whose_clock_is_ahead_takes_nothing_for_old(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            await claim(clocks.client(), "a", epoch=1)
            other = clocks.client(ahead_seconds=200.0)

            first = await listed_ownership(other)
            clocks.now += 10.0
            second = await listed_ownership(other)

            assert (first.age_seconds, second.age_seconds) == (0.0, 10.0)

        asyncio.run(scenario())

    def test_a_record_that_was_not_written_for_very_long_is_old_at_once(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            await claim(clocks.client(), "a", epoch=1)
            clocks.now += 3_600.0

            assert (await listed_ownership(clocks.client())).age_seconds == 3_600.0

        asyncio.run(scenario())

    def test_a_record_is_young_again_when_it_was_written(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            owner, other = clocks.client(), clocks.client()
            held = await claim(owner, "a", epoch=1)
            await other.list_ownership(GROUP)
            clocks.now += 10.0
            await owner.renew_ownership(GROUP, Member("a"), [held])

            assert (await listed_ownership(other)).age_seconds == 0.0

        asyncio.run(scenario())


class TestRecords:
    def test_the_owner_of_an_sdk_is_no_member(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            await clocks.four.claim_ownership([{**NAMED, "partition_id": "0", "owner_id": "2f5a"}])

            state = await clocks.client().list_ownership(GROUP)

            assert [one.owner_id for one in state.ownerships] == ["2f5a"]
            assert state.members == ()

        asyncio.run(scenario())

    def test_the_owner_is_the_same_text_while_it_runs(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            store = clocks.client()
            await store.renew_ownership(GROUP, Member("a", max_partitions=2), [])
            held = await store.claim_ownership([Ownership(GROUP.partition(name), "a", 1) for name in "01"])
            owners = {record["owner_id"] for record in clocks.four.ownerships.values()}
            # It stops: what it still drains must not be taken from it.
            await store.renew_ownership(GROUP, Member("a", max_partitions=0), held)

            assert len(owners) == 1
            assert {record["owner_id"] for record in clocks.four.ownerships.values()} == owners

        asyncio.run(scenario())

    def test_keys_of_the_stores_own_come_back_to_it(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            await clocks.four.claim_ownership([{**NAMED, "partition_id": "0", "owner_id": "", "row": 7}])
            store = clocks.client()
            found = await listed_ownership(store)
            await store.claim_ownership([replace(found, owner_id="a", epoch=found.epoch + 1)])

            assert [record["row"] for record in clocks.four.ownerships.values()] == [7]

        asyncio.run(scenario())

    def test_records_that_do_not_read_are_named_and_cost_no_other(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            store = clocks.client()
            await store.claim_ownership([Ownership(GROUP.partition(name), "a", 1) for name in "0123"])
            records = {key[3]: record for key, record in clocks.four.ownerships.items()}
            del records["0"]["owner_id"]
            records["1"]["etag"] = None
            records["2"]["last_modified_time"] = "yesterday"

            state = await store.list_ownership(GROUP)

            assert [one.key.partition for one in state.ownerships] == ["3"]
            assert "no owner_id" in state.damaged["0"]
            assert "no etag" in state.damaged["1"]
            assert "'yesterday'" in state.damaged["2"]

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("stored", "read"),
        [
            ({"sequence_number": 7, "offset": "1024"}, Checkpoint(KEY, "1024", 7)),
            ({"sequence_number": "7", "offset": 1024}, Checkpoint(KEY, "1024", 7)),
            ({"sequence_number": 7, "offset": None}, Checkpoint(KEY, "", 7)),
            ({"offset": "1024"}, Checkpoint(KEY, "1024", -1)),
            ({"sequence_number": -1, "offset": "-1"}, Checkpoint.before_first(KEY)),
        ],
    )
    def test_checkpoints_of_others_are_read(self, stored: Record, read: Checkpoint) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            await clocks.four.update_checkpoint({**NAMED, "partition_id": "0", **stored})
            assert await clocks.client().fence(KEY, 1) == read

        asyncio.run(scenario())

    @pytest.mark.parametrize("stored", [{}, {"sequence_number": "x"}, {"offset": None}])
    def test_a_checkpoint_that_does_not_read_stops_its_partition_and_is_not_written_over(self, stored: Record) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            store = clocks.client()
            await store.fence(KEY, 1)
            await clocks.four.update_checkpoint({**NAMED, "partition_id": "0", **stored})

            assert await store.list_checkpoints(GROUP) == []
            with pytest.raises(RecordDamaged, match="the checkpoint cannot be read"):
                await store.fence(KEY, 1)
            with pytest.raises(RecordDamaged):
                await store.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            assert len(clocks.four.written) == 1

        asyncio.run(scenario())

    def test_what_is_written_is_what_the_sdk_writes(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            store = clocks.client()
            await store.fence(KEY, 1)
            await store.update_checkpoint(Checkpoint(KEY, "1024", 7), epoch=1)

            assert clocks.four.written == [{**NAMED, "partition_id": "0", "sequence_number": 7, "offset": "1024"}]

        asyncio.run(scenario())


class TestEpochs:
    def test_one_whose_clock_is_behind_learns_of_the_higher_epoch_and_gets_above_it(self) -> None:
        """As when a sink refuses it: the partition is released at the epoch that was found, and claimed again."""

        async def scenario() -> None:
            clocks = Clocks()
            store = clocks.client()
            held = await claim(store, "a", epoch=1)
            found_epoch = 2**61
            await store.claim_ownership([replace(held, owner_id="", epoch=found_epoch)])
            found = await listed_ownership(store)

            (again,) = await store.claim_ownership([replace(found, owner_id="a", epoch=found.epoch + 1)])

            assert again.epoch == found_epoch + 1

        asyncio.run(scenario())

    def test_two_that_take_a_partition_within_a_millisecond_have_different_epochs(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            epochs = []
            await claim(clocks.client(), "x", epoch=1)
            for name in "abc":
                store = clocks.client()
                found = await listed_ownership(store)
                (taken,) = await store.claim_ownership([replace(found, owner_id=name, epoch=found.epoch + 1)])
                epochs.append(taken.epoch)

            assert len(set(epochs)) == 3

        asyncio.run(scenario())

    def test_an_epoch_fits_into_the_tables_of_a_sink(self) -> None:
        async def scenario() -> None:
            clocks = Clocks()
            clocks.now = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
            await claim(clocks.client(), "a", epoch=1)
            assert (await listed_ownership(clocks.client())).epoch < 2**63

        asyncio.run(scenario())

    def test_a_claim_whose_answer_was_lost_is_known_as_ones_own(self) -> None:
        class LosesAnswers(DictionaryStore):
            async def claim_ownership(self, ownership_list: Iterable[Record]) -> list[Record]:
                await super().claim_ownership(ownership_list)
                raise ConnectionError("reset")

        async def scenario() -> None:
            store = adapt(LosesAnswers())
            with pytest.raises(StoreUnavailable, match="claim_ownership of LosesAnswers failed with ConnectionError"):
                await claim(store, "a", epoch=1)

            found = await listed_ownership(store)
            assert (found.owner_id, found.epoch) == ("a", 1)

        asyncio.run(scenario())

    def test_a_claim_that_is_lost_leaves_the_epoch_of_who_holds_it(self) -> None:
        async def scenario() -> None:
            store = adapt(DictionaryStore())
            held = await claim(store, "a", epoch=1)
            assert await store.claim_ownership([replace(held, version="0", epoch=9)]) == []
            assert (await listed_ownership(store)).epoch == 1

        asyncio.run(scenario())


class TestBadStores:
    @pytest.mark.parametrize("answer", [None, {"partition_id": "0"}, "records", 7])
    def test_an_answer_that_is_no_list_is_named(self, answer: object) -> None:
        class Bad(DictionaryStore):
            async def list_ownership(self, namespace: str, hub: str, group: str) -> Any:
                return answer

        with pytest.raises(StoreError, match="list_ownership must return a list of dictionaries"):
            asyncio.run(adapt(Bad()).list_ownership(GROUP))

    def test_a_record_without_a_partition_is_named(self) -> None:
        class Bad(DictionaryStore):
            async def list_checkpoints(self, namespace: str, hub: str, group: str) -> list[Record]:
                return [{"offset": "1"}]

        with pytest.raises(StoreError, match='list_checkpoints returned a dictionary without "partition_id"'):
            asyncio.run(adapt(Bad()).list_checkpoints(GROUP))

    def test_a_claim_that_is_answered_without_its_etag_is_looked_up(self) -> None:
        class Forgets(DictionaryStore):
            async def claim_ownership(self, ownership_list: Iterable[Record]) -> list[Record]:
                return [{**one, "etag": None} for one in await super().claim_ownership(ownership_list)]

        async def scenario() -> None:
            store = adapt(Forgets())
            held = await claim(store, "a", epoch=1)
            (renewed,) = (await store.renew_ownership(GROUP, Member("a"), [held])).renewed
            assert renewed.version != held.version
            assert await store.claim_ownership([Ownership(KEY, "b", epoch=1)]) == []

        asyncio.run(scenario())

    def test_a_record_that_comes_back_unchanged_is_not_won(self) -> None:
        """The SDK's own store in blobs answers so where a request failed."""

        class Keeps(DictionaryStore):
            async def claim_ownership(self, ownership_list: Iterable[Record]) -> list[Record]:
                claims = list(ownership_list)
                written = await super().claim_ownership(claims[:1])
                return [*written, *claims[1:]]

        async def scenario() -> None:
            four = Keeps()
            store = adapt(four)
            held = []
            for name in "01":
                held += await store.claim_ownership([Ownership(GROUP.partition(name), "a", 1)])
            renewed = (await store.renew_ownership(GROUP, Member("a"), held)).renewed
            assert [one.key.partition for one in renewed] == ["0"]

        asyncio.run(scenario())


def test_joining_looks_whether_the_store_can_be_used() -> None:
    four = DictionaryStore()
    four.failing["list_ownership"] = ConnectionError("refused")

    with pytest.raises(StoreUnavailable, match="list_ownership of DictionaryStore failed with ConnectionError"):
        asyncio.run(adapt(four).renew_ownership(GROUP, Member("a"), []))


def test_calls_are_as_few_as_the_page_says() -> None:
    """docs/how-to/process/write-your-own-store.md has the table."""

    async def scenario() -> None:
        four = DictionaryStore()
        store = adapt(four)
        await store.renew_ownership(GROUP, Member("a"), [])
        assert four.calls == {"list_ownership": 1}
        held = await store.claim_ownership([Ownership(GROUP.partition(str(n)), "a", 1) for n in range(8)])
        assert four.calls == {"list_ownership": 1, "claim_ownership": 1}
        four.calls.clear()
        await store.fence(KEY, 1)
        assert four.calls == {"list_ownership": 1, "list_checkpoints": 1}
        four.calls.clear()
        held = (await store.renew_ownership(GROUP, Member("a"), held)).renewed
        assert four.calls == {"claim_ownership": 1}
        four.calls.clear()
        await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)
        assert four.calls == {"list_ownership": 1, "update_checkpoint": 1}
        keys = [one.key for one in held]
        four.calls.clear()
        await at_once(store.fence(key, 1) for key in keys)
        assert four.calls["list_ownership"] == 1
        assert four.calls["list_checkpoints"] <= 3
        four.calls.clear()
        await at_once(store.update_checkpoint(Checkpoint(key, "2", 2), epoch=1) for key in keys)
        assert four.calls == {"list_ownership": 1, "update_checkpoint": 8}
        four.calls.clear()
        assert len((await store.renew_ownership(GROUP, Member("a"), held)).renewed) == 8
        assert four.calls == {"claim_ownership": 1, "list_checkpoints": 1}

    asyncio.run(scenario())


class TestLateUpdates:
    """An update of a call that was given up, or of a former owner, which the store carries out in the end."""

    def test_a_checkpoint_that_was_set_back_is_written_again_at_the_next_renewal(self) -> None:
        async def scenario() -> None:
            four = DictionaryStore()
            store = adapt(four)
            held = await claim(store, "a", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            await four.update_checkpoint({**NAMED, "partition_id": "0", "sequence_number": 7, "offset": "7"})

            await store.renew_ownership(GROUP, Member("a"), [held])

            assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "9", 9)]

        asyncio.run(scenario())

    def test_one_that_a_new_owner_found_is_written_again_too(self) -> None:
        async def scenario() -> None:
            four = DictionaryStore()
            store = adapt(four)
            await four.update_checkpoint({**NAMED, "partition_id": "0", "sequence_number": 9, "offset": "9"})
            held = await claim(store, "a", epoch=1)
            await store.fence(KEY, 1)
            await four.update_checkpoint({**NAMED, "partition_id": "0", "sequence_number": 7, "offset": "7"})

            await store.renew_ownership(GROUP, Member("a"), [held])

            assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "9", 9)]

        asyncio.run(scenario())

    def test_who_lost_the_partition_repairs_nothing(self) -> None:
        async def scenario() -> None:
            four = DictionaryStore()
            store, other = adapt(four), adapt(four)
            held = await claim(store, "a", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            await other.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

            assert (await store.renew_ownership(GROUP, Member("a"), [held])).renewed == []

            assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]

        asyncio.run(scenario())

    def test_a_repair_that_fails_costs_no_lease(self) -> None:
        async def scenario() -> None:
            four = DictionaryStore()
            store = adapt(four)
            held = await claim(store, "a", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            four.failing["list_checkpoints"] = ConnectionError("down")

            assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1

        asyncio.run(scenario())

    def test_a_repair_that_hangs_costs_no_lease(self) -> None:
        class Hangs(DictionaryStore):
            is_hanging = False

            async def list_checkpoints(self, namespace: str, hub: str, group: str) -> list[Record]:
                if self.is_hanging:
                    await asyncio.Event().wait()
                return await super().list_checkpoints(namespace, hub, group)

        async def scenario() -> None:
            four = Hangs()
            store = adapt(four)
            held = await claim(store, "a", epoch=1)
            await store.fence(KEY, 1)
            await store.update_checkpoint(Checkpoint(KEY, "9", 9), epoch=1)
            four.is_hanging = True

            assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1

        run_virtual(scenario)


def test_a_former_owner_is_fenced_while_its_update_is_on_its_way() -> None:
    """What four methods can do: the listing just before the update sees the new owner."""

    async def scenario() -> None:
        four = DictionaryStore()
        former, other = adapt(four), adapt(four)
        await claim(former, "a", epoch=1)
        await former.fence(KEY, 1)
        found = await listed_ownership(other)
        await other.claim_ownership([replace(found, owner_id="b", epoch=found.epoch + 1)])
        with pytest.raises(Fenced):
            await former.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)
        assert four.written == []

    asyncio.run(scenario())
