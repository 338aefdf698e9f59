"""A few threads for calls that block, with an end that waits for them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from hubline.errors import HubError

# Threads wait for the disk more than they compute; beyond this they only wait for each other.
THREADS_MAX: Final = 8

# A call that takes no longer may run on the event loop: others wait as long for any batch that is being decoded.
QUICK_SECONDS: Final = 0.005

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Threads:
    """Runs blocking calls for one hub object. A call whose task is cancelled still runs to its end."""

    def __init__(self, hub: str) -> None:
        self._hub = hub
        self._process_id = os.getpid()
        self._executor = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="hubline-local")
        self._running: set[Future[Any]] = set()
        self._is_quick = False
        self._is_closed = False
        self._is_shut_down = False

    async def run(
        self, call: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        self.require_open()
        return await asyncio.wrap_future(self.start(call, *args, **kwargs))

    async def run_quick(
        self, call: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Runs a call on the event loop itself while such calls are quick, as reads are whose pages are in memory.

        Going to a thread and back costs more than such a call: measured, a third of what it takes to serve events. One
        that is slow is the last for now: the next goes to a thread, until one is quick again.
        """
        if not self._is_quick:
            return await self.run(self._timed, lambda: call(*args, **kwargs))
        self.require_open()
        result = self._timed(lambda: call(*args, **kwargs))
        await asyncio.sleep(0)  # a caller that never has to wait must not keep others waiting
        return result

    def _timed(self, call: Callable[[], Result]) -> Result:
        started_at = time.perf_counter()
        try:
            return call()
        finally:
            self._is_quick = time.perf_counter() - started_at < QUICK_SECONDS

    def start(
        self, call: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """Starts a call that nobody has to wait for. Calls that run may start others, also while closing."""
        future = self._executor.submit(call, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def require_open(self) -> None:
        if self._is_closed:
            raise HubError(f"hub {self._hub} is closed. Open it again to use it.", hub=self._hub)
        if os.getpid() != self._process_id:  # threads do not survive a fork: the call would wait forever
            raise HubError(f"hub {self._hub} was opened before this process was forked. Open it here.", hub=self._hub)

    def refuse_more(self) -> None:
        """From now on every new call is an error."""
        self._is_closed = True

    async def close(self, last_call: Callable[[], None]) -> None:
        """Waits for what is running, also for cancelled tasks; then runs ``last_call``. Closing twice is fine."""
        self.refuse_more()
        if self._is_shut_down:
            return
        while self._running:
            running = [asyncio.wrap_future(future) for future in list(self._running)]
            await asyncio.gather(*running, return_exceptions=True)
        await asyncio.wrap_future(self._executor.submit(last_call))
        self._executor.shutdown()
        self._is_shut_down = True
