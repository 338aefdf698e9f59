"""What a hub says of itself and of its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class HubProperties:
    """What a hub is."""

    namespace: str
    name: str
    partition_ids: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PartitionProperties:
    """What a partition holds: an empty one has ``begin_sequence == last_sequence + 1``.

    ``last_sequence`` and ``last_offset`` are of the newest event that there ever was, also if retention removed it:
    -1 and None where there was none.
    """

    partition: str
    begin_sequence: int
    last_sequence: int
    last_offset: str | None
    last_enqueued_time: datetime | None
    bytes_count: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.begin_sequence > self.last_sequence
