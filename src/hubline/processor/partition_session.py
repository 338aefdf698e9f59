"""One pass over a partition, from the fence to the release.

What if it dies here? The order of the steps is the answer:

    1. fence        takes the checkpoint for this epoch: no former owner can move it from now on
    2. on_assigned  may set the start
    3. open         the receiver, with the same epoch (or 0, beside the SDKs): the hub disconnects a former owner's
    4. handle       a batch; dying here repeats it
    5. checkpoint   after the handler returned; dying between 4 and 5 repeats the events since the last one
    6. release      cleanly: the batch in progress ends, 5 once more, then the receiver closes

With a sink, 1 is taken there too, and 4 ends with a commit of results and checkpoint: see :mod:`.delivery`. Nothing
is repeated. The sink's checkpoint is then the truth, and what 5 writes to the store only follows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from hubline.addresses.values import byte_count
from hubline.errors import Fenced, HublineError, StoreError
from hubline.model.events import EventBatch
from hubline.model.ownership import Checkpoint, ReleaseReason
from hubline.model.positions import Position
from hubline.ports import reader_epoch
from hubline.processor.checkpointer import Checkpointer
from hubline.processor.context import HandlerContext
from hubline.processor.delivery.attempt import Part
from hubline.processor.delivery.failure_limits import FailureCount
from hubline.processor.delivery.into_sink import DeliveryIntoSink, DeliveryPolicy
from hubline.processor.delivery.without_sink import DeliveryWithoutSink
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.caller import HandlerCaller
from hubline.processor.partition_reader import PartitionReader, Source
from hubline.processor.partition_status import PartitionStatus
from hubline.processor.starting_position import KeepEnd, StartingPosition
from hubline.read_ahead import ReadAhead

log = logging.getLogger("hubline.processor")


class PartitionSession:
    """Runs a partition until it is asked to end, or fails.

    Attributes:
        is_assigned: Whether on_assigned has returned, and on_released is not called yet.
        is_abandoned: Set it before the session is cancelled if nothing is to be waited for.
    """

    def __init__(
        self,
        status: PartitionStatus,
        dependencies: PartitionDependencies,
        caller: HandlerCaller,
        checkpointer: Checkpointer,
        *,
        failures: FailureCount,
        start: StartingPosition,
        report: Callable[[HublineError], None],
    ) -> None:
        self.is_assigned = False
        self.is_abandoned = False
        self._status = status
        self._dependencies = dependencies
        self._options = dependencies.options
        self._caller = caller
        self._checkpointer = checkpointer
        self._failures = failures
        self._start = start
        self._report = report
        self._sought: Position | None = None
        self._into_sink: DeliveryIntoSink | None = None
        self._direct = DeliveryWithoutSink(status, dependencies, caller, checkpointer, failures)
        self._reader: PartitionReader | None = None

    async def run(self) -> None:
        """From the fence to the release. Raises what ended it, unless it was asked to end."""
        checkpoint = await self._assign()
        reason = ReleaseReason.FAILED
        try:
            await self._read(checkpoint)
            reason = self._status.closing or reason
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            reason = self._status.closing or ReleaseReason.STOPPED
            if reason.drains and not self.is_abandoned:
                # The program ends, by a handler of this partition or of another. The partition is still owned.
                await self._checkpointer.write_at_exit()
            raise
        except Fenced:
            reason = ReleaseReason.LOST
            raise
        except Exception:
            reason = self._status.closing or reason
            await self._checkpointer.write_last()
            raise
        finally:
            self._reader = self._status.reader = None
            self.is_assigned = False
            await self._caller.call_reported("on_released", self._caller.context, reason)

    def stop_reading(self) -> None:
        """To drain: the batch that is being handled is the last."""
        if self._reader is not None:
            self._reader.stop()

    async def check_sink(self) -> None:
        """Raises Fenced if the sink's checkpoint was set, also while no event comes: the store need not know of it."""
        if self._into_sink is None:
            return
        try:
            await self._into_sink.require_held()
        except Fenced:
            raise
        except StoreError as error:
            log.info("sink_not_seen partition=%s error=%s", self._status.partition, error)  # a commit would report it

    # 1 and 2

    async def _assign(self) -> Checkpoint | None:
        """Takes the fence, and calls on_assigned. Returns where the partition stands."""
        # The sink's first: it may have to wait for a former owner's transaction, and knows how to end one that hangs.
        into_sink, checkpoint = await self._open_sink()
        stored = await self._checkpointer.begin()
        if into_sink is None:
            checkpoint = stored
        self._into_sink = into_sink
        context = HandlerContext(self._status, self._checkpointer, checkpoint, self._seek)
        self._caller.context = context
        try:
            await self._caller.call_guarded("on_assigned", context)
        finally:
            context.end()
        self.is_assigned = True
        sequence = checkpoint.sequence_number if checkpoint else None
        log.info("opened partition=%s epoch=%d checkpoint=%s", self._status.partition, self._status.epoch, sequence)
        return checkpoint

    async def _open_sink(self) -> tuple[DeliveryIntoSink | None, Checkpoint | None]:
        """Takes the fence in the sink, too; its checkpoint is the truth, whatever the store has."""
        sink = self._dependencies.sink
        if sink is None:
            return None, None
        opened = await self._caller.thread.run(sink.open, self._status.key, self._status.epoch)
        policy = DeliveryPolicy.of(self._dependencies)
        is_closing = self._status.is_closing
        delivery = DeliveryIntoSink(opened, self._caller, policy, self._failures, is_closing=is_closing)
        return delivery, opened.checkpoint

    def _seek(self, position: Position) -> None:
        self._sought = position

    # 3

    async def _read(self, checkpoint: Checkpoint | None) -> None:
        async with AsyncExitStack() as stack:
            position, after_sequence = await self._start.find(self._sought, checkpoint, self._keep_end())
            reader = PartitionReader(self._source(), position, after_sequence=after_sequence)
            self._reader = self._status.reader = reader
            stack.push_async_callback(reader.close)
            await stack.enter_async_context(self._checkpointer.timer())
            await self._feed(reader)
            await self._checkpointer.write_last()

    def _source(self) -> Source:
        options = self._options
        return Source(
            hub=self._dependencies.hub,
            partition=self._status.partition,
            group=self._status.key.group,
            epoch=reader_epoch(self._dependencies.store, self._status.epoch),
            on_data_loss=options.on_data_loss,
            reconnect_backoff=options.reconnect_backoff,
            max_batch_size=options.max_batch_size,
            read_ahead=ReadAhead(byte_count(options.prefetch_bytes), self._dependencies.read_ahead),
            hub_timeout_seconds=options.hub_timeout_seconds,
            report=self._report,
            start_over=self._start_over,
            rng=self._dependencies.rng,
        )

    def _keep_end(self) -> KeepEnd | None:
        if self._into_sink is not None:
            return self._into_sink.skip_to
        return self._checkpointer.write if self._checkpointer.is_automatic else None

    async def _start_over(self) -> None:
        """The hub was re-created: sets the old one's checkpoint, if there is one, to where this one is to be read from.

        A checkpoint in a sink stays: with it are rows and dead letters of the old hub's events, whose numbers
        the new hub uses again.
        """
        if self._into_sink is not None or self._sought is not None or self._checkpointer.written_sequence is None:
            return
        is_earliest = self._options.on_data_loss == "earliest"
        await self._checkpointer.set_back(
            Checkpoint.before_first(self._status.key) if is_earliest else await self._start.end()
        )

    # 4 and 5

    async def _feed(self, reader: PartitionReader) -> None:
        options, status = self._options, self._status
        while not status.is_closing():
            batch = await reader.next_batch(wait_seconds=options.max_wait_seconds, heartbeat=options.heartbeat)
            await status.resumed.wait()
            if batch is None or status.is_closing():
                return
            if self._into_sink is not None:
                await self._deliver(self._into_sink, batch)
            else:
                await self._direct.deliver(batch)

    async def _deliver(self, into_sink: DeliveryIntoSink, batch: EventBatch) -> None:
        """Results, dead letters and checkpoint are committed when the sink's delivery returns.

        Where that is of the first events alone, the others are the next owner's once the partition closes.
        """
        left = [Part(batch)]
        while left and not self._status.is_closing():
            delivered = await into_sink.deliver(left.pop(0), self._status.loop.time())
            left[:0] = delivered.left
            await self._checkpointer.mark_handled(delivered.batch)
            for dead_letter in delivered.dead_letters:
                sequence = dead_letter.event.sequence_number
                log.warning("dead_letter partition=%s sequence=%d", self._status.partition, sequence)
                await self._caller.call_reported("on_dead_letter", dead_letter, self._caller.context)
