"""Facts about a hub and a store, which the checks compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, GroupState


@dataclass(frozen=True, slots=True)
class HubFacts:
    """A hub that answered. ``unreadable`` maps partitions that could not be read to the reason."""

    properties: HubProperties
    held: Mapping[str, PartitionProperties]
    unreadable: Mapping[str, str]
    read_at: datetime


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """The time of the store, and that of this machine before and after the request."""

    asked_at: datetime
    store_time: datetime
    answered_at: datetime

    @property
    def skew_seconds(self) -> float:
        """How far the store is at least ahead of this machine (negative: behind), whenever it read its clock."""
        earliest = (self.store_time - self.answered_at).total_seconds()
        latest = (self.store_time - self.asked_at).total_seconds()
        if earliest > 0:
            return earliest
        return min(latest, 0.0)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The records of a group in a store. ``list_seconds`` is how long it took to list the owners."""

    group: GroupKey
    state: GroupState
    checkpoints: Mapping[str, Checkpoint]
    list_seconds: float
    damaged_checkpoints: Mapping[str, str] = field(default_factory=dict)
    sdk_owners: frozenset[str] = frozenset()
    """Active owners that wrote their records with an official SDK."""
