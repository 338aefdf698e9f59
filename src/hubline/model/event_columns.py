"""The columns of a batch as the values of its events: made when they are read, a column at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise, repeat
from typing import Final

import numpy as np
import pyarrow as pa

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EventColumns:
    """Of the columns that few handlers read. The values of a column are found by the place of the event."""

    __slots__ = ("_arrow", "_dictionaries", "_micros", "_offsets")

    def __init__(self, arrow: pa.RecordBatch) -> None:
        # Not the batch: an event that is kept must not keep the bodies of all others.
        self._arrow: pa.RecordBatch = arrow.select(("offset", "enqueuedTime", "properties"))
        self._offsets: list[str] | None = None
        self._micros: list[int] | None = None
        self._dictionaries: list[dict[str, str]] | None = None

    def offset(self, index: int) -> str:
        if self._offsets is None:
            self._offsets = self._arrow.column("offset").to_pylist()
        return self._offsets[index]

    def enqueued_time(self, index: int) -> datetime:
        if self._micros is None:
            self._micros = self._arrow.column("enqueuedTime").cast(pa.int64()).to_numpy().tolist()
        return _EPOCH + timedelta(microseconds=self._micros[index])

    def properties(self, index: int) -> dict[str, str]:
        if self._dictionaries is None:
            self._dictionaries = dictionaries(self._arrow.column("properties"))
        return self._dictionaries[index]


def dictionaries(maps: pa.MapArray) -> list[dict[str, str]]:
    """Maps of texts as dictionaries, an empty one for none. Names that repeat are the same objects."""
    if maps.null_count == len(maps):
        return [{} for _ in range(len(maps))]
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
