"""Several calls at the same time, none of which outlives its caller, and what is kept open between calls."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

CALLS_AT_ONCE: Final = 16
"""Enough to hide the latency of a service, and few enough not to be throttled."""

First = TypeVar("First")
Second = TypeVar("Second")
Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


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


async def ended(task: asyncio.Future[Any]) -> None:
    """Returns when the task has ended, however it did: as ``asyncio.wait([task])``, in a third of the time."""
    if task.done():
        return
    waiter = asyncio.get_running_loop().create_future()

    def wake(_: asyncio.Future[Any]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)


class TimeLimit:
    """As ``asyncio.timeout``, for calls that are made all the time: in half of its time. Entered without ``async``.

    Raises TimeoutError after so many seconds, unless the task is cancelled by somebody else as well.
    """

    __slots__ = ("_cancelling", "_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None  # noqa: S101 (coroutines run in tasks)
        self._task = task
        self._cancelling = task.cancelling()
        self._is_over = False
        self._timer = loop.call_later(self._seconds, self._end)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._timer.cancel()
        if not self._is_over:
            return
        is_ours = self._task.uncancel() <= self._cancelling
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()


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


@dataclass(slots=True)
class _Kept(Generic[Value]):
    value: Value
    users: int = 0
    idle_since: float = 0.0


class IdleCache(Generic[Key, Value]):
    """Open values by key, kept between uses, and closed when nobody has used them for a while.

    Any number of users use a value at once, within `use`; or one user at a time takes it out of the cache and puts it
    back, by `take` and `put`. All methods may be called from any thread. A forked process starts with an empty cache:
    what is open belongs to its parent.

    Args:
        close: Closes a value. It is called in a thread of the cache's own, and at `close`.
        open: Opens the value of a key, for `use`. It must not wait.
        idle_seconds: How long nobody uses a value before it is closed.
    """

    def __init__(
        self,
        close: Callable[[Value], object],
        *,
        idle_seconds: float,
        open: Callable[[Key], Value] | None = None,  # noqa: A002
    ) -> None:
        self._close = close
        self._open = open
        self._idle_seconds = idle_seconds
        self._forget()
        _caches.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Key, _Kept[Value]] = {}
        self._timer: threading.Timer | None = None

    @contextmanager
    def use(self, key: Key) -> Iterator[Value]:
        """The value of a key, opened if it is not there."""
        assert self._open is not None  # noqa: S101 - who calls use() has said how to open
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._kept[key] = _Kept(self._open(key))
            kept.users += 1
        try:
            yield kept.value
        finally:
            with self._lock:
                kept.users -= 1
                self._start_idling(kept)

    def take(self, key: Key) -> Value | None:
        """The value that was put there, for this user alone."""
        with self._lock:
            kept = self._kept.pop(key, None)
        return None if kept is None else kept.value

    def put(self, key: Key, value: Value) -> None:
        """Keeps a value for the next caller that takes it. One that is there already is closed."""
        before = self.take(key)
        with self._lock:
            self._kept[key] = _Kept(value)
            self._start_idling(self._kept[key])
        if before is not None:
            self._close(before)

    def take_all(self) -> list[Value]:
        """Takes out all values, those in use included."""
        with self._lock:
            values = [kept.value for kept in self._kept.values()]
            self._kept.clear()
        return values

    def close(self) -> None:
        """Closes all values, at the end of a process."""
        for value in self.take_all():
            self._close(value)

    def _start_idling(self, kept: _Kept[Value]) -> None:
        kept.idle_since = time.monotonic()
        if self._timer is None and not kept.users:
            self._start_timer(self._idle_seconds)

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(max(seconds, 0.0), self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        with self._lock:
            oldest = time.monotonic() - self._idle_seconds
            idle = {key: kept for key, kept in self._kept.items() if not kept.users}
            expired = {key: kept for key, kept in idle.items() if kept.idle_since <= oldest}
            for key in expired:
                del self._kept[key]  # first of all: a user who comes while it closes opens another
            self._timer = None
            if waiting := [kept.idle_since - oldest for key, kept in idle.items() if key not in expired]:
                self._start_timer(min(waiting))
        for kept in expired.values():
            self._close(kept.value)


_caches: WeakSet[IdleCache[Any, Any]] = WeakSet()


def _forget_all() -> None:
    for cache in _caches:
        cache._forget()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_all)
