"""Requests at the same time: a bounded number of them, and none that outlives the call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from hubline.stores.blob.transport import CONNECTIONS_MAX

BULK_REQUESTS_MAX: Final = CONNECTIONS_MAX - 8
"""Requests of one call at a time: a few connections stay free for heartbeats and checkpoints."""

First = TypeVar("First")
Second = TypeVar("Second")
Item = TypeVar("Item")
Result = TypeVar("Result")


async def both(first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]) -> tuple[First, Second]:
    """Runs two calls at the same time; neither outlives the other's failure."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def each(items: Sequence[Item], work: Callable[[Item], Awaitable[Result]]) -> list[Result]:
    """Works on the items, several at a time, and returns the results in order. Nothing outlives a failure."""
    results: dict[int, Result] = {}
    waiting = iter(enumerate(items))

    async def worker() -> None:
        for place, item in waiting:
            results[place] = await work(item)

    tasks = [asyncio.create_task(worker()) for _ in range(min(len(items), BULK_REQUESTS_MAX))]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
    return [results[place] for place in range(len(items))]


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
