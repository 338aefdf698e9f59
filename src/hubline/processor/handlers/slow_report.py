"""Reports a handler that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hubline.model.events import Event, EventBatch

Current = Callable[[], tuple[EventBatch | Event | None, float]]
"""What the handler is at, if anything, and since when by the loop's time. Any thread may change it."""

_SLOW_SHARE = 0.999
"""Of the seconds after which a handler is slow: a timer may be a moment early."""


class SlowReport:
    """Calls ``report`` once for each batch or event that the handler is at for ``seconds``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, report: Callable[[EventBatch | Event, float], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._report = report

    @contextmanager
    def watching(self, current: Current) -> Iterator[None]:
        """Within, looks at what the handler is at, no more often than it could be slow."""
        reported: EventBatch | Event | None = None
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal reported, timer
            now, (given, begun_at) = self._loop.time(), current()
            is_slow = now - begun_at >= self._seconds * _SLOW_SHARE
            if is_slow and given is not None and given is not reported:
                reported = given
                self._report(given, begun_at)
            timer = self._loop.call_at((now if is_slow else begun_at) + self._seconds, look_again[0])

        look_again = [look]
        timer = self._loop.call_later(self._seconds, look)
        try:
            yield
        finally:
            timer.cancel()
            look_again.clear()  # a function that has itself in reach keeps the batch until the next garbage collection
