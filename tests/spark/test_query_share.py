"""Several queries of one program share a hub: which partitions each has, and what becomes of them beside others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Balanced, Fixed, Greedy, Plan, Strategy
from hubline.spark.source.query_share import QueryShare
from hubline.testing.memory_hub import MemoryHub
from tests.coordination.group import Cell, Group
from tests.spark.queries import Query, places
from tests.support.scene import virtual

NAMES = "abc"
ROUNDS_MAX = 300


@dataclass(frozen=True)
class OfQuery:
    """A strategy as a query has it, whose monitor knows the query's own partitions alone."""

    inner: Strategy
    share: QueryShare

    @property
    def max_partitions(self) -> int | None:
        return self.inner.max_partitions

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        own = self.share.partitions(snapshot.partitions)
        return self.share.strategy(self.inner).plan(replace(snapshot, partitions=own), rng)


def group(programs: Mapping[str, int], strategy: Strategy, first: Sequence[str], rng: random.Random) -> Group:
    """Programs by their names, each with so many queries, and the program that has each partition first, if any."""
    shares = {share.owner_id(name): share for name, count in programs.items() for share in QueryShare.of_all(count)}
    hub = [str(number) for number in range(len(first))]
    owners = {(p, name[0]): name for name, share in shares.items() for p in share.partitions(hub)}
    cells = [Cell(owners.get((p, name)), 1.0) for p, name in zip(hub, first, strict=True)]
    return Group({owner_id: OfQuery(strategy, share) for owner_id, share in shares.items()}, cells, rng)


def test_queries_of_a_program_have_all_partitions_and_none_in_common_and_new_ones_move_none() -> None:
    hub = [str(number) for number in range(11)]
    of_four = [share.partitions(hub) for share in QueryShare.of_all(4)]
    assert of_four == [("0", "4", "8"), ("1", "5", "9"), ("2", "6", "10"), ("3", "7")]
    grown = [share.partitions([*hub, "11", "12"]) for share in QueryShare.of_all(4)]
    assert all(set(before) <= set(after) for before, after in zip(of_four, grown, strict=True))
    assert [QueryShare.parse(str(share)) for share in QueryShare.of_all(3)] == list(QueryShare.of_all(3))


@settings(database=None, max_examples=150)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    first=st.lists(st.sampled_from(["", *NAMES]), min_size=1, max_size=16),
    strategy=st.sampled_from([Greedy(), Balanced()]),
    seed=st.integers(0, 2**32),
)
def test_each_partition_has_an_owner_also_while_programs_have_different_numbers_of_queries(
    counts: list[int], first: list[str], strategy: Strategy, seed: int
) -> None:
    programs = dict(zip(NAMES, counts, strict=False))
    shared = group(programs, strategy, first, random.Random(seed))
    shared.run_until_quiet(ROUNDS_MAX)

    owners = shared.owners()
    assert len(owners) == len(first)
    if len(set(counts)) == 1:
        for share in QueryShare.of_all(counts[0]):
            own = share.partitions(list(owners))
            of_programs = Counter({share.owner_id(name): 0 for name in programs})
            of_programs.update(owners[partition] for partition in own)
            assert max(of_programs.values()) - min(of_programs.values()) <= 1


def test_fixed_queries_of_enough_programs_own_all_partitions() -> None:
    shared = group(dict.fromkeys(NAMES, 2), Fixed(2), [""] * 11, random.Random(7))  # each program: Fixed(4)
    shared.run_until_quiet(ROUNDS_MAX)
    assert len(shared.owners()) == 11
    assert max(Counter(shared.owners().values()).values()) == 2


def test_one_query_leaves_what_several_own_to_them_and_they_leave_its_own() -> None:
    for programs in ({"a": 4, "b": 1}, {"a": 1, "b": 4}):
        shared = group(programs, Greedy(), ["a"] * 8, random.Random(7))
        shared.run_until_quiet(ROUNDS_MAX)
        assert {owner[0] for owner in shared.owners().values()} == {"a"}
        assert shared.moves == 0


@virtual
async def test_queries_read_what_is_in_their_share_with_and_without_a_store() -> None:
    hub = MemoryHub(3)
    for partition in range(3):
        hub.append(str(partition), [b"event"] * 5)
    for store in (None, MemoryStore(now=asyncio.get_running_loop().time)):
        queries = [await Query(hub, store, share=share).start() for share in QueryShare.of_all(4)]
        for number, query in enumerate(queries[:3]):
            await query.read_all(5)
            assert query.read == places(str(number), *range(5))
        assert not await queries[3].batch()  # more queries than partitions
        assert await queries[3].planner.latest() == {}
        for query in queries:
            await query.stop()
