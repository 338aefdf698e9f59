"""Delivery without a sink: events are handled, and the store's checkpoint follows.

Dying after the handler returned and before the next checkpoint repeats the events since the last one.
"""

from __future__ import annotations

import logging

import numpy as np

from hubline.errors import DeadLetterLimit, HandlerFailed, StoreError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.processor.checkpointer import Checkpointer
from hubline.processor.delivery.failure_isolation import isolate_failures
from hubline.processor.delivery.failure_limits import FailureCount
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.caller import HandlerCaller
from hubline.processor.handlers.event_run import EventRun
from hubline.processor.handlers.returned import require_no_rows
from hubline.processor.partition_status import PartitionStatus

log = logging.getLogger("hubline.processor")


class DeliveryWithoutSink:
    """Hands batches, or their events, to the handler. An event that fails for good stops it, or is a dead letter."""

    def __init__(
        self,
        status: PartitionStatus,
        dependencies: PartitionDependencies,
        caller: HandlerCaller,
        checkpointer: Checkpointer,
        failures: FailureCount,
    ) -> None:
        self._status = status
        self._takes_events = dependencies.handler_name == "on_event"
        self._stops_on_failure = dependencies.options.on_failure == "stop"
        self._dead_letters = dependencies.dead_letters
        self._caller = caller
        self._checkpointer = checkpointer
        self._failures = failures

    async def deliver(self, batch: EventBatch) -> None:
        """Raises HandlerFailed where an event fails for good and that stops the partition."""
        if self._takes_events:
            await self._deliver_events(batch)
        else:
            await self._deliver_batch(batch)

    async def _deliver_batch(self, batch: EventBatch) -> None:
        try:
            returned = await self._caller.call(batch)
        except HandlerFailed as failed:
            self._check_blame(failed, is_heartbeat=not len(batch))
            await isolate_failures(batch, failed, self._attempt, self._blame)
        else:
            await self._succeeded(batch, returned)

    async def _attempt(self, part: EventBatch, attempt: int) -> HandlerFailed | None:
        returned, failed = await self._caller.attempt(part, attempt)
        if failed is None:
            await self._succeeded(part, returned)
        elif isinstance(failed.__cause__, StoreError):
            raise failed
        return failed

    async def _succeeded(self, batch: EventBatch, returned: object) -> None:
        require_no_rows(returned, batch.partition)
        self._count(len(batch))
        await self._checkpointer.mark_handled(batch)

    async def _blame(self, batch: EventBatch, failed: HandlerFailed) -> None:
        await self._keep_dead_letter(batch[0], failed)

    async def _deliver_events(self, batch: EventBatch) -> None:
        """Up to the end, or to a request to close: the rest is the next owner's."""
        events = list(batch)
        run = EventRun(events)
        while run.done < len(events) and not self._status.is_closing():
            begun = run.done
            run.end = min(len(events), begun + self._checkpointer.events_until_due)
            try:
                with self._checkpointer.progress.following(run):
                    await self._caller.call_events(run, until=self._status.is_closing)
            except HandlerFailed as failed:
                self._count(run.done - begun)
                self._check_blame(failed)
                await self._keep_dead_letter(run.next, failed)
                run.add(None)
            else:
                self._count(run.done - begun)
                await self._checkpointer.write_if_due()

    def _check_blame(self, failed: HandlerFailed, *, is_heartbeat: bool = False) -> None:
        """Raises the failure unless events are to be blamed for it."""
        is_the_stores = isinstance(failed.__cause__, StoreError)  # from a checkpoint
        if self._stops_on_failure or is_heartbeat or is_the_stores or self._status.is_closing():
            raise failed

    async def _keep_dead_letter(self, event: Event, failed: HandlerFailed) -> None:
        """Dying here handles the event again: it may become a dead letter twice, but is not lost."""
        try:
            self._failures.add(np.ones(1, np.bool_), self._status.loop.time())
        except DeadLetterLimit as limit:
            raise limit from failed.__cause__
        dead_letter = DeadLetter.of(self._status.key, event, failed.__cause__ or failed, attempts=failed.attempts)
        if self._dead_letters is not None:
            await self._dead_letters.add([dead_letter])
        with self._caller.context.during(event) as context:
            await self._caller.call_guarded("on_dead_letter", dead_letter, context, given=event)
        log.warning("dead_letter partition=%s sequence=%d", self._status.partition, event.sequence_number)
        await self._checkpointer.mark_handled(event)

    def _count(self, succeeded: int) -> None:
        self._failures.add_handled(succeeded, self._status.loop.time())
