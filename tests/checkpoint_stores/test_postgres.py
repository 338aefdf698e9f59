from __future__ import annotations

import asyncio
import logging
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import psycopg
import pytest

from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.errors import ConfigError, HublineError, StoreError, StoreUnavailable
from hubline.model.ownership import Member
from hubline.secrets import Secret
from hubline.sql.dialect import Connection, Statement
from hubline.testing.contracts.store import GROUP, CheckpointStoreContract, at_once, claim, listed_ownership
from tests.checkpoint_stores.conftest import PostgresDatabase
from tests.support.postgres import PostgresServer

PASSWORD = "hunter2-%40-planted"  # noqa: S105


class TestPostgresStore(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_database: Secret) -> None:
        self.conninfo = postgres_database

    def open_store(self) -> PostgresStore:
        return PostgresStore(self.conninfo)


def play(
    conninfo: Secret, scenario: Callable[[PostgresStore], Awaitable[None]], *, call_seconds_max: float = 30.0
) -> None:
    async def run() -> None:
        store = PostgresStore(conninfo, call_seconds_max=call_seconds_max)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


def failure(conninfo: Secret) -> HublineError:
    """What the first call to a store says."""

    async def scenario(store: PostgresStore) -> None:
        await store.list_ownership(GROUP)

    with pytest.raises(HublineError) as raised:
        play(conninfo, scenario)
    return raised.value


def planted(conninfo: Secret, **changes: str) -> Secret:
    """The same address with another password, and other changes."""
    parts = psycopg.conninfo.conninfo_to_dict(conninfo.reveal(), password=PASSWORD, **changes)
    return Secret(psycopg.conninfo.make_conninfo("", **parts))


# What is wrong, and what to do


def test_a_server_that_is_not_there_is_unavailable() -> None:
    error = failure(Secret("postgresql://user@127.0.0.1:1/orders"))

    assert isinstance(error, StoreUnavailable)
    assert "the PostgreSQL store 'orders' at 127.0.0.1:1 cannot be reached" in str(error)
    assert "Connection refused" in str(error)


def test_a_host_that_does_not_resolve_is_unavailable() -> None:
    error = failure(Secret("postgresql://user@nowhere.invalid/orders"))

    assert isinstance(error, StoreUnavailable)
    assert "nowhere.invalid" in str(error)


def test_a_wrong_password_is_not_taken_for_a_server_that_is_away(postgres_database: Secret) -> None:
    error = failure(planted(postgres_database))

    assert not isinstance(error, StoreUnavailable)
    assert "password authentication failed" in str(error)
    assert "Check the user and the password" in str(error)


def test_a_server_without_ssl_is_not_taken_for_one_either(postgres_database: Secret) -> None:
    error = failure(Secret(postgres_database.reveal() + "?sslmode=require"))

    assert not isinstance(error, StoreUnavailable)
    assert "switch SSL on at the server" in str(error)


def test_a_missing_database_is_named(postgres_server: PostgresServer) -> None:
    error = failure(postgres_server.conninfo("nowhere"))

    assert not isinstance(error, StoreUnavailable)
    assert 'database "nowhere" does not exist' in str(error)
    assert "Create it, or correct the address" in str(error)


def test_a_user_who_may_not_create_tables_learns_what_to_ask_for(postgres_database: Secret) -> None:
    PostgresDatabase(postgres_database).execute(f"CREATE ROLE limited LOGIN PASSWORD '{PASSWORD}'")

    error = failure(planted(postgres_database, user="limited"))

    assert not isinstance(error, StoreUnavailable)
    assert "permission denied for schema public. Grant the user CREATE" in str(error)


def test_tables_that_somebody_dropped_are_named(postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        await store.list_ownership(GROUP)
        PostgresDatabase(postgres_database).execute("DROP TABLE hubline_member")
        with pytest.raises(StoreError, match=r'"hubline_member" does not exist. Some of hubline'):
            await store.renew_ownership(GROUP, Member("a"), [])

    play(postgres_database, scenario)


@pytest.mark.parametrize(
    "conninfo",
    [
        f"postgresql://user:{PASSWORD}@host:port/orders",
        f"postgresql://user:{PASSWORD}%zz@host/orders",
        f"host=host password={PASSWORD} passwort=1",
        f"postgresql://user:p@{PASSWORD}@host/orders",
        f"nonsense {PASSWORD}",
    ],
)
def test_an_address_that_does_not_read_is_not_repeated(conninfo: str) -> None:
    with pytest.raises(HublineError) as raised:
        play(Secret(conninfo), first_call)

    assert_no_secret(raised.value)


async def first_call(store: PostgresStore) -> None:
    await store.list_ownership(GROUP)


def test_no_error_shows_the_password(
    postgres_server: PostgresServer, postgres_database: Secret, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    addresses = [
        planted(postgres_database),
        planted(postgres_database, dbname=PASSWORD),
        planted(postgres_database, user=PASSWORD),
        planted(postgres_database, port="1"),
        planted(postgres_database, host="nowhere.invalid"),
        planted(postgres_database, sslmode="require"),
        planted(postgres_database, options="-c nonsense=1"),
    ]

    for address in addresses:
        assert_no_secret(failure(address))
        assert_hidden(repr(PostgresStore(address)))
    assert_hidden(caplog.text)
    assert postgres_server.password not in caplog.text


def assert_no_secret(error: BaseException) -> None:
    assert error.__cause__ is None
    assert error.__context__ is None
    assert_hidden(str(error))
    assert_hidden(repr(error))
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    ours = [frame for frame in shown.stack if "/src/hubline/" in frame.filename]
    assert_hidden(str([(frame.line, frame.locals) for frame in ours]))
    assert_hidden("".join(traceback.format_exception(error)))


def assert_hidden(text: str) -> None:
    assert PASSWORD not in text
    assert PASSWORD.replace("%40", "@") not in text


def test_the_store_is_shown_without_its_secret() -> None:
    store = PostgresStore(Secret(f"postgresql://user:{PASSWORD}@db.example:6432/orders"))

    assert repr(store) == "PostgresStore(the PostgreSQL store 'orders' at db.example:6432)"
    asyncio.run(store.close())


# Servers that go away and come back


def test_a_restart_between_two_calls_goes_unnoticed(postgres_server: PostgresServer, postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        held = await claim(store, "a", epoch=1)
        await asyncio.to_thread(postgres_server.stop, immediate=True)
        await asyncio.to_thread(postgres_server.start_again)

        assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1

    play(postgres_database, scenario)


def test_a_server_that_crashed_is_unavailable_until_it_is_back(
    postgres_server: PostgresServer, postgres_database: Secret
) -> None:
    async def scenario(store: PostgresStore) -> None:
        held = await claim(store, "a", epoch=1)
        await asyncio.to_thread(postgres_server.stop, immediate=True)
        try:
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await store.renew_ownership(GROUP, Member("a"), [held])
        finally:
            await asyncio.to_thread(postgres_server.start_again)

        # What was answered before the crash is there.
        assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1

    play(postgres_database, scenario)


def test_a_call_that_the_crash_interrupts_is_unavailable(
    postgres_server: PostgresServer, postgres_database: Secret
) -> None:
    async def scenario(store: PostgresStore) -> None:
        await store.list_ownership(GROUP)
        call = asyncio.create_task(store._pool.run(sleeping))
        await waiting(postgres_database, "PgSleep")
        await asyncio.to_thread(postgres_server.stop, immediate=True)
        try:
            with pytest.raises(StoreUnavailable):
                await call
        finally:
            await asyncio.to_thread(postgres_server.start_again)

    play(postgres_database, scenario)


def sleeping(connection: Connection) -> None:
    connection.read(Statement("SELECT pg_sleep(60)", {}))


async def waiting(conninfo: Secret, event: str) -> None:
    """Returns once a connection to the database waits for that."""
    query = f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = '{event}'"
    while not await asyncio.to_thread(PostgresDatabase(conninfo).execute, query):
        pass


def test_a_server_process_that_freezes_costs_one_call(postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        held = await claim(store, "a", epoch=1)
        ((pid,),) = await store._pool.run(lambda connection: connection.read(Statement("SELECT pg_backend_pid()", {})))
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable, match="has not answered for 1 s"):
                await store.list_ownership(GROUP)
            assert len((await store.renew_ownership(GROUP, Member("a"), [held])).renewed) == 1
        finally:
            os.kill(pid, signal.SIGCONT)

    play(postgres_database, scenario, call_seconds_max=1.0)


def test_a_statement_that_is_slow_is_ended_by_the_server(
    postgres_database: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubline.sql.postgres._SESSION", "SET statement_timeout = '50ms'")

    async def scenario(store: PostgresStore) -> None:
        with pytest.raises(StoreUnavailable, match="canceling statement due to statement timeout"):
            await store._pool.run(sleeping)
        await store.list_ownership(GROUP)

    play(postgres_database, scenario)


def test_a_locked_record_holds_up_nothing_else(postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        locked = await claim(store, "a", epoch=1, partition="0")
        free = await claim(store, "b", epoch=1, partition="1")
        with psycopg.connect(postgres_database.reveal()) as other:
            other.execute("SELECT 1 FROM hubline_ownership WHERE partition_id = '0' FOR UPDATE")
            blocked = asyncio.create_task(store.renew_ownership(GROUP, Member("a"), [locked]))
            await waiting(postgres_database, "transactionid")

            assert len((await store.renew_ownership(GROUP, Member("b"), [free])).renewed) == 1
            assert (await listed_ownership(store, "0")).version == locked.version
            assert not blocked.done()
        assert len((await blocked).renewed) == 1

    play(postgres_database, scenario)


def test_a_renewal_that_waited_for_a_claim_is_lost(postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        held = await claim(store, "a", epoch=1)
        with psycopg.connect(postgres_database.reveal()) as other:
            other.execute("UPDATE hubline_ownership SET owner_id = 'b', epoch = 2, version = version + 1")
            renewal = asyncio.create_task(store.renew_ownership(GROUP, Member("a"), [held]))
            await waiting(postgres_database, "transactionid")
        assert (await renewal).renewed == []
        assert (await listed_ownership(store)).owner_id == "b"

    play(postgres_database, scenario)


def test_a_renewal_that_waited_for_a_request_holds_and_carries_it(postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        held = await claim(store, "a", epoch=1)
        with psycopg.connect(postgres_database.reveal()) as other:
            other.execute("UPDATE hubline_ownership SET requested_by = 'b', requested_at = clock_timestamp()")
            renewal = asyncio.create_task(store.renew_ownership(GROUP, Member("a"), [held]))
            await waiting(postgres_database, "transactionid")
        (renewed,) = (await renewal).renewed
        assert renewed.requested_by == "b"
        assert (await listed_ownership(store)).requested_by == "b"

    play(postgres_database, scenario)


@dataclass
class Narrows:
    """Between a client and the server: passes on what the client sends, or only the beginning of it."""

    server: tuple[str, int]
    sent_count: int = 0
    left_count: int | None = None
    is_shut: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self.server)
        answers = asyncio.create_task(self._pass_on(from_server, writer))
        while data := await reader.read(1 << 16):
            self.sent_count += len(data)
            if self.left_count is not None:
                data, self.left_count = data[: self.left_count], max(0, self.left_count - len(data))
            to_server.write(data)
            if self.left_count == 0:
                self.is_shut.set()
        to_server.close()
        await answers

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_an_owner_that_freezes_while_it_sends_a_renewal_holds_no_lock(
    postgres_server: PostgresServer, postgres_database: Secret, share: float
) -> None:
    async def scenario(store: PostgresStore) -> None:
        narrows = Narrows(("127.0.0.1", postgres_server.port))
        proxy = await asyncio.start_server(narrows.join, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        conninfo = psycopg.conninfo.make_conninfo(postgres_database.reveal(), host="127.0.0.1", port=str(port))
        frozen = PostgresStore(Secret(conninfo))
        held = await claim(frozen, "frozen", epoch=1)
        before = narrows.sent_count
        (held,) = (await frozen.renew_ownership(GROUP, Member("frozen"), [held])).renewed
        narrows.left_count = int((narrows.sent_count - before) * share)

        renewal = asyncio.create_task(frozen.renew_ownership(GROUP, Member("frozen"), [held]))
        await narrows.is_shut.wait()
        (taken,) = await store.claim_ownership([replace(held, owner_id="other", epoch=2)])

        assert taken.owner_id == "other"
        await frozen.close()
        with pytest.raises(StoreUnavailable):
            await renewal
        proxy.close()

    play(postgres_database, scenario, call_seconds_max=5.0)


def test_a_stricter_default_isolation_changes_nothing(postgres_database: Secret) -> None:
    database = PostgresDatabase(postgres_database)
    name = database.execute("SELECT current_database()")[0][0]
    database.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")

    async def scenario(store: PostgresStore) -> None:
        held = await claim(store, "a", epoch=1)
        won = await at_once(
            store.claim_ownership([replace(held, owner_id=f"owner{number}", epoch=2)]) for number in range(20)
        )
        assert len([claims for claims in won if claims]) == 1

    play(postgres_database, scenario)


def test_tables_live_in_the_schema_of_the_search_path(postgres_database: Secret) -> None:
    database = PostgresDatabase(postgres_database)
    database.execute("CREATE SCHEMA apart")
    conninfo = Secret(postgres_database.reveal() + "?options=-csearch_path%3Dapart")

    play(conninfo, first_call)
    play(conninfo, first_call)

    found = database.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'hubline_%'")
    assert found == [("apart",)]


def test_options_in_the_address_win_over_the_defaults(postgres_database: Secret) -> None:
    async def scenario(store: PostgresStore) -> None:
        names = await store._pool.run(
            lambda connection: connection.read(Statement("SELECT current_setting('application_name')", {}))
        )
        assert names == [("mine",)]

    play(Secret(postgres_database.reveal() + "?application_name=mine"), scenario)


def test_what_the_server_calls_malformed_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot be read. Write postgresql://"):
        PostgresStore(Secret("postgresql://["))
