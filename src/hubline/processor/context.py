"""What handlers see of their partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hubline.addresses.values import position_of
from hubline.errors import ProcessorError
from hubline.model.events import Event, EventBatch
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor.checkpointer import Checkpointer
from hubline.processor.handled_progress import Place, place_after
from hubline.processor.partition_status import PartitionStatus

Seek = Callable[[Position], None]


class PartitionContext:
    """One partition, as a handler sees it: how far it is processed, and the means to checkpoint it.

    hubline makes it and passes it to handlers that take a second argument.

    Example:
        @processor.on_batch
        async def handle(batch, partition):
            await write(batch)
            await partition.checkpoint()
    """

    __slots__ = ("_checkpointer", "_in_progress", "_initial_checkpoint", "_seek", "_status")

    def __init__(
        self,
        status: PartitionStatus,
        checkpointer: Checkpointer,
        initial_checkpoint: Checkpoint | None = None,
        seek: Seek | None = None,
        *,
        in_progress: Place | None = None,
    ) -> None:
        self._status = status
        self._checkpointer = checkpointer
        self._initial_checkpoint = initial_checkpoint
        self._seek = seek
        self._in_progress = in_progress

    @property
    def key(self) -> PartitionKey:
        """The partition, with its hub and consumer group."""
        return self._status.key

    @property
    def partition_id(self) -> str:
        """The partition, as the hub names it."""
        return self._status.partition

    @property
    def epoch(self) -> int:
        """Rises with every change of owner: give it to the systems that you write to, to keep a former owner out."""
        return self._status.epoch

    @property
    def initial_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that was there when the partition was opened."""
        return self._initial_checkpoint

    @property
    def last_handled_sequence(self) -> int | None:
        """The last event that was handled since the partition was opened."""
        handled = self._checkpointer.progress.place
        return handled[1] if handled else None

    @property
    def handled_count(self) -> int:
        """How many events were handled since the partition was opened."""
        return self._checkpointer.progress.events

    @property
    def last_enqueued_sequence(self) -> int | None:
        """The newest event of the partition, as far as is known: less ``last_handled_sequence`` it is the lag."""
        return self._status.last_enqueued_sequence

    @property
    def is_paused(self) -> bool:
        """Whether `Processor.pause` has stopped it."""
        return not self._status.resumed.is_set()

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone: another processor may do the same work as a handler that still runs."""
        return not self._status.is_current()

    def seek(self, position: Position | str) -> None:
        """Start reading here, whatever the checkpoint says. Call it in `on_assigned`. The checkpoint never moves back.

        Args:
            position: A `Position`, or text such as `"latest"` or `"time:-24h"`.

        Raises:
            ConfigError: The text is not a position.
            ProcessorError: Reading has already started.
        """
        if self._seek is None:
            raise ProcessorError(
                "seek() works only in on_assigned, before reading begins. Call it there.", partition=self.partition_id
            )
        self._seek(position_of(position, option="position"))

    async def checkpoint(self, event: Event | None = None) -> None:
        """Write a checkpoint: after a crash, processing resumes after it.

        Args:
            event: The last event that is done. Default: in a handler, the last event that it was given; elsewhere, the
                last one that handlers have finished.

        Raises:
            StoreUnavailable: The store could not be reached. Processing continues; the next checkpoint covers this one.
            Fenced: Another consumer owns the partition by now.
        """
        await self._checkpointer.checkpoint(event, in_progress=self._in_progress)

    def checkpoint_sync(self, event: Event | None = None) -> None:
        """Write a checkpoint from a plain handler, which runs in a thread.

        Args:
            event: As for `checkpoint`.

        Raises:
            ProcessorError: It is called in an `async` function. Use `await partition.checkpoint()` there.
            StoreUnavailable: As for `checkpoint`.
            Fenced: As for `checkpoint`.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ProcessorError(
                "checkpoint_sync() would block the event loop. In an async handler, write `await "
                "partition.checkpoint()`.",
                partition=self.partition_id,
            )
        asyncio.run_coroutine_threadsafe(self.checkpoint(event), self._status.loop).result()

    def __repr__(self) -> str:
        return f"PartitionContext({self.key}, epoch={self.epoch})"


class HandlerContext(PartitionContext):
    """The context that a session makes, and gives its handlers for as long as they run."""

    __slots__ = ()

    def given(self, events: EventBatch | Event) -> HandlerContext:
        """The context for a handler that is given these events: until `end`, its checkpoints cover them."""
        place = place_after(events)
        return HandlerContext(self._status, self._checkpointer, self._initial_checkpoint, in_progress=place)

    def end(self) -> None:
        """The handler returned, or failed: its events may be replayed, and on_assigned's time to seek is over."""
        self._in_progress = None
        self._seek = None

    @contextmanager
    def during(self, events: EventBatch | Event) -> Iterator[HandlerContext]:
        """Within, the context for a handler that is given these events."""
        context = self.given(events)
        try:
            yield context
        finally:
            context.end()
