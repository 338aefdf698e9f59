"""Reports a handler that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hubline.model.events import Event, EventBatch

Current = Callable[[], tuple[EventBatch | Event | None, float]]
"""What the handler is at, if anything, and since when by the loop's time. Any thread may change it."""

Report = Callable[[EventBatch | Event, float], None]
"""Takes what the handler is at, and since when."""

_SLOW_SHARE = 0.999
"""Of the seconds after which a handler is slow: a timer may be a moment early."""


class SlowReport:
    """Calls ``report`` once for each batch or event that the handler is at for ``seconds``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, report: Report) -> None:
        self._loop = loop
        self._seconds = seconds
        self._report = report

    def watching(self, current: Current) -> _Watch:
        """Within, looks at what the handler is at, no more often than it could be slow."""
        return _Watch(self._loop, self._seconds, self._report, current)


class _Watch:
    __slots__ = ("_current", "_loop", "_report", "_reported", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, report: Report, current: Current) -> None:
        self._loop = loop
        self._seconds = seconds
        self._report = report
        self._current = current
        self._reported: EventBatch | Event | None = None

    def __enter__(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._look)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now, (given, begun_at) = self._loop.time(), self._current()
        is_slow = now - begun_at >= self._seconds * _SLOW_SHARE
        if is_slow and given is not None and given is not self._reported:
            self._reported = given
            self._report(given, begun_at)
        self._timer = self._loop.call_at((now if is_slow else begun_at) + self._seconds, self._look)
