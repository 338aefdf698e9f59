"""Writes how far a partition is processed to the checkpoint store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from hubline.coordination.store_calls import bounded, set_back
from hubline.errors import ConfigError, Fenced, HublineError, ProcessorError, StoreError, StoreUnavailable
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import Checkpoint
from hubline.processor.dependencies import Control, PartitionDependencies, unexpected
from hubline.processor.handled_progress import HandledProgress, Place
from hubline.processor.options import CheckpointPolicy
from hubline.processor.partition_status import PartitionStatus
from hubline.text import sentences

P = ParamSpec("P")
T = TypeVar("T")

LAST_CHECKPOINT_ATTEMPTS_MAX = 3
"""Tries to write the last checkpoint of a drained partition; then its last events are processed again elsewhere."""


class Checkpointer:
    """Writes what is handled of one partition, by the policy, or when a handler asks for it.

    It lives as long as the lease. `begin` opens it for a session. Checkpoints only move forward.

    Attributes:
        progress: What is handled since the session began.
        written_sequence: The last event of the newest checkpoint that is known to be in the store.
    """

    def __init__(
        self,
        status: PartitionStatus,
        dependencies: PartitionDependencies,
        control: Control,
        *,
        report: Callable[[HublineError], None],
    ) -> None:
        self._status = status
        self._store = dependencies.store
        policy = dependencies.options.checkpoint_policy
        self._keeps_checkpoints = policy != "never"
        self._policy = CheckpointPolicy.manual() if policy == "never" else policy
        self._retry = dependencies.options.handler_retry
        self._call_seconds_max = dependencies.options.lease.renew_interval_seconds
        self._is_the_sinks = dependencies.sink is not None
        self._rng = dependencies.rng
        self._control = control
        self._report = report
        self._lock = asyncio.Lock()
        self._is_due = False
        self.progress = HandledProgress()
        self.written_sequence: int | None = None

    async def begin(self) -> Checkpoint | None:
        """Takes the fence: from now on no former owner can move the checkpoint. Returns where it stands.

        Where no checkpoints are kept, one from before is neither used nor touched.
        """
        checkpoint = None
        if self._keeps_checkpoints:
            checkpoint = await self._call(self._store.fence, self._status.key, self._status.epoch)
        self.written_sequence = checkpoint.sequence_number if checkpoint else None
        self.progress = HandledProgress()
        return checkpoint

    # What is handled

    @property
    def is_automatic(self) -> bool:
        """Whether checkpoints are written without being asked for."""
        return self._policy.is_automatic

    @property
    def events_until_due(self) -> int:
        """How many more events are handled before a checkpoint has to be written."""
        every = self._policy.events
        return sys.maxsize if every is None else max(1, every - self.progress.events_since)

    async def mark_handled(self, given: EventBatch | Event) -> None:
        """What was given to a handler is done, or is a dead letter. Writes a checkpoint if it is time for one."""
        if self.progress.mark(given):
            await self.write_if_due()

    # Writing

    async def checkpoint(self, event: Event | None, *, in_progress: Place | None) -> None:
        """What a handler asked for: up to the event; or to the end of what it was given, while it runs; or to the last
        event that is handled."""
        if self._is_the_sinks:
            raise ProcessorError(
                "with a sink, the checkpoint moves in the transaction of the rows, after the handler returns. "
                "Remove the call of checkpoint().",
                partition=self._status.partition,
            )
        if not self._keeps_checkpoints:
            raise ProcessorError(
                'checkpoint_policy="never" keeps no checkpoints. Remove the call of checkpoint(), or write '
                "checkpoint_policy=CheckpointPolicy.manual().",
                partition=self._status.partition,
            )
        place = in_progress or self.progress.place
        if event is not None:
            if not isinstance(event, Event):
                raise ConfigError(
                    f"checkpoint takes an event, not {type(event).__name__}. Pass the last event that you have "
                    "processed, such as batch[-1], or nothing for the whole batch."
                )
            if event.partition != self._status.partition:
                raise ConfigError(
                    f"the event is of partition {event.partition}, not of {self._status.key}. Pass an event of this "
                    "partition."
                )
            place = (event.offset, event.sequence_number)
        if place is not None:
            await self.write(Checkpoint(self._status.key, *place))

    async def write(self, checkpoint: Checkpoint) -> None:
        """Moves the checkpoint forward; does nothing if it is there already."""
        async with self._lock:
            if self.written_sequence is not None and checkpoint.sequence_number <= self.written_sequence:
                return
            await self._call(self._store.update_checkpoint, checkpoint, epoch=self._status.epoch)
            self.written_sequence = checkpoint.sequence_number
            self._is_due = False
            self.progress.checkpoint_written()

    async def set_back(self, checkpoint: Checkpoint) -> None:
        """For a hub that was re-created: the old one's checkpoint may be after the new one's events."""
        seconds = self._call_seconds_max
        await self._control.call(set_back, self._store, checkpoint, epoch=self._status.epoch, seconds_max=seconds)

    async def write_if_due(self) -> None:
        """By the number of events."""
        every = self._policy.events
        if every is not None and self.progress.events_since >= every:
            await self._write_handled()

    async def write_in_background(self) -> None:
        """A checkpoint beside the handler. If it is fenced, the next one of the session itself will be, too."""
        try:
            await self._write_handled()
        except Fenced as error:
            self._control.release_fenced(self._status.partition, epoch=self._status.epoch, held_epoch=error.held_epoch)
        except StoreError as error:
            self._report(error)

    @property
    def is_due_at_renewal(self) -> bool:
        """Whether to write when the lease is renewed: that is the policy, or a checkpoint failed before."""
        return self._policy.at_renewal or self._is_due

    async def write_last(self) -> None:
        """The session ends. Where this fails, the last events are processed again by the next owner."""
        handled = self.progress.place
        if not self._policy.is_automatic or handled is None:
            return
        why = ""
        for attempt in range(1, LAST_CHECKPOINT_ATTEMPTS_MAX + 1):
            try:
                await self.write(Checkpoint(self._status.key, *handled))
            except Fenced:
                raise
            except StoreError as error:
                why = str(error)
                await asyncio.sleep(self._retry.delay(attempt, self._rng))
            else:
                return
        message = f"the last checkpoint of partition {self._status.partition} could not be written: {why}"
        self._report(StoreError(sentences(message, "hubline processes its last events again")))

    async def write_at_exit(self) -> None:
        """The program ends: whatever happens here, it ends as it was about to."""
        try:
            await self.write_last()
        except asyncio.CancelledError:
            pass  # the partition was lost meanwhile
        except HublineError as error:
            self._report(error)
        except Exception as error:  # noqa: BLE001 - the control loop may be closed already
            self._report(unexpected(self._status.partition, error))

    @asynccontextmanager
    async def timer(self) -> AsyncIterator[None]:
        """Within, checkpoints are written at the policy's interval, if it has one."""
        if self._policy.seconds is None:
            yield
            return
        task = asyncio.create_task(self._write_every(self._policy.seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _write_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.write_in_background()

    async def _write_handled(self) -> None:
        """A store that is down costs duplicates, should this processor die, but no progress."""
        if (handled := self.progress.place) is None:
            return
        try:
            await self.write(Checkpoint(self._status.key, *handled))
        except StoreUnavailable as error:
            self._is_due = True
            self._report(error)

    async def _call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._control.call(bounded(self._call_seconds_max, function), *args, **kwargs)
