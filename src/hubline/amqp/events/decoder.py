"""Messages to Arrow columns, thousands at a time.

    decoder = EventDecoder("3")
    batch = decoder.decode(deliveries.data, deliveries.starts, deliveries.ends)     # EVENT_SCHEMA

The compiled core takes what peers really send. The rest goes one by one through :func:`.reference_decoder.read_event`,
as everything does where the core is not there. The columns are the same either way, and so is what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from hubline.amqp.arrays import Octets, Positions
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.core.library import core
from hubline.amqp.events.compiled_decoder import CompiledDecoder, DecodedColumns
from hubline.amqp.events.reference_decoder import BATCH_FORMAT, EventFields, read_batch, read_event
from hubline.amqp.service_names import ENQUEUED_TIME, OFFSET, SEQUENCE_NUMBER
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.arrow_helpers import repeated
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA

# Python's calendar, which is needed to look at an event: a time beyond it becomes its first or last millisecond.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999

# A column of Arrow holds no more; far less is decoded at once.
BYTES_MAX: Final = 2**30

# Fewer messages are decoded sooner one by one.
BULK_COUNT_MIN: Final = 2

_TIME_TYPE: Final = EVENT_SCHEMA.field("enqueuedTime").type

_Read: TypeAlias = Callable[[Bytes, int, int], EventFields]


class EventDecoder:
    """Decodes what one receiver gets."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._compiled = _compiled(has_position=True)

    def decode(self, data: Octets, starts: Positions, ends: Positions) -> pa.RecordBatch:
        """The events ``data[start:end]``, in order, as columns of EVENT_SCHEMA. Nothing of ``data`` is kept.

        Raises AmqpDecodeError if a message is not AMQP, or is none that a hub delivers: each has a sequence number,
        an offset and an enqueued time.
        """
        messages = _Messages(data, starts, ends, _read_delivered)
        return _decoded(messages, self._compiled, self._taken, self._read)

    def _taken(self, columns: DecodedColumns) -> pa.RecordBatch:
        times = np.clip(columns.enqueued_ms, TIME_MS_MIN, TIME_MS_MAX) * 1000
        arrays = [
            columns.body,
            repeated(self._partition, len(columns.body)),
            columns.offset,
            pa.array(columns.sequence_numbers),
            pa.array(times).view(_TIME_TYPE),
            columns.partition_key,
            columns.properties,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)

    def _read(self, events: Iterable[EventFields]) -> pa.RecordBatch:
        return _event_batch(events, self._partition)


class SentDecoder:
    """Decodes what one sender sends."""

    def __init__(self) -> None:
        self._compiled = _compiled(has_position=False)

    def decode(self, payload: Bytes, message_format: int) -> pa.RecordBatch:
        """The events of a message, which is a batch or a single one, as columns of OUTGOING_SCHEMA.

        The types of properties, and the sections of a body, are noted among the properties
        (:mod:`hubline.amqp.codec.property_types`). The key of a batch is that of each of its events that has none
        itself. Raises AmqpDecodeError.
        """
        data = np.frombuffer(payload, np.uint8)
        if message_format != BATCH_FORMAT:
            return self._decode(data, np.zeros(1, np.int64), np.array([len(data)]))
        sent = read_batch(payload)
        events = self._decode(data, sent.starts, sent.ends)
        return events if sent.partition_key is None else _with_key(events, sent.partition_key)

    def _decode(self, data: Octets, starts: Positions, ends: Positions) -> pa.RecordBatch:
        return _decoded(_Messages(data, starts, ends, _read_sent), self._compiled, _taken_outgoing, _outgoing_batch)


def _compiled(*, has_position: bool) -> CompiledDecoder | None:
    compiled = core()
    return compiled and CompiledDecoder(compiled, has_position=has_position, takes_notes=not has_position)


def _decoded(
    messages: _Messages,
    compiled: CompiledDecoder | None,
    taken: Callable[[DecodedColumns], pa.RecordBatch],
    read: Callable[[Iterable[EventFields]], pa.RecordBatch],
) -> pa.RecordBatch:
    """The messages as columns: by the core, what it leaves one by one, and both in their order."""
    count = len(messages)
    if compiled is None or count < BULK_COUNT_MIN:
        return read(messages.read(range(count)))
    columns = compiled.decode(messages.data, messages.starts, messages.ends)
    if not columns.others:
        return taken(columns)
    others = read(messages.read(columns.others))
    places = np.empty(count, np.int64)
    is_other = np.zeros(count, np.bool_)
    is_other[columns.others] = True
    places[~is_other] = np.arange(len(columns.body))
    places[is_other] = np.arange(len(columns.body), count)
    return pa.concat_batches([taken(columns), others]).take(pa.array(places))


def _taken_outgoing(columns: DecodedColumns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns.body, columns.partition_key, columns.properties], schema=OUTGOING_SCHEMA)


def _with_key(events: pa.RecordBatch, partition_key: str) -> pa.RecordBatch:
    body, key, properties = events.columns
    filled = repeated(partition_key, len(key)) if key.null_count == len(key) else key.fill_null(partition_key)
    return pa.RecordBatch.from_arrays([body, filled, properties], schema=OUTGOING_SCHEMA)


def join_messages(messages: Sequence[Bytes]) -> tuple[Octets, Positions, Positions]:
    """Messages that are apart, as a decoder takes them: data, starts and ends."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(lengths)
    data = messages[0] if len(messages) == 1 else b"".join(messages)
    return np.frombuffer(data, np.uint8), ends - lengths, ends


def _read_sent(data: Bytes, start: int, end: int) -> EventFields:
    return read_event(data, start, end, takes_notes=True)


def _read_delivered(data: Bytes, start: int, end: int) -> EventFields:
    event = read_event(data, start, end)
    for name, value in (
        (SEQUENCE_NUMBER, event.sequence_number),
        (OFFSET, event.offset),
        (ENQUEUED_TIME, event.enqueued_ms),
    ):
        if value is None:
            raise AmqpDecodeError(f"a message without {name} is not an event of a hub")
    return event


class _Messages:
    """Messages in a buffer, of which no more is looked at than they take."""

    def __init__(self, data: Octets, starts: Positions, ends: Positions, read: _Read) -> None:
        first, last = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        if last - first > BYTES_MAX:
            raise AmqpDecodeError(f"{last - first:,} bytes of messages at once are too many: take fewer")
        self.data = data[first:last]
        self.starts = starts - first
        self.ends = ends - first
        self._read = read

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, indexes: Sequence[int]) -> Iterator[EventFields]:
        """Some of them, one by one."""
        view = self.data.data
        for index in indexes:
            try:
                yield self._read(view, int(self.starts[index]), int(self.ends[index]))
            except AmqpDecodeError as error:
                raise AmqpDecodeError(f"message {index + 1} of {len(self)}: {error}") from None


def _event_batch(events: Iterable[EventFields], partition: str) -> pa.RecordBatch:
    rows = [
        (
            event.body,
            partition,
            event.offset,
            event.sequence_number,
            min(max(event.enqueued_ms or 0, TIME_MS_MIN), TIME_MS_MAX) * 1000,
            event.partition_key,
            event.properties,
        )
        for event in events
    ]
    return _batch(rows, EVENT_SCHEMA)


def _outgoing_batch(events: Iterable[EventFields]) -> pa.RecordBatch:
    return _batch([(event.body, event.partition_key, event.properties) for event in events], OUTGOING_SCHEMA)


def _batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
