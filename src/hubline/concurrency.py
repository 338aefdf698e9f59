"""Several calls at the same time: a bounded number of them, and none that outlives its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

CALLS_AT_ONCE: Final = 16
"""Enough to hide the latency of a service, and few enough not to be throttled."""

First = TypeVar("First")
Second = TypeVar("Second")
Item = TypeVar("Item")
Result = TypeVar("Result")


async def gather_two(first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]) -> tuple[First, Second]:
    """Runs two calls at the same time; neither outlives the other's failure."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def map_bounded(
    function: Callable[[Item], Awaitable[Result]], items: Iterable[Item], *, max_concurrent: int = CALLS_AT_ONCE
) -> list[Result]:
    """The function's results, in the order of the items, a few calls at a time. Nothing outlives a failure."""
    items = list(items)
    results: dict[int, Result] = {}
    waiting = iter(enumerate(items))

    async def worker() -> None:
        for place, item in waiting:
            results[place] = await function(item)

    tasks = [asyncio.create_task(worker()) for _ in range(min(len(items), max_concurrent))]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
    return [results[place] for place in range(len(items))]


class BackgroundTasks:
    """Tasks that run until they end by themselves, in the order in which they were started."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # a set that keeps its order

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._tasks))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def wait(self) -> None:
        """Returns when no task runs, those included that are started while this waits."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels the tasks and returns when all have ended; what they raise is dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
