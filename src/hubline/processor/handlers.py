"""The user's handlers: plain or async, called with as many arguments as they take."""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, cast

from hubline.errors import ConfigError

HANDLER_ARGUMENTS = {
    "on_batch": ("batch", "partition"),
    "on_error": ("error", "partition"),
    "on_assigned": ("partition",),
    "on_renewed": ("partition",),
    "on_released": ("partition", "reason"),
    "on_dead_letter": ("letter", "partition"),
}
"""The handlers, and the arguments each may take; one that needs fewer takes the first ones."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler, and how to call it."""

    function: Callable[..., Any]
    arguments_count: int
    is_async: bool

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Handler:
        """Checks at registration what would otherwise fail at the first event."""
        offered = HANDLER_ARGUMENTS[name]
        if not callable(function):
            raise ConfigError(f"{name} takes a function, not {type(function).__name__}")
        try:
            count = _positional_count(inspect.signature(function), most=len(offered))
        except (TypeError, ValueError):
            count = len(offered)  # a builtin without a signature: it gets everything
        if not 1 <= count <= len(offered):
            raise ConfigError(
                f"{name} calls its handler with ({', '.join(offered)}), or the first of these; "
                f"{getattr(function, '__qualname__', function)} takes {count} arguments"
            )
        call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        return cls(function, count, inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call))

    async def call(self, *arguments: object, executor: Executor | None) -> None:
        """Calls the handler: an async one here, a plain one in the executor, which it may block."""
        taken = arguments[: self.arguments_count]
        if self.is_async:
            await cast("Awaitable[None]", self.function(*taken))
            return
        running = asyncio.get_running_loop().run_in_executor(executor, self.function, *taken)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: the partition is at rest only when it has returned.
            await asyncio.wait([running])
            raise


class HandlerThread(Executor):
    """One thread that runs plain handlers one at a time, started by the first.

    A daemon, unlike a thread pool's: a handler that hangs for good must not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

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


def _positional_count(signature: inspect.Signature, *, most: int) -> int:
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise ConfigError(f"a handler is called with positional arguments; {keyword_only[0]!r} is keyword-only")
    return required if required > most else min(len(positional), most)
