"""Connections that are opened when they are needed and used again: a few of them, each used by one thread at a time.

`SqlPool` is for callers that have threads of their own, as sinks do. `AsyncSqlPool` runs blocking calls for an event
loop, as stores do: a few threads, and a bound on every call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from hubline.errors import HublineError, StoreError, StoreUnavailable
from hubline.sql.dialect import Connection, Database
from hubline.sql.driver_errors import call_explained

STORE_CONNECTIONS_MAX = 4
"""A renewal must not wait behind a slow list, nor both behind a checkpoint; more would only add load."""

CALL_SECONDS_MAX = 15.0
"""Half of the usual lease: a renewal that hangs can be retried before the lease expires."""

Result = TypeVar("Result")


class PooledConnection(Protocol):
    """What a pool asks of a connection."""

    def is_usable(self) -> bool:
        """Whether the connection, idle for any time, still leads to the database. Costs no round trip."""
        ...

    def cut(self) -> None:
        """Makes what another thread is waiting for on this connection fail soon. Safe from any thread."""
        ...

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=PooledConnection)


class SqlPool(Generic[Opened]):
    """At most `max_connections` connections. From any thread; a call that finds all of them in use waits."""

    def __init__(
        self, connect: Callable[[], Opened], *, shown: str, max_connections: int, call_seconds_max: float
    ) -> None:
        self._connect = connect
        self._shown = shown
        self._max_connections = max_connections
        self.call_seconds_max = call_seconds_max
        self._free = threading.BoundedSemaphore(max_connections)
        self._lock = threading.Lock()  # guards what follows; never held while waiting for the database
        self._idle: list[Opened] = []
        self._deadlines: dict[Opened, float] = {}  # of those in use, by the monotonic clock

    def borrow(self, *, wait_seconds: float, deadline: float | None = None) -> Opened:
        """Returns a usable connection, which must be given to `give_back` or `discard` by its deadline.

        Raises StoreUnavailable if all are in use for `wait_seconds`.
        """
        if not self._free.acquire(timeout=wait_seconds):
            raise StoreUnavailable(
                f"{self._shown}: no connection was free for {wait_seconds:g} s, with "
                f"max_connections={self._max_connections}. Raise max_connections, or make transactions shorter."
            )
        try:
            connection = self._idle_connection() or self._connect()
        except BaseException:
            self._free.release()
            raise
        with self._lock:
            self._deadlines[connection] = time.monotonic() + self.call_seconds_max if deadline is None else deadline
        return connection

    def give_back(self, connection: Opened) -> None:
        """Keeps a connection for the next call."""
        with self._lock:
            del self._deadlines[connection]
            self._idle.append(connection)
        self._free.release()

    def discard(self, connection: Opened) -> None:
        """Ends a connection that may be broken, or in the middle of a transaction."""
        with self._lock:
            del self._deadlines[connection]
        connection.close()
        self._free.release()

    @contextmanager
    def connection(
        self,
        *,
        wait_seconds: float,
        deadline: float | None = None,
        usable_after: tuple[type[BaseException], ...] = (),
    ) -> Iterator[Opened]:
        """Lends a connection. After an error it is discarded, unless the error is one of `usable_after`."""
        connection = self.borrow(wait_seconds=wait_seconds, deadline=deadline)
        try:
            yield connection
        except usable_after:
            self.give_back(connection)
            raise
        except BaseException:
            self.discard(connection)
            raise
        self.give_back(connection)

    def cut_overdue(self, *, until: float | None = None) -> None:
        """Makes calls fail whose deadline has passed, now or at another time of the monotonic clock."""
        until = time.monotonic() if until is None else until
        with self._lock:
            for connection, deadline in self._deadlines.items():
                if deadline <= until:
                    connection.cut()

    def close(self) -> None:
        """Ends the connections that are idle. The pool can be used again: it opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _idle_connection(self) -> Opened | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()


class AsyncSqlPool:
    """Runs blocking calls in a few threads; each call has a thread and a connection to itself.

    It belongs to no event loop. A call that is cancelled continues in its thread and may take effect. One that takes
    longer than `call_seconds_max` has its connection cut, so that the thread comes back.
    """

    def __init__(self, database: Database, *, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        self._database = database
        self._call_seconds_max = call_seconds_max
        self._threads = ThreadPoolExecutor(STORE_CONNECTIONS_MAX, thread_name_prefix="hubline-store")
        self._connections: SqlPool[Connection] = SqlPool(
            database.connect,
            shown=database.shown,
            max_connections=STORE_CONNECTIONS_MAX,
            call_seconds_max=call_seconds_max,
        )
        self._is_closed = False

    async def run(self, work: Callable[[Connection], Result]) -> Result:
        """Returns what `work` returns. Raises StoreUnavailable or another StoreError where the database fails."""
        self._check_open()
        self._connections.cut_overdue()
        call = self._threads.submit(self._call, work, time.monotonic() + self._call_seconds_max)
        try:
            async with asyncio.timeout(self._call_seconds_max):
                return await asyncio.wrap_future(call)
        except TimeoutError:
            self._connections.cut_overdue()
        raise StoreUnavailable(
            f"{self._database.shown} has not answered for {self._call_seconds_max:g} s. hubline tries "
            "again. If it lasts, check that the database is running and not overloaded."
        )

    async def close(self) -> None:
        """Ends the threads and connections, and the calls that were cancelled and still run. Can be called twice."""
        self._is_closed = True
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._connections.cut_overdue(until=float("inf"))
        self._threads.shutdown()  # calls that still wait for a thread find the pool closed
        self._connections.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"{self._database.shown} was closed. Open a new store.")

    def _call(self, work: Callable[[Connection], Result], deadline: float) -> Result:
        self._check_open()

        def lend() -> Result:
            # There are as many connections as threads: no call waits for one.
            with self._connections.connection(
                wait_seconds=self._call_seconds_max, deadline=deadline, usable_after=(HublineError,)
            ) as connection:
                if self._is_closed:  # since the check: closing may have cut all that it saw before this one
                    connection.cut()
                return work(connection)

        return call_explained(lend, self._database.explain)
