"""Events on their way through their handler: as many as possible in one go.

An event is the unit of failure, not of scheduling. A go calls the handler for one event after the other, in the
handler's thread or in one task of the loop, and ends at the first event that fails. Only that one is looked at
closely: see :mod:`.caller`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from hubline.model.events import Event
from hubline.processor.handlers.handler import cancelled_itself
from hubline.processor.handlers.returned import require_no_rows
from hubline.processor.handlers.time_limit import TimeLimit

GO_SECONDS = 0.01
"""An async handler that never waits gives way to the other tasks of its loop after so long."""

LOOK_SECONDS = 0.001
"""A go looks this often whether it may go on: a handler that takes longer is asked about before each event, and of
faster ones some hundred events may still be handled after the lease or the partition ended."""


class EventRun:
    """Events of one partition, in order, and how many of them are done.

    It is changed by one go at a time; any thread may look.

    Attributes:
        events: The events.
        end: Where a go stops: a checkpoint may be due there.
        done: How many are handled. While a handler runs, the next one is in it.
        begun_at: When the handler was called for that one, by the loop's time.
        results: What the handler returned for those that are done, if it is kept. Otherwise it may return no rows.
    """

    __slots__ = ("begun_at", "done", "end", "events", "results")

    def __init__(self, events: Sequence[Event], *, keeps_results: bool = False) -> None:
        self.events = events
        self.end = len(events)
        self.done = 0
        self.begun_at = 0.0
        self.results: list[object] | None = [] if keeps_results else None

    @property
    def next(self) -> Event:
        """The event that is to be handled, or that failed."""
        return self.events[self.done]

    def current(self) -> tuple[Event | None, float]:
        """The event that the handler is at, and since when."""
        begun_at, done = self.begun_at, self.done
        return (self.events[done] if done < self.end else None), begun_at

    def add(self, returned: object) -> None:
        """The next event is done."""
        if self.results is not None:
            self.results.append(returned)
        elif returned is not None:
            require_no_rows(returned, self.next.partition)
        self.done += 1

    def go(
        self, call: Callable[[Event], object], *, may_go: Callable[[], bool], clock: Callable[[], float]
    ) -> Awaitable[object] | None:
        """Handles events in this thread until ``may_go`` says no. Raises what the handler raised for the next one.

        A plain function may return something to be awaited: the go ends, and returns it.
        """
        keeps_all, look_at = self.results is not None, clock()
        for event in islice(self.events, self.done, self.end):
            now = self.begun_at = clock()
            if now >= look_at:
                if not may_go():
                    return None
                look_at = now + LOOK_SECONDS
            returned = call(event)
            if returned is None and not keeps_all:
                self.done += 1
                continue
            if inspect.isawaitable(returned):
                return returned
            self.add(returned)
        return None

    async def go_async(
        self,
        call: Callable[[Event], Awaitable[object]],
        *,
        may_go: Callable[[], bool],
        timeout_seconds: float | None = None,
    ) -> None:
        """The same with an async handler, in a task of its own. One that runs longer than that is cancelled."""
        clock, task = asyncio.get_running_loop().time, asyncio.current_task()
        assert task is not None  # noqa: S101 (coroutines run in tasks)
        is_cancelled, keeps_all = task.cancelling, self.results is not None
        look_at = self.begun_at = clock()
        gives_way_at = look_at + GO_SECONDS
        with TimeLimit(timeout_seconds, lambda: self.begun_at) as limit:
            for event in islice(self.events, self.done, self.end):
                now = self.begun_at = clock()
                if now >= look_at:
                    if now >= gives_way_at:
                        await asyncio.sleep(0)
                        now = self.begun_at = clock()
                        gives_way_at = now + GO_SECONDS
                    if not may_go():
                        return
                    look_at = now + LOOK_SECONDS
                returned = await call(event)
                if limit.has_expired:  # it caught that, and may have called uncancel()
                    return
                if is_cancelled():  # or this go is cancelled, and the event counts for nothing
                    raise cancelled_itself()
                if returned is None and not keeps_all:
                    self.done += 1
                else:
                    self.add(returned)
