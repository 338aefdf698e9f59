"""What a Python process of Spark keeps between its tasks: one event loop, in a thread of its own, and open hubs in it.

Spark's side of a task is plain blocking code; hubs are asynchronous. A task hands its coroutine to the loop and waits
for it. The loop runs between tasks too, so that connections stay open, heartbeats are answered, and what is not used
for a while is closed. A process that is killed leaves nothing behind: all of it is sockets and files of that process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Final, TypeVar

from hubline.adapters import open_hub
from hubline.addresses.hub_address import HubAddress
from hubline.concurrency import IdleCache
from hubline.errors import HublineError
from hubline.ports import Hub
from hubline.producer.lanes import Senders
from hubline.spark.tasks.gc_tuning import freeze_loaded_modules
from hubline.spark.tasks.links import Links

IDLE_SECONDS: Final = 60.0
"""A hub that nobody uses for so long is closed: longer than most triggers, shorter than the service lets links idle."""

# Closing ends the connections properly. At the end of a process it is not waited for longer than this.
_CLOSE_SECONDS: Final = 5.0

T = TypeVar("T")


def loop() -> asyncio.AbstractEventLoop:
    """The loop of this process."""
    return _Loop.of_this_process().loop


def run(work: Coroutine[object, object, T]) -> T:
    """Runs it in this process's loop and waits for it. If the caller is interrupted, the work is cancelled."""
    future = asyncio.run_coroutine_threadsafe(work, loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class OpenHub:
    """A hub, its waiting receivers, and its senders. Used by :func:`shared_hub`."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.links = Links()
        self.senders = Senders(hub)

    async def close(self) -> None:
        await self.links.close()
        await self.senders.close()
        await self.hub.close()


@contextlib.asynccontextmanager
async def shared_hub(address: HubAddress) -> AsyncIterator[OpenHub]:
    """The hub, open. Only from within :func:`run`: it belongs to that loop."""
    with _Loop.of_this_process().hubs.use(address) as opened:
        yield opened


def close() -> None:
    """Closes all hubs and ends the loop, if there is one. The next call of :func:`run` starts another."""
    if _Loop.current is not None and _Loop.current.process_id == os.getpid():
        _Loop.current.end()
    _Loop.current = None


class _Loop:
    """The loop of a process. A forked one gets its own: threads do not survive a fork."""

    current: _Loop | None = None
    _lock: Final = threading.Lock()

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.hubs = IdleCache(self._close_hub, idle_seconds=IDLE_SECONDS, open=self._open_hub)
        self._thread = threading.Thread(target=self._run, name="hubline-spark", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    @classmethod
    def of_this_process(cls) -> _Loop:
        freeze_loaded_modules()  # what earlier tasks loaded, such as Spark's own for rows
        with cls._lock:
            if cls.current is None or cls.current.process_id != os.getpid():
                cls.current = cls()
            return cls.current

    def end(self) -> None:
        atexit.unregister(self.end)
        if self.process_id != os.getpid() or not self._thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(_close_all(self.hubs.take_all()), self.loop)
        with contextlib.suppress(TimeoutError):
            closing.result(_CLOSE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_SECONDS)

    def _open_hub(self, address: HubAddress) -> OpenHub:
        opened = OpenHub(open_hub(address))
        freeze_loaded_modules()  # those of this kind of hub are loaded now
        return opened

    def _close_hub(self, opened: OpenHub) -> None:
        if self.loop.is_running():
            asyncio.run_coroutine_threadsafe(_close_all([opened]), self.loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


async def _close_all(hubs: Iterable[OpenHub]) -> None:
    for opened in hubs:
        # What cannot be closed in order is gone already; so are the threads of other modules at a process's end.
        with contextlib.suppress(HublineError, OSError, RuntimeError):
            await opened.close()
