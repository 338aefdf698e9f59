"""The thread in which a partition's plain handlers run, and in which its sink is used."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

from hubline.sql.pool import SqlPool

P = ParamSpec("P")
T = TypeVar("T")

Due = Callable[[], bool]


class NotDue(Exception):
    """The time to call it is over."""


class HandlerThread(Executor):
    """One thread that runs plain handlers one at a time, started by the first.

    A daemon, unlike a thread pool's: a handler that hangs for good must not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.running: str | None = None  # the handler that the thread is in
        self._abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def call(
        self,
        function: Callable[[], T],
        *,
        name: str | None = None,
        is_due: Due | None = None,
        undoes: bool = False,
    ) -> T:
        """What the function returns, called in the thread.

        Cancelled, it is waited for if it has begun: a thread cannot be stopped. Else it is not called any more, unless
        it undoes something. What is not due any more when its turn comes is not called, either: NotDue is raised.
        Once the thread is abandoned, nothing is waited for, and CancelledError is raised.
        """
        if self._abandoned.done() and not undoes:
            raise asyncio.CancelledError

        def run() -> T:
            if is_due is not None and not is_due():
                raise NotDue
            self.running = name
            try:
                return function()
            finally:
                self.running = None

        call = _Call(run)
        running = asyncio.get_running_loop().run_in_executor(self, call)
        running.add_done_callback(_looked_at)
        try:
            await self._ended(running)
        except asyncio.CancelledError:
            if undoes or not call.drop():
                await self._ended(running)
            raise
        if not running.done():
            if not undoes:
                call.drop()
            raise asyncio.CancelledError
        return running.result()

    def abandon(self) -> None:
        """Leaves what hangs in the thread to itself. After it only what undoes is still called, should it ever end."""
        if not self._abandoned.done():
            self._abandoned.set_result(None)

    async def _ended(self, running: asyncio.Future[Any]) -> None:
        await asyncio.wait([running, self._abandoned], return_when=asyncio.FIRST_COMPLETED)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, functools.partial(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - never waits
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                future.set_exception(error)


class PartitionThread(HandlerThread):
    """The handlers' thread of a partition, in which its sink is used as well: what takes too long there is cut."""

    def __init__(self, name: str, pool: SqlPool[Any] | None) -> None:
        super().__init__(name)
        self._pool = pool

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what blocks. Cancelled, it is waited for: a thread cannot be stopped."""
        with self._overdue():
            return await self.call(functools.partial(function, *args, **kwargs))

    async def undo(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """The same for what undoes: it is done even if nothing waits for it any more."""
        with self._overdue():
            await self.call(functools.partial(function, *args, **kwargs), undoes=True)

    @contextmanager
    def _overdue(self) -> Iterator[None]:
        if self._pool is None:
            yield
            return
        overdue = asyncio.get_running_loop().call_later(self._pool.call_seconds_max, self._pool.cut_overdue)
        try:
            yield
        finally:
            overdue.cancel()


class _Call(Generic[T]):
    """A call that waits for its thread. As long as it has not begun, it can be dropped."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._taken = threading.Lock()  # by who comes first: the thread, or who drops it

    def drop(self) -> bool:
        """Whether it came in time."""
        return self._taken.acquire(blocking=False)

    def __call__(self) -> T:
        if not self._taken.acquire(blocking=False):
            raise RuntimeError("it was dropped")  # to nobody
        return self._function()


def _looked_at(ended: asyncio.Future[Any]) -> None:
    """The caller that left it behind does not want to know any more."""
    if not ended.cancelled():
        ended.exception()
