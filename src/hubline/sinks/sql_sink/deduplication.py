"""Which events a sink has already: by the ids that an earlier stage gave them (:mod:`hubline.event_ids`).

A stage that is run again after a crash publishes again what it had published, with the same ids. Where the events of
one origin partition arrive in order, as they do when a stage keeps partitions or keys together, the highest id says
it all: an event that is not above it is a duplicate. Where stages shuffle, each id is kept for a while.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.event_ids import ID_PROPERTY, ids_of, is_id
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey, PartitionKey
from hubline.sql.checkpoint_rows import of_group, of_partition
from hubline.sql.dialect import Connection, Statement
from hubline.sql.queries import Queries

Flags: TypeAlias = npt.NDArray[np.bool_]

HighWaterMarks: TypeAlias = Mapping[str, tuple[int, int]]
"""By origin partition, ``ORIGIN/PARTITION``: the sequence number and the index of the highest id that was taken."""


# What PostgreSQL cannot keep, though it may arrive: what has it, or is longer, is not an id. Its indexes take rows of
# 2,704 bytes; this leaves room for the hub and the group beside the id, and is more than any hub's address has.
_ZERO = "\x00"
_ID_BYTES_MAX = 2_000
_NUMBER_END = 10**18
_NAME = ID_PROPERTY.encode()
_ID = re.compile(r"([^\n]+)/(0|[1-9][0-9]{0,17})/(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Which of some events are new, and what to remember once they are committed."""

    is_fresh: Flags
    marks: HighWaterMarks
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeduplicatedBatch:
    """A batch without the events that were there already, and what to remember once it is committed."""

    batch: EventBatch
    marks: HighWaterMarks
    ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, batch: EventBatch, deduplication: Deduplication) -> Self:
        if not deduplication.is_fresh.all():
            batch = EventBatch(batch.partition, batch.arrow.filter(pa.array(deduplication.is_fresh)))
        return cls(batch, deduplication.marks, deduplication.ids)


def deduplicate_ordered(properties: pa.MapArray, marks: HighWaterMarks) -> Deduplication:
    """Leaves out events whose ids are not above the mark of their origin partition, or repeat within the batch."""
    ids = _ids(properties)
    fresh = np.ones(len(ids), np.bool_)
    if ids.null_count == len(ids):
        return Deduplication(fresh, {})
    if (plain := _plain(ids)) is not None:
        origin, numbers, index = plain
        is_fresh = _rising(numbers, np.full(len(numbers), index), marks.get(origin, (-1, -1)))
        if is_fresh.all():
            return Deduplication(is_fresh, {origin: (int(numbers[-1]), index)})
    origins, sequences, indexes, places = _parts(ids)
    risen: dict[str, tuple[int, int]] = {}
    for code, origin in enumerate(origins.dictionary.to_pylist()):
        if not _is_kept(origin):
            continue
        mine = np.flatnonzero(origins.indices.to_numpy() == code)
        known = marks.get(origin, (-1, -1))
        is_fresh = _rising(sequences[mine], indexes[mine], known)
        fresh[places[mine[~is_fresh]]] = False
        if is_fresh.any():
            last = mine[np.flatnonzero(is_fresh)[-1]]
            risen[origin] = (int(sequences[last]), int(indexes[last]))
    return Deduplication(fresh, risen)


def deduplicate_known(ids: Sequence[str | None], known: set[str]) -> Deduplication:
    """Leaves out events whose ids are known, or repeat within the batch."""
    fresh = np.ones(len(ids), np.bool_)
    seen = set(known)
    added: list[str] = []
    for place, one in enumerate(ids):
        if one is None:
            continue
        if one in seen:
            fresh[place] = False
        else:
            seen.add(one)
            added.append(one)
    return Deduplication(fresh, {}, tuple(sorted(added)))


def ids_in(properties: pa.MapArray) -> list[str | None]:
    """The id of each event, where it has one: what is not an id, or has what no database keeps, is not a duplicate."""
    ids = ids_of(properties)
    is_short = pc.less_equal(pc.binary_length(ids), _ID_BYTES_MAX)
    is_kept = pc.and_not(pc.and_(is_id(ids), is_short), pc.match_substring(ids, _ZERO))
    kept: list[str | None] = pc.if_else(is_kept, ids, None).to_pylist()
    return kept


def _is_kept(text: str) -> bool:
    """Whether every database can keep it."""
    return _ZERO not in text and len(text.encode()) <= _ID_BYTES_MAX


class IdTable:
    """The ids that a sink has taken, by one of its connections."""

    def __init__(self, connection: Connection, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries

    def read_marks(self, key: PartitionKey) -> HighWaterMarks:
        rows: Any = self._connection.read(Statement(self._queries.read_origins, of_partition(key)))
        return {origin: (sequence, index) for origin, sequence, index in rows}

    def mark_statements(self, key: PartitionKey, marks: HighWaterMarks) -> Iterator[Statement]:
        """What writes marks, with the commit that they belong to."""
        for origin, (sequence, index) in marks.items():
            params = {**of_partition(key), "origin": origin, "sequence_number": sequence, "output_index": index}
            yield Statement(self._queries.write_origin, params)

    def known(self, group: GroupKey, ids: Sequence[str]) -> set[str]:
        """Which of these ids a consumer group has."""
        params = {**of_group(group), "texts": json.dumps(ids)}
        return {str(known) for (known,) in self._connection.read(Statement(self._queries.known_ids, params))}

    def add(self, group: GroupKey, ids: Sequence[str]) -> int:
        """Adds ids; returns how many of them were not there yet."""
        params = {**of_group(group), "texts": json.dumps(ids)}
        return len(self._connection.read(Statement(self._queries.add_ids, params)))

    def forget(self, group: GroupKey, *, age_seconds_max: float) -> None:
        params = {**of_group(group), "age_seconds_max": age_seconds_max}
        self._connection.read(Statement(self._queries.forget_ids, params))


Numbers: TypeAlias = npt.NDArray[np.int64]


def _ids(properties: pa.MapArray) -> pa.StringArray:
    """The ids of the events; at a fraction of the cost where each has just this one property, as most have."""
    first, last = properties.offsets[0].as_py(), properties.offsets[-1].as_py()
    if not properties.null_count and last - first == len(properties):
        names = _characters(properties.keys.slice(first, len(properties)))
        is_one_each = np.all(np.diff(properties.offsets.to_numpy()) == 1)
        if is_one_each and names is not None and names[0].tobytes() == _NAME and not (names - names[0]).any():
            return properties.items.slice(first, len(properties))
    return ids_of(properties)


def _plain(ids: pa.StringArray) -> tuple[str, Numbers, int] | None:
    """The usual batch at a fraction of the cost: ids of one length that differ in their sequence numbers alone."""
    if ids.null_count or not (match := _ID.fullmatch(ids[0].as_py())) or (characters := _characters(ids)) is None:
        return None
    origin, number, index = match.groups()
    if not _is_kept(origin):
        return None
    first = len(origin.encode()) + 1
    place = slice(first, first + len(number))
    digits = characters[:, place] - np.uint8(ord("0"))
    differences = characters - characters[0]
    differences[:, place] = 0
    if differences.any() or digits.max() > 9 or (len(number) > 1 and not digits[:, 0].all()):
        return None
    return origin, digits @ 10 ** np.arange(len(number) - 1, -1, -1, dtype=np.int64), int(index)


def _characters(texts: pa.StringArray) -> npt.NDArray[np.uint8] | None:
    """The bytes of texts that are all of one length, a row each; None if they are not."""
    _, bounds, data = texts.buffers()
    if texts.type != pa.string() or not len(texts) or data is None:
        return None
    offsets = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    length = offsets[1] - offsets[0]
    if not length or not np.all(np.diff(offsets) == length):
        return None
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].reshape(-1, length)


def _parts(ids: pa.StringArray) -> tuple[pa.DictionaryArray, Numbers, Numbers, Numbers]:
    """The origin partition, sequence number and index of each id, and its place among the events.

    What is not an id, though it stands where one should, is not a duplicate: it is left out here, and passes.
    """
    try:
        return _split(ids, is_checked=False)
    except (pa.ArrowInvalid, ValueError):
        return _split(ids, is_checked=True)


def _split(ids: pa.StringArray, *, is_checked: bool) -> tuple[pa.DictionaryArray, Numbers, Numbers, Numbers]:
    is_one = pc.fill_null(is_id(ids), False) if is_checked else ids.is_valid()
    places = np.flatnonzero(is_one.to_numpy(zero_copy_only=False))
    ids = ids.filter(is_one) if len(places) < len(ids) else ids
    # A third of the time that the general way takes, which looks at every character.
    pieces = pc.split_pattern(ids, "/", max_splits=2, reverse=True)
    flat = pieces.flatten()
    if len(flat) != 3 * len(ids):
        raise ValueError("not all of these are ids")
    firsts = np.arange(0, len(flat), 3)
    origins, sequences, indexes = (flat.take(pa.array(firsts + number)) for number in range(3))
    return origins.dictionary_encode(), _numbers(sequences), _numbers(indexes), places


def _numbers(texts: pa.StringArray) -> Numbers:
    """Raises ValueError, or ArrowInvalid, unless each is a number as an id has it: none of 07, -7 or 7e3."""
    column = texts.cast(pa.int64())
    numbers = np.asarray(column.to_numpy(), np.int64)
    is_written_so = pc.all(pc.equal(column.cast(pa.string()), texts), min_count=0).as_py()
    if not is_written_so or np.any((numbers < 0) | (numbers >= _NUMBER_END)):
        raise ValueError("not all of these are numbers")
    return numbers


def _rising(sequences: Numbers, indexes: Numbers, known: tuple[int, int]) -> Flags:
    """Which ids are above all before them, the known one included."""
    sequences = np.concatenate([[known[0]], sequences])
    indexes = np.concatenate([[known[1]], indexes])
    steps = (sequences[1:] > sequences[:-1]) | ((sequences[1:] == sequences[:-1]) & (indexes[1:] > indexes[:-1]))
    if np.all(steps):
        return np.asarray(steps, np.bool_)
    order = np.lexsort((indexes, sequences))
    ordered = np.stack([sequences[order], indexes[order]])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.concatenate([[0], np.cumsum((ordered[:, 1:] != ordered[:, :-1]).any(axis=0))])
    highest = np.maximum.accumulate(ranks)
    return np.asarray(ranks[1:] > highest[:-1], np.bool_)
