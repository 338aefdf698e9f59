"""Calls the handlers of one partition: tries again what fails, ends what takes too long, reports what is slow."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

from hubline.errors import Fenced, HandlerFailed, HandlerStalled, HublineError, SinkMissing
from hubline.model.events import Event, EventBatch
from hubline.processor.context import HandlerContext
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.binding import BoundHandler, bind
from hubline.processor.handlers.event_run import EventRun
from hubline.processor.handlers.handler import awaited, called
from hubline.processor.handlers.slow_report import SlowReport
from hubline.processor.handlers.thread import NotDue, PartitionThread
from hubline.processor.partition_status import PartitionStatus
from hubline.sinks import Transaction
from hubline.text import sentences
from hubline.tracebacks import place_of

log = logging.getLogger("hubline.processor")


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
        pool = None if dependencies.sink is None else dependencies.sink.database.pool
        self.thread = PartitionThread(f"hubline-{status.partition}", pool)
        self._status = status
        self._handlers = dependencies.handlers
        self._handler = dependencies.handlers[self.name]
        self._retry = options.handler_retry
        self._timeout_seconds = options.handler_timeout_seconds
        self._slow = SlowReport(status.loop, options.slow_handler_seconds, self._report_slow)
        self._rng = dependencies.rng
        self._report = report

    # The handler of events

    async def call(self, given: EventBatch | Event) -> object:
        """What the handler returns for a batch or an event, called again after a backoff where it fails.

        Raises HandlerFailed with the last cause.
        """
        returned, failed = await self.attempt(given, 1)
        return returned if failed is None else await self._call_again(given, failed)

    async def call_events(self, run: EventRun, *, until: Callable[[], bool] = lambda: False) -> None:
        """The same for the run's events, one after the other, to its end; or until that is so.

        Raises HandlerFailed for the run's next event; those before it are done.
        """
        while run.done < run.end and not until():
            if (failed := await self.go(run, until=until)) is not None:
                run.add(await self._call_again(run.next, failed))

    async def attempt(
        self, given: EventBatch | Event, attempt: int, tx: Transaction | None = None
    ) -> tuple[object, HandlerFailed | None]:
        """Calls the handler once; its failure is a result."""
        await self._status.until_current()
        call = functools.partial(self._bound(tx), given)
        begun_at = self._status.loop.time()
        try:
            with self._slow.watching(lambda: (given, begun_at)):
                return await self._run(call), None
        except NotDue:
            # Its thread was at something else until the lease expired.
            return await self.attempt(given, attempt, tx)
        except Exception as error:  # noqa: BLE001 - a failure is a result
            return None, self._failed(given, attempt, error)

    async def _run(self, call: Callable[[], object]) -> object:
        return await self._handler.run(call, thread=self.thread, name=self.name, is_due=self._status.is_current)

    def _bound(self, tx: Transaction | None = None, *, has_limit: bool = True) -> BoundHandler:
        limit = self._timeout_seconds if has_limit else None
        return bind(self._handler, self.context, self.thread, tx=tx, timeout_seconds=limit)

    async def _call_again(self, given: EventBatch | Event, failed: HandlerFailed | None) -> object:
        returned: object = None
        while failed is not None:
            if not self.may_try_again(failed):
                raise failed
            await self.pause(failed)
            returned, failed = await self.attempt(given, failed.attempts + 1)
        return returned

    # Retries

    def may_try_again(self, failed: HandlerFailed) -> bool:
        """Whether the handler is called once more for what failed."""
        return failed.attempts < self._retry.max_attempts

    async def pause(self, failed: HandlerFailed) -> None:
        """The backoff before the retry of what failed: let no transaction be open meanwhile.

        Raises the failure if the partition is closing: the next owner tries again.
        """
        if log.isEnabledFor(logging.WARNING):  # to find the place takes longer than the rest of a retry
            place = place_of(failed.__cause__ or failed)
            log.warning(
                "handler_retry partition=%s attempt=%d at=%s error=%s",
                self._status.partition,
                failed.attempts,
                place,
                failed,
            )
        if await self._status.is_closed_within(self._retry.delay(failed.attempts, self._rng)):
            raise failed

    # Events in one go

    async def go(
        self, run: EventRun, tx: Transaction | None = None, *, until: Callable[[], bool] = lambda: False
    ) -> HandlerFailed | None:
        """Handles events until one fails, and returns how; or until that is so, the lease expires, or this task is
        cancelled."""
        await self._status.until_current()
        task, loop = asyncio.current_task(), self._status.loop
        assert task is not None  # noqa: S101 (coroutines run in tasks)
        is_cancelled, is_current = task.cancelling, self._status.is_current

        def may_go() -> bool:
            return not is_cancelled() and is_current() and not until()

        run.begun_at = loop.time()
        with self._slow.watching(run.current):
            try:
                if self._handler.is_async:
                    # With tx, what the database takes does not count: there, each call has its own limit.
                    limit = self._timeout_seconds if tx is None else None
                    call = self._bound(tx, has_limit=tx is not None)
                    await awaited(run.go_async(call, may_go=may_go, timeout_seconds=limit))
                else:
                    go = functools.partial(run.go, self._bound(tx), may_go=may_go, clock=loop.time)
                    while (
                        running := await self.thread.call(functools.partial(called, go), name=self.name)
                    ) is not None:
                        run.add(await awaited(running))
                        run.begun_at = loop.time()
            except Exception as error:  # noqa: BLE001 - a failure is a result
                return self._failed(run.next, 1, error)
        return None

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

    # Failures

    def _failed(self, given: EventBatch | Event, attempts: int, error: Exception) -> HandlerFailed:
        if isinstance(error, Fenced) and error.partition == self._status.partition:
            raise error  # from its checkpoint: the partition is no longer this session's, and trying again is futile
        if isinstance(error, SinkMissing):
            raise error  # it is not the event's fault
        return self._failure(self.name, given, attempts, error)

    def _failure(self, name: str, given: EventBatch | Event | None, attempts: int, cause: Exception) -> HandlerFailed:
        first, last = _sequences(given)
        events = "" if given is None else f", {_events(first, last)}"
        failed = HandlerFailed(
            sentences(
                f"{name} failed for partition {self._status.partition}{events}, in attempt {attempts}: "
                f"{type(cause).__name__}: {cause}",
                "correct the handler, or what it uses",
            ),
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
            message = f"{what} running for {seconds:.0f} s with {shown}. Check what it waits for."
        else:
            message = (
                f"{what} waiting for {seconds:.0f} s with {shown}, while {running} runs in the same thread. "
                f"Check what {running} waits for."
            )
        self._report(HandlerStalled(message, partition=partition, seconds=seconds))


def _events(first: int, last: int) -> str:
    if first < 0:
        return "a heartbeat"
    return f"event {first}" if first == last else f"events {first} to {last}"


def _sequences(given: EventBatch | Event | None) -> tuple[int, int]:
    if isinstance(given, Event):
        return given.sequence_number, given.sequence_number
    return (given.first_sequence, given.last_sequence) if given else (-1, -1)
