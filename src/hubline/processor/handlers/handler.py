"""The user's handlers: plain or async, called with as many arguments as they take."""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hubline.errors import ConfigError
from hubline.processor.handlers.thread import Due, HandlerThread

HANDLER_ARGUMENTS = {
    "on_batch": ("batch", "partition"),
    "on_event": ("event", "partition"),
    "on_error": ("error", "partition"),
    "on_assigned": ("partition",),
    "on_renewed": ("partition",),
    "on_released": ("partition", "reason"),
    "on_dead_letter": ("dead_letter", "partition"),
}
"""The handlers, and the arguments each may take; one that needs fewer takes the first ones."""

TX = "tx"
"""The argument of on_batch and on_event, in any place, that is given the transaction of the sink."""


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

    def arguments(self, *offered: object, tx: object = None) -> tuple[object, ...]:
        """Those that the handler takes."""
        if self.tx_place is not None:
            offered = (*offered[: self.tx_place], tx, *offered[self.tx_place :])
        return offered[: self.arguments_count]

    async def call(self, *arguments: object, thread: HandlerThread, name: str) -> object:
        """What the handler returns for these arguments: see `run`."""
        return await self.run(functools.partial(self.function, *self.arguments(*arguments)), thread=thread, name=name)

    async def run(
        self, call: Callable[[], Any], *, thread: HandlerThread, name: str, is_due: Due | None = None
    ) -> object:
        """What a call of the handler returns: an async one is made here, a plain one in the thread, which it may block.

        A plain one that is not due any more when its turn comes is not made: NotDue is raised.
        Raises what the handler raised, as an Exception, unless it ends the program; CancelledError only if the caller
        was cancelled.
        """
        if self.is_async:
            return await awaited(called(call))
        result = await thread.call(functools.partial(called, call), name=name, is_due=is_due)
        if inspect.isawaitable(result):  # a plain function around an async one: its work has not begun yet
            return await awaited(result)
        return result


_callers: weakref.WeakKeyDictionary[asyncio.Future[Any], asyncio.Task[Any] | None] = weakref.WeakKeyDictionary()


def caller() -> asyncio.Task[Any] | None:
    """In the task of a handler, the one that waits for it: what waits for that one in turn would never end."""
    task = asyncio.current_task()
    return None if task is None else _callers.get(task)


def called(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - raised below, as a failure
        failure = _failure(error)
    raise failure


async def awaited(running: Awaitable[Any]) -> object:
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
        text = f": {error}"
    except Exception:  # noqa: BLE001 - an error of the user's own may have no text
        text = ", whose text cannot be made"
    else:
        # StopIteration steers coroutines: out of a future it would never arrive.
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
    failure = RuntimeError(f"the handler raised {type(error).__name__}{text}")
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
