"""The partition pump: opens a partition, feeds its handler batch by batch, and checkpoints what is done.

A pump lives as long as the lease it was opened under. Within it there are sessions: a failing handler ends one,
and the next starts from the checkpoint after a backoff.

What if it dies here? The order of a session's steps is the answer:

    1. fence        takes the checkpoint for this epoch: no former owner can move it from now on
    2. on_assigned  may set the start
    3. open         the receiver, with the same epoch (or 0, beside the SDKs): the hub disconnects a former owner's
    4. handle       a batch; dying here repeats it
    5. checkpoint   after the handler returned; dying between 4 and 5 repeats what was handled since the last one
    6. release      in good order: the batch in progress ends, 5 once more, then the receiver closes

With a sink, 1 is taken there too, and 4 ends with a commit of results and checkpoint (:mod:`.delivery`): nothing is
repeated. The sink's checkpoint is then the truth, and what 5 writes to the store only follows it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from hubline.coordination.store_calls import bounded, set_back
from hubline.errors import (
    ConfigError,
    DeadLetterLimit,
    Fenced,
    HandlerFailed,
    HandlerStalled,
    HublineError,
    ProcessorError,
    StoreError,
    StoreUnavailable,
)
from hubline.hubs.hub_calls import describe_partition, pinned
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint, Ownership, ReleaseReason
from hubline.model.positions import Position, PositionKind, StartPositions
from hubline.ports import CheckpointStore, DeadLetters, Hub, reader_epoch
from hubline.processor.failure_limits import LetterLimits, LetterTally
from hubline.processor.handlers import Due, Handler, HandlerThread, NotDue
from hubline.processor.options import ProcessorOptions
from hubline.processor.partition_reader import PartitionReader, Source
from hubline.processor.sql_delivery import AsyncTransaction, Delivery, DeliveryPolicy, savepoint
from hubline.sinks import OpenedPartition, SqlSink, Transaction
from hubline.tracebacks import place_of

log = logging.getLogger("hubline.pump")

P = ParamSpec("P")
T = TypeVar("T")

LEASE_POLL_SECONDS = 0.1
"""How often a pump whose lease ran out looks whether it was renewed after all, until it is told that it is lost."""

ABANDON_SECONDS_MAX = 1.0
"""An async handler that is cancelled ends within a moment; one that does not, or a thread, may never end."""

FINAL_CHECKPOINT_ATTEMPTS_MAX = 3
"""Tries to write the last checkpoint of a drained partition; after them its last events are repeated elsewhere."""


@dataclass(frozen=True, slots=True)
class PartitionDependencies:
    """What a processor was given, as its parts share it."""

    hub: Hub
    store: CheckpointStore
    handlers: Mapping[str, Handler]
    options: ProcessorOptions
    start: StartPositions
    rng: random.Random
    sink: SqlSink | None = None
    dead_letters: DeadLetters | None = None

    @property
    def handler_name(self) -> str:
        """Which of the two handlers of events there is."""
        return "on_event" if "on_event" in self.handlers else "on_batch"

    def manner(self, sink: SqlSink) -> DeliveryPolicy:
        return DeliveryPolicy(
            sink,
            takes_events=self.handler_name == "on_event",
            takes_tx=self.handlers[self.handler_name].takes_tx,
            stops_on_failure=self.options.on_failure == "stop",
            quarantines_keys=self.options.preserve_key_order,
        )


class Control(Protocol):
    """What a pump needs of the processor around it."""

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a coroutine function on the control loop, where the store is used."""
        ...

    def is_current(self, partition: str, epoch: int) -> bool: ...

    def surrender(self, partition: str, *, epoch: int, held_epoch: int) -> None: ...

    def report(self, error: HublineError, context: PartitionContext | None) -> None: ...


class PartitionContext:
    """One partition as a handler sees it: where it stands, and the means to checkpoint it."""

    def __init__(
        self, pump: PartitionPump, initial_checkpoint: Checkpoint | None, *, in_progress: EventBatch | None = None
    ) -> None:
        self._pump = pump
        self._opened_from = initial_checkpoint
        self._in_progress = in_progress
        self._start: Position | None = None

    @property
    def key(self) -> PartitionKey:
        return self._pump.key

    @property
    def partition(self) -> str:
        return self._pump.key.partition

    @property
    def epoch(self) -> int:
        """Rises with every change of owner: give it to what you write to, to keep a former owner out."""
        return self._pump.epoch

    @property
    def initial_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that was there when the partition was opened."""
        return self._opened_from

    @property
    def last_handled_sequence(self) -> int | None:
        """The last event that was handled since the partition was opened."""
        return self._pump.handled[1] if self._pump.handled else None

    @property
    def last_sequence(self) -> int | None:
        """The newest event of the partition, as far as is known: less ``last_handled_sequence`` it is the lag."""
        return self._pump.last_sequence

    @property
    def is_paused(self) -> bool:
        return self._pump.is_paused

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone: what a handler still does then may be done by another processor too."""
        return not self._pump.is_current()

    @property
    def start(self) -> Position | None:
        """What ``seek`` was called with."""
        return self._start

    def seek(self, position: Position) -> None:
        """In ``on_assigned``: start here, whatever the checkpoint says. The checkpoint never moves back for it."""
        if not self._pump.is_assigning:
            raise ProcessorError("seek is for on_assigned: reading has begun already", partition=self.partition)
        self._start = position

    async def checkpoint(self, event: Event | None = None) -> None:
        """Marks everything up to the event as done.

        By default that is up to the end of the batch that the calling handler was given; elsewhere, up to what is
        handled. Raises StoreUnavailable if it could not be written, and Fenced if the partition is another's by now.
        """
        await self._pump.checkpoint_by_hand(event, in_progress=self._in_progress)

    def checkpoint_sync(self, event: Event | None = None) -> None:
        """The same for plain handlers, which run in a thread."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ProcessorError(
                "checkpoint_sync would block the event loop: in an async handler, await partition.checkpoint()",
                partition=self.partition,
            )
        asyncio.run_coroutine_threadsafe(self.checkpoint(event), self._pump.loop).result()

    def for_batch(self, batch: EventBatch) -> PartitionContext:
        """The same partition, for the handler that is given this batch."""
        return PartitionContext(self._pump, self._opened_from, in_progress=batch)

    def __repr__(self) -> str:
        return f"PartitionContext({self.key}, epoch={self.epoch})"


class PartitionPump:
    """Runs one owned partition until it is closed. Lives on the processor's event loop."""

    def __init__(
        self, ownership: Ownership, wiring: PartitionDependencies, control: Control, *, is_paused: bool
    ) -> None:
        self.key = ownership.key
        self.epoch = ownership.epoch
        self.loop = asyncio.get_running_loop()
        self.handled: tuple[str, int] | None = None
        self.is_assigning = False
        self._is_assigned = False
        self._wiring = wiring
        self._control = control
        self._options = wiring.options
        self._first_start: Position | None = None
        self._reader: PartitionReader | None = None
        self._resumed = asyncio.Event()
        if not is_paused:
            self._resumed.set()
        self._closing: ReleaseReason | None = None
        self._asked_to_close = asyncio.Event()
        self._is_abandoned = False
        self._background: dict[asyncio.Task[None], None] = {}  # a set in the order of its making
        self._is_telling_renewal = False
        self._checkpoint_lock = asyncio.Lock()
        self._checkpointed_sequence: int | None = None
        self._events_since_checkpoint = 0
        self._is_checkpoint_owed = False
        self._in_progress: EventBatch | None = None
        self._delivery: Delivery | None = None
        limits = LetterLimits(
            self._options.max_consecutive_failures,
            self._options.max_failure_ratio,
            self._options.dead_letters_per_minute_max,
        )
        self._tally = LetterTally(limits, self.key.partition)
        self._context = PartitionContext(self, None)
        # One thread, so that a plain handler sees its partition's batches one at a time.
        self._thread = HandlerThread(f"hubline-{self.key.partition}")
        self._task: asyncio.Task[None] | None = None

    @property
    def context(self) -> PartitionContext:
        return self._context

    @property
    def is_paused(self) -> bool:
        return not self._resumed.is_set()

    @property
    def last_sequence(self) -> int | None:
        return self._reader.last_sequence if self._reader else None

    def is_current(self) -> bool:
        return self._control.is_current(self.key.partition, self.epoch)

    @property
    def is_closing(self) -> bool:
        return self._closing is not None

    def start(self, after: PartitionPump | None) -> None:
        self._task = asyncio.create_task(self._run(after), name=f"hubline-pump-{self.key.partition}")

    def pause(self) -> None:
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()

    async def close(self, reason: ReleaseReason) -> None:
        """Ends the pump and returns once it is at rest. Draining may be overtaken by a loss."""
        if self._closing is None or (self._closing.drains and not reason.drains):
            self._closing = reason
        self._asked_to_close.set()
        if reason.drains:
            self._resumed.set()
            if self._reader:
                self._reader.stop()
        elif self._task:
            self._task.cancel()
        await self.wait()

    async def wait(self) -> None:
        if self._task:
            await asyncio.wait([self._task])

    async def abandon(self) -> None:
        """Leaves the pump to itself: it is cancelled, and waited for a moment only. So is what hangs in its thread."""
        self._is_abandoned = True
        tasks = [task for task in (self._task, *self._background) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks_left = await asyncio.wait(tasks, timeout=ABANDON_SECONDS_MAX)
            self._thread.abandon()
            if tasks_left:
                await asyncio.wait(tasks_left, timeout=ABANDON_SECONDS_MAX)

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the pump does not come to rest before the task ends."""
        return task is self._task or task in self._background

    def renewed(self) -> None:
        """The lease was renewed: checkpoints if that is the policy or one failed before, and tells the handler."""
        if not self._is_assigned:
            return
        task = asyncio.create_task(self._on_renewed())
        self._background[task] = None
        task.add_done_callback(self._background.pop)

    # Sessions

    async def _run(self, after: PartitionPump | None) -> None:
        try:
            if after is not None:
                await after.wait()
            await self._run_sessions()
        except asyncio.CancelledError:
            if self._closing is None:
                raise
        except (SystemExit, KeyboardInterrupt):
            # It ends the loop at once; asyncio would also print it, as an error that nobody looked at.
            if self._task is not None:
                self._task.add_done_callback(asyncio.Task.exception)
            raise
        finally:
            for task in self._background:
                task.cancel()
            self._thread.shutdown()

    async def _run_sessions(self) -> None:
        failures = 0
        while not self._asked_to_close.is_set():
            handled_before = self.handled
            try:
                await self._session()
                return
            except Fenced as error:
                self._report(error)
                self._control.surrender(self.key.partition, epoch=self.epoch, held_epoch=error.held_epoch)
                return
            except HublineError as error:
                self._report(error)
            except Exception as error:  # noqa: BLE001 - a hub or store of the user's own may raise anything
                self._report(self._unexpected(error))
            if self._asked_to_close.is_set():
                return  # it does not reopen: whatever failed last was interrupted, or is the next owner's
            failures = failures + 1 if self.handled == handled_before else 1
            delay = self._options.reopen.delay(failures, self._wiring.rng)
            log.warning("partition_failed partition=%s reopens_in_seconds=%.1f", self.key.partition, delay)
            await self._is_closed_within(delay)

    async def _is_closed_within(self, seconds: float) -> bool:
        """Waits, unless the pump is asked to close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked_to_close.wait()
        return self._closing is not None

    async def _session(self) -> None:
        """From the fence to the release. Raises what ended it, unless it was asked to end."""
        await self._assign()
        reason = ReleaseReason.FAILED
        try:
            async with AsyncExitStack() as stack:
                position, after_sequence = await self._start_position()
                self._reader = PartitionReader(self._source(), position, after_sequence=after_sequence)
                stack.push_async_callback(self._reader.close)
                stack.push_async_callback(self._stop_timer, self._start_timer())
                await self._feed(self._reader)
                await self._checkpoint_finally()
            reason = self._closing or reason
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            reason = self._closing or ReleaseReason.STOPPED
            if reason.drains and not self._is_abandoned:
                # The program ends, by a handler of this partition or of another. Nobody took the partition.
                await self._checkpoint_at_end()
            raise
        except Fenced:
            reason = ReleaseReason.LOST
            raise
        except Exception:
            reason = self._closing or reason
            await self._checkpoint_finally()
            raise
        finally:
            self._reader = None
            self._is_assigned = False
            await self._call_reported("on_released", self._context, reason)

    async def _assign(self) -> None:
        """Takes the fence, and tells the handler, which may set the start."""
        # The sink's first: it may have to wait for a former owner's transaction, and knows how to end one that hangs.
        opened = None if self._wiring.sink is None else await self._open_sink(self._wiring.sink)
        checkpoint = await self._store_call(self._wiring.store.fence, self.key, self.epoch)
        self._checkpointed_sequence = checkpoint.sequence_number if checkpoint else None
        if opened is not None:
            checkpoint = opened.checkpoint
        self._context = PartitionContext(self, checkpoint)
        self.handled = None
        self._events_since_checkpoint = 0
        self.is_assigning = True
        try:
            await self._call_guarded("on_assigned", self._context)
        finally:
            self.is_assigning = False
        self._is_assigned = True
        log.info("opened partition=%s epoch=%d checkpoint=%s", self.key.partition, self.epoch, checkpoint)

    async def _open_sink(self, sink: SqlSink) -> OpenedPartition:
        """Takes the fence in the sink, too; what stands there is the truth, whatever the store has."""
        partition = await self.in_thread(sink.open, self.key, self.epoch)
        self._delivery = Delivery(partition, self._wiring.manner(sink), self, self._tally)
        return partition

    async def _start_position(self) -> tuple[Position, int | None]:
        """Where to start, and the last event before it if known: on_assigned's word, the checkpoint, the options."""
        hub, checkpoint = self._wiring.hub, self._context.initial_checkpoint
        if self._context.start is not None:
            seconds_max = self._options.stall_seconds
            start = await pinned(hub, self.key.partition, self._context.start, seconds_max=seconds_max)
        elif checkpoint is not None:
            return checkpoint.resume, checkpoint.last_sequence
        else:
            start = self._first_start = self._first_start or await self._first_opening()
        return start, _sequence_before(start)

    async def _first_opening(self) -> Position:
        """The start of a partition without a checkpoint.

        "The end" is written down where checkpoints are automatic: after a restart it would be further on.
        """
        hub, partition = self._wiring.hub, self.key.partition
        asked = self._wiring.start.for_partition(partition)
        is_written = self._options.checkpoint.is_automatic or self._delivery is not None
        if asked != Position.latest() or not is_written:
            return await pinned(hub, partition, asked, seconds_max=self._options.stall_seconds)
        end = await self._end()
        if self._delivery is not None:
            await self._delivery.skip_to(end)
        else:
            await self._write(end)
        return Position.sequence(end.sequence_number)

    async def _end(self) -> Checkpoint:
        """As if all events that the partition holds were done."""
        hub, partition = self._wiring.hub, self.key.partition
        end = await describe_partition(hub, partition, timeout_seconds=self._options.stall_seconds)
        if end.last_offset is None:
            return Checkpoint.before_first(self.key)
        return Checkpoint(self.key, end.last_offset, end.last_sequence)

    async def _start_over(self) -> None:
        """Sets the checkpoint of a hub that is no more to where this one is to be read from, if there is one.

        A checkpoint in a sink stays: with it are rows and letters of the old hub's events, whose numbers come again.
        """
        if self._delivery is not None or self._context.start is not None or self._checkpointed_sequence is None:
            return
        is_earliest = self._options.on_data_loss == "earliest"
        checkpoint = Checkpoint.before_first(self.key) if is_earliest else await self._end()
        seconds_max = self._options.lease.renew_interval_seconds
        await self._control.call(set_back, self._wiring.store, checkpoint, epoch=self.epoch, seconds_max=seconds_max)

    def _source(self) -> Source:
        return Source(
            hub=self._wiring.hub,
            partition=self.key.partition,
            group=self.key.group,
            epoch=reader_epoch(self._wiring.store, self.epoch),
            on_data_loss=self._options.on_data_loss,
            reopen=self._options.reopen,
            max_batch_size=self._options.max_batch_size,
            prefetch_bytes=self._options.prefetch_bytes,
            stall_seconds=self._options.stall_seconds,
            report=self._report,
            start_over=self._start_over,
            rng=self._wiring.rng,
        )

    async def _feed(self, reader: PartitionReader) -> None:
        options = self._options
        while self._closing is None:
            batch = await reader.next_batch(wait_seconds=options.max_wait_seconds, heartbeat=options.heartbeat)
            await self._resumed.wait()
            if batch is None or self._closing is not None:
                return
            await self._handle(batch)

    # Handling

    async def _handle(self, batch: EventBatch) -> None:
        if self._delivery is not None:
            await self._deliver(self._delivery, batch)
        elif self._wiring.handler_name == "on_batch":
            await self._handle_part(batch)
        else:
            for place, event in enumerate(batch):
                await self._handle_part(batch.slice(place, 1), event)
                if self._closing is not None:
                    return  # the rest is the next owner's

    async def _deliver(self, delivery: Delivery, batch: EventBatch) -> None:
        """Into the sink: results, dead letters and checkpoint are committed when this returns."""
        try:
            letters = await delivery.deliver(batch, self.loop.time())
        finally:
            self._tally = delivery.tally
        await self._mark_handled(batch)
        for letter in letters:
            log.warning("dead_letter partition=%s sequence=%d", self.key.partition, letter.event.sequence_number)
            await self._call_reported("on_dead_letter", letter, self._context)

    async def _handle_part(self, batch: EventBatch, event: Event | None = None) -> None:
        try:
            await self.try_part(batch, event)
        except HandlerFailed as error:
            if self._options.on_failure == "stop" or not len(batch) or self._closing is not None:
                raise
            await self._find_failing(batch, error)
        else:
            self._count_good(batch)
            await self._mark_handled(batch)

    async def _mark_handled(self, batch: EventBatch) -> None:
        if not len(batch):
            return
        self.handled = (batch.last_offset, batch.last_sequence)
        self._events_since_checkpoint += len(batch)
        every = self._options.checkpoint.events
        if every is not None and self._events_since_checkpoint >= every:
            await self._checkpoint_handled()

    async def try_part(self, part: EventBatch, event: Event | None = None, tx: Transaction | None = None) -> object:
        """What the handler returns, called again after a backoff where it fails.

        Raises HandlerFailed with the last cause.
        """
        retry = self._options.retry
        for attempt in itertools.count(1):
            returned, failed = await self.attempt_part(part, attempt, tx, event)
            if failed is None:
                break
            if attempt == retry.max_attempts or (tx is not None and isinstance(failed.__cause__, StoreError)):
                raise failed  # a transaction that broke cannot be repaired by trying again within it
            place = place_of(failed.__cause__ or failed)
            log.warning(
                "handler_retry partition=%s attempt=%d at=%s error=%s", self.key.partition, attempt, place, failed
            )
            if await self._is_closed_within(retry.delay(attempt, self._wiring.rng)):
                raise failed  # the next owner tries again
        return returned

    async def attempt_part(
        self, batch: EventBatch, attempt: int, tx: Transaction | None = None, event: Event | None = None
    ) -> tuple[object, HandlerFailed | None]:
        """Calls the handler once; its failure is a result."""
        name = self._wiring.handler_name
        given = batch if name == "on_batch" else event or batch[0]
        limit: asyncio.Timeout | None = None
        while not self.is_current():  # noqa: ASYNC110 - time itself makes it untrue
            # Woken after a pause longer than the lease: another processor may be at these events already. Either the
            # lease is renewed after all, or this task is cancelled because it is lost.
            await asyncio.sleep(LEASE_POLL_SECONDS)
        stalled = self.loop.call_later(self._options.stall_seconds, self._report_stalled, batch, self.loop.time())
        try:
            with self._progress(batch) as context:
                async with (
                    savepoint(tx, self.in_thread, self.undo),
                    asyncio.timeout(self._options.handler_timeout_seconds) as limit,
                ):
                    return await self._call(name, given, context, tx=tx, is_due=self.is_current), None
        except NotDue:
            # Its thread was at something else until the lease ran out.
            stalled.cancel()
            return await self.attempt_part(batch, attempt, tx, event)
        except Exception as error:
            if isinstance(error, Fenced) and error.partition == self.key.partition:
                raise  # from its checkpoint: the partition is no longer this session's, and trying again is futile
            too_long = TimeoutError(
                f"it ran longer than handler_timeout_seconds={self._options.handler_timeout_seconds}"
            )
            return None, self._handler_failed(name, batch, attempt, too_long if limit and limit.expired() else error)
        finally:
            stalled.cancel()

    async def _find_failing(self, batch: EventBatch, failed: HandlerFailed) -> None:
        """Halves a failing batch until its failing events are found, in order; each goes to on_dead_letter."""
        if isinstance(failed.__cause__, StoreError):
            raise failed  # from its checkpoint: no event is to blame
        if len(batch) > 1:
            middle = len(batch) // 2
            for half in (batch.slice(0, middle), batch.slice(middle)):
                _, half_failed = await self.attempt_part(half, failed.attempts + 1)
                if half_failed is not None:
                    await self._find_failing(half, half_failed)
                else:
                    self._count_good(half)
                    await self._mark_handled(half)
            return
        try:
            self._tally = self._tally.after(np.ones(1, np.bool_), self.loop.time())
        except DeadLetterLimit as limit:
            raise limit from failed.__cause__
        letter = DeadLetter.of(self.key, batch[0], failed.__cause__ or failed, attempts=failed.attempts)
        if self._wiring.dead_letters is not None:
            await self._wiring.dead_letters.add([letter])
        with self._progress(batch) as context:
            await self._call_guarded("on_dead_letter", letter, context, batch=batch)
        log.warning("dead_letter partition=%s sequence=%d", self.key.partition, batch.last_sequence)
        await self._mark_handled(batch)

    def _count_good(self, batch: EventBatch) -> None:
        self._tally = self._tally.after(np.zeros(len(batch), np.bool_), self.loop.time())

    @contextmanager
    def _progress(self, batch: EventBatch) -> Iterator[PartitionContext]:
        """While a handler is at a batch: the context for it, whose checkpoints cover that batch."""
        self._in_progress = batch
        try:
            yield self._context.for_batch(batch)
        finally:
            self._in_progress = None

    def _handler_failed(self, name: str, batch: EventBatch | None, attempts: int, cause: Exception) -> HandlerFailed:
        first, last = (batch.first_sequence, batch.last_sequence) if batch else (-1, -1)
        events = "" if batch is None else f", events {first} to {last}" if batch else ", a heartbeat"
        failed = HandlerFailed(
            f"{name} failed for partition {self.key.partition}{events}, in attempt {attempts}: "
            f"{type(cause).__name__}: {cause}",
            partition=self.key.partition,
            first_sequence=first,
            last_sequence=last,
            attempts=attempts,
        )
        failed.__cause__ = cause
        return failed

    def _report_stalled(self, batch: EventBatch, since: float) -> None:
        seconds = self.loop.time() - since
        name, running = self._wiring.handler_name, self._thread.running
        what = f"{name} of partition {self.key.partition} has been"
        if running in (None, name) or self._wiring.handlers[name].is_async:
            message = f"{what} running for {seconds:.0f} s with {batch}"
        else:
            message = f"{what} waiting for {seconds:.0f} s, while {running} runs in the same thread, with {batch}"
        self._report(HandlerStalled(message, partition=self.key.partition, seconds=seconds))

    # Checkpoints

    async def checkpoint_by_hand(self, event: Event | None, *, in_progress: EventBatch | None) -> None:
        """``in_progress`` is the batch of the calling handler: another one's may still fail."""
        if self._wiring.sink is not None:
            raise ProcessorError(
                "the sink moves the checkpoint together with the rows, when the handler has returned: leave it to it",
                partition=self.key.partition,
            )
        done = self.handled
        if event is not None:
            if not isinstance(event, Event):
                raise ConfigError(
                    f"checkpoint takes an event, not {type(event).__name__}: give the last one that is done, as "
                    "batch[-1], or nothing for the whole batch"
                )
            if event.partition != self.key.partition:
                raise ConfigError(f"an event of partition {event.partition} is no place in {self.key.partition}")
            done = (event.offset, event.sequence_number)
        elif in_progress and in_progress is self._in_progress:
            done = (in_progress.last_offset, in_progress.last_sequence)
        if done is not None:
            await self._write(Checkpoint(self.key, *done))

    async def _checkpoint_handled(self) -> None:
        """Writes what is handled. A store that is down costs repeats, should this processor die, but no progress."""
        if self.handled is None:
            return
        try:
            await self._write(Checkpoint(self.key, *self.handled))
        except StoreUnavailable as error:
            self._is_checkpoint_owed = True
            self._report(error)

    async def _checkpoint_finally(self) -> None:
        if not self._options.checkpoint.is_automatic or self.handled is None:
            return
        why = ""
        for attempt in range(1, FINAL_CHECKPOINT_ATTEMPTS_MAX + 1):
            try:
                await self._write(Checkpoint(self.key, *self.handled))
            except Fenced:
                raise
            except StoreError as error:
                why = str(error)
                await asyncio.sleep(self._options.retry.delay(attempt, self._wiring.rng))
            else:
                return
        message = f"the last checkpoint of partition {self.key.partition} could not be written: {why}"
        self._report(StoreError(message))

    async def _checkpoint_at_end(self) -> None:
        """Whatever becomes of it, the program ends as it was about to."""
        try:
            await self._checkpoint_finally()
        except asyncio.CancelledError:
            pass  # the partition was lost meanwhile
        except HublineError as error:
            self._report(error)
        except Exception as error:  # noqa: BLE001 - the control loop may be closed already
            self._report(self._unexpected(error))

    async def _write(self, checkpoint: Checkpoint) -> None:
        async with self._checkpoint_lock:
            if self._checkpointed_sequence is not None and checkpoint.sequence_number <= self._checkpointed_sequence:
                return
            await self._store_call(self._wiring.store.update_checkpoint, checkpoint, epoch=self.epoch)
            self._checkpointed_sequence = checkpoint.sequence_number
            self._is_checkpoint_owed = False
            self._events_since_checkpoint = 0

    async def _store_call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        call = bounded(self._options.lease.renew_interval_seconds, function)
        return await self._control.call(call, *args, **kwargs)

    def _start_timer(self) -> asyncio.Task[None] | None:
        seconds = self._options.checkpoint.seconds
        return None if seconds is None else asyncio.create_task(self._checkpoint_every(seconds))

    async def _checkpoint_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._checkpoint_in_background()

    @staticmethod
    async def _stop_timer(timer: asyncio.Task[None] | None) -> None:
        if timer is not None:
            timer.cancel()
            await asyncio.wait([timer])

    async def _on_renewed(self) -> None:
        if self._options.checkpoint.at_renewal or self._is_checkpoint_owed:
            await self._checkpoint_in_background()
        if self._is_telling_renewal:
            return  # a handler that takes longer than a renewal is not called again meanwhile
        self._is_telling_renewal = True
        try:
            await self._call_reported("on_renewed", self._context)
            await self._check_sink()
        finally:
            self._is_telling_renewal = False

    async def _check_sink(self) -> None:
        """Sees a checkpoint that was set in the sink, also while no event comes: the store need not know of it."""
        try:
            if self._delivery is not None:
                await self._delivery.require_held()
        except Fenced as error:
            self._control.surrender(self.key.partition, epoch=self.epoch, held_epoch=error.held_epoch)
        except StoreError as error:
            log.info("sink_not_seen partition=%s error=%s", self.key.partition, error)  # a commit would report it

    async def _checkpoint_in_background(self) -> None:
        """A checkpoint beside the handler. If it is fenced, the next one of the session itself will be, too."""
        try:
            await self._checkpoint_handled()
        except Fenced as error:
            self._control.surrender(self.key.partition, epoch=self.epoch, held_epoch=error.held_epoch)
        except StoreError as error:
            self._report(error)

    # Calling handlers

    async def _call(
        self, name: str, *arguments: object, tx: Transaction | None = None, is_due: Due | None = None
    ) -> object:
        handler = self._wiring.handlers.get(name)
        if handler is None:
            return None
        given = AsyncTransaction(tx, self.in_thread) if tx is not None and handler.is_async else tx
        return await handler.call(*arguments, tx=given, thread=self._thread, name=name, is_due=is_due)

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what blocks in the partition's thread. Cancelled, it is waited for: a thread cannot be stopped."""
        with self._overdue():
            return await self._thread.call(functools.partial(function, *args, **kwargs))

    async def undo(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """The same for what undoes: it is done even if nobody waits for it any more."""
        with self._overdue():
            await self._thread.call(functools.partial(function, *args, **kwargs), undoes=True)

    @contextmanager
    def _overdue(self) -> Iterator[None]:
        """While the sink is used: cuts what takes too long there."""
        overdue = None
        if self._wiring.sink is not None:
            pool = self._wiring.sink.database.pool
            overdue = self.loop.call_later(pool.call_seconds_max, pool.cut_overdue)
        try:
            yield
        finally:
            if overdue is not None:
                overdue.cancel()

    async def _call_guarded(self, name: str, *arguments: object, batch: EventBatch | None = None) -> None:
        """Calls a handler, of a batch or none, whose failure ends the session."""
        try:
            await self._call(name, *arguments)
        except Exception as error:
            raise self._handler_failed(name, batch, 1, error) from error

    async def _call_reported(self, name: str, *arguments: object) -> None:
        """Calls a handler whose failure is reported, and changes nothing."""
        try:
            await self._call_guarded(name, *arguments)
        except HandlerFailed as error:
            self._report(error)

    def _report(self, error: HublineError) -> None:
        self._control.report(error, self._context)

    def _unexpected(self, error: Exception) -> ProcessorError:
        unexpected = ProcessorError(
            f"partition {self.key.partition} failed with {type(error).__name__}: {error}", partition=self.key.partition
        )
        unexpected.__cause__ = error
        return unexpected


def _sequence_before(position: Position) -> int | None:
    """The last sequence number before a position, where that is known without asking the hub."""
    if position.kind is PositionKind.EARLIEST:
        return -1
    if isinstance(position.value, int):
        return position.value - position.inclusive
    return None
