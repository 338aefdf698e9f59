"""How events are laid out as they are stored, and their offsets as text.

A stored payload is one Arrow IPC record batch message of ``OUTGOING_SCHEMA``. The schema is fixed, so no schema message
goes with it. What the hub adds (partition, offset, sequence number, time) is not stored per event: it follows from the
batch's first sequence number and its time (:mod:`hubline.stretches`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng.zlib_ng import crc32  # ten times as fast as zlib's

from hubline.errors import EventTooLarge
from hubline.model import OUTGOING_SCHEMA
from hubline.stretches import SEQUENCE_DIGITS, offset_of

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


def offset_text(tag: int, sequence: int) -> str:
    """An event's offset: the tag of the hub's life, then the sequence number."""
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
