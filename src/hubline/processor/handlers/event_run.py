"""Events on their way through their handler: as many as possible in one go.

An event is the unit of failure, not of scheduling. A go calls the handler for one event after the other, in the
handler's thread or in one task of the loop, and ends at the first event that fails. Only that one is looked at
closely: see :mod:`.caller`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

from hubline.model.events import Event

GO_SECONDS = 0.01
"""An async handler that never waits gives way to the other tasks of its loop after so long."""


class EventRun:
    """Events of one partition, in order, and how many of them are done.

    It is changed by one go at a time; any thread may look.

    Attributes:
        events: The events.
        end: Where a go stops: a checkpoint may be due there.
        done: How many are handled. While a handler runs, the next one is in it.
        begun_at: When the handler was called for that one, by the loop's time.
        results: What the handler returned for those that are done, if it is kept.
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
        self.done += 1

    def go(
        self, call: Callable[[Event], object], *, may_go: Callable[[], bool], clock: Callable[[], float]
    ) -> Awaitable[object] | None:
        """Handles events in this thread until ``may_go`` says no. Raises what the handler raised for the next one.

        A plain function may return something to be awaited: the go ends, and returns it.
        """
        while self.done < self.end and may_go():
            self.begun_at = clock()
            returned = call(self.next)
            if returned is not None and inspect.isawaitable(returned):
                return returned
            self.add(returned)
        return None

    async def go_async(self, call: Callable[[Event], Awaitable[object]], *, may_go: Callable[[], bool]) -> None:
        """The same with an async handler, in a task of its own."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 (coroutines run in tasks)
        gives_way_at = loop.time() + GO_SECONDS
        while self.done < self.end and may_go():
            self.begun_at = loop.time()
            returned = await call(self.next)
            if task.cancelling():  # or this go is cancelled, and the event counts for nothing
                raise RuntimeError("the handler cancelled itself")
            self.add(returned)
            if loop.time() >= gives_way_at:
                await asyncio.sleep(0)
                gives_way_at = loop.time() + GO_SECONDS
