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

A handler that uses its ``tx`` has the transaction open from then on, and on SQLite every other writer waits: the
renewal of this partition's lease, too. So hubline never waits in it. Before the pause of a
retry it commits what came before, and what failed begins the next transaction: so a batch may take several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hubline.errors import HandlerFailed, RowsRejected, SinkError, StoreError
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import Checkpoint
from hubline.processor.delivery.attempt import DeliveryAttempt, Part, Stop
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

TRANSACTION_SECONDS_MAX = 1.0
"""A handler of events that uses its ``tx`` gets another transaction after so long: a fifth of the time that SQLite's
other writers wait for their turn, and long enough that the commits cost nothing."""


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
        in_parts: The first events may be committed without the others.
    """

    takes_events: bool
    takes_tx: bool
    stops_on_failure: bool
    preserve_key_order: bool
    hold_keys: bool
    deduplicate: bool
    in_parts: bool = True

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

    @property
    def commits_parts(self) -> bool:
        """Whether the transaction ends where its handler would have to wait: it may be open."""
        return self.takes_tx and self.in_parts


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a transaction did.

    Attributes:
        batch: The events that are done; there may be none.
        dead_letters: Those of them that failed.
        left: The others, to be delivered next, in this order.
    """

    batch: EventBatch
    dead_letters: Sequence[DeadLetter]
    left: Sequence[Part]


@dataclass(slots=True)
class _Delivery:
    """What a transaction is about: its events, the try at them, and what comes after them."""

    batch: EventBatch
    deduplicated: DeduplicatedBatch
    attempt: DeliveryAttempt
    left: list[Part] = field(default_factory=list)


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

    async def deliver(self, part: Part, now: float) -> Delivered:
        """Hands events to their handler and commits the results in one transaction: of all of them, or of the first.

        What is left is less than it was, or is to be tried once more, or is in halves.
        """
        self._is_delivering = True
        try:
            return await self._deliver(part, now)
        finally:
            self._is_delivering = False

    async def _deliver(self, part: Part, now: float) -> Delivered:
        self._check_new(part.batch)
        waiting = await self._keys_on_hold()
        deduplicated = await self._deduplicated(part.batch)
        attempt = DeliveryAttempt([deduplicated.batch], part.failed, part.is_half)
        delivery = _Delivery(part.batch, deduplicated, attempt)
        while not await self._is_committed(delivery, waiting, now):
            pass
        self._waiting_keys = waiting | set(_first_failed(delivery.attempt.dead_letters.values()))
        return Delivered(delivery.batch, delivery.attempt.in_order(), delivery.left)

    async def _is_committed(self, delivery: _Delivery, waiting: set[str], now: float) -> bool:
        """One transaction, which is committed; or is undone, with what comes next left in ``delivery``."""
        if delivery.attempt.failed is not None and not delivery.attempt.is_half:
            await self._caller.pause(delivery.attempt.failed)
        transaction = self._begin(self._checkpoint(delivery.batch))
        try:
            stop = await self._handle(delivery.attempt, waiting, transaction)
            if stop is None or self._end_at(stop, delivery, transaction):
                again = await self._caller.thread.run(
                    self._write, delivery.deduplicated, delivery.attempt, transaction, now
                )
                if again is None:
                    return True
                delivery.deduplicated, delivery.attempt = again
        except BaseException:
            await self._caller.thread.undo(transaction.rollback)
            raise
        await self._caller.thread.undo(transaction.rollback)
        if self._policy.commits_parts and len(delivery.attempt.parts) > 1:  # of rows that name no events
            delivery.left[:0] = map(Part, halves(delivery.batch))
            delivery.batch, delivery.attempt = delivery.batch.slice(0, 0), DeliveryAttempt([])
        return not len(delivery.batch)

    def _end_at(self, stop: Stop, delivery: _Delivery, transaction: Transaction) -> bool:
        """Whether the transaction is to be committed all the same: with the events before the stop."""
        if not self._policy.commits_parts:
            attempt = delivery.attempt
            delivery.attempt = attempt.again(stop.failed) if self._policy.takes_tx else attempt.continued(stop)
            return False
        attempt, fresh = delivery.attempt.until(stop), delivery.deduplicated.batch
        before, left = stop.split(delivery.batch)
        delivery.batch, delivery.attempt, delivery.left = before, attempt, [*left, *delivery.left]
        delivery.deduplicated = self._opened.deduplicate_first(fresh.slice(0, stop.count_before(fresh)))
        if len(before):
            transaction.end_at(self._checkpoint(before))
        return len(before) > 0

    def _checkpoint(self, batch: EventBatch) -> Checkpoint:
        return Checkpoint(self._opened.key, batch.last_offset, batch.last_sequence)

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

    async def _handle(self, attempt: DeliveryAttempt, waiting: set[str], transaction: Transaction) -> Stop | None:
        """Calls the handler for every part; an event that fails for good becomes a dead letter.

        Returns where it stopped, if that is before the end.
        """
        tx = transaction if self._policy.takes_tx else None
        first_failed = {**dict.fromkeys(waiting, -1), **_first_failed(attempt.dead_letters.values())}
        for part in attempt.parts:
            left = self._without_dead_letters(part, attempt, first_failed)
            handling = self._handle_events if self._policy.takes_events else self._handle_batch
            if len(left) and (stop := await handling(left, attempt, first_failed, tx)) is not None:
                return stop
        return None

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
    ) -> Stop | None:
        events, until = list(part), self._until()
        while events:
            run = EventRun(events, keeps_results=True)
            failed = await self._call_events(run, attempt.tried, tx, until)
            attempt.outputs += [
                HandlerOutput(event.sequence_number, rows)
                for event, rows in zip(events, run.results or (), strict=False)
                if rows is not None
            ]
            if run.done == len(events):
                return None
            if failed is None or self._is_tried_again(failed):
                return Stop(run.next.sequence_number, failed)
            self._blame(run.next, failed, attempt)
            if (key := _key(run.next)) is not None:
                first_failed.setdefault(key, run.next.sequence_number)
            events = self._without_followers(events[run.done + 1 :], attempt, first_failed)
        return None

    async def _call_events(
        self, run: EventRun, tried: Mapping[tuple[int, int], int], tx: Transaction | None, until: Callable[[], bool]
    ) -> HandlerFailed | None:
        """Calls the handler for the run's events until one fails; the attempts at those that have failed count on."""
        sequences = [event.sequence_number for event in run.events] if tried else []
        again = [place for place, sequence in enumerate(sequences) if (sequence, sequence) in tried]
        for place in again:
            run.end = place
            if (failed := await self._caller.go(run, tx, until=until)) is not None or run.done < run.end:
                return failed
            number = tried[sequences[place], sequences[place]] + 1
            returned, failed = await self._caller.attempt(run.next, number, tx)
            if failed is not None:
                return failed
            run.end = len(run.events)
            run.add(returned)
        return await self._caller.go(run, tx, until=until)

    def _until(self) -> Callable[[], bool]:
        """Whether a transaction that began with the next event has been open for long enough."""
        if not self._policy.commits_parts:
            return lambda: False
        time = asyncio.get_running_loop().time
        ends_at = time() + TRANSACTION_SECONDS_MAX
        return lambda: time() >= ends_at

    def _without_followers(
        self, events: list[Event], attempt: DeliveryAttempt, first_failed: Mapping[str, int]
    ) -> list[Event]:
        if not self._policy.preserve_key_order:
            return events
        followers = [event for event in events if _follows(event, first_failed)]
        attempt.dead_letters.update((event.sequence_number, self._follower(event)) for event in followers)
        return [event for event in events if event.sequence_number not in attempt.dead_letters]

    async def _handle_batch(
        self, part: EventBatch, attempt: DeliveryAttempt, _: dict[str, int], tx: Transaction | None
    ) -> Stop | None:
        rows, failed = await self._caller.attempt(part, attempt.number_of(part), tx)
        if failed is None:
            attempt.outputs.append(HandlerOutput(part.first_sequence, rows, part))
            return None
        if not attempt.is_half and self._is_tried_again(failed):
            return Stop(part.first_sequence, failed)
        self._check_blame(failed)
        if len(part) > 1 and self._policy.commits_parts:
            return Stop(part.first_sequence, failed, is_split=True)
        await self._isolate(part, failed, attempt, tx)
        return None

    async def _isolate(
        self, part: EventBatch, failed: HandlerFailed, attempt: DeliveryAttempt, tx: Transaction | None
    ) -> None:
        async def handle_once(half: EventBatch, number: int) -> HandlerFailed | None:
            rows, failed = await self._caller.attempt(half, number, tx)
            if failed is None:
                attempt.outputs.append(HandlerOutput(half.first_sequence, rows, half))
            elif len(half) > 1:
                self._check_blame(failed)
            return failed

        async def blame(single: EventBatch, failed: HandlerFailed) -> None:
            self._blame(single[0], failed, attempt)

        await isolate_failures(part, failed, handle_once, blame)

    def _is_tried_again(self, failed: HandlerFailed) -> bool:
        """Unless a statement of the handler's own failed: it would fail again, or the database is down."""
        is_of_its_sql = self._policy.takes_tx and isinstance(failed.__cause__, StoreError)
        return self._caller.may_try_again(failed) and not is_of_its_sql

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
