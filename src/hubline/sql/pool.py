"""Runs blocking database calls for an event loop: a few threads, a few connections, a bound on every call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from hubline.errors import HublineError, StoreError, StoreUnavailable
from hubline.sql.dialect import Connection, Database

CONNECTION_COUNT_MAX = 4
"""A renewal must not wait behind a slow list, nor both behind a checkpoint; more would only add load."""

CALL_SECONDS_MAX = 15.0
"""Half of the usual lease: a renewal that hangs can be tried again before the lease runs out."""

Result = TypeVar("Result")


class ConnectionPool:
    """At most :data:`CONNECTION_COUNT_MAX` connections, opened when needed; each call has one, and a thread, to itself.

    It belongs to no event loop. A call that is cancelled goes on in its thread and may take effect. One that takes
    longer than ``call_seconds_max`` has its connection cut, so that the thread comes back.
    """

    def __init__(self, database: Database, *, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        self._database = database
        self._call_seconds_max = call_seconds_max
        self._threads = ThreadPoolExecutor(CONNECTION_COUNT_MAX, thread_name_prefix="hubline-store")
        self._lock = threading.Lock()  # guards what follows; never held while waiting for the database
        self._idle: list[Connection] = []
        self._deadlines: dict[Connection, float] = {}  # of the calls that run
        self._is_closed = False

    async def run(self, work: Callable[[Connection], Result]) -> Result:
        """What ``work`` returns. Raises StoreUnavailable or another StoreError where the database fails."""
        self._check_open()
        self._cut_calls(until=time.monotonic())
        call = self._threads.submit(self._call, work, time.monotonic() + self._call_seconds_max)
        try:
            async with asyncio.timeout(self._call_seconds_max):
                return await asyncio.wrap_future(call)
        except TimeoutError:
            self._cut_calls(until=time.monotonic())
        raise StoreUnavailable(f"{self._database.shown} has not answered for {self._call_seconds_max:g} seconds")

    async def close(self) -> None:
        """Ends the threads and connections, and what cancelled calls left running. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._cut_calls(until=float("inf"))
        self._threads.shutdown()  # calls that still wait for a thread find the pool closed
        while self._idle:
            self._idle.pop().close()

    def _cut_calls(self, *, until: float) -> None:
        with self._lock:
            for connection, deadline in self._deadlines.items():
                if deadline <= until:
                    connection.cut()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"{self._database.shown} was closed: open a new store")

    def _call(self, work: Callable[[Connection], Result], deadline: float) -> Result:
        self._check_open()
        try:
            with self._connection(deadline) as connection:
                return work(connection)
        except Exception as error:
            failure = self._database.explain(error)
            if failure is None:
                raise
        # Raised out here: chained to the driver's error, a traceback would print whatever that one holds.
        raise failure

    @contextmanager
    def _connection(self, deadline: float) -> Iterator[Connection]:
        connection = self._idle_connection() or self._database.connect()
        with self._lock:
            self._deadlines[connection] = deadline
            if self._is_closed:
                connection.cut()
        try:
            yield connection
        except HublineError:
            self._put_back(connection)
            raise
        except BaseException:
            # It may be broken, or in the middle of a transaction: a new one is the safe way on.
            self._drop(connection)
            raise
        else:
            self._put_back(connection)

    def _idle_connection(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            del self._deadlines[connection]
            self._idle.append(connection)  # closing waits for this thread, then empties the list

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            del self._deadlines[connection]
        connection.close()
