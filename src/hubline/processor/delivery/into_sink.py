"""From the handler into the sink: rows, dead letters and checkpoint of a batch in one transaction.

What if it dies here?

    0. sort out  events that the sink has already, and those whose key has dead letters waiting
    1. handle    events one by one or all at once; without ``tx`` nothing is in the database yet
    2. write     what the handlers returned. Events whose rows the database refuses become dead letters. Everything is
                 undone, and 1 is done again without them, where it takes that to find them, where a handler wrote by
                 its ``tx`` for them, or where later events of their key were handled
    3. check     that no other partition has taken an event's id meanwhile, and that not too many failed
    4. commit    dead letters and checkpoint with the rows: :mod:`hubline.sinks.sql_sink.partition_transaction` has the
                 steps within the transaction

Dying anywhere before the commit leaves nothing, and the batch is handled again; dying after it leaves all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hubline.errors import HandlerFailed, RowsRejected, SinkError, StoreError
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import Checkpoint
from hubline.processor.delivery.failure_isolation import halves, isolate_failures
from hubline.processor.delivery.failure_limits import FailureCount
from hubline.processor.delivery.handler_output import HandlerOutput, grouped_rows
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.caller import HandlerCaller
from hubline.processor.handlers.event_run import EventRun
from hubline.sinks import OpenedPartition, Rejected, Transaction
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch
from hubline.sql.dead_letter_table import storable
from hubline.text import sentences


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """How events are delivered into a sink.

    Attributes:
        takes_events: The handler takes events, not batches.
        takes_tx: It takes the transaction: what it did with it for an event that failed has to be undone.
        stops_on_failure: A failing event stops the partition; otherwise it is a dead letter.
        preserve_key_order: The later events of a failed event's partition key follow it to the dead letters.
        hold_keys: So do those whose key has dead letters waiting in the sink.
        deduplicate: Leave out the events that the sink has already.
    """

    takes_events: bool
    takes_tx: bool
    stops_on_failure: bool
    preserve_key_order: bool
    hold_keys: bool
    deduplicate: bool

    @classmethod
    def of(cls, dependencies: PartitionDependencies) -> DeliveryPolicy:
        """The policy of a processor with a sink."""
        options, sink = dependencies.options, dependencies.sink
        return cls(
            takes_events=dependencies.handler_name == "on_event",
            takes_tx=dependencies.handlers[dependencies.handler_name].takes_tx,
            stops_on_failure=options.on_failure == "stop",
            preserve_key_order=options.preserve_key_order,
            hold_keys=options.preserve_key_order,
            deduplicate=sink is not None and sink.drop_duplicates != "off",
        )


@dataclass(slots=True)
class DeliveryAttempt:
    """One try at a batch: the parts to handle, what came of them, and the events that are known to fail."""

    parts: list[EventBatch]
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    outputs: list[HandlerOutput] = field(default_factory=list)

    def again(self, *, split: Iterable[EventBatch] = ()) -> DeliveryAttempt:
        """The same batch once more: without the events that failed, and with those parts in halves."""
        firsts = {part.first_sequence for part in split}
        parts = [half for part in self.parts for half in (halves(part) if part.first_sequence in firsts else [part])]
        return DeliveryAttempt(parts, dict(self.dead_letters))

    def in_order(self) -> list[DeadLetter]:
        return [self.dead_letters[sequence] for sequence in sorted(self.dead_letters)]


class DeliveryIntoSink:
    """One session of a partition, on its way into the sink.

    ``begin`` makes the transaction of a batch. By default it is the partition's, which moves its checkpoint.
    """

    def __init__(
        self,
        opened: OpenedPartition,
        caller: HandlerCaller,
        policy: DeliveryPolicy,
        failures: FailureCount,
        *,
        is_closing: Callable[[], bool],
        begin: Callable[[Checkpoint], Transaction] | None = None,
    ) -> None:
        self._opened = opened
        self._caller = caller
        self._policy = policy
        self._failures = failures
        self._is_closing = is_closing
        self._begin = begin or opened.transaction
        self._waiting_keys: set[str] | None = None
        self._is_delivering = False

    async def deliver(self, batch: EventBatch, now: float) -> list[DeadLetter]:
        """Hands a batch to its handler and commits the results. Returns the events that failed."""
        self._is_delivering = True
        try:
            return await self._deliver(batch, now)
        finally:
            self._is_delivering = False

    async def _deliver(self, batch: EventBatch, now: float) -> list[DeadLetter]:
        self._check_new(batch)
        checkpoint = Checkpoint(self._opened.key, batch.last_offset, batch.last_sequence)
        waiting = await self._keys_on_hold()
        deduplicated = await self._deduplicated(batch)
        attempt = DeliveryAttempt([deduplicated.batch])
        while True:
            transaction = self._begin(checkpoint)
            try:
                await self._handle(attempt, waiting, transaction)
                again = await self._caller.thread.run(self._write, deduplicated, attempt, transaction, now)
            except BaseException:
                await self._caller.thread.undo(transaction.rollback)
                raise
            if again is None:
                break
            await self._caller.thread.undo(transaction.rollback)
            deduplicated, attempt = again
        self._waiting_keys = waiting | set(_first_failed(attempt.dead_letters.values()))
        return attempt.in_order()

    async def skip_to(self, checkpoint: Checkpoint) -> None:
        """Moves the checkpoint alone: the events before it are not wanted."""
        await self._caller.thread.run(self._opened.commit, checkpoint)

    async def require_held(self) -> None:
        """Raises Fenced if the partition was taken in the sink, or its checkpoint set, since it was opened."""
        if not self._is_delivering:  # else its own commit finds out
            await self._caller.thread.run(self._opened.require_held)

    def _check_new(self, batch: EventBatch) -> None:
        known = self._opened.checkpoint
        if known is not None and batch.first_sequence <= known.sequence_number:
            raise SinkError(
                f"the sink has partition {self._opened.key} up to {known.sequence_number} already, and event "
                f"{batch.first_sequence} came again. To process events again, move the sink's checkpoint back "
                "with `hubline checkpoints set`."
            )

    async def _deduplicated(self, batch: EventBatch) -> DeduplicatedBatch:
        if not self._policy.deduplicate:
            return DeduplicatedBatch(batch, {})
        return await self._caller.thread.run(self._opened.deduplicate, batch)

    async def _keys_on_hold(self) -> set[str]:
        """The keys with dead letters that wait. Asked again as long as there are any: they may be redriven.

        An event of a key passes only after none of the key was seen waiting.
        """
        if not self._policy.hold_keys:
            return set()
        if self._waiting_keys is None or self._waiting_keys:
            self._waiting_keys = await self._caller.thread.run(self._opened.waiting_keys)
        return set(self._waiting_keys)

    # 1. Handle

    async def _handle(self, attempt: DeliveryAttempt, waiting: set[str], transaction: Transaction) -> None:
        """Calls the handler for every part; an event that fails for good becomes a dead letter."""
        tx = transaction if self._policy.takes_tx else None
        first_failed = {**dict.fromkeys(waiting, -1), **_first_failed(attempt.dead_letters.values())}
        for part in attempt.parts:
            left = self._without_dead_letters(part, attempt, first_failed)
            if self._policy.takes_events:
                await self._handle_events(left, attempt, first_failed, tx)
            elif len(left):
                await self._handle_batch(left, attempt, tx)

    def _without_dead_letters(
        self, part: EventBatch, attempt: DeliveryAttempt, first_failed: Mapping[str, int]
    ) -> EventBatch:
        """The events that have not failed, and whose key's order does not make them follow one that has."""
        if self._policy.preserve_key_order and first_failed:
            for event in part:
                if event.sequence_number not in attempt.dead_letters and _follows(event, first_failed):
                    attempt.dead_letters[event.sequence_number] = self._follower(event)
        if not attempt.dead_letters:
            return part
        sequences = part.arrow.column("sequenceNumber").to_numpy()
        return EventBatch(part.partition, part.arrow.filter(pa.array(~np.isin(sequences, list(attempt.dead_letters)))))

    async def _handle_events(
        self, part: EventBatch, attempt: DeliveryAttempt, first_failed: dict[str, int], tx: Transaction | None
    ) -> None:
        events = list(part)
        while events:
            run = EventRun(events, keeps_results=True)
            try:
                await self._caller.call_events(run, tx)
            except HandlerFailed as failed:
                self._blame(run.next, failed, attempt)
                if (key := _key(run.next)) is not None:
                    first_failed.setdefault(key, run.next.sequence_number)
            attempt.outputs += [
                HandlerOutput(event.sequence_number, rows)
                for event, rows in zip(events, run.results or (), strict=False)
                if rows is not None
            ]
            events = self._without_followers(events[run.done + 1 :], attempt, first_failed)

    def _without_followers(
        self, events: list[Event], attempt: DeliveryAttempt, first_failed: Mapping[str, int]
    ) -> list[Event]:
        if not self._policy.preserve_key_order:
            return events
        followers = [event for event in events if _follows(event, first_failed)]
        attempt.dead_letters.update((event.sequence_number, self._follower(event)) for event in followers)
        return [event for event in events if event.sequence_number not in attempt.dead_letters]

    async def _handle_batch(self, part: EventBatch, attempt: DeliveryAttempt, tx: Transaction | None) -> None:
        async def handle_once(half: EventBatch, number: int) -> HandlerFailed | None:
            rows, failed = await self._caller.attempt(half, number, tx)
            if failed is None:
                attempt.outputs.append(HandlerOutput(half.first_sequence, rows, half))
            elif len(half) > 1:
                self._check_blame(failed)
            return failed

        async def blame(single: EventBatch, failed: HandlerFailed) -> None:
            self._blame(single[0], failed, attempt)

        try:
            rows = await self._caller.call(part, tx)
        except HandlerFailed as failed:
            self._check_blame(failed)
            await isolate_failures(part, failed, handle_once, blame)
        else:
            attempt.outputs.append(HandlerOutput(part.first_sequence, rows, part))

    def _blame(self, event: Event, failed: HandlerFailed, attempt: DeliveryAttempt) -> None:
        self._check_blame(failed)
        error = failed.__cause__ or failed
        attempt.dead_letters[event.sequence_number] = DeadLetter.of(
            self._opened.key, event, error, attempts=failed.attempts
        )

    def _check_blame(self, failed: HandlerFailed) -> None:
        """Raises the failure unless events are to be blamed for it."""
        is_the_stores = isinstance(failed.__cause__, StoreError) and not isinstance(failed.__cause__, RowsRejected)
        if self._policy.stops_on_failure or self._is_closing() or is_the_stores:
            raise failed

    def _follower(self, event: Event) -> DeadLetter:
        reason = "an earlier event of its partition key is among the dead letters, and waits"
        return self._dead_letter(event, kind="Quarantined", reason=reason, stage=Stage.QUARANTINE)

    def _dead_letter(self, event: Event, *, kind: str, reason: str, stage: Stage) -> DeadLetter:
        """Of an event that no exception of a handler is about."""
        return DeadLetter(
            self._opened.key, event, error_type=kind, error_text=reason, traceback="", attempts=1, stage=stage
        )

    # 2 to 4, in the partition's thread

    def _write(
        self, deduplicated: DeduplicatedBatch, attempt: DeliveryAttempt, transaction: Transaction, now: float
    ) -> tuple[DeduplicatedBatch, DeliveryAttempt] | None:
        """Commits; or returns the next attempt, with the transaction to be undone."""
        batch = deduplicated.batch
        untraced: dict[int, EventBatch] = {}
        for rows, row_events in grouped_rows(attempt.outputs, untraced):
            transaction.insert(rows, row_events=row_events)
        if transaction.rejected and (again := self._judge_rejected(batch, attempt, untraced, transaction.rejected)):
            return deduplicated, again
        if self._policy.preserve_key_order and _has_follower(batch, attempt):
            return deduplicated, attempt.again()
        if not transaction.record_ids(self._opened, deduplicated):
            transaction.rollback()  # before others are asked: they may wait for what it holds
            without_known = self._opened.deduplicate(batch)
            return without_known, DeliveryAttempt([without_known.batch])
        sequences = batch.arrow.column("sequenceNumber").to_numpy()
        tally = self._failures.tally.after(np.isin(sequences, list(attempt.dead_letters)), now)
        transaction.resolve_dead_letters(self._opened, sequences)
        transaction.dead_letter(attempt.in_order())
        transaction.commit()
        self._failures.tally = tally
        return None

    def _judge_rejected(
        self,
        batch: EventBatch,
        attempt: DeliveryAttempt,
        untraced: Mapping[int, EventBatch],
        rejected: Sequence[Rejected],
    ) -> DeliveryAttempt | None:
        """Makes dead letters of the rejected events. Returns the next attempt, if it takes one to find or undo more."""
        if self._policy.stops_on_failure:
            problem = f"the sink refuses rows of event {rejected[0].event}: {rejected[0].reason}"
            raise RowsRejected(sentences(problem, 'fix the rows or the table, or use on_failure="dead_letter"'))
        split = [part for one in rejected if (part := untraced.get(one.event)) is not None and len(part) > 1]
        firsts = {part.first_sequence for part in split}
        events = {event.sequence_number: event for event in _events(batch, [one.event for one in rejected])}
        for one in rejected:
            if one.event not in firsts:
                event = events[one.event]
                attempt.dead_letters[one.event] = self._dead_letter(
                    event, kind=one.kind, reason=one.reason, stage=Stage.SINK
                )
        # What a handler did by itself for a rejected event is undone only with everything.
        is_to_undo = bool(split) or self._policy.takes_tx
        return attempt.again(split=split) if is_to_undo else None


def _events(batch: EventBatch, sequences: Sequence[int]) -> Iterator[Event]:
    known = batch.arrow.column("sequenceNumber").to_numpy()
    return iter(EventBatch(batch.partition, batch.arrow.filter(pa.array(np.isin(known, sequences)))))


def _has_follower(batch: EventBatch, attempt: DeliveryAttempt) -> bool:
    """Whether an event was handled that comes after one of its key that failed."""
    first_failed = _first_failed(attempt.dead_letters.values())
    if not first_failed:
        return False
    return any(event.sequence_number not in attempt.dead_letters and _follows(event, first_failed) for event in batch)


def _key(event: Event) -> str | None:
    return None if event.partition_key is None else storable(event.partition_key)


def _first_failed(dead_letters: Iterable[DeadLetter]) -> dict[str, int]:
    """The first event that failed, of each partition key that has one."""
    first: dict[str, int] = {}
    for dead_letter in dead_letters:
        if (key := _key(dead_letter.event)) is not None:
            sequence = dead_letter.event.sequence_number
            first[key] = min(sequence, first.get(key, sequence))
    return first


def _follows(event: Event, first_failed: Mapping[str, int]) -> bool:
    key = _key(event)
    return key is not None and first_failed.get(key, event.sequence_number) < event.sequence_number
