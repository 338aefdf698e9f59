"""The user's handlers: plain or async, called with the arguments that they take."""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hubline.concurrency import ended
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
"""The handlers, and the arguments that each may take."""

TX = "tx"
"""The argument of on_batch and on_event, in any place, that is given the transaction of the sink."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler, and how to call it: `matching.handler_of` makes one of a function.

    Attributes:
        function: The user's.
        is_async: Whether calling it makes a coroutine.
        places: What it is given by position, as places among the arguments that are offered.
        keywords: What it is given by keyword: names of its parameters, and places.
        takes_tx: Whether the transaction is among them.
    """

    function: Callable[..., Any]
    is_async: bool
    places: tuple[int, ...]
    keywords: tuple[tuple[str, int], ...] = ()
    takes_tx: bool = False

    @property
    def takes_events_alone(self) -> bool:
        """Whether the first argument is all that it is given."""
        return self.places == (0,) and not self.keywords

    def invoke(self, *offered: object) -> Any:
        """Calls the function with what it takes of the arguments: all of `HANDLER_ARGUMENTS`, then the transaction."""
        arguments = [offered[place] for place in self.places]
        if not self.keywords:
            return self.function(*arguments)
        return self.function(*arguments, **{name: offered[place] for name, place in self.keywords})

    async def call(self, *arguments: object, thread: HandlerThread, name: str) -> object:
        """What the handler returns for these arguments: see `run`."""
        return await self.run(functools.partial(self.invoke, *arguments), thread=thread, name=name)

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
        await ended(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        raise cancelled_itself()
    error = task.exception()
    if error is None:
        return task.result()
    try:
        raise _failure(error)
    finally:
        del task, error  # its traceback leads here: a cycle would keep the events until the next garbage collection


def cancelled_itself() -> RuntimeError:
    """What a handler fails with whose task was cancelled, by none of hubline's, also if it caught that."""
    return RuntimeError("the handler cancelled itself")


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
