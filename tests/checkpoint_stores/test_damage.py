"""What people do to tables by hand stops one partition, and says which and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from hubline.checkpoint_stores.sql_store import SqlStore
from hubline.errors import Fenced, RecordDamaged
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership
from hubline.secrets import Secret
from hubline.testing.contracts.store import GROUP, KEY, claim, listed_ownership
from tests.checkpoint_stores.conftest import PostgresDatabase, SqlDatabase, SqliteFile

IMPOSSIBLE_ANYWHERE = [
    ("epoch = -1", "epoch is -1"),
    ("version = -7", "version is -7"),
    ("partition_id = ''", "partition_id is empty"),
    ("requested_by = 'b', requested_at = NULL", "requested_at holds no time"),
    ("requested_by = ''", "requested_by is empty"),
]
IMPOSSIBLE_IN_SQLITE = [
    ("epoch = 'seven'", "epoch is 'seven'"),
    ("epoch = 1.5", "epoch is 1.5"),
    ("version = NULL", "version is None"),
    ("version = x'00ff'", "version is b'\\x00\\xff'"),
    ("owner_id = NULL", "owner_id is None"),
    ("owner_id = x'6162'", "owner_id is b'ab'"),
    ("owner_id = CAST(x'ff80' AS TEXT)", "owner_id is '\\udcff\\udc80'"),
    ("partition_id = x'30'", "partition_id is b'0'"),
    ("modified_at = 'yesterday'", "modified_at holds no time"),
    ("modified_at = NULL", "modified_at holds no time"),
    ("modified_at = -9e999", "modified_at holds no time"),
    ("requested_by = 'b', requested_at = 'now'", "requested_at holds no time"),
    ("owner_id = x'" + "41" * 1000 + "'", "..."),
]
IMPOSSIBLE_CHECKPOINTS = [
    ('"offset" = NULL', "offset is None"),
    ("sequence_number = -1", "sequence_number is -1"),
    ("sequence_number = NULL", "sequence_number is None"),
    ("epoch = -2", "epoch is -2"),
]
IMPOSSIBLE_SQLITE_CHECKPOINTS = [
    ("sequence_number = 'many'", "sequence_number is 'many'"),
    ("\"offset\" = x'ff'", "offset is b'\\xff'"),
    ("epoch = 'one'", "epoch is 'one'"),
    ("epoch = NULL", "epoch is None"),
]


def play(database: SqlDatabase, scenario: Callable[[SqlStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = database.open_store()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


def drop_constraints(database: SqliteFile, table: str) -> None:
    """As a table looks that somebody re-created from a dump."""
    database.execute(f"ALTER TABLE {table} RENAME TO original")
    database.execute(f"CREATE TABLE {table} AS SELECT * FROM original")
    database.execute(f"CREATE UNIQUE INDEX {table}_key ON {table} (namespace, hub, consumer_group, partition_id)")


@pytest.mark.parametrize(("change", "says"), IMPOSSIBLE_ANYWHERE)
def test_an_impossible_ownership_is_named_and_the_others_are_fine(
    database: SqlDatabase, change: str, says: str
) -> None:
    async def scenario(store: SqlStore) -> None:
        await claim(store, "a", epoch=1, partition="0")
        await claim(store, "a", epoch=1, partition="1")
        database.execute(f"UPDATE hubline_ownership SET {change} WHERE partition_id = '0'")

        state = await store.list_ownership(GROUP)

        assert_only_one_is_damaged(state, says)

    play(database, scenario)


def test_an_infinite_time_in_postgres_is_named(postgres_database: Secret) -> None:
    database = PostgresDatabase(postgres_database)

    async def scenario(store: SqlStore) -> None:
        await claim(store, "a", epoch=1, partition="0")
        await claim(store, "a", epoch=1, partition="1")
        database.execute("UPDATE hubline_ownership SET modified_at = '-infinity' WHERE partition_id = '0'")

        assert_only_one_is_damaged(await store.list_ownership(GROUP), "modified_at holds no time")

    play(database, scenario)


@pytest.mark.parametrize(("change", "says"), IMPOSSIBLE_IN_SQLITE)
def test_sqlite_values_of_any_type_are_named(sqlite_file: SqliteFile, change: str, says: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await claim(store, "a", epoch=1, partition="0")
        await claim(store, "a", epoch=1, partition="1")
        drop_constraints(sqlite_file, "hubline_ownership")
        sqlite_file.execute(f"UPDATE hubline_ownership SET {change} WHERE partition_id = '0'")

        state = await store.list_ownership(GROUP)

        assert_only_one_is_damaged(state, says)

    play(sqlite_file, scenario)


def assert_only_one_is_damaged(state: GroupState, says: str) -> None:
    assert [one.key.partition for one in state.ownerships] == ["1"]
    ((_, message),) = state.damaged.items()
    assert says in message
    assert "table hubline_ownership" in message
    assert "consumer_group='$Default' partition_id=" in message
    assert "Correct it, or delete the row" in message
    assert len(message) < 500


def test_a_damaged_record_is_not_renewed(database: SqlDatabase) -> None:
    async def scenario(store: SqlStore) -> None:
        held = [await claim(store, "a", epoch=1, partition=name) for name in ("0", "1")]
        database.execute("UPDATE hubline_ownership SET epoch = -5 WHERE partition_id = '0'")

        renewed = (await store.renew_ownership(GROUP, Member("a"), held)).renewed

        assert [one.key.partition for one in renewed] == ["1"]

    play(database, scenario)


def test_a_deleted_record_can_be_claimed_again(database: SqlDatabase) -> None:
    async def scenario(store: SqlStore) -> None:
        held = await claim(store, "a", epoch=1)
        database.execute("DELETE FROM hubline_ownership")

        assert (await store.renew_ownership(GROUP, Member("a"), [held])).renewed == []
        assert (await claim(store, "b", epoch=2)).owner_id == "b"

    play(database, scenario)


def test_a_damaged_member_is_left_out_until_it_renews(sqlite_file: SqliteFile) -> None:
    async def scenario(store: SqlStore) -> None:
        for owner_id in ("a", "b", "c"):
            await store.renew_ownership(GROUP, Member(owner_id), [])
        sqlite_file.execute("UPDATE hubline_member SET seen_at = 'now' WHERE owner_id = 'a'")
        sqlite_file.execute("UPDATE hubline_member SET max_partitions = 'all' WHERE owner_id = 'b'")

        assert [one.owner_id for one in (await store.list_ownership(GROUP)).members] == ["c"]
        for owner_id in ("a", "b"):
            await store.renew_ownership(GROUP, Member(owner_id), [])
        assert [one.owner_id for one in (await store.list_ownership(GROUP)).members] == ["a", "b", "c"]

    play(sqlite_file, scenario)


@pytest.mark.parametrize(("change", "says"), IMPOSSIBLE_CHECKPOINTS)
def test_an_impossible_checkpoint_stops_its_partition_only(database: SqlDatabase, change: str, says: str) -> None:
    play(database, lambda store: damage_one_checkpoint(database, store, change, says))


@pytest.mark.parametrize(("change", "says"), IMPOSSIBLE_SQLITE_CHECKPOINTS)
def test_a_checkpoint_of_another_type_stops_its_partition_only(sqlite_file: SqliteFile, change: str, says: str) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.list_checkpoints(GROUP)
        drop_constraints(sqlite_file, "hubline_checkpoint")
        await damage_one_checkpoint(sqlite_file, store, change, says)

    play(sqlite_file, scenario)


def test_the_stores_own_time_is_given(database: SqlDatabase) -> None:
    async def scenario(store: SqlStore) -> None:
        before = datetime.now(UTC)
        examined = await store.examine(GROUP)
        # The database is on this machine; SQLite tells milliseconds.
        assert before - timedelta(milliseconds=1) <= examined.time <= datetime.now(UTC)
        assert examined.damaged == {}

    play(database, scenario)


async def damage_one_checkpoint(database: SqlDatabase, store: SqlStore, change: str, says: str) -> None:
    fine = Checkpoint(GROUP.partition("1"), "7", 7)
    for checkpoint in (Checkpoint(KEY, "7", 7), fine):
        await store.fence(checkpoint.key, 1)
        await store.update_checkpoint(checkpoint, epoch=1)
    database.execute(f"UPDATE hubline_checkpoint SET {change} WHERE partition_id = '0'")

    assert await store.list_checkpoints(GROUP) == [fine]
    examined = await store.examine(GROUP)
    assert list(examined.damaged) == ["0"]
    assert says in examined.damaged["0"]
    with pytest.raises(RecordDamaged, match=r"table hubline_checkpoint, row .* partition_id='0'") as damaged:
        await store.fence(KEY, 2)
    assert (damaged.value.partition, damaged.value.record) == ("0", "hubline_checkpoint")
    assert says in str(damaged.value)
    assert "hubline checkpoints set" in str(damaged.value)

    # A reset repairs it.
    await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))
    assert await store.fence(KEY, 9) == Checkpoint(KEY, "5", 5)


def test_a_deleted_checkpoint_is_held_by_nobody(database: SqlDatabase) -> None:
    async def scenario(store: SqlStore) -> None:
        await store.fence(KEY, 3)
        database.execute("DELETE FROM hubline_checkpoint")

        with pytest.raises(Fenced, match="nobody has taken it") as refused:
            await store.update_checkpoint(Checkpoint(KEY, "7", 7), epoch=3)

        assert refused.value.held_epoch == -1
        assert await store.fence(KEY, 3) is None

    play(database, scenario)


def test_a_time_that_lies_ahead_is_no_negative_age(database: SqlDatabase) -> None:
    ahead = "clock_timestamp() + interval '1 hour'" if database.dialect == "postgres" else "9999999999999"

    async def scenario(store: SqlStore) -> None:
        await claim(store, "a", epoch=1)
        await store.renew_ownership(GROUP, Member("a"), [])
        await store.request_handover([KEY], owner_id="b")
        database.execute(f"UPDATE hubline_ownership SET modified_at = {ahead}, requested_at = {ahead}")
        database.execute(f"UPDATE hubline_member SET seen_at = {ahead}")

        listed = await listed_ownership(store)
        (member,) = (await store.list_ownership(GROUP)).members

        assert (listed.age_seconds, listed.request_age_seconds, member.age_seconds) == (0.0, 0.0, 0.0)

    play(database, scenario)


def test_members_not_heard_of_for_a_day_are_deleted_when_another_renews(database: SqlDatabase) -> None:
    def seen(hours: int) -> str:
        if database.dialect == "postgres":
            return f"clock_timestamp() - interval '{hours} hours'"
        return f"seen_at - {hours * 3_600_000}"

    async def scenario(store: SqlStore) -> None:
        for owner_id in ("gone", "silent", "here"):
            await store.renew_ownership(GROUP, Member(owner_id), [])
        database.execute(f"UPDATE hubline_member SET seen_at = {seen(25)} WHERE owner_id = 'gone'")
        database.execute(f"UPDATE hubline_member SET seen_at = {seen(23)} WHERE owner_id = 'silent'")

        await store.renew_ownership(GROUP, Member("here"), [])

        assert database.execute("SELECT owner_id FROM hubline_member ORDER BY 1") == [("here",), ("silent",)]

    play(database, scenario)


def test_unknown_values_never_become_part_of_the_sql(database: SqlDatabase) -> None:
    hostile = "'; DROP TABLE hubline_ownership; --"

    async def scenario(store: SqlStore) -> None:
        await claim(store, hostile, epoch=1, partition=hostile)
        await store.request_handover([GROUP.partition(hostile)], owner_id=hostile)
        await store.renew_ownership(GROUP, Member(hostile, 0), [])

        assert [(one.owner_id, one.requested_by) for one in (await store.list_ownership(GROUP)).ownerships] == [
            (hostile, hostile)
        ]
        assert await store.claim_ownership([Ownership(KEY, "a", 1, version=hostile)]) == []

    play(database, scenario)
