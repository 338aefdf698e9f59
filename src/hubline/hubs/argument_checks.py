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


def checked_outgoing(events: pa.RecordBatch) -> pa.RecordBatch:
    """The columns to send, as a hub takes them. Columns that are said to be nullable are taken, too."""
    is_as_sent = events.schema.equals(OUTGOING_SCHEMA)  # nearly always
    if not is_as_sent and _columns(events.schema) != _columns(OUTGOING_SCHEMA):
        raise ConfigError(
            f"events to send need the columns ({_columns(OUTGOING_SCHEMA)}), not ({_columns(events.schema)}). "
            "Make them with hubline.new_events, or cast them to hubline.model.events.OUTGOING_SCHEMA."
        )
    if events.column("body").null_count:
        index = pc.index(events.column("body").is_null(), True).as_py()
        raise ConfigError(f"the body of event {index} is null. Give bytes, which may be empty.")
    return events if is_as_sent else pa.RecordBatch.from_arrays(events.columns, schema=OUTGOING_SCHEMA)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def require_partition(partition: str, there: HubProperties, *, hub: str) -> None:
    """Refuses what is not a partition of the hub, also what could be mistaken for another id, or for none."""
    ids = there.partition_ids
    if partition not in ids:
        raise PartitionNotFound(
            f"hub {hub} has no partition {partition!r}: it has {ids[0]} to {ids[-1]}. Choose one of these.",
            hub=hub,
            partition=partition,
        )
