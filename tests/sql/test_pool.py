"""Threads and connections: bounded, apart from each other, and gone at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from hubline.errors import StoreError, StoreUnavailable
from hubline.sql.dialect import Connection, Row, Statement
from hubline.sql.pool import STORE_CONNECTIONS_MAX, AsyncSqlPool, SqlPool
from hubline.sql.sqlite import DIALECT

SOON_SECONDS = 0.05
LATE_SECONDS = 30.0


class FakeConnection:
    def __init__(self, database: FakeDatabase) -> None:
        self.database = database
        self.is_alive = True
        self.was_cut = threading.Event()
        self.is_closed = False

    def read(self, statement: Statement) -> list[Row]:
        raise NotImplementedError

    def write(self, *statements: Statement) -> list[list[Row]]:
        raise NotImplementedError

    def is_usable(self) -> bool:
        return self.is_alive

    def cut(self) -> None:
        self.was_cut.set()

    def close(self) -> None:
        self.is_closed = True


class DriverError(Exception):
    pass


class FakeDatabase:
    shown = "the fake store"
    dialect = DIALECT

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.is_down = False

    def connect(self) -> FakeConnection:
        if self.is_down:
            raise DriverError("down")
        connection = FakeConnection(self)
        self.connections.append(connection)
        return connection

    def explain(self, error: Exception) -> StoreError | None:
        return StoreUnavailable(f"explained: {error}") if isinstance(error, DriverError) else None


class Pooled:
    """A pool over a fake database, for one scenario."""

    def __init__(self, *, call_seconds_max: float = LATE_SECONDS) -> None:
        self.database = FakeDatabase()
        self.pool = AsyncSqlPool(self.database, call_seconds_max=call_seconds_max)

    async def __aenter__(self) -> Pooled:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        assert all(connection.is_closed for connection in self.database.connections)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("hubline-store")]

    async def connection(self) -> Connection:
        return await self.pool.run(lambda connection: connection)


def hanging(connection: Connection) -> None:
    assert isinstance(connection, FakeConnection)
    if not connection.was_cut.wait(LATE_SECONDS):
        raise AssertionError("nobody cut the connection")
    raise DriverError("the connection was cut")


def raising(error: Exception) -> Callable[[Connection], None]:
    def work(_: Connection) -> None:
        raise error

    return work


def test_nothing_is_opened_before_the_first_call() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            assert pooled.database.connections == []
            assert threading.active_count() == before

    before = threading.active_count()
    asyncio.run(scenario())


def test_calls_that_follow_each_other_use_one_connection() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            assert await pooled.connection() is await pooled.connection()

    asyncio.run(scenario())


def test_a_slow_call_blocks_no_other() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            slow = [asyncio.create_task(pooled.pool.run(hanging)) for _ in range(STORE_CONNECTIONS_MAX - 1)]
            await asyncio.sleep(0)

            assert (await pooled.connection()).is_usable()

            await pooled.pool.close()
            assert [type(one) for one in await asyncio.gather(*slow, return_exceptions=True)] == [
                StoreUnavailable
            ] * len(slow)

    asyncio.run(scenario())


def test_connections_are_bounded() -> None:
    all_in = threading.Barrier(STORE_CONNECTIONS_MAX + 1)

    async def scenario() -> None:
        async with Pooled() as pooled:
            first = [
                asyncio.create_task(pooled.pool.run(lambda _: all_in.wait(LATE_SECONDS)))
                for _ in range(STORE_CONNECTIONS_MAX)
            ]
            rest = [asyncio.create_task(pooled.connection()) for _ in range(20)]
            await asyncio.to_thread(all_in.wait, LATE_SECONDS)
            await asyncio.gather(*first, *rest)
            assert len(pooled.database.connections) == STORE_CONNECTIONS_MAX

    asyncio.run(scenario())


def test_a_call_that_takes_too_long_is_unavailable_and_its_connection_cut() -> None:
    async def scenario() -> None:
        async with Pooled(call_seconds_max=SOON_SECONDS) as pooled:
            with pytest.raises(StoreUnavailable, match=r"the fake store has not answered for 0.05 s"):
                await pooled.pool.run(hanging)

            assert await asyncio.to_thread(pooled.database.connections[0].was_cut.wait, LATE_SECONDS)
            assert await pooled.connection() is not pooled.database.connections[0]

    asyncio.run(scenario())


def test_hanging_calls_do_not_use_up_the_threads() -> None:
    async def scenario() -> None:
        async with Pooled(call_seconds_max=SOON_SECONDS) as pooled:
            for _ in range(2 * STORE_CONNECTIONS_MAX):
                with pytest.raises(StoreUnavailable):
                    await pooled.pool.run(hanging)

    asyncio.run(scenario())


def test_a_cancelled_call_that_hangs_is_cut_by_a_later_one() -> None:
    async def scenario() -> None:
        async with Pooled(call_seconds_max=SOON_SECONDS) as pooled:
            began = asyncio.Event()
            loop = asyncio.get_running_loop()

            def work(connection: Connection) -> None:
                loop.call_soon_threadsafe(began.set)
                hanging(connection)

            call = asyncio.create_task(pooled.pool.run(work))
            await began.wait()
            call.cancel()
            await asyncio.wait([call])
            abandoned = pooled.database.connections[0]
            while not abandoned.was_cut.is_set():
                await pooled.connection()

    asyncio.run(scenario())


def test_a_connection_that_went_away_while_idle_is_replaced() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            first = await pooled.connection()
            assert isinstance(first, FakeConnection)
            first.is_alive = False

            assert await pooled.connection() is not first
            assert first.is_closed

    asyncio.run(scenario())


def test_a_connection_that_failed_is_not_used_again() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            first = await pooled.connection()
            with pytest.raises(StoreUnavailable, match="explained: broken"):
                await pooled.pool.run(raising(DriverError("broken")))

            assert await pooled.connection() is not first

    asyncio.run(scenario())


def test_a_connection_outlives_a_result_that_is_an_error() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            first = await pooled.connection()
            with pytest.raises(StoreError, match="fenced"):
                await pooled.pool.run(raising(StoreError("fenced")))

            assert await pooled.connection() is first

    asyncio.run(scenario())


def test_an_error_of_another_kind_is_not_hidden() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            with pytest.raises(ZeroDivisionError):
                await pooled.pool.run(raising(ZeroDivisionError()))

    asyncio.run(scenario())


def test_a_drivers_error_is_not_chained() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            pooled.database.is_down = True
            with pytest.raises(StoreUnavailable) as raised:
                await pooled.connection()

            assert (raised.value.__cause__, raised.value.__context__) == (None, None)

    asyncio.run(scenario())


def test_a_closed_store_says_so() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            await pooled.connection()
            await pooled.pool.close()
            with pytest.raises(StoreError, match="the fake store was closed"):
                await pooled.connection()

    asyncio.run(scenario())


def test_calls_that_wait_for_a_thread_when_the_store_closes_fail() -> None:
    async def scenario() -> None:
        async with Pooled() as pooled:
            calls = [asyncio.create_task(pooled.pool.run(hanging)) for _ in range(3 * STORE_CONNECTIONS_MAX)]
            await asyncio.sleep(0)
            await pooled.pool.close()

            # Not a cancellation: nobody cancelled them.
            failures = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(failure, StoreError) for failure in failures)

    asyncio.run(scenario())


def held(pool: SqlPool[FakeConnection]) -> FakeConnection:
    return pool.borrow(wait_seconds=SOON_SECONDS)


@pytest.fixture
def synchronous() -> SqlPool[FakeConnection]:
    database = FakeDatabase()
    return SqlPool(database.connect, shown="the sink", max_connections=2, call_seconds_max=LATE_SECONDS)


def test_a_thread_that_finds_all_connections_busy_learns_what_to_do(synchronous: SqlPool[FakeConnection]) -> None:
    for _ in range(2):
        held(synchronous)

    with pytest.raises(
        StoreUnavailable, match=r"the sink: no connection was free for 0.05 s, with max_connections=2. Raise max_conn"
    ):
        held(synchronous)


def test_a_failure_to_connect_uses_up_no_connection(synchronous: SqlPool[FakeConnection]) -> None:
    first = held(synchronous)
    first.database.is_down = True
    for _ in range(3):
        with pytest.raises(DriverError):
            held(synchronous)
    first.database.is_down = False

    assert held(synchronous) is not first


def test_a_pool_that_was_closed_opens_new_connections(synchronous: SqlPool[FakeConnection]) -> None:
    first = held(synchronous)
    synchronous.give_back(first)
    synchronous.close()

    assert first.is_closed
    assert held(synchronous) is not first


def test_only_calls_beyond_their_deadline_are_cut(synchronous: SqlPool[FakeConnection]) -> None:
    overdue = synchronous.borrow(wait_seconds=SOON_SECONDS, deadline=0.0)
    in_time = held(synchronous)
    synchronous.cut_overdue()

    assert (overdue.was_cut.is_set(), in_time.was_cut.is_set()) == (True, False)


def test_after_an_error_a_connection_is_discarded(synchronous: SqlPool[FakeConnection]) -> None:
    with pytest.raises(StoreError), synchronous.connection(wait_seconds=SOON_SECONDS) as connection:
        raise StoreError("the transaction may still be open")

    assert connection.is_closed
