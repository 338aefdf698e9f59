"""The stores: what a dispatch cycle costs, beside the same rows read and rewritten with nothing checked.

A cycle lists all records and members of a group and renews all of its 1,024 partitions, as the only member of a
group does. The limit does that to the rows of another group with the bare driver: one SELECT, one UPDATE that
compares no version, locks in no order and returns nothing. Median of rounds that take turns: the machine is shared.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.harness import Result, benchmark
from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.model.keys import GroupKey
from hubline.model.ownership import Member, Ownership
from hubline.ports import CheckpointStore
from tests.support.postgres import PostgresServer

PARTITION_COUNT: Final = 1_024
ROUND_COUNT: Final = 30
GROUP: Final = GroupKey("namespace.example", "orders", "$Default")
LIMIT_GROUP: Final = GroupKey("namespace.example", "orders", "limit")
ME: Final = Member("owner")

_SELECT: Final = "SELECT * FROM hubline_ownership WHERE consumer_group = 'limit'"
_UPDATE: Final = (
    "UPDATE hubline_ownership SET version = version + 1, modified_at = {now} WHERE consumer_group = 'limit'"
)
_SQLITE_UPDATE: Final = _UPDATE.format(now="CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)")
_POSTGRES_UPDATE: Final = _UPDATE.format(now="clock_timestamp()")


@benchmark("store-cycle-1024")
def store_cycle() -> Iterator[Result]:
    """List and renew 1,024 partitions."""
    yield _postgres_cycle()
    yield _sqlite_cycle()


def _postgres_cycle() -> Result:
    with PostgresServer.start() as server:
        conninfo = server.new_database()
        store = PostgresStore(conninfo)
        with psycopg.connect(conninfo.reveal(), autocommit=True) as connection:

            def limit() -> None:
                connection.execute(_SELECT).fetchall()
                connection.execute(_POSTGRES_UPDATE.encode())

            return _measured("postgres", store, limit)


def _sqlite_cycle() -> Result:
    # Not the system's choice, which may be memory: the point is what reaches a disk.
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir="/var/tmp") as folder:
        path = Path(folder) / "store.db"
        store = SqliteStore(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")

            def limit() -> None:
                connection.execute(_SELECT).fetchall()
                connection.execute(_SQLITE_UPDATE)

            return _measured("sqlite", store, limit)


def _measured(name: str, store: CheckpointStore, limit: Callable[[], None]) -> Result:
    cycle_seconds, limit_seconds = asyncio.run(_rounds(store, limit))
    return Result(
        f"store-cycle-1024-{name}",
        cycle_seconds * 1000,
        "ms",
        ratio=limit_seconds / cycle_seconds,
        against="a bare SELECT and UPDATE of as many rows",
    )


async def _rounds(store: CheckpointStore, limit: Callable[[], None]) -> tuple[float, float]:
    """The median seconds of a cycle, and of the limit."""
    try:
        held = await _claim_all(store, GROUP)
        await _claim_all(store, LIMIT_GROUP)
        cycles, limits = [], []
        for _ in range(ROUND_COUNT):
            start = time.perf_counter()
            state = await store.list_ownership(GROUP)
            held = (await store.renew_ownership(GROUP, ME, held)).renewed
            cycles.append(time.perf_counter() - start)
            assert len(state.ownerships) == len(held) == PARTITION_COUNT
            start = time.perf_counter()
            limit()
            limits.append(time.perf_counter() - start)
        return statistics.median(cycles), statistics.median(limits)
    finally:
        await store.close()


async def _claim_all(store: CheckpointStore, group: GroupKey) -> list[Ownership]:
    claims = [Ownership(group.partition(str(number)), ME.owner_id, epoch=1) for number in range(PARTITION_COUNT)]
    return await store.claim_ownership(claims)
