"""How events are laid out: as stored, as received, and their offsets as text.

A stored payload is one Arrow IPC record batch message of ``OUTGOING_SCHEMA``. The schema is fixed, so no schema message
goes with it. What the hub adds (partition, offset, sequence number, time) is not stored per event: it follows from the
batch's first sequence number and its time, and is made as columns when read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng.zlib_ng import crc32  # ten times as fast as zlib's

from hubline.errors import EventTooLarge
from hubline.model import EVENT_SCHEMA, OUTGOING_SCHEMA, EventBatch

# As the service takes: body, key and properties together.
EVENT_BYTES_MAX: Final = 1024 * 1024

# A larger send is stored as several batches: the unit of reading and of retention stays small beside a reader's memory.
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024

# What an event takes beside its bytes (offsets and validity of three columns): bounds batches of empty events too.
EVENT_OVERHEAD_BYTES: Final = 16

# Offsets are 18 digits: strictly increasing both as text and as numbers, and within a signed 64-bit integer.
TAG_MIN: Final = 10_000
TAG_MAX: Final = 99_999
SEQUENCE_DIGITS: Final = 13
OFFSET_DIGITS: Final = 5 + SEQUENCE_DIGITS
_OFFSET_PATTERN: Final = re.compile(r"([1-9][0-9]{4})([0-9]{13})", re.ASCII)

# An offset's digits: the last four apart, of which the table holds every possibility, "0000" to "9999".
_OFFSET_DIGITS: Final = np.dtype([("leading", f"S{OFFSET_DIGITS - 4}"), ("last", "S4")])
_LAST_DIGITS: Final = np.array([f"{number:04d}" for number in range(10_000)], "S4")

_TIME_TYPE: Final = EVENT_SCHEMA.field("enqueuedTime").type


class PayloadDamaged(Exception):
    """A stored payload is not what was written. The text says how."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A batch as it is stored."""

    count: int
    data: pa.Buffer
    checksum: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it was read from the disk, decoded."""

    first_sequence: int
    enqueued_us: int
    events: pa.RecordBatch

    def after(self, next_sequence: int) -> StoredBatch:
        """What is left of the batch from ``next_sequence`` on. Nothing is copied."""
        skipped = max(next_sequence - self.first_sequence, 0)
        return StoredBatch(self.first_sequence + skipped, self.enqueued_us, self.events.slice(skipped))


def require_sizes(events: pa.RecordBatch, *, hub: str) -> None:
    """Refuses events that are larger than a hub takes."""
    if events.nbytes <= EVENT_BYTES_MAX:  # then none can be; the usual case costs nothing
        return
    sizes = _event_sizes(events)
    largest = int(np.argmax(sizes))
    if sizes[largest] > EVENT_BYTES_MAX:
        index = int(np.argmax(sizes > EVENT_BYTES_MAX))
        raise EventTooLarge(
            f"event {index} of {len(events)} has {sizes[index]:,} bytes (body, key and properties): "
            f"hub {hub} takes at most {EVENT_BYTES_MAX:,}. Nothing was sent: split the event",
            hub=hub,
            index=index,
            bytes_count=int(sizes[index]),
            bytes_max=EVENT_BYTES_MAX,
        )


def encode(events: pa.RecordBatch) -> list[Payload]:
    """The batches to store, in order, each of bounded size."""
    return [_payload(part) for part in _bounded(events)]


def decode(data: pa.Buffer, *, count: int, checksum: int) -> pa.RecordBatch:
    """The events of a payload, which they share. Raises PayloadDamaged."""
    # The checksum also guards the process: Arrow trusts the offsets inside a payload.
    if crc32(data) != checksum:
        raise PayloadDamaged(f"its {data.size:,} bytes do not match their checksum")
    try:
        events = pa.ipc.read_record_batch(data, OUTGOING_SCHEMA)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise PayloadDamaged(str(error)) from error
    if len(events) != count:
        raise PayloadDamaged(f"it holds {len(events)} events instead of {count}")
    return events


def received(partition: str, tag: int, batches: Sequence[StoredBatch], *, count_max: int) -> list[EventBatch]:
    """What a receiver gets from consecutive stored batches: small ones put together up to ``count_max`` events."""
    added = _added_columns(partition, tag, batches)
    received: list[EventBatch] = []
    start = 0
    for group in _groups(batches, count_max):
        body, key, properties = (group[0].events if len(group) == 1 else _concatenated(group)).columns
        columns = [body, *(column.slice(start, len(body)) for column in added), key, properties]
        received.append(EventBatch(partition, pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)))
        start += len(body)
    return received


def offset_text(tag: int, sequence: int) -> str:
    """An event's offset: the tag of the hub's life, then the sequence number."""
    return f"{tag}{sequence:0{SEQUENCE_DIGITS}d}"


def offset_sequence(tag: int, offset: str) -> int | None:
    """The sequence number that an offset stands for; None if the offset is not this hub's."""
    match = _OFFSET_PATTERN.fullmatch(offset)
    return int(match[2]) if match and int(match[1]) == tag else None


def _payload(events: pa.RecordBatch) -> Payload:
    data = events.serialize()
    return Payload(len(events), data, crc32(data))


def _bounded(events: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if events.nbytes + len(events) * EVENT_OVERHEAD_BYTES <= BATCH_BYTES_MAX:
        yield events
        return
    ends = np.cumsum(_event_sizes(events) + EVENT_OVERHEAD_BYTES)
    start = 0
    while start < len(events):
        taken_bytes = int(ends[start - 1]) if start else 0
        # One event at least: each is far smaller than a batch.
        end = max(int(np.searchsorted(ends, taken_bytes + BATCH_BYTES_MAX, side="right")), start + 1)
        yield events.slice(start, end - start)
        start = end


def _event_sizes(events: pa.RecordBatch) -> npt.NDArray[np.int64]:
    body, key, properties = events.columns
    return _lengths(body) + _lengths(key) + _property_lengths(properties)


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = (
        pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _property_lengths(properties: pa.MapArray) -> npt.NDArray[np.int64]:
    pairs = np.zeros(len(properties.keys) + 1, np.int64)
    np.cumsum(_lengths(properties.keys) + _lengths(properties.items), out=pairs[1:])
    offsets = properties.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths: npt.NDArray[np.int64] = pairs[offsets[1:]] - pairs[offsets[:-1]]
    lengths[properties.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _groups(batches: Sequence[StoredBatch], count_max: int) -> list[list[StoredBatch]]:
    groups: list[list[StoredBatch]] = []
    left_count = 0
    for batch in batches:
        count = len(batch.events)
        if count <= left_count:
            groups[-1].append(batch)
            left_count -= count
        else:
            groups.append([batch])
            left_count = count_max - count
    return groups


def _concatenated(batches: Sequence[StoredBatch]) -> pa.RecordBatch:
    return pa.concat_batches([batch.events for batch in batches])


def _added_columns(partition: str, tag: int, batches: Sequence[StoredBatch]) -> list[pa.Array]:
    """The columns that the hub adds, for consecutive batches as a whole: partition, offset, sequence number, time."""
    if not batches:
        return []
    counts = [len(batch.events) for batch in batches]
    first_sequence, count = batches[0].first_sequence, sum(counts)
    return [
        _strings(np.tile(np.frombuffer(partition.encode(), np.uint8), (count, 1))),
        _strings(_offset_digits(tag, first_sequence, count)),
        _fixed(np.arange(first_sequence, first_sequence + count, dtype=np.int64), pa.int64()),
        _fixed(np.repeat(np.array([batch.enqueued_us for batch in batches], np.int64), counts), _TIME_TYPE),
    ]


def _offset_digits(tag: int, first_sequence: int, count: int) -> npt.NDArray[np.uint8]:
    """One row of digits for each of consecutive offsets.

    Consecutive numbers differ in their last four digits only, up to the next ten thousand: those come from a table.
    """
    digits = np.empty(count, _OFFSET_DIGITS)
    start = 0
    while start < count:
        high, low = divmod(first_sequence + start, len(_LAST_DIGITS))
        end = min(start + len(_LAST_DIGITS) - low, count)
        digits["leading"][start:end] = offset_text(tag, high * len(_LAST_DIGITS))[:-4].encode()
        digits["last"][start:end] = _LAST_DIGITS[low : low + end - start]
        start = end
    return digits.view(np.uint8).reshape(count, OFFSET_DIGITS)


def _strings(text: npt.NDArray[np.uint8]) -> pa.StringArray:
    """A string column from rows of equal width."""
    count, width = text.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))


def _fixed(values: npt.NDArray[np.int64], column_type: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(column_type, len(values), [None, pa.py_buffer(values)])
