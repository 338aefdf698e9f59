"""What every hub refuses of its callers, in the same words."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hubline.errors import ConfigError, PartitionNotFound
from hubline.model.events import OUTGOING_SCHEMA
from hubline.model.hubs import HubProperties


def require_count(max_count: int) -> None:
    """Refuses to receive nothing."""
    if max_count < 1:
        raise ConfigError(f"max_count must be 1 or more, not {max_count}.")


def require_one_target(partition: str | None, partition_key: str | None) -> None:
    """Refuses to send to two places."""
    if partition is not None and partition_key is not None:
        raise ConfigError(
            "both a partition and a partition key are given, but the key chooses the partition. Give only one of them."
        )


def require_outgoing(events: pa.RecordBatch) -> None:
    """Refuses columns that a hub cannot take."""
    if not events.schema.equals(OUTGOING_SCHEMA):
        raise ConfigError(
            f"events to send need the columns of OUTGOING_SCHEMA ({', '.join(OUTGOING_SCHEMA.names)}), "
            f"not {events.schema.names}. Make them with hubline.new_events."
        )
    if events.column("body").null_count:
        index = pc.index(events.column("body").is_null(), True).as_py()
        raise ConfigError(f"the body of event {index} is null. Give bytes, which may be empty.")


def require_partition(partition: str, there: HubProperties, *, hub: str) -> None:
    """Refuses what is not a partition of the hub, also what could be mistaken for another id, or for none."""
    ids = there.partition_ids
    if partition not in ids:
        raise PartitionNotFound(
            f"hub {hub} has no partition {partition!r}: it has {ids[0]} to {ids[-1]}. Choose one of these.",
            hub=hub,
            partition=partition,
        )
