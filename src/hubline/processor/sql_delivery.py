"""From the handler into the sink: rows, dead letters and checkpoint of a batch in one transaction.

What if it dies here?

    1. handle   events one by one or all at once; without ``tx`` nothing is in the database yet
    2. write    what the handlers returned; events whose rows the database refuses are found
    3. judge    too many failed: everything is undone, and the partition stops
    4. letters, checkpoint, commit: see :mod:`hubline.sinks.sql_sink.sink`

Dying anywhere before the commit leaves nothing, and the batch is handled again; dying after it leaves all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from hubline.errors import HandlerFailed, RowsRejected, SinkError, StoreError
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import Checkpoint
from hubline.processor.failure_limits import LetterTally
from hubline.sinks import OpenedPartition, Rejected, Rows, SqlSink, Transaction
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch
from hubline.sinks.sql_sink.rejected_rows import RowEvents
from hubline.sinks.sql_sink.table_schema import SEQUENCE_COLUMN
from hubline.sql.dead_letter_table import storable

P = ParamSpec("P")
T = TypeVar("T")

InThread = Callable[..., Awaitable[Any]]


class AsyncTransaction:
    """The transaction of a batch, for handlers that are async: the methods of `hubline.sinks.Transaction`, awaited."""

    def __init__(self, transaction: Transaction, in_thread: InThread) -> None:
        self._transaction = transaction
        self._in_thread = in_thread

    async def execute(self, query: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[object, ...]]:
        """One statement of one's own; its rows, if it has any. Placeholders are the driver's: ``%s``, or ``?``."""
        rows: list[tuple[object, ...]] = await self._in_thread(self._transaction.execute, query, params)
        return rows

    async def insert(self, rows: Rows) -> None:
        """Writes rows to the sink's table. A column ``sequenceNumber`` tells of which event each row came."""
        await self._in_thread(self._transaction.insert, rows)


class Handling(Protocol):
    """What a delivery needs of its pump."""

    @property
    def is_closing(self) -> bool: ...

    async def try_part(self, part: EventBatch, event: Event | None, tx: Transaction | None) -> object:
        """What the handler returned. Raises HandlerFailed when it failed, also after its retries."""
        ...

    async def attempt_part(self, part: EventBatch, attempt: int, tx: Transaction | None) -> tuple[object, Any]:
        """Calls the handler once: what it returned, and None; or None, and how it failed."""
        ...

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def undo(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """How a processor delivers: by its handlers and options."""

    sink: SqlSink
    takes_events: bool
    takes_tx: bool
    stops_on_failure: bool
    quarantines_keys: bool


@dataclass(frozen=True, slots=True)
class HandlerOutput:
    """What a handler made of some events."""

    part: EventBatch
    rows: object


@dataclass(slots=True)
class DeliveryAttempt:
    """One try at a batch: the parts to hand over, and the events that are known to fail, with their letters."""

    parts: list[EventBatch]
    letters: dict[int, DeadLetter] = field(default_factory=dict)
    pieces: list[HandlerOutput] = field(default_factory=list)

    def again(self, *, without: Mapping[int, DeadLetter], split: Iterable[EventBatch] = ()) -> DeliveryAttempt:
        """The same batch once more: without these events, and with those parts in halves."""
        firsts = {part.first_sequence for part in split}
        parts = [half for part in self.parts for half in (_halves(part) if part.first_sequence in firsts else [part])]
        return DeliveryAttempt(parts, dict(without))


class Delivery:
    """One session of a partition, on its way into the sink."""

    def __init__(
        self, partition: OpenedPartition, manner: DeliveryPolicy, handling: Handling, tally: LetterTally
    ) -> None:
        self._partition = partition
        self._manner = manner
        self._handling = handling
        self._waiting_keys: set[str] | None = None
        self._is_delivering = False
        self.tally = tally

    async def deliver(self, batch: EventBatch, now: float) -> list[DeadLetter]:
        """Hands a batch to its handler and commits what comes of it. Returns the events that failed."""
        self._is_delivering = True
        try:
            return await self._deliver(batch, now)
        finally:
            self._is_delivering = False

    async def _deliver(self, batch: EventBatch, now: float) -> list[DeadLetter]:
        self._check_new(batch)
        checkpoint = Checkpoint(self._partition.key, batch.last_offset, batch.last_sequence)
        waiting = await self._quarantined()
        deduplicated = await self._deduplicated(batch)
        coming = DeliveryAttempt([deduplicated.batch])
        while True:
            transaction = self._partition.transaction(checkpoint)
            try:
                await self._collect(coming, waiting, transaction)
                again = await self._handling.in_thread(self._write, deduplicated, coming, transaction, now)
            except BaseException:
                await self._handling.undo(transaction.rollback)
                raise
            if again is None:
                break
            await self._handling.undo(transaction.rollback)
            deduplicated, coming = again
        self._waiting_keys = waiting | {key for letter in coming.letters.values() if (key := _key(letter.event))}
        return [coming.letters[sequence] for sequence in sorted(coming.letters)]

    async def skip_to(self, checkpoint: Checkpoint) -> None:
        """Moves the checkpoint alone: what lies before it was never asked for."""
        await self._handling.in_thread(self._partition.commit, checkpoint)

    async def require_held(self) -> None:
        """Raises Fenced if somebody took the partition in the sink, or set its checkpoint, since it was opened."""
        if not self._is_delivering:  # else its own commit finds out
            await self._handling.in_thread(self._partition.require_held)

    def _check_new(self, batch: EventBatch) -> None:
        known = self._partition.checkpoint
        if known is not None and batch.first_sequence <= known.sequence_number:
            raise SinkError(
                f"the sink has partition {self._partition.key} up to {known.sequence_number} already, and event "
                f"{batch.first_sequence} came again: to have events again, set the sink's checkpoint back"
            )

    async def _deduplicated(self, batch: EventBatch) -> DeduplicatedBatch:
        if self._manner.sink.drop_duplicates == "off":
            return DeduplicatedBatch(batch, {})
        return await self._handling.in_thread(self._partition.deduplicate, batch)

    async def _quarantined(self) -> set[str]:
        """The keys whose events wait among the dead letters. Asked anew as long as there are any: they may be redriven.

        An event of a key passes only after none of the key was seen waiting.
        """
        if not self._manner.quarantines_keys:
            return set()
        if self._waiting_keys is None or self._waiting_keys:
            self._waiting_keys = await self._handling.in_thread(self._partition.waiting_keys)
        return set(self._waiting_keys)

    # 1. Handle

    async def _collect(self, coming: DeliveryAttempt, waiting: set[str], transaction: Transaction) -> None:
        """Calls the handler for every part; what fails for good becomes a letter."""
        tx = transaction if self._manner.takes_tx else None
        first_failed = {**dict.fromkeys(waiting, -1), **_first_failed(coming.letters.values())}
        for part in coming.parts:
            passed = self._without_letters(part, coming, first_failed)
            if self._manner.takes_events:
                await self._collect_events(passed, coming, first_failed, tx)
            elif len(passed):
                await self._collect_part(passed, coming, tx)

    def _without_letters(
        self, part: EventBatch, coming: DeliveryAttempt, first_failed: Mapping[str, int]
    ) -> EventBatch:
        """The events that are not among the letters, and in quarantine do not follow one that is."""
        if self._manner.quarantines_keys and first_failed:
            for event in part:
                if event.sequence_number not in coming.letters and _follows(event, first_failed):
                    coming.letters[event.sequence_number] = self._follower(event)
        if not coming.letters:
            return part
        sequences = part.arrow.column("sequenceNumber").to_numpy()
        return EventBatch(part.partition, part.arrow.filter(pa.array(~np.isin(sequences, list(coming.letters)))))

    async def _collect_events(
        self, part: EventBatch, coming: DeliveryAttempt, first_failed: dict[str, int], tx: Transaction | None
    ) -> None:
        for place, event in enumerate(part):
            if self._manner.quarantines_keys and _follows(event, first_failed):
                coming.letters[event.sequence_number] = self._follower(event)
                continue
            alone = part.slice(place, 1)
            try:
                rows = await self._handling.try_part(alone, event, tx)
            except HandlerFailed as failed:
                self._letter(event, failed, coming)
                if (key := _key(event)) is not None:
                    first_failed.setdefault(key, event.sequence_number)
            else:
                coming.pieces.append(HandlerOutput(alone, rows))

    async def _collect_part(self, part: EventBatch, coming: DeliveryAttempt, tx: Transaction | None) -> None:
        try:
            rows = await self._handling.try_part(part, None, tx)
        except HandlerFailed as failed:
            await self._collect_halves(part, failed, coming, tx)
        else:
            coming.pieces.append(HandlerOutput(part, rows))

    async def _collect_halves(
        self, part: EventBatch, failed: HandlerFailed, coming: DeliveryAttempt, tx: Transaction | None
    ) -> None:
        """Halves what failed until the failing events are found, in order."""
        if len(part) == 1:
            self._letter(part[0], failed, coming)
            return
        self._check_blame(failed)
        for half in _halves(part):
            rows, half_failed = await self._handling.attempt_part(half, failed.attempts + 1, tx)
            if half_failed is None:
                coming.pieces.append(HandlerOutput(half, rows))
            else:
                await self._collect_halves(half, half_failed, coming, tx)

    def _letter(self, event: Event, failed: HandlerFailed, coming: DeliveryAttempt) -> None:
        self._check_blame(failed)
        error = failed.__cause__ or failed
        coming.letters[event.sequence_number] = DeadLetter.of(
            self._partition.key, event, error, attempts=failed.attempts
        )

    def _check_blame(self, failed: HandlerFailed) -> None:
        """Raises the failure unless events are to be blamed for it."""
        is_the_stores = isinstance(failed.__cause__, StoreError) and not isinstance(failed.__cause__, RowsRejected)
        if self._manner.stops_on_failure or self._handling.is_closing or is_the_stores:
            raise failed

    def _follower(self, event: Event) -> DeadLetter:
        reason = "an earlier event of its partition key is among the dead letters, and waits"
        return _made(self._partition, event, kind="Quarantined", reason=reason, stage=Stage.QUARANTINE)

    # 2 to 4, in the partition's thread

    def _write(
        self, deduplicated: DeduplicatedBatch, coming: DeliveryAttempt, transaction: Transaction, now: float
    ) -> tuple[DeduplicatedBatch, DeliveryAttempt] | None:
        """Commits; or returns what to do again, with the transaction to be undone."""
        batch = deduplicated.batch
        untraced: dict[int, EventBatch] = {}
        for rows, row_events in _groups(coming.pieces, untraced):
            transaction.insert(rows, row_events=row_events)
        if transaction.rejected and (again := self._judge_refused(batch, coming, untraced, transaction.rejected)):
            return deduplicated, again
        if self._manner.quarantines_keys and self._has_follower(batch, coming):
            return deduplicated, coming.again(without=coming.letters)
        if not transaction.record_ids(self._partition, deduplicated):
            transaction.rollback()  # before others are asked: they may wait for what it holds
            anew = self._partition.deduplicate(batch)
            return anew, DeliveryAttempt([anew.batch])
        sequences = batch.arrow.column("sequenceNumber").to_numpy()
        tally = self.tally.after(np.isin(sequences, list(coming.letters)), now)
        transaction.mark_handled(self._partition, sequences)
        transaction.dead_letter([coming.letters[sequence] for sequence in sorted(coming.letters)])
        transaction.commit()
        self.tally = tally
        return None

    def _judge_refused(
        self,
        batch: EventBatch,
        coming: DeliveryAttempt,
        untraced: Mapping[int, EventBatch],
        rejected: Sequence[Rejected],
    ) -> DeliveryAttempt | None:
        """Makes letters of the rejected events; or says what to do again to find them, or to undo more of theirs."""
        if self._manner.stops_on_failure:
            raise RowsRejected(f"the sink refuses rows of event {rejected[0].event}: {rejected[0].reason}")
        split = [part for one in rejected if (part := untraced.get(one.event)) is not None and len(part) > 1]
        events = {event.sequence_number: event for event in _events(batch, [one.event for one in rejected])}
        letters = {
            one.event: _made(self._partition, events[one.event], kind=one.kind, reason=one.reason, stage=Stage.SINK)
            for one in rejected
            if one.event not in {part.first_sequence for part in split}
        }
        coming.letters.update(letters)
        # What a handler did by itself for a rejected event is undone only with everything.
        is_to_undo = bool(split) or self._manner.takes_tx
        return coming.again(without=coming.letters, split=split) if is_to_undo else None

    def _has_follower(self, batch: EventBatch, coming: DeliveryAttempt) -> bool:
        """Whether an event was handled that comes after one of its key that failed."""
        first_failed = _first_failed(coming.letters.values())
        if not first_failed:
            return False
        return any(event.sequence_number not in coming.letters and _follows(event, first_failed) for event in batch)


@asynccontextmanager
async def savepoint(tx: Transaction | None, in_thread: InThread, undo: InThread) -> Any:
    """Around a handler's attempt: what it did by ``tx`` is undone if it fails."""
    if tx is None:
        yield
        return
    point = tx.savepoint()
    try:
        await in_thread(point.__enter__)
        yield
        await in_thread(point.__exit__, None, None, None)
    except BaseException as error:
        # Also where it was left already, which does nothing: dropped open, it would use the connection from here.
        await undo(point.__exit__, type(error), error, error.__traceback__)
        raise


def _groups(pieces: Iterable[HandlerOutput], untraced: dict[int, EventBatch]) -> Iterator[tuple[Rows, RowEvents]]:
    """What was returned, in as few lots as can be, with the event of each row.

    Rows of many events that do not tell theirs count as those of the first, and are noted in ``untraced``.
    """
    records: list[Mapping[str, Any]] = []
    tables: list[pa.Table] = []
    row_events: list[RowEvents] = []
    for piece in pieces:
        rows: Any = _as_rows(piece.rows)
        if rows is None or not len(rows):
            continue
        is_table = isinstance(rows, pa.Table)
        if row_events and (bool(tables) != is_table or (is_table and tables[0].schema != rows.schema)):
            yield _lot(records, tables), np.concatenate(row_events)
            records, tables, row_events = [], [], []
        row_events.append(_units(piece.part, rows, untraced))
        if is_table:
            tables.append(rows)
        else:
            records += rows
    if row_events:
        yield _lot(records, tables), np.concatenate(row_events)


def _lot(records: list[Mapping[str, Any]], tables: list[pa.Table]) -> Rows:
    return pa.concat_tables(tables) if tables else records


def _as_rows(returned: object) -> pa.Table | Sequence[Mapping[str, Any]] | None:
    if returned is None or isinstance(returned, pa.Table):
        return returned
    if isinstance(returned, pa.RecordBatch):
        return pa.Table.from_batches([returned])
    if isinstance(returned, Mapping):
        return [returned]
    if isinstance(returned, Sequence) and all(isinstance(record, Mapping) for record in returned):
        return returned
    raise SinkError(
        f"the handler returned {type(returned).__name__}: rows for the sink are an Arrow table or batch, "
        "or dictionaries; return None for no rows"
    )


def _units(
    part: EventBatch, rows: pa.Table | Sequence[Mapping[str, Any]], untraced: dict[int, EventBatch]
) -> RowEvents:
    if len(part) == 1:
        return np.full(len(rows), part.first_sequence, np.int64)
    told: Any = None
    if isinstance(rows, pa.Table):
        if SEQUENCE_COLUMN in rows.column_names:
            told = rows.column(SEQUENCE_COLUMN).to_pylist()
    elif all(SEQUENCE_COLUMN in record for record in rows):
        told = [record[SEQUENCE_COLUMN] for record in rows]
    if told is None:
        untraced[part.first_sequence] = part
        return np.full(len(rows), part.first_sequence, np.int64)
    sequences = np.asarray(told)
    if not np.isin(sequences, part.arrow.column("sequenceNumber").to_numpy()).all():
        raise SinkError(f"rows tell of events by {SEQUENCE_COLUMN!r} that are not in their batch, {part!r}")
    return sequences.astype(np.int64)


def _events(batch: EventBatch, sequences: Sequence[int]) -> Iterator[Event]:
    known = batch.arrow.column("sequenceNumber").to_numpy()
    return iter(EventBatch(batch.partition, batch.arrow.filter(pa.array(np.isin(known, sequences)))))


def _made(partition: OpenedPartition, event: Event, *, kind: str, reason: str, stage: Stage) -> DeadLetter:
    return DeadLetter(partition.key, event, error_type=kind, error_text=reason, traceback="", attempts=1, stage=stage)


def _halves(part: EventBatch) -> list[EventBatch]:
    middle = len(part) // 2
    return [part.slice(0, middle), part.slice(middle)]


def _key(event: Event) -> str | None:
    return None if event.partition_key is None else storable(event.partition_key)


def _first_failed(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """The first event that failed, of each partition key that has one."""
    first: dict[str, int] = {}
    for letter in letters:
        if (key := _key(letter.event)) is not None:
            first[key] = min(letter.event.sequence_number, first.get(key, letter.event.sequence_number))
    return first


def _follows(event: Event, first_failed: Mapping[str, int]) -> bool:
    key = _key(event)
    return key is not None and first_failed.get(key, event.sequence_number) < event.sequence_number
