"""Which partition an event goes to, where its sender names none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.event_ids import ids_of, is_id, split_ids
from hubline.hubs.partition_hash import partition_indexes, partition_targets

Indexes: TypeAlias = npt.NDArray[np.int64]

ANYWHERE: Final = -1
"""The target of an event that may go to any partition: the hub chooses."""


def targets_of(keys: pa.StringArray, properties: pa.MapArray, partition_count: int) -> Indexes:
    """The index of each event's partition: that of its key; without one, that of its id's origin; or ANYWHERE."""
    targets = partition_targets(keys, partition_count, keyless=ANYWHERE)
    if keys.null_count == 0 or properties.null_count == len(properties):
        return targets
    ids = ids_of(properties)
    if ids.null_count < len(ids):
        is_left = (targets == ANYWHERE) & is_id(ids).fill_null(False).to_numpy(zero_copy_only=False)
        if is_left.any():
            targets[is_left] = _by_origin(ids.filter(pa.array(is_left)), partition_count)
    return targets


def _by_origin(ids: pa.StringArray, partition_count: int) -> Indexes:
    """One partition for all that came from one partition of another hub.

    Who sends an event a second time must put it where it was: a reader would otherwise meet it in two partitions.
    """
    origin = split_ids(ids).column("partition")
    is_number = pc.match_substring_regex(origin, "^[0-9]{1,18}$").to_numpy(zero_copy_only=False)
    numbers = pc.if_else(pa.array(is_number), origin, "0").cast(pa.int64()).to_numpy() % partition_count
    return np.where(is_number, numbers, partition_indexes(origin, partition_count))


def parts_of(targets: Indexes, partition_ids: Sequence[str]) -> Iterator[tuple[str | None, Indexes]]:
    """The partitions that events go to (None: any), and the places of their events, in order."""
    for target in np.unique(targets).tolist():
        yield None if target == ANYWHERE else partition_ids[target], np.flatnonzero(targets == target)


def taken(events: pa.RecordBatch, places: Indexes) -> pa.RecordBatch:
    """The events at these places."""
    return events if len(places) == len(events) else events.take(pa.array(places))
