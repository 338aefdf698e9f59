"""What a group asks of its store, at rest and while it balances: few requests, and as many as the page says.

The hosts are production dispatchers in virtual time, over production clients of the store. Each request is counted
where it leaves the client. ``python -m tests.coordination.test_store_calls`` prints the table of the page.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from benchmarks.balancing_model import LATENCY_SECONDS, Change, Figures, measure
from hubline.adapters import open_store
from hubline.checkpoint_stores.adapted import AdaptedStore
from hubline.checkpoint_stores.sql_store import SqlStore
from hubline.coordination.strategies import Greedy
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore
from hubline.sql.dialect import Connection
from hubline.testing.contracts.store import GROUP, KEY
from hubline.testing.simulation.faults import Weather
from hubline.testing.simulation.virtual_loop import SimProcess, World
from tests.support import blob_service
from tests.support.blob_service import BlobService
from tests.support.four_methods import DictionaryStore, RemoteFourMethods

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/operate/monitor.md"
GROUPS: Final = [(partitions, hosts) for partitions in (1, 8, 64) for hosts in (1, 4, 16)]
JOIN_SEEDS: Final = 5
EARLY: Final = 1.15
"""A cycle that renews comes a little before the renewal is due."""
REFRESHES_PER_TURN: Final = 4
"""Every ownership blob is written every 40 s, in renewals that are 10 s apart."""


class FourMethods(DictionaryStore):
    """A store of four methods, which each host wraps for itself."""

    def __init__(self, world: World) -> None:
        super().__init__(now=lambda: world.now)
        self._world = world

    def connect(self, process: SimProcess) -> CheckpointStore:
        remote = RemoteFourMethods(process, self, Weather(latency_seconds=LATENCY_SECONDS))
        return AdaptedStore(remote, monotonic=lambda: self._world.now, wall=lambda: self._world.now)


STORES: Final = {"blobs": BlobService, "sql": None, "four": FourMethods}
"""Of SQL stores, calls are counted in memory: each is one transaction, as a test below shows."""


@functools.cache
def figures(store: str, change: Change, partitions: int, hosts: int, *, seed: int = 0) -> Figures:
    return measure(
        change, partitions_count=partitions, hosts_count=hosts, strategy=Greedy(), seed=seed, store=STORES[store]
    )


@pytest.mark.parametrize(("partitions", "hosts"), GROUPS)
def test_at_rest_blobs_are_listed_once_a_cycle_and_each_host_renews(partitions: int, hosts: int) -> None:
    at_rest = figures("blobs", Change.COLD_START, partitions, hosts).calls_at_rest

    assert at_rest.keys() == {"List Blobs", "Set Blob Metadata"}
    assert at_rest["List Blobs"] <= EARLY
    # The host's own blob, and a quarter of what it owns.
    writes = 1 + math.ceil(partitions / hosts / REFRESHES_PER_TURN)
    assert at_rest["Set Blob Metadata"] <= writes * EARLY


def test_a_slow_service_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that renews takes longer than it comes before the renewal."""
    quick = figures("blobs", Change.COLD_START, 16, 2)
    monkeypatch.setattr(blob_service, "LATENCY_SECONDS", 0.3)
    slow = measure(Change.COLD_START, partitions_count=16, hosts_count=2, strategy=Greedy(), seed=1, store=BlobService)

    assert slow.calls_at_rest == quick.calls_at_rest


@pytest.mark.parametrize("change", Change, ids=lambda change: change.name.lower())
def test_over_blobs_a_group_balances_as_over_any_store(change: Change) -> None:
    blobs, memory = (figures(store, change, 32, 4) for store in ("blobs", "sql"))

    assert (blobs.excess_moves, blobs.doubly_owned) == (0, 0)
    assert blobs.seconds < memory.seconds + 10


def row(partitions: int, hosts: int) -> str:
    """A row of the page."""
    return f"| {partitions} | {hosts} | {' | '.join(_cells(partitions, hosts))} |"


def _cells(partitions: int, hosts: int) -> list[str]:
    cells = []
    for store in STORES:
        start = figures(store, Change.COLD_START, partitions, hosts)
        rest = Counter(start.calls_at_rest)
        lists = sum(count for name, count in rest.items() if name.lower().startswith("list"))
        cells.append(f"{lists:.1f} + {rest.total() - lists:.1f}")
        cells.append(f"{sum(start.calls.values()) / hosts:.0f}")
        cells.append(f"{_join_calls(store, partitions, hosts)}" if 1 < hosts <= partitions else "-")
    return cells


def _join_calls(store: str, partitions: int, hosts: int) -> int:
    """The median: it depends on when the owners renew next."""
    return statistics.median_low(
        sum(figures(store, Change.JOIN, partitions, hosts, seed=seed).calls.values()) for seed in range(JOIN_SEEDS)
    )


def test_the_page_says_what_is_counted() -> None:
    page = PAGE.read_text("utf-8").splitlines()
    for partitions, hosts in GROUPS[:-1]:  # the largest group takes as long as all others
        (said,) = [line for line in page if line.startswith(f"| {partitions} | {hosts} |")]
        counted_row = row(partitions, hosts)
        for cell, counted in zip(said.split("|"), counted_row.split("|"), strict=True):
            # Roughly: a change of timing must not make the page wrong.
            rel, most = (0.0, 0.2) if "+" in counted else (0.2, 1.0)
            assert _numbers(cell) == pytest.approx(_numbers(counted), rel=rel, abs=most), f"write {counted_row}"


def _numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[0-9.]+", cell)]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_each_call_of_a_sql_store_is_one_transaction(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"sqlite:///{tmp_path}/state.db"
    if database == "postgresql":
        address = request.getfixturevalue("postgres_database").reveal()

    async def scenario() -> None:
        store = open_store(address)
        assert isinstance(store, SqlStore)
        trips = _count_trips(store, monkeypatch)
        (held,) = await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
        for call in (
            store.renew_ownership(GROUP, Member("a"), [held]),
            store.list_ownership(GROUP),
            store.claim_ownership([Ownership(GROUP.partition(str(number)), "a", 1) for number in range(1, 64)]),
            store.request_handover([KEY], owner_id="b"),
            store.fence(KEY, 1),
            store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1),
            store.list_checkpoints(GROUP),
        ):
            trips.clear()
            await call
            assert len(trips) == 1, call
        await store.close()

    asyncio.run(scenario())


def _count_trips(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each trip to the database that the store's own work makes, and none of opening a connection."""
    trips: list[str] = []
    run = store._pool.run

    def counting(work: Callable[[Connection], object]) -> Coroutine[Any, Any, object]:
        def counted(connection: Connection) -> object:
            def noted(name: str) -> Callable[..., object]:
                def note(*statements: object) -> object:
                    trips.append(name)
                    return getattr(connection, name)(*statements)

                return note

            return work(cast("Connection", SimpleNamespace(read=noted("read"), write=noted("write"))))

        return run(counted)

    monkeypatch.setattr(store._pool, "run", counting)
    return trips


if __name__ == "__main__":
    print("\n".join(row(partitions, hosts) for partitions, hosts in GROUPS))
