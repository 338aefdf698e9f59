"""The identity of an event that a stage published: which event it came from, written so that a replay writes the same.

An id is ``ORIGIN/PARTITION/SEQUENCE/INDEX``: the hub that the event was first read from, its partition and sequence
number there, and its place among what was made of it (0 if that was one event). It travels as the application property
`ID_PROPERTY`. Ids of one origin partition are ordered by sequence number and index; a reader that keeps the
highest it has, of what arrives in that order, recognizes every duplicate.

All work is on whole columns.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hubline.errors import ConfigError
from hubline.model.hubs import HubProperties

ID_PROPERTY: Final = "hubline-id"
"""The application property that carries the id."""

OUTPUTS_MAX: Final = 1_000_000
"""What a later stage may make of one event: three such stages in a row fit into the 18 digits of an index."""

ID_COLUMNS: Final = pa.schema(
    [
        pa.field("origin", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("sequenceNumber", pa.int64()),
        pa.field("index", pa.int64()),
    ]
)
"""What an id is made of, as `split_ids` gives it."""

# 18 digits always fit into 64 bits, and no hub ever counts further.
_NUMBER: Final = "0|[1-9][0-9]{0,17}"
_PATTERN: Final = f"^(?P<origin>[^\\n]+)/(?P<partition>[^/\\n]+)/(?P<sequenceNumber>{_NUMBER})/(?P<index>{_NUMBER})\\z"
_ID_SHOWN_LENGTH_MAX: Final = 80

ID_PATTERN: Final = re.sub(r"\?P<\w+>", "", _PATTERN)
"""What an id looks like, for Arrow and for Java, which spells the names of groups otherwise."""

Text: TypeAlias = pa.StringArray | str
Numbers: TypeAlias = pa.Int64Array | int

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def origin_of(hub: HubProperties) -> str:
    """Return the hub as event ids name it: `NAMESPACE/HUB@CREATED`, with the time in milliseconds.

    A hub that was deleted and re-created counts from 0 again. It is another origin: otherwise its events would look
    like duplicates of the old ones.

    Args:
        hub: What `Hub.describe` returns.
    """
    return f"{hub.namespace}/{hub.name}@{(hub.created_at - _START) // timedelta(milliseconds=1)}"


def event_ids(origin: str, partition: Text, sequence: Numbers, index: Numbers = 0) -> pa.StringArray:
    """Make the ids of events from where they were read. A null in any column gives a null.

    Args:
        origin: The hub, as `origin_of` gives it: one value, or one for each event.
        partition: The id of the partition: one value, or one for each event.
        sequence: The sequence numbers.
        index: Which of the events that were made of that one it is. Default: 0.
    """
    return pc.binary_join_element_wise(origin, partition, _as_text(sequence), _as_text(index), "/")


def derived_ids(ids: pa.StringArray, place: Numbers) -> pa.StringArray:
    """Make the ids of several events that a stage made of events with ids.

    They stay in order, and the events made of one are in the order of their places.

    Args:
        ids: The ids of the events that were read.
        place: Which of the events that were made of that one it is, from 0.

    Raises:
        ConfigError: A place is too large, or a text is not an id.
    """
    if pc.any(pc.greater_equal(pa.array([place]) if isinstance(place, int) else place, OUTPUTS_MAX)).as_py():
        raise ConfigError(
            f"one event can become at most {OUTPUTS_MAX:,} events. Split the work between two handlers or stages."
        )
    parts = split_ids(ids)
    index = pc.add_checked(pc.multiply_checked(parts.column("index"), OUTPUTS_MAX), place)
    columns = [parts.column("origin"), parts.column("partition"), _as_text(parts.column("sequenceNumber"))]
    return pc.binary_join_element_wise(*columns, _as_text(index), "/")


def is_id(ids: pa.StringArray) -> pa.BooleanArray:
    """Which of the texts are ids; null where there is none."""
    return pc.match_substring_regex(ids, _PATTERN)


def split_ids(ids: pa.StringArray) -> pa.RecordBatch:
    """What the ids are made of (`ID_COLUMNS`), nulls for a null. Raises ConfigError for what is not an id."""
    parts = pc.extract_regex(ids, _PATTERN)
    _require_ids(ids, parts)
    columns = [pc.struct_field(parts, [place]).cast(field.type) for place, field in enumerate(ID_COLUMNS)]
    return pa.RecordBatch.from_arrays(columns, schema=ID_COLUMNS)


def ids_of(properties: pa.MapArray) -> pa.StringArray:
    """Return the ids that events carry in their properties, null where they carry none.

    Args:
        properties: The column `properties` of a batch.
    """
    if not _carries_ids(properties):
        return pa.nulls(len(properties), pa.string())
    return pc.map_lookup(properties, ID_PROPERTY, "last")


def with_ids(properties: pa.MapArray, ids: pa.StringArray) -> pa.MapArray:
    """The properties with the ids in them, in place of such as are there; a null id leaves an event's as they are."""
    if ids.null_count == len(ids):
        return properties
    if _carries_ids(properties):
        properties = _without_ids(properties, ids.is_valid())
    starts, keys, items = _entries(properties)
    has_id = ids.is_valid().to_numpy(zero_copy_only=False)
    own = ids.drop_null()
    # Behind the entries of each event that has an id stands that id, taken from the end of all entries.
    places = np.insert(np.arange(len(keys)), starts[1:][has_id], len(keys) + np.arange(len(own)))
    ends = starts + np.concatenate([[0], np.cumsum(has_id)])
    names = pa.repeat(pa.scalar(ID_PROPERTY, keys.type), len(own))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.concat_arrays([keys, names]).take(pa.array(places)),
        pa.concat_arrays([items, own.cast(items.type)]).take(pa.array(places)),
    )


def _carries_ids(properties: pa.MapArray) -> bool:
    return bool(pc.any(pc.equal(_entries(properties)[1], ID_PROPERTY)).as_py())


def _without_ids(properties: pa.MapArray, where: pa.BooleanArray) -> pa.MapArray:
    """The properties without the ids of the events in question."""
    starts, keys, items = _entries(properties)
    counts = np.diff(starts)
    is_theirs = np.repeat(where.to_numpy(zero_copy_only=False), counts)
    is_kept = ~(pc.equal(keys, ID_PROPERTY).to_numpy(zero_copy_only=False) & is_theirs)
    kept_before = np.concatenate([[0], np.cumsum(is_kept)])
    mask = pa.array(is_kept)
    return pa.MapArray.from_arrays(pa.array(kept_before[starts], pa.int32()), keys.filter(mask), items.filter(mask))


def filled(properties: pa.MapArray) -> pa.MapArray:
    """The properties with an empty map in place of each null."""
    if not properties.null_count:
        return properties
    counts = np.diff(properties.offsets.to_numpy())
    if counts[properties.is_null().to_numpy(zero_copy_only=False)].any():  # what lies under a null is not there
        return pc.if_else(properties.is_valid(), properties, pa.scalar([], properties.type))
    return pa.MapArray.from_arrays(properties.offsets, properties.keys, properties.items, properties.type)


def _entries(properties: pa.MapArray) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.Array, pa.Array]:
    """Where the entries of each event start, the last end included, and all keys and values; a null map has none."""
    flat = filled(properties)
    offsets = flat.offsets.to_numpy().astype(np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    return offsets - first, flat.keys.slice(first, count), flat.items.slice(first, count)


def _as_text(numbers: Numbers) -> Text:
    return str(numbers) if isinstance(numbers, int) else numbers.cast(pa.string())


def _require_ids(ids: pa.StringArray, parts: pa.StructArray) -> None:
    row = pc.index(pc.and_(ids.is_valid(), parts.is_null()), True).as_py()
    if row >= 0:
        shown = ascii(ids[row].as_py())[:_ID_SHOWN_LENGTH_MAX]
        raise ConfigError(
            f"the id {shown} (row {row}) is not ORIGIN/PARTITION/SEQUENCE/INDEX. Make ids with hubline.event_ids."
        )
