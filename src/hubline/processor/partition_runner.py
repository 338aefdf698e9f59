"""Runs one owned partition until it is released or lost.

Within a lease there are sessions: a failing handler ends one, and the next starts from the checkpoint after a backoff.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from hubline.concurrency import BackgroundTasks
from hubline.errors import Fenced, HublineError
from hubline.model.ownership import Ownership, ReleaseReason
from hubline.processor.checkpointer import Checkpointer
from hubline.processor.context import HandlerContext
from hubline.processor.delivery.failure_limits import FailureCount, FailureLimits
from hubline.processor.dependencies import Control, PartitionDependencies, unexpected
from hubline.processor.handlers.caller import HandlerCaller
from hubline.processor.partition_session import PartitionSession
from hubline.processor.partition_status import PartitionStatus
from hubline.processor.starting_position import StartingPosition

log = logging.getLogger("hubline.processor")

ABANDON_SECONDS_MAX = 1.0
"""An async handler that is cancelled ends within a moment; one that does not, or a thread, may never end."""


class PartitionRunner:
    """One partition under one lease: it is started, paused, closed and abandoned by the processor's run.

    Lives on the processor's event loop.
    """

    def __init__(
        self, ownership: Ownership, dependencies: PartitionDependencies, control: Control, *, is_paused: bool
    ) -> None:
        key, epoch, options = ownership.key, ownership.epoch, dependencies.options
        self.epoch = epoch
        self._dependencies = dependencies
        self._control = control
        self._status = PartitionStatus(
            key, epoch, is_current=lambda: control.is_current(key.partition, epoch), is_paused=is_paused
        )
        self._checkpointer = Checkpointer(self._status, dependencies, control, report=self._report)
        context = HandlerContext(self._status, self._checkpointer)
        self._caller = HandlerCaller(self._status, dependencies, context, report=self._report)
        self._start = StartingPosition(self._status, dependencies)
        limits = FailureLimits(options.max_consecutive_failures, options.max_failure_ratio)
        self._failures = FailureCount(limits, key.partition)
        self._session: PartitionSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_reporting_renewal = False
        self._background = BackgroundTasks()

    @property
    def context(self) -> HandlerContext:
        """What handlers are given, of the newest session."""
        return self._caller.context

    def start(self, after: PartitionRunner | None) -> None:
        """Begins, as soon as the one before has ended."""
        self._task = asyncio.create_task(self._run(after), name=f"hubline-partition-{self._status.partition}")

    def pause(self) -> None:
        self._status.resumed.clear()

    def resume(self) -> None:
        self._status.resumed.set()

    async def close(self, reason: ReleaseReason) -> None:
        """Ends it and returns once it is at rest. Draining may be overtaken by a loss."""
        self._status.request_close(reason)
        if reason.drains:
            if self._session is not None:
                self._session.stop_reading()
        elif self._task:
            self._task.cancel()
        await self.wait()

    async def wait(self) -> None:
        if self._task:
            await asyncio.wait([self._task])

    async def abandon(self) -> None:
        """Leaves it to itself: it is cancelled, and waited for a moment only. So is what hangs in its thread."""
        if self._session is not None:
            self._session.is_abandoned = True
        tasks = [task for task in (self._task, *self._background) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks_left = await asyncio.wait(tasks, timeout=ABANDON_SECONDS_MAX)
            self._caller.thread.abandon()
            if tasks_left:
                await asyncio.wait(tasks_left, timeout=ABANDON_SECONDS_MAX)

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it does not come to rest before the task ends."""
        return any(task is each for each in (self._task, *self._background))

    def renewed(self) -> None:
        """The lease was renewed: checkpoints if that is the policy or one failed before, and calls on_renewed."""
        session, dependencies = self._session, self._dependencies
        if session is None or not session.is_assigned:
            return
        is_needed = "on_renewed" in dependencies.handlers or dependencies.sink is not None
        if is_needed or self._checkpointer.is_due_at_renewal:
            self._background.spawn(self._on_renewed(session))

    async def _on_renewed(self, session: PartitionSession) -> None:
        if self._checkpointer.is_due_at_renewal:
            await self._checkpointer.write_in_background()
        if self._is_reporting_renewal:
            return  # a handler that takes longer than a renewal is not called again meanwhile
        self._is_reporting_renewal = True
        try:
            await self._caller.call_reported("on_renewed", self._caller.context)
            await session.check_sink()
        except Fenced as error:
            self._release_fenced(error)
        finally:
            self._is_reporting_renewal = False

    async def _run(self, after: PartitionRunner | None) -> None:
        try:
            if after is not None:
                await after.wait()
            await self._run_sessions()
        except asyncio.CancelledError:
            if not self._status.is_closing():
                raise
        except (SystemExit, KeyboardInterrupt):
            # It ends the loop at once; asyncio would also print it, as an error that was never retrieved.
            if self._task is not None:
                self._task.add_done_callback(asyncio.Task.exception)
            raise
        finally:
            for task in self._background:
                task.cancel()
            self._caller.thread.shutdown()

    async def _run_sessions(self) -> None:
        failures = 0
        while not self._status.is_closing():
            handled_before = self._checkpointer.progress.place
            try:
                await self._run_session()
                return
            except Fenced as error:
                self._report(error)
                self._release_fenced(error)
                return
            except HublineError as error:
                self._report(error)
            except Exception as error:  # noqa: BLE001 - a hub or store of the user's own may raise anything
                self._report(unexpected(self._status.partition, error))
            if self._status.is_closing():
                return  # it does not reopen: whatever failed last was interrupted, or is the next owner's
            failures = failures + 1 if self._checkpointer.progress.place == handled_before else 1
            delay = self._dependencies.options.reconnect_backoff.delay(failures, self._dependencies.rng)
            log.warning("partition_failed partition=%s reopens_in_seconds=%.1f", self._status.partition, delay)
            await self._status.is_closed_within(delay)

    async def _run_session(self) -> None:
        self._session = PartitionSession(
            self._status,
            self._dependencies,
            self._caller,
            self._checkpointer,
            failures=self._failures,
            start=self._start,
            report=self._report,
        )
        await self._session.run()

    def _release_fenced(self, error: Fenced) -> None:
        self._control.release_fenced(self._status.partition, epoch=self.epoch, held_epoch=error.held_epoch)

    def _report(self, error: HublineError) -> None:
        self._control.report(error, self._caller.context)
