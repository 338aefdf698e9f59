"""The transaction of the sink, as handlers use it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hubline.errors import SinkError
from hubline.sinks import Rows, Transaction

InThread = Callable[..., Awaitable[Any]]
"""Runs what blocks in the partition's thread."""


class AsyncTransaction:
    """The transaction of a batch, for `async` handlers: the methods of `hubline.sinks.Transaction`, awaited.

    Each call of a handler has one of its own. A handler that returns before its statements are done, because it did
    not await them, fails with `SinkError`, and nothing of it is committed.

    Args:
        transaction: The transaction.
        in_thread: Runs a function in the partition's thread.

    Example:
        @processor.on_batch
        async def handle(batch, partition, tx):
            await tx.execute("UPDATE totals SET events = events + ?", (len(batch),))
    """

    def __init__(self, transaction: Transaction, in_thread: InThread) -> None:
        self._transaction = transaction
        self._in_thread = in_thread
        self._calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._is_over = False

    def execute(
        self, query: str, params: Sequence[Any] | Mapping[str, Any] = ()
    ) -> Coroutine[Any, Any, list[tuple[object, ...]]]:
        """Run one SQL statement and return its rows, if it has any. Await it.

        Args:
            query: The statement.
            params: Its values, for the driver's placeholders: `%s` in PostgreSQL, `?` in SQLite.

        Raises:
            SinkError: The statement would begin or end a transaction, or the transaction is over.
            StoreError: The database failed.
        """
        return self._call("execute", query, params)

    def insert(self, rows: Rows) -> Coroutine[Any, Any, None]:
        """Write rows to the sink's table. Await it.

        Args:
            rows: An Arrow table or batch, or dictionaries. A column `sequenceNumber` names the event of each row.

        Raises:
            SinkError: The columns do not fit the table, or the sink has no table.
        """
        return self._call("insert", rows)

    def end(self) -> str | None:
        """The handler has returned, or failed. Returns the method that it called and did not await, if any."""
        self._is_over = True
        left = None
        for name, call in self._calls:
            state = inspect.getcoroutinestate(call)
            if state != inspect.CORO_CLOSED:
                left = left or name
            if state == inspect.CORO_CREATED:
                call.close()
        self._calls.clear()
        return left

    def _call(self, name: str, *arguments: object) -> Coroutine[Any, Any, Any]:
        call = self._run(name, *arguments)
        self._calls.append((name, call))
        return call

    async def _run(self, name: str, *arguments: object) -> Any:
        if self._is_over:
            raise SinkError("the handler has returned, and its tx is over. Await every call of tx in the handler.")
        return await self._in_thread(getattr(self._transaction, name), *arguments)


def not_awaited(name: str) -> SinkError:
    """What a handler fails with that returned before a call of its ``tx`` was done."""
    return SinkError(
        f"the handler returned before tx.{name}() was done: nothing of it is committed. Write `await tx.{name}(...)`."
    )


@asynccontextmanager
async def savepoint(tx: Transaction, in_thread: InThread, undo: InThread) -> AsyncIterator[None]:
    """Around a handler's attempt: if it fails, what it did by ``tx`` is undone."""
    point = tx.savepoint()
    try:
        await in_thread(point.__enter__)
        yield
        await in_thread(point.__exit__, None, None, None)
    except BaseException as error:
        # Also where it was left already, which does nothing: dropped open, it would use the connection from here.
        await undo(point.__exit__, type(error), error, error.__traceback__)
        raise
