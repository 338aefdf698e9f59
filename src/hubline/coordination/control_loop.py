"""An event loop in a thread of its own, for calls that must not wait for handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ControlLoop:
    """An event loop to hand coroutines to. ``loop`` is the caller's own unless a thread is started for it."""

    def __init__(self, *, in_thread: bool) -> None:
        self._thread: threading.Thread | None = None
        if in_thread:
            # With a factory, the runner does not make its loop the current one of this thread, which is the caller's.
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self.loop = self._runner.get_loop()
            # A daemon, so that a handler stuck for good does not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="hubline-control", daemon=True)
            self._thread.start()
        else:
            self.loop = asyncio.get_running_loop()

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a coroutine function on the control loop. Cancelling the call cancels it there."""
        return await call_on(self.loop, function, *args, **kwargs)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the control loop, and waits for it in this thread, which has no loop of its own."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result()

    async def close(self) -> None:
        """Ends the thread; what still runs on its loop is cancelled."""
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        with self._runner:
            self.loop.run_forever()


async def call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Runs a coroutine function on a loop, this one or another thread's, and returns its result."""
    if loop is asyncio.get_running_loop():
        return await function(*args, **kwargs)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop))
