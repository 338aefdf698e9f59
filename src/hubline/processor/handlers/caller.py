"""Calls the handlers of one partition: tries again what fails, ends what takes too long, reports what is slow."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from hubline.errors import Fenced, HandlerFailed, HandlerStalled, HublineError, StoreError
from hubline.model.events import Event, EventBatch
from hubline.processor.context import HandlerContext
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.event_run import EventRun, timed_out
from hubline.processor.handlers.handler import awaited, called
from hubline.processor.handlers.thread import HandlerThread, NotDue
from hubline.processor.handlers.transaction import AsyncTransaction, savepoint
from hubline.processor.partition_status import PartitionStatus
from hubline.sinks import Transaction
from hubline.tracebacks import place_of

log = logging.getLogger("hubline.handler")

P = ParamSpec("P")
T = TypeVar("T")

_SLOW_SHARE = 0.999
"""Of the seconds after which a handler is slow: a timer may be a moment early."""


class HandlerCaller:
    """Calls handlers, plain ones in one thread: they see their partition's batches one at a time.

    Attributes:
        context: What handlers are given; every session of the partition has its own.
        name: Which of the two handlers of events there is.
        thread: Where plain handlers run, and what uses the sink.
    """

    def __init__(
        self,
        status: PartitionStatus,
        dependencies: PartitionDependencies,
        context: HandlerContext,
        *,
        report: Callable[[HublineError], None],
    ) -> None:
        options = dependencies.options
        self.context = context
        self.name = dependencies.handler_name
        self.thread = HandlerThread(f"hubline-{status.partition}")
        self._status = status
        self._handlers = dependencies.handlers
        self._handler = dependencies.handlers[self.name]
        self._retry = options.handler_retry
        self._timeout_seconds = options.handler_timeout_seconds
        self._slow_seconds = options.slow_handler_seconds
        self._rng = dependencies.rng
        self._pool = None if dependencies.sink is None else dependencies.sink.database.pool
        self._report = report

    # The handler of events

    async def call(self, given: EventBatch | Event, tx: Transaction | None = None) -> object:
        """What the handler returns for a batch or an event, called again after a backoff where it fails.

        Raises HandlerFailed with the last cause.
        """
        returned, failed = await self.attempt(given, 1, tx)
        return returned if failed is None else await self._call_again(given, failed, tx)

    async def call_events(
        self, run: EventRun, tx: Transaction | None = None, *, until: Callable[[], bool] = lambda: False
    ) -> None:
        """The same for the run's events, one after the other, to its end; or until that is so.

        Raises HandlerFailed for the run's next event; those before it are done.
        """
        while run.done < run.end and not until():
            if tx is not None:  # each event has its savepoint: a call of the database, in the thread
                run.add(await self.call(run.next, tx))
            elif (failed := await self._go(run, until)) is not None:
                run.add(await self._call_again(run.next, failed))

    async def attempt(
        self, given: EventBatch | Event, attempt: int, tx: Transaction | None = None
    ) -> tuple[object, HandlerFailed | None]:
        """Calls the handler once; its failure is a result."""
        limit: asyncio.Timeout | None = None
        await self._status.until_current()
        loop = self._status.loop
        slow = loop.call_later(self._slow_seconds, self._report_slow, given, loop.time())
        try:
            with self.context.during(given) as context:
                async with savepoint(tx, self.in_thread, self.undo), asyncio.timeout(self._timeout_seconds) as limit:
                    return await self._call_handler(given, context, tx), None
        except NotDue:
            # Its thread was at something else until the lease expired.
            slow.cancel()
            return await self.attempt(given, attempt, tx)
        except Exception as error:  # noqa: BLE001 - a failure is a result
            is_too_long = limit is not None and limit.expired()
            return None, self._failed(given, attempt, timed_out(self._timeout_seconds) if is_too_long else error)
        finally:
            slow.cancel()

    async def _call_handler(self, given: EventBatch | Event, context: HandlerContext, tx: Transaction | None) -> object:
        is_async, is_due = self._handler.is_async, self._status.is_current
        own = AsyncTransaction(tx, self.in_thread) if tx is not None and is_async else tx
        return await self._handler.call(given, context, tx=own, thread=self.thread, name=self.name, is_due=is_due)

    async def _call_again(
        self, given: EventBatch | Event, failed: HandlerFailed | None, tx: Transaction | None = None
    ) -> object:
        returned: object = None
        while failed is not None:
            if failed.attempts >= self._retry.max_attempts or (
                tx is not None and isinstance(failed.__cause__, StoreError)
            ):
                raise failed  # a transaction that broke cannot be repaired by trying again within it
            place = place_of(failed.__cause__ or failed)
            log.warning(
                "handler_retry partition=%s attempt=%d at=%s error=%s",
                self._status.partition,
                failed.attempts,
                place,
                failed,
            )
            if await self._status.is_closed_within(self._retry.delay(failed.attempts, self._rng)):
                raise failed  # the next owner tries again
            returned, failed = await self.attempt(given, failed.attempts + 1, tx)
        return returned

    # Events in one go

    async def _go(self, run: EventRun, until: Callable[[], bool]) -> HandlerFailed | None:
        """Handles events until one fails, and returns how; or until the lease expires, or this task is cancelled."""
        await self._status.until_current()
        task, loop = asyncio.current_task(), self._status.loop
        assert task is not None  # noqa: S101 (coroutines run in tasks)
        is_cancelled, is_current = task.cancelling, self._status.is_current

        def may_go() -> bool:
            return not is_cancelled() and is_current() and not until()

        with self._reporting_slow(run):
            try:
                if self._handler.is_async:
                    going = run.go_async(self._async_call(), may_go=may_go, timeout_seconds=self._timeout_seconds)
                    await awaited(going)
                else:
                    go = functools.partial(run.go, self._plain_call(), may_go=may_go, clock=loop.time)
                    running = await self.thread.call(functools.partial(called, go, ()), name=self.name)
                    if running is not None:
                        run.add(await awaited(running))
            except Exception as error:  # noqa: BLE001 - a failure is a result
                return self._failed(run.next, 1, error)
        return None

    def _plain_call(self) -> Callable[[Event], object]:
        function, outer = self._handler.function, self.context
        if self._handler.arguments_count == 1:
            return function

        def call(event: Event) -> object:
            context = outer.given(event)
            try:
                returned = function(event, context)
            except BaseException:
                context.end()
                raise
            if returned is not None and inspect.isawaitable(returned):
                return _ending(context, returned)
            context.end()
            return returned

        return call

    def _async_call(self) -> Callable[[Event], Awaitable[object]]:
        function, outer = self._handler.function, self.context
        if self._handler.arguments_count == 1:
            return function

        async def call(event: Event) -> object:
            with outer.during(event) as context:
                return await function(event, context)

        return call

    @contextmanager
    def _reporting_slow(self, run: EventRun) -> Iterator[None]:
        """Looks at the event that the handler is at, no more often than one could be slow."""
        loop, seconds = self._status.loop, self._slow_seconds
        reported = -1
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal reported, timer
            now, done, begun_at = loop.time(), run.done, run.begun_at
            is_slow = now - begun_at >= seconds * _SLOW_SHARE
            if is_slow and reported < done < run.end:
                reported = done
                self._report_slow(run.events[done], begun_at)
            timer = loop.call_at((now if is_slow else begun_at) + seconds, look)

        run.begun_at = loop.time()
        timer = loop.call_later(seconds, look)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    # The other handlers

    async def call_guarded(self, name: str, *arguments: object, given: Event | None = None) -> None:
        """Calls a handler, if there is one, whose failure ends the session."""
        handler = self._handlers.get(name)
        if handler is None:
            return
        try:
            await handler.call(*arguments, thread=self.thread, name=name)
        except Exception as error:
            raise self._failure(name, given, 1, error) from error

    async def call_reported(self, name: str, *arguments: object) -> None:
        """Calls a handler, if there is one, whose failure is reported, and changes nothing."""
        try:
            await self.call_guarded(name, *arguments)
        except HandlerFailed as error:
            self._report(error)

    # The thread

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what blocks in the partition's thread. Cancelled, it is waited for: a thread cannot be stopped."""
        with self._overdue():
            return await self.thread.call(functools.partial(function, *args, **kwargs))

    async def undo(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """The same for what undoes: it is done even if nothing waits for it any more."""
        with self._overdue():
            await self.thread.call(functools.partial(function, *args, **kwargs), undoes=True)

    @contextmanager
    def _overdue(self) -> Iterator[None]:
        """While the sink is used: cuts what takes too long there."""
        overdue = None
        if self._pool is not None:
            overdue = self._status.loop.call_later(self._pool.call_seconds_max, self._pool.cut_overdue)
        try:
            yield
        finally:
            if overdue is not None:
                overdue.cancel()

    # Failures

    def _failed(self, given: EventBatch | Event, attempts: int, error: Exception) -> HandlerFailed:
        if isinstance(error, Fenced) and error.partition == self._status.partition:
            raise error  # from its checkpoint: the partition is no longer this session's, and trying again is futile
        return self._failure(self.name, given, attempts, error)

    def _failure(self, name: str, given: EventBatch | Event | None, attempts: int, cause: Exception) -> HandlerFailed:
        first, last = _sequences(given)
        events = "" if given is None else ", a heartbeat" if first < 0 else f", events {first} to {last}"
        failed = HandlerFailed(
            f"{name} failed for partition {self._status.partition}{events}, in attempt {attempts}: "
            f"{type(cause).__name__}: {cause}",
            partition=self._status.partition,
            first_sequence=first,
            last_sequence=last,
            attempts=attempts,
        )
        failed.__cause__ = cause
        return failed

    def _report_slow(self, given: EventBatch | Event, since: float) -> None:
        seconds = self._status.loop.time() - since
        partition, running = self._status.partition, self.thread.running
        shown = given if isinstance(given, EventBatch) else f"event {given.sequence_number}"
        what = f"{self.name} of partition {partition} has been"
        if running in (None, self.name) or self._handler.is_async:
            message = f"{what} running for {seconds:.0f} s with {shown}"
        else:
            message = f"{what} waiting for {seconds:.0f} s, while {running} runs in the same thread, with {shown}"
        self._report(HandlerStalled(message, partition=partition, seconds=seconds))


def _sequences(given: EventBatch | Event | None) -> tuple[int, int]:
    if isinstance(given, Event):
        return given.sequence_number, given.sequence_number
    return (given.first_sequence, given.last_sequence) if given else (-1, -1)


async def _ending(context: HandlerContext, running: Awaitable[object]) -> object:
    """What a plain function returned to be awaited is still the handler's work."""
    try:
        return await running
    finally:
        context.end()
