"""What a processor says when something goes wrong: a line of log, and a call of on_error."""

from __future__ import annotations

import asyncio
import logging

from hubline.concurrency import BackgroundTasks
from hubline.errors import HublineError, ProcessorError
from hubline.processor.context import PartitionContext
from hubline.processor.handlers.handler import Handler, caller
from hubline.processor.handlers.thread import HandlerThread
from hubline.processor.partition_runner import ABANDON_SECONDS_MAX
from hubline.tracebacks import format_failure, where_raised

log = logging.getLogger("hubline.processor")


class ErrorReports:
    """Logs the errors of a run, and calls on_error for each without waiting for it."""

    def __init__(self, on_error: Handler | None) -> None:
        self._on_error = on_error
        self._thread = HandlerThread("hubline-errors")
        self._calls = BackgroundTasks()

    def report(self, error: HublineError, context: PartitionContext | None) -> None:
        partition, where = context.partition_id if context else None, ""
        if isinstance(error, ProcessorError) and error.__cause__ is not None:
            where = "".join(f"\n{line}" for line in where_raised(error.__cause__))
        log.warning("error partition=%s %s: %s%s", partition, type(error).__name__, error, where)
        if self._on_error is not None:
            self._calls.spawn(self._call(self._on_error, error, context))

    async def close(self, timeout_seconds: float) -> None:
        """Waits for the calls under way, and cancels those that take too long."""
        # An on_error that stops the processor is not waited for: it waits for this.
        calls = [call for call in self._calls if call is not caller()]
        if calls:
            await asyncio.wait(calls, timeout=timeout_seconds)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls, timeout=ABANDON_SECONDS_MAX)
        self._thread.abandon()
        self._thread.shutdown()

    async def _call(self, on_error: Handler, error: HublineError, context: PartitionContext | None) -> None:
        try:
            await on_error.call(error, context, thread=self._thread, name="on_error")
        except Exception as failed:  # noqa: BLE001 - nothing comes after on_error: its own failure can only be logged
            log.error("on_error_failed %s", format_failure(failed))
