"""What was learned of a hub and a store, before anything is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, GroupState


@dataclass(frozen=True, slots=True)
class HubFacts:
    """A hub that answered. ``unreadable`` maps partitions that did not to what they said instead."""

    properties: HubProperties
    held: Mapping[str, PartitionProperties]
    unreadable: Mapping[str, str]
    read_at: datetime


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """The store's time of day, and this machine's before and after asking for it."""

    asked_at: datetime
    store_time: datetime
    answered_at: datetime

    @property
    def skew_seconds(self) -> float:
        """How far the store is certainly ahead of this machine (negative: behind), whenever it looked at its clock."""
        earliest = (self.store_time - self.answered_at).total_seconds()
        latest = (self.store_time - self.asked_at).total_seconds()
        if earliest > 0:
            return earliest
        return min(latest, 0.0)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What a store keeps of a group. ``list_seconds`` is how long it took to list who owns what."""

    group: GroupKey
    state: GroupState
    checkpoints: Mapping[str, Checkpoint]
    list_seconds: float
    damaged_checkpoints: Mapping[str, str] = field(default_factory=dict)
    sdk_owners: frozenset[str] = frozenset()
    """Living owners that wrote their records with an official SDK."""
