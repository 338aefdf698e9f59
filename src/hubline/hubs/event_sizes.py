"""How large events to send are, and how they are divided into parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def event_sizes(events: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The bytes of each event's body, key and properties (:data:`~hubline.model.events.OUTGOING_SCHEMA`)."""
    body, key, properties = events.columns
    return _lengths(body) + _lengths(key) + _property_lengths(properties)


def parts_by_size(
    sizes: npt.NDArray[np.int64], *, max_bytes: int, max_events: int | None = None
) -> Iterator[tuple[int, int]]:
    """Where each part begins and ends. A part has one event at least, however large that is."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        taken_bytes = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, taken_bytes + max_bytes, side="right")), start + 1)
        if max_events is not None:
            end = min(end, start + max_events)
        yield start, end
        start = end


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = (
        pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _property_lengths(properties: pa.MapArray) -> npt.NDArray[np.int64]:
    if properties.null_count == len(properties):
        return np.zeros(len(properties), np.int64)
    pairs = np.zeros(len(properties.keys) + 1, np.int64)
    np.cumsum(_lengths(properties.keys) + _lengths(properties.items), out=pairs[1:])
    offsets = properties.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths: npt.NDArray[np.int64] = pairs[offsets[1:]] - pairs[offsets[:-1]]
    lengths[properties.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths
