"""How much a batch takes of each partition, and which task reads what."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hubline.spark.source.offsets import Range
from hubline.spark.source.task_packing import allot, pack

BACKLOGS = st.dictionaries(st.integers(0, 40).map(str), st.integers(0, 10_000), max_size=12)
COUNTED = st.tuples(st.integers(0, 9).map(str), st.integers(0, 99), st.integers(1, 5_000))
RANGES = st.lists(COUNTED.map(lambda one: Range(one[0], one[1], one[1] + one[2])), max_size=12)


class TestAllotting:
    def test_small_backlogs_are_taken_whole_and_large_ones_share_the_rest(self) -> None:
        assert allot({"0": 10, "1": 90_000, "2": 90_000}, 1_010) == {"0": 10, "1": 500, "2": 500}

    def test_less_than_one_for_each_is_dealt_out_in_turns(self) -> None:
        backlogs = dict.fromkeys("0123", 5)

        served = [allot(backlogs, 2, turn=turn) for turn in range(4)]

        assert served[0] == {"0": 1, "1": 1}
        assert Counter(partition for one in served for partition in one) == dict.fromkeys("0123", 2)

    @given(backlogs=BACKLOGS, budget=st.integers(1, 20_000), turn=st.integers(0, 99))
    def test_the_budget_is_used_up_and_never_exceeded(self, backlogs: dict[str, int], budget: int, turn: int) -> None:
        allotted = allot(backlogs, budget, turn=turn)

        assert all(0 <= count <= backlogs[partition] for partition, count in allotted.items())
        assert sum(allotted.values()) == min(budget, sum(backlogs.values()))

    @given(backlogs=BACKLOGS, budget=st.integers(100, 20_000))
    def test_no_partition_waits_while_another_gets_more(self, backlogs: dict[str, int], budget: int) -> None:
        allotted = allot(backlogs, budget)
        largest = max(allotted.values(), default=0)

        cut_short = [count for partition, count in allotted.items() if count < backlogs[partition]]

        assert all(count >= largest - len(allotted) for count in cut_short)


class TestPacking:
    def test_ranges_are_spread_evenly_over_at_most_so_many_tasks(self) -> None:
        ranges = [Range("0", 0, 100), Range("1", 0, 90), Range("2", 0, 20), Range("3", 0, 10)]

        packed = pack(ranges, tasks=2, max_records=None)

        assert [sum(one.count for one in task) for task in packed] == [110, 110]

    def test_a_partition_stays_in_one_task_by_default(self) -> None:
        whole = [Range("0", 0, 100)]

        assert pack(whole, tasks=4, max_records=None) == [(Range("0", 0, 100),)]
        assert pack(whole, tasks=4, max_records=40) == [
            (Range("0", 66, 100),),
            (Range("0", 0, 33),),
            (Range("0", 33, 66),),
        ]

    @given(ranges=RANGES, tasks=st.integers(1, 8), split=st.none() | st.integers(1, 3_000))
    def test_every_event_is_read_by_one_task(self, ranges: list[Range], tasks: int, split: int | None) -> None:
        packed = pack(ranges, tasks=tasks, max_records=split)

        def events(found: list[Range]) -> Counter[tuple[str, int]]:
            return Counter((one.partition, number) for one in found for number in range(one.start, one.end))

        assert events([one for task in packed for one in task]) == events(ranges)
        assert len(packed) <= tasks
        assert all(packed)
        assert split is None or all(one.count <= split for task in packed for one in task)
