"""The time limit of an async handler that is called for one event after the other: one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class TimeLimit:
    """Within, cancels the current task while its handler runs longer than `seconds`, if there is such a limit.

    A timer for each event, as `asyncio.timeout` has it, takes longer than most handlers.

    Attributes:
        has_expired: Whether it has: the handler is cancelled, and has failed whatever comes of that.
    """

    __slots__ = ("_begun_at", "_loop", "_seconds", "_task", "_timer", "has_expired")

    def __init__(self, seconds: float | None, begun_at: Callable[[], float]) -> None:
        self.has_expired = False
        self._seconds = seconds
        self._begun_at = begun_at
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> TimeLimit:
        if self._seconds is not None:
            self._timer = self._loop.call_later(self._seconds, self._look, self._seconds)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Raises TimeoutError for what the handler raised, or did not, once it was cancelled here."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.has_expired or self._task is None or self._seconds is None:
            return
        is_cancelled_by_others = self._task.uncancel() > 0
        if not (is_cancelled_by_others and isinstance(error, asyncio.CancelledError)):
            raise ran_too_long(self._seconds) from None

    def _look(self, seconds: float) -> None:
        ends_at = self._begun_at() + seconds
        if self._loop.time() < ends_at:
            self._timer = self._loop.call_at(ends_at, self._look, seconds)
        elif self._task is not None:
            self.has_expired = True
            self._task.cancel()


def ran_too_long(seconds: float) -> TimeoutError:
    return TimeoutError(f"it ran longer than handler_timeout_seconds={seconds}")
