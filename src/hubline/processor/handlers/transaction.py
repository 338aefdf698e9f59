"""The transaction of the sink, as handlers use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hubline.sinks import Rows, Transaction

InThread = Callable[..., Awaitable[Any]]
"""Runs what blocks in the partition's thread."""


class AsyncTransaction:
    """The transaction of a batch, for `async` handlers: the methods of `hubline.sinks.Transaction`, awaited.

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

    async def execute(self, query: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[object, ...]]:
        """Run one SQL statement and return its rows, if it has any.

        Args:
            query: The statement.
            params: Its values, for the driver's placeholders: `%s` in PostgreSQL, `?` in SQLite.

        Raises:
            SinkError: The statement would begin or end a transaction, or the transaction is over.
            StoreError: The database failed.
        """
        rows: list[tuple[object, ...]] = await self._in_thread(self._transaction.execute, query, params)
        return rows

    async def insert(self, rows: Rows) -> None:
        """Write rows to the sink's table.

        Args:
            rows: An Arrow table or batch, or dictionaries. A column `sequenceNumber` names the event of each row.

        Raises:
            SinkError: The columns do not fit the table, or the sink has no table.
        """
        await self._in_thread(self._transaction.insert, rows)


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
