"""The user's handlers: plain or async, called with as many arguments as they take."""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hubline.errors import ConfigError

T = TypeVar("T")

HANDLER_ARGUMENTS = {
    "on_batch": ("batch", "partition"),
    "on_event": ("event", "partition"),
    "on_error": ("error", "partition"),
    "on_assigned": ("partition",),
    "on_renewed": ("partition",),
    "on_released": ("partition", "reason"),
    "on_dead_letter": ("letter", "partition"),
}
"""The handlers, and the arguments each may take; one that needs fewer takes the first ones."""

TX = "tx"
"""The argument of on_batch and on_event, in any place, that is given the transaction of the sink."""


Due = Callable[[], bool]


class NotDue(Exception):
    """The time to call it is over."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler, and how to call it."""

    function: Callable[..., Any]
    arguments_count: int
    is_async: bool
    tx_place: int | None = None

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Handler:
        """Checks at registration what would otherwise fail at the first event."""
        offered = HANDLER_ARGUMENTS[name]
        if not callable(function):
            raise ConfigError(f"{name} takes a function, not {type(function).__name__}")
        shown = getattr(function, "__qualname__", repr(function))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{name} calls its handler, and {shown} is a generator: write it without yield")
        tx_place = _tx_place(function) if name in ("on_batch", "on_event") else None
        if tx_place is not None:
            offered = (*offered[:tx_place], TX, *offered[tx_place:])
        count = _positional_count(name, function, most=len(offered))
        if not 1 <= count <= len(offered):
            raise ConfigError(
                f"{name} calls its handler with ({', '.join(offered)}), or the first of these; "
                f"{shown} takes {count or 'no'} argument{'' if count == 1 else 's'}"
            )
        call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        return cls(function, count, is_async, tx_place)

    @property
    def takes_tx(self) -> bool:
        return self.tx_place is not None

    async def call(
        self, *arguments: object, tx: object = None, thread: HandlerThread, name: str, is_due: Due | None = None
    ) -> object:
        """What the handler returns: an async one is called here, a plain one in the thread, which it may block.

        A plain one that is not due any more when its turn comes is not called: NotDue is raised.
        Raises what the handler raised, as an Exception, unless it ends the program; CancelledError only if the caller
        was cancelled.
        """
        if self.tx_place is not None:
            arguments = (*arguments[: self.tx_place], tx, *arguments[self.tx_place :])
        taken = arguments[: self.arguments_count]
        if self.is_async:
            return await _awaited(_called(self.function, taken))
        result = await thread.call(functools.partial(_called, self.function, taken), name=name, is_due=is_due)
        if inspect.isawaitable(result):  # a plain function around an async one: its work has not begun yet
            return await _awaited(result)
        return result


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
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, functools.partial(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - never waits
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                future.set_exception(error)


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
    """Whoever left it behind does not want to know any more."""
    if not ended.cancelled():
        ended.exception()


_callers: weakref.WeakKeyDictionary[asyncio.Future[Any], asyncio.Task[Any] | None] = weakref.WeakKeyDictionary()


def caller() -> asyncio.Task[Any] | None:
    """In the task of a handler, the one that waits for it: what waits for that one in turn would never end."""
    task = asyncio.current_task()
    return None if task is None else _callers.get(task)


def _called(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001 - raised below, as a failure
        failure = _failure(error)
    raise failure


async def _awaited(running: Awaitable[Any]) -> object:
    """Awaits a handler in a task of its own: if that is cancelled, by whomever, it takes no partition with it."""
    task = asyncio.ensure_future(running)
    _callers[task] = asyncio.current_task()
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        raise RuntimeError("the handler cancelled itself")
    error = task.exception()
    if error is not None:
        raise _failure(error)
    return task.result()


def _failure(error: BaseException) -> BaseException:
    """What a handler raised, as an Exception that can be caught and shown, unless it ends the program."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return error
    try:
        told = f": {error}"
    except Exception:  # noqa: BLE001 - an error of the user's own may have no text
        told = ", whose text cannot be made"
    else:
        # StopIteration steers coroutines: out of a future it would never arrive.
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
    failure = RuntimeError(f"the handler raised {type(error).__name__}{told}")
    failure.__cause__ = error
    return failure.with_traceback(error.__traceback__)


def _tx_place(function: Callable[..., Any]) -> int | None:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return names.index(TX) if TX in names else None


def _positional_count(name: str, function: Callable[..., Any], *, most: int) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return most  # a builtin without a signature: it gets everything
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise ConfigError(f"{name} gives its handler no {keyword_only[0]!r}: a keyword-only argument needs a default")
    return required if required > most else min(len(positional), most)
