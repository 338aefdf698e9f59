"""The control loop: where the dispatch cycle runs, out of reach of handlers that block.

In production it is an event loop in a thread of its own; in a simulation it is the caller's loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from hubline.errors import HubUnavailable, StoreError, StoreUnavailable
from hubline.model import Checkpoint
from hubline.ports import CheckpointStore

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


async def asked(seconds_max: float, call: Awaitable[T], *, what: str) -> T:
    """A call of a hub with a bound on its time: one that hangs is given up, as if the hub could not be reached."""
    try:
        async with asyncio.timeout(seconds_max):
            return await call
    except TimeoutError:
        raise HubUnavailable(f"the hub did not {what} within {seconds_max:g} s") from None


def bounded(seconds_max: float, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A store's method with a bound on its time, whose every failure is a StoreError."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with asyncio.timeout(seconds_max):
                return await function(*args, **kwargs)
        except TimeoutError:
            raise StoreUnavailable(f"the store did not answer within {seconds_max:g} s") from None
        except StoreError:
            raise
        except Exception as error:
            # A store of the user's own may raise anything; unseen, it would end the dispatch cycle for good.
            raise StoreError(f"the store failed with {type(error).__name__}: {error}") from error

    return call


async def set_back(store: CheckpointStore, checkpoint: Checkpoint, *, epoch: int, seconds_max: float) -> None:
    """Sets a checkpoint that is of a hub that is no more, by who owns the partition, to a place in the one made anew.

    That gives the partition up, by Fenced: whoever claims it next goes on from there.
    """
    fence = bounded(seconds_max, store.fence)
    await fence(checkpoint.key, epoch)  # whose it is by now has seen to it
    await bounded(seconds_max, store.reset_checkpoint)(checkpoint.key, checkpoint)
    await fence(checkpoint.key, epoch)
