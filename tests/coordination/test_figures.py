"""What balancing costs, in virtual time: the figures that benchmarks/RESULTS.md states beside the official SDK's.

Virtual time makes them exact: the same seed gives the same figures on any machine.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.balancing_model import STILL_CYCLES, Change, Figures, measure, moves_needed
from hubline.coordination.dispatcher import INTERVAL_JITTER
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.strategies import Balanced, Greedy
from tests.coordination.test_laws import NAMES, fewest_moves

LEASE = LeaseOptions()

SECONDS_MAX = {
    Change.COLD_START: 2 * LEASE.load_balancing_interval_seconds,
    Change.ONE_OWNS_ALL: 2 * LEASE.load_balancing_interval_seconds,
    Change.JOIN: 2 * LEASE.load_balancing_interval_seconds,
    Change.CRASH: LEASE.lease_seconds + LEASE.load_balancing_interval_seconds,
    Change.STOP: LEASE.load_balancing_interval_seconds,
}


@pytest.mark.parametrize("change", Change, ids=lambda change: change.name.lower())
@pytest.mark.parametrize("seed", range(6))
def test_32_partitions_over_4_hosts(change: Change, seed: int) -> None:
    figures = measure(change, partitions_count=32, hosts_count=4, strategy=Greedy(), seed=seed)

    assert figures.seconds < SECONDS_MAX[change]
    assert_nothing_wasted(figures)


@pytest.mark.parametrize("change", Change, ids=lambda change: change.name.lower())
def test_256_partitions_over_16_hosts(change: Change) -> None:
    figures = measure(change, partitions_count=256, hosts_count=16, strategy=Greedy(), seed=0)

    assert figures.seconds < SECONDS_MAX[change]
    assert_nothing_wasted(figures)


def test_1024_partitions_over_32_hosts() -> None:
    """The largest hub there is."""
    figures = measure(Change.JOIN, partitions_count=1_024, hosts_count=32, strategy=Greedy(), seed=0)

    assert figures.seconds < SECONDS_MAX[Change.JOIN]
    assert_nothing_wasted(figures)


@pytest.mark.parametrize("change", Change, ids=lambda change: change.name.lower())
def test_balanced_members_are_slower_and_waste_nothing_either(change: Change) -> None:
    assert_nothing_wasted(measure(change, partitions_count=32, hosts_count=4, strategy=Balanced(), seed=0))


def test_the_same_seed_gives_the_same_figures() -> None:
    first, second = (
        measure(Change.ONE_OWNS_ALL, partitions_count=32, hosts_count=4, strategy=Greedy(), seed=7) for _ in range(2)
    )

    assert first == second


@settings(database=None)
@given(st.integers(1, 64), st.lists(st.integers(0, 20), min_size=1, max_size=len(NAMES)))
def test_moves_are_measured_against_the_fewest(total: int, counts: list[int]) -> None:
    by_name = dict(zip(NAMES, counts, strict=False))

    assert moves_needed(total, counts) == fewest_moves(total, by_name, dict.fromkeys(by_name))


def assert_nothing_wasted(figures: Figures) -> None:
    assert figures.excess_moves == 0
    assert figures.doubly_owned == 0
    # One list a cycle, which may start a little early, and one batch of renewals; claims when there is something.
    assert figures.calls_at_rest.keys() == {"list", "renew"}
    assert figures.calls_at_rest["list"] <= 1 / (1 - INTERVAL_JITTER)
    assert figures.calls_at_rest["renew"] <= 1 + 1 / STILL_CYCLES
