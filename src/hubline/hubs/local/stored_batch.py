"""Consecutive events of one partition, as a hub keeps them and hands them on.

What their senders made is in columns. What the hub adds is stored once for all of them: sequence numbers follow from
the first, offsets from sequence numbers, and events that were sent together have one time. The columns of a reader are
made of it when the events are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.arrow_helpers import equal_offsets, repeated
from hubline.errors import EventTooLarge
from hubline.hubs.event_sizes import event_sizes, parts_by_size
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA, EventBatch

try:
    from zlib_ng.zlib_ng import crc32  # the extra "speed": ten times as fast, the same checksums
except ImportError:
    from zlib import crc32

SEQUENCE_DIGITS: Final = 13
"""Of a sequence number within an offset."""

# While batches are put together there are two copies of this much.
MERGED_BYTES_MAX: Final = 8 * 1024 * 1024

# Consecutive numbers differ in their last four digits only, up to the next ten thousand: those come from a table.
_LAST_DIGITS: Final = np.array([f"{number:04d}" for number in range(10_000)], "S4")

_TIME_TYPE: Final = EVENT_SCHEMA.field("enqueuedTime").type

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StoredBatch:
    """One event at least, and what the hub adds to them.

    An event's offset is ``offset_prefix`` and its sequence number in SEQUENCE_DIGITS digits. Each of ``times_us`` is
    that of as many events as ``counts`` says. ``made`` are the columns that senders made (OUTGOING_SCHEMA). ``whole``
    is the batch that this one is a part of, if it is.
    """

    partition: str
    first_sequence: int
    offset_prefix: str
    counts: Numbers
    times_us: Numbers
    made: pa.RecordBatch
    whole: StoredBatch | None = None

    @classmethod
    def concat(cls, parts: Sequence[StoredBatch]) -> StoredBatch:
        """Parts that follow each other, as one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            parts[0].partition,
            parts[0].first_sequence,
            parts[0].offset_prefix,
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.times_us for part in parts]),
            pa.concat_batches([part.made for part in parts]),
        )

    def __len__(self) -> int:
        return int(self.made.num_rows)

    def slice(self, start: int, count: int | None = None) -> StoredBatch:
        """Some of the events. What senders made is not copied."""
        made = self.made.slice(start, count)
        if len(made) == len(self):
            return self
        ends = np.clip(np.cumsum(self.counts) - start, 0, len(made))
        counts = np.concatenate((ends[:1], ends[1:] - ends[:-1]))
        return StoredBatch(
            self.partition,
            self.first_sequence + start,
            self.offset_prefix,
            counts[counts > 0],
            self.times_us[counts > 0],
            made,
            whole=self if self.whole is None else self.whole,
        )

    @cached_property
    def events(self) -> EventBatch:
        """The events, with a column for all that there is to know of them: made once for a whole and its parts."""
        if self.whole is not None:
            return self.whole.events.slice(self.first_sequence - self.whole.first_sequence, len(self))
        body, key, properties = self.made.columns
        count = len(self)
        columns = [
            body,
            repeated(self.partition, count),
            _strings(_offset_digits(self.offset_prefix, self.first_sequence, count)),
            _fixed(np.arange(self.first_sequence, self.first_sequence + count, dtype=np.int64), pa.int64()),
            _fixed(np.repeat(self.times_us, self.counts), _TIME_TYPE),
            key,
            properties,
        ]
        return EventBatch(self.partition, pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))


def merge_small(batches: Iterable[StoredBatch], *, max_count: int) -> Iterator[StoredBatch]:
    """The same events, in as few batches as have at most ``max_count`` and MERGED_BYTES_MAX, or are larger by
    themselves."""
    group: list[StoredBatch] = []
    left_count = left_bytes = 0
    for batch in batches:
        size = batch.made.get_total_buffer_size()
        if len(batch) > left_count or size > left_bytes:
            if group:
                yield StoredBatch.concat(group)
            group, left_count, left_bytes = [], max_count, MERGED_BYTES_MAX
        group.append(batch)
        left_count -= len(batch)
        left_bytes -= size
    if group:
        yield StoredBatch.concat(group)


def added_event_bytes(partition: str) -> int:
    """What the hub's own columns take of each event in memory: partition, offset, sequence number and time."""
    return 4 + len(partition) + 4 + len(offset_text(TAG_MIN, 0)) + 8 + 8


def offset_of(prefix: str, sequence: int) -> str:
    return f"{prefix}{sequence:0{SEQUENCE_DIGITS}d}"


def _offset_digits(prefix: str, first_sequence: int, count: int) -> npt.NDArray[np.uint8]:
    """The text of each of consecutive offsets, one a row."""
    width = len(offset_of(prefix, 0))
    digits = np.empty(count, [("leading", f"S{width - 4}"), ("last", "S4")])
    start = 0
    while start < count:
        high, low = divmod(first_sequence + start, len(_LAST_DIGITS))
        end = min(start + len(_LAST_DIGITS) - low, count)
        digits["leading"][start:end] = offset_of(prefix, high * len(_LAST_DIGITS))[:-4].encode()
        digits["last"][start:end] = _LAST_DIGITS[low : low + end - start]
        start = end
    return digits.view(np.uint8).reshape(count, width)


def _strings(text: npt.NDArray[np.uint8]) -> pa.StringArray:
    """A string column from rows of equal width."""
    count, width = text.shape
    return pa.StringArray.from_buffers(count, equal_offsets(width, count), pa.py_buffer(np.ascontiguousarray(text)))


def _fixed(values: Numbers, column_type: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(column_type, len(values), [None, pa.py_buffer(values)])


# As the service takes: body, key and properties together.
EVENT_BYTES_MAX: Final = 1024 * 1024

# A larger send is stored as several batches: the unit of reading and of retention stays small beside a reader's memory.
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024

# What an event takes beside its bytes (offsets and validity of three columns): bounds batches of empty events too.
EVENT_OVERHEAD_BYTES: Final = 16

# Offsets are 18 digits: strictly increasing both as text and as numbers, and within a signed 64-bit integer.
TAG_MIN: Final = 10_000
TAG_MAX: Final = 99_999
_OFFSET_PATTERN: Final = re.compile(rf"([1-9][0-9]{{4}})([0-9]{{{SEQUENCE_DIGITS}}})", re.ASCII)


class PayloadDamaged(Exception):
    """A stored payload is not what was written. The text says how."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A batch as it is stored."""

    count: int
    data: pa.Buffer
    checksum: int


def require_sizes(events: pa.RecordBatch, *, hub: str) -> None:
    """Refuses events that are larger than a hub takes."""
    if events.nbytes <= EVENT_BYTES_MAX:  # then none can be; the usual case costs nothing
        return
    sizes = event_sizes(events)
    largest = int(np.argmax(sizes))
    if sizes[largest] > EVENT_BYTES_MAX:
        index = int(np.argmax(sizes > EVENT_BYTES_MAX))
        raise EventTooLarge(
            f"event {index} of {len(events)} has {sizes[index]:,} bytes (body, key and properties): "
            f"hub {hub} takes at most {EVENT_BYTES_MAX:,}. Nothing was sent. Split the event.",
            hub=hub,
            index=index,
            bytes_count=int(sizes[index]),
            max_bytes=EVENT_BYTES_MAX,
        )


def encode(events: pa.RecordBatch) -> list[Payload]:
    """The batches to store, in order, each of bounded size."""
    return [_payload(part) for part in _bounded(events)]


def decode(data: pa.Buffer, *, count: int, checksum: int) -> pa.RecordBatch:
    """The events of a payload, which they share. Raises PayloadDamaged."""
    # The checksum also guards the process: Arrow trusts the offsets inside a payload.
    require_intact((data,), checksum)
    try:
        events = pa.ipc.read_record_batch(data, OUTGOING_SCHEMA)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise PayloadDamaged(str(error)) from error
    if len(events) != count:
        raise PayloadDamaged(f"it holds {len(events)} events instead of {count}")
    return events


def require_intact(pieces: Iterable[pa.Buffer | bytes], checksum: int) -> None:
    """Raises PayloadDamaged if the pieces of a payload are not what was written."""
    found = bytes_count = 0
    for piece in pieces:
        found = crc32(piece, found)
        bytes_count += len(piece)
    if found != checksum:
        raise PayloadDamaged(f"its {bytes_count:,} bytes do not match their checksum")


def offset_text(tag: int, sequence: int) -> str:
    """An event's offset: the tag of the hub's incarnation, then the sequence number."""
    return offset_of(str(tag), sequence)


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
    for start, end in parts_by_size(event_sizes(events) + EVENT_OVERHEAD_BYTES, max_bytes=BATCH_BYTES_MAX):
        yield events.slice(start, end - start)
