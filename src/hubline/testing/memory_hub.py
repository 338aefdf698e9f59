"""A hub in memory, for tests of programs that use hubline, and for hubline's own.

    hub = MemoryHub(partitions_count=2)
    hub.append("0", [b"first", b"second"])
    processor = Processor(hub, MemoryStore(), consumer_group="tests", starting_position="earliest")

It keeps the contract of every hub: :class:`~hubline.testing.contracts.hub.HubContract` runs against it. Beyond that it
grows, and forgets events as retention does, when a test says so.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pyarrow as pa

from hubline.arrow_helpers import equal_offsets, repeated
from hubline.errors import HubError, PartitionNotFound, PositionInvalid, ReaderRefused, ReaderStolen
from hubline.hubs.argument_checks import checked_outgoing, require_count, require_one_target
from hubline.hubs.local.stored_batch import require_sizes
from hubline.hubs.partition_hash import partition_index
from hubline.hubs.position_check import PositionCheck
from hubline.model.events import EVENT_SCHEMA, Event, EventBatch, NewEvent, outgoing_rows
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.positions import Position, PositionKind

_START = datetime(1970, 1, 1, tzinfo=UTC)

_incarnations = itertools.count()
"""Numbers the hubs of this process: an offset names the hub that made it, so that another one's is recognized."""

_Content: TypeAlias = tuple[bytes, str | None, Sequence[tuple[str, str]]]
"""Body, partition key and properties."""


@dataclass(slots=True)
class _Row:
    body: bytes
    key: str | None
    properties: Sequence[tuple[str, str]]
    enqueued_us: int

    @property
    def enqueued(self) -> datetime:
        return _START + timedelta(microseconds=self.enqueued_us)


@dataclass(slots=True)
class _Partition:
    rows: list[_Row] = field(default_factory=list)
    begin_sequence: int = 0
    readers: list[MemoryReceiver] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        return self.begin_sequence + len(self.rows) - 1

    def readers_of(self, group: str) -> list[MemoryReceiver]:
        return [reader for reader in self.readers if reader.group == group]

    def wake(self) -> None:
        for waiter in self.waiters:
            _wake(waiter)


class MemoryHub:
    """A hub that lasts as long as its object. ``now`` gives seconds since 1970, for enqueued times."""

    def __init__(self, partitions_count: int, *, name: str = "hub", now: Callable[[], float] = time.time) -> None:
        self.namespace = "memory"
        self.name = name
        self._now = now
        self._check = PositionCheck(name)
        self._incarnation = f"{next(_incarnations):09d}"  # as long in every hub: a bound of memory counts it
        self._partitions: list[_Partition] = []
        self.partition_ids: tuple[str, ...] = ()
        self.grow(partitions_count)
        self._turns = itertools.count()

    # For tests: what no client can do

    def grow(self, partitions_count: int) -> None:
        self._partitions += [_Partition() for _ in range(partitions_count - len(self._partitions))]
        self.partition_ids = tuple(str(number) for number in range(len(self._partitions)))

    def append(self, partition: str, bodies: list[bytes], *, partition_key: str | None = None) -> None:
        """Appends without a sender, from outside any event loop."""
        self._append(partition, [(body, partition_key, ()) for body in bodies])

    def append_events(self, partition: str, events: Sequence[NewEvent]) -> None:
        """Appends events as a sender does: to the partition, or to that of their partition key if they have one."""
        routed: dict[str, list[_Content]] = {}
        for body, key, properties in outgoing_rows(events):
            to = partition if key is None else str(partition_index(key, len(self._partitions)))
            routed.setdefault(to, []).append((body, key, properties or ()))
        for to, rows in routed.items():
            self._append(to, rows)

    def events(self) -> list[Event]:
        """All events that it holds, in the order of each partition."""
        return [
            Event(row.body, partition, self.offset_of(sequence), sequence, row.enqueued, row.key, dict(row.properties))
            for partition in self.partition_ids
            for sequence, row in enumerate(self._partition(partition).rows, self._partition(partition).begin_sequence)
        ]

    def trim(self, partition: str, begin_sequence: int) -> None:
        """Forgets the events before a sequence number, as retention does."""
        log = self._partition(partition)
        del log.rows[: begin_sequence - log.begin_sequence]
        log.begin_sequence = begin_sequence

    def offset_of(self, sequence_number: int) -> str:
        """The offset of an event in this hub, whichever partition it is in."""
        return f"{self._incarnation}-{sequence_number:0{_OFFSET_DIGITS}d}"

    # The protocol

    async def describe(self) -> HubProperties:
        return HubProperties(self.namespace, self.name, self.partition_ids, _START)

    async def describe_partition(self, partition: str) -> PartitionProperties:
        return self._properties(partition)

    def _properties(self, partition: str) -> PartitionProperties:
        log = self._partition(partition)
        last = log.last_sequence
        return PartitionProperties(
            partition=partition,
            begin_sequence=log.begin_sequence,
            last_sequence=last,
            last_offset=self.offset_of(last) if last >= 0 else None,
            last_enqueued_time=log.rows[-1].enqueued if log.rows else None,
        )

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> MemoryReceiver:
        log = self._partition(partition)
        others = log.readers_of(group)
        held_epoch = max((reader.epoch for reader in others if reader.epoch is not None), default=None)
        if held_epoch is not None and (epoch is None or epoch < held_epoch):
            raise ReaderRefused(
                f"partition {partition} is being read with epoch {held_epoch}, so a reader with epoch {epoch} is "
                "refused. Close that reader, or read with a higher epoch.",
                hub=self.name,
                partition=partition,
                epoch=epoch,
                held_epoch=held_epoch,
            )
        receiver = MemoryReceiver(self, partition, group, epoch, self._next_sequence(partition, position))
        if epoch is not None:
            for other in others:
                other.taken_by_epoch = epoch
                log.readers.remove(other)
            log.wake()
        log.readers.append(receiver)
        return receiver

    async def open_sender(self) -> MemorySender:
        return MemorySender(self)

    async def close(self) -> None:
        """Nothing to let go."""

    def _partition(self, partition: str) -> _Partition:
        if partition not in self.partition_ids:
            raise PartitionNotFound(
                f"hub {self.name} has no partition {partition!r}. Choose one of {', '.join(self.partition_ids)}.",
                hub=self.name,
                partition=partition,
            )
        return self._partitions[int(partition)]

    def _append(self, partition: str, rows: list[_Content]) -> None:
        log = self._partition(partition)
        enqueued_us = timedelta(seconds=self._now()) // timedelta(microseconds=1)
        if log.rows:
            enqueued_us = max(enqueued_us, log.rows[-1].enqueued_us)
        log.rows += [_Row(body, key, properties, enqueued_us) for body, key, properties in rows]
        log.wake()

    def _next_sequence(self, partition: str, position: Position) -> int:
        held = self._properties(partition)
        known = self._check.known_sequence(position, held)
        if known is not None:
            return known
        if position.kind is PositionKind.ENQUEUED:
            return held.begin_sequence + _count_before(self._partition(partition).rows, position)
        sequence = self._sequence_of(position, held)
        return self._check.checked_sequence(sequence + (not position.inclusive), position, held)

    def _sequence_of(self, position: Position, held: PartitionProperties) -> int:
        incarnation, _, digits = str(position.value).partition("-")
        if incarnation != self._incarnation or len(digits) != _OFFSET_DIGITS or not digits.isdecimal():
            raise self._check.invalid("foreign", position, held)
        return int(digits)

    def _expired(self, partition: str, next_sequence: int) -> PositionInvalid:
        position = Position.sequence(next_sequence, inclusive=True)
        return self._check.invalid("expired", position, self._properties(partition))


class MemoryReceiver:
    """Reads a partition of a MemoryHub. ``taken_by_epoch`` is that of the reader that replaced it, if one did."""

    def __init__(self, hub: MemoryHub, partition: str, group: str, epoch: int | None, next_sequence: int) -> None:
        self.group = group
        self.epoch = epoch
        self.taken_by_epoch: int | None = None
        self.last_sequence: int | None = None
        self._hub = hub
        self._log = hub._partition(partition)  # noqa: SLF001
        self._partition = partition
        self._next_sequence = next_sequence
        self._is_closed = False

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        require_count(max_count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            self._require_held()
            self.last_sequence = self._log.last_sequence
            if self._next_sequence < self._log.begin_sequence:
                raise self._hub._expired(self._partition, self._next_sequence)  # noqa: SLF001
            if self._next_sequence <= self._log.last_sequence:
                return self._take(max_count)
            if loop.time() >= deadline:
                return EventBatch.empty(self._partition)
            await self._changed(loop, deadline)

    async def close(self) -> None:
        self._is_closed = True
        if self in self._log.readers:
            self._log.readers.remove(self)
        self._log.wake()

    async def _changed(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(deadline, _wake, waiter)
        self._log.waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._log.waiters.remove(waiter)

    def _require_held(self) -> None:
        if self._is_closed:
            raise HubError("the receiver is closed. Open another one.", hub=self._hub.name, partition=self._partition)
        if self.taken_by_epoch is not None:
            raise ReaderStolen(
                f"another reader took partition {self._partition} with epoch {self.taken_by_epoch} from this one with "
                f"epoch {self.epoch}. Stop one of them, or use another consumer group.",
                hub=self._hub.name,
                partition=self._partition,
                epoch=self.epoch,
                taken_by_epoch=self.taken_by_epoch,
            )

    def _take(self, max_count: int) -> EventBatch:
        first = self._next_sequence
        start = first - self._log.begin_sequence
        rows = self._log.rows[start : start + max_count]
        self._next_sequence = first + len(rows)
        count, sequences = len(rows), range(first, first + len(rows))
        keys, properties = [row.key for row in rows], [row.properties for row in rows]
        columns = [
            _bodies([row.body for row in rows]),
            _partitions(self._partition, count),
            _texts_of_one_width([self._hub.offset_of(sequence) for sequence in sequences]),
            _numbers(sequences, _TYPES[3]),
            _numbers([row.enqueued_us for row in rows], _TYPES[4]),
            _no_keys(count) if keys.count(None) == count else pa.array(keys, _TYPES[5]),
            pa.array(properties, _TYPES[6]) if any(properties) else _no_properties(count),
        ]
        return EventBatch(self._partition, pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))


class MemorySender:
    """Appends to a MemoryHub."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub
        self._is_closed = False

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        if self._is_closed:
            raise HubError("the sender is closed. Open another one.", hub=self._hub.name)
        require_one_target(partition, partition_key)
        events = checked_outgoing(events)
        require_sizes(events, hub=self._hub.name)
        if partition is not None:
            self._hub._partition(partition)  # noqa: SLF001 - that it is missing shows even where nothing is sent
        for to, rows in self._routed(events, partition, partition_key).items():
            self._hub._append(to, rows)  # noqa: SLF001

    async def close(self) -> None:
        self._is_closed = True

    def _routed(
        self, events: pa.RecordBatch, partition: str | None, partition_key: str | None
    ) -> dict[str, list[_Content]]:
        count = len(self._hub._partitions)  # noqa: SLF001
        turn = next(self._hub._turns) % count  # noqa: SLF001
        routed: dict[str, list[_Content]] = {}
        for row in events.to_pylist():
            key = row["partitionKey"] if partition_key is None else partition_key
            to = partition or str(turn if key is None else partition_index(key, count))
            routed.setdefault(to, []).append((row["body"], key, row["properties"] or ()))
        return routed


_OFFSET_DIGITS = 12
_TYPES = EVENT_SCHEMA.types


# A simulation has hundreds of batches of one event a seed: columns made of buffers take half as long as of values.
# From values, Arrow would also import pandas if it is there.


_partitions = functools.lru_cache(maxsize=256)(repeated)
_equal_offsets = functools.lru_cache(maxsize=256)(equal_offsets)


@functools.lru_cache(maxsize=256)
def _no_keys(count: int) -> pa.Array:
    return pa.nulls(count, _TYPES[5])


@functools.lru_cache(maxsize=256)
def _no_properties(count: int) -> pa.Array:
    kind = _TYPES[6]
    pairs = pa.nulls(0, pa.struct([kind.key_field, kind.item_field]))
    return pa.Array.from_buffers(kind, count, [None, equal_offsets(0, count)], children=[pairs])


def _bodies(values: list[bytes]) -> pa.Array:
    ends = array("i", itertools.accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(_TYPES[0], len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def _texts_of_one_width(values: list[str]) -> pa.Array:
    count, octets = len(values), "".join(values).encode()
    return pa.StringArray.from_buffers(count, _equal_offsets(len(octets) // count, count), pa.py_buffer(octets))


def _numbers(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    numbers = array("q", values)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _count_before(rows: list[_Row], position: Position) -> int:
    time = position.value
    assert isinstance(time, datetime)
    return sum(row.enqueued < time or (row.enqueued == time and not position.inclusive) for row in rows)
