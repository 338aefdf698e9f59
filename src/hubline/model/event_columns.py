"""The columns of a batch as the values of its events: made when they are read, a column at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EventColumns:
    """Of the columns that few handlers read.

    Attributes:
        offset: Their values, in order, once `made` was called with the name; until then None.
        enqueued_time: The same.
        properties: The same.
    """

    __slots__ = ("_arrow", "enqueued_time", "offset", "properties")

    def __init__(self, arrow: pa.RecordBatch) -> None:
        # Not the batch: an event that is kept must not keep the bodies of all others.
        few = arrow.select(("offset", "enqueuedTime", "properties"))
        self._arrow: pa.RecordBatch = pa.concat_batches([few]) if _is_cut_out(few) else few
        self.offset: list[str] | None = None
        self.enqueued_time: list[datetime] | None = None
        self.properties: list[dict[str, str]] | None = None

    def made(self, name: str) -> list[Any]:
        """The values of a column."""
        values: list[Any] = _MAKE[name](self._arrow)
        setattr(self, name, values)
        return values


def _is_cut_out(arrow: pa.RecordBatch) -> bool:
    """Whether it keeps more in memory than itself, such as the message that it was read from."""
    return any(buffer is not None and buffer.parent is not None for each in arrow.columns for buffer in each.buffers())


def _offsets(arrow: pa.RecordBatch) -> list[str]:
    offsets: list[str] = arrow.column("offset").to_pylist()
    return offsets


def _times(arrow: pa.RecordBatch) -> list[datetime]:
    micros = arrow.column("enqueuedTime").cast(pa.int64()).to_numpy().tolist()
    return [_EPOCH + timedelta(microseconds=each) for each in micros]


def _properties(arrow: pa.RecordBatch) -> list[dict[str, str]]:
    return dictionaries(arrow.column("properties"))


_MAKE: Final[Mapping[str, Callable[[pa.RecordBatch], list[Any]]]] = {
    "offset": _offsets,
    "enqueued_time": _times,
    "properties": _properties,
}


def dictionaries(maps: pa.MapArray) -> list[dict[str, str]]:
    """Maps of texts as dictionaries, an empty one for none. Names that repeat are the same objects."""
    if maps.null_count == len(maps):
        return [{} for _ in range(len(maps))]
    found = _of_all(maps)
    if maps.null_count:
        for place in np.flatnonzero(maps.is_null()).tolist():
            found[place] = {}  # Arrow may keep entries under what is null
    return found


def _of_all(maps: pa.MapArray) -> list[dict[str, str]]:
    """Of those that are null, too: whatever is there."""
    offsets = maps.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys, values = maps.keys.slice(first, last - first), maps.items.slice(first, last - first).to_pylist()
    sizes = np.diff(offsets)
    width = int(sizes[0])
    if width and (sizes == width).all() and keys[width:].equals(keys[:-width]):
        shared = keys[:width].to_pylist()  # those of all events, in one order: the usual case
        return list(map(dict, map(zip, repeat(shared), zip(*[iter(values)] * width, strict=True))))
    encoded = keys.dictionary_encode()
    known = encoded.dictionary.to_pylist()
    names = [known[place] for place in encoded.indices.to_numpy().tolist()]
    pairs = list(zip(names, values, strict=True))
    bounds = (offsets - first).tolist()
    return [dict(pairs[begin:end]) for begin, end in pairwise(bounds)]
