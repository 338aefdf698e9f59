"""What a checkpoint store holds: owners, members and checkpoints."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from hubline.errors import ConfigError
from hubline.model.keys import PartitionKey
from hubline.model.positions import Position

_BEFORE_ALL: Final = "-1"
"""The offset before all that a partition holds, as the SDKs have it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last event of a partition that is done. Reading resumes after it.

    Of what others wrote one of the two may not be known: an empty offset, or a sequence number of -1.
    """

    key: PartitionKey
    offset: str
    sequence_number: int

    def __post_init__(self) -> None:
        if not self.offset and self.sequence_number < 0:
            raise ConfigError(f"a checkpoint must have an offset or a sequence number ({self.key}).")
        if self.sequence_number < -1:
            raise ConfigError(f"a checkpoint's sequence number must not be negative ({self.key}).")

    @classmethod
    def before_first(cls, key: PartitionKey) -> Checkpoint:
        """Nothing is done yet, and everything from the first event on is to be done: offset -1, as the SDKs have it."""
        return cls.before_oldest(key, 0)

    @classmethod
    def before_oldest(cls, key: PartitionKey, sequence_number: int) -> Checkpoint:
        """Everything from the oldest event on is to be done. The one before it is gone, and nobody knows its offset."""
        return cls(key, _BEFORE_ALL, sequence_number - 1)

    @property
    def is_before_oldest(self) -> bool:
        """Whether everything that the partition held when it was written is to be done."""
        return self.offset == _BEFORE_ALL

    @property
    def resume(self) -> Position:
        """Just after the checkpointed event."""
        if self.offset and not self.is_before_oldest:
            return Position.offset(self.offset)
        return Position.sequence(self.sequence_number)

    @property
    def last_sequence(self) -> int | None:
        """The sequence number, -1 before the first event; None if it is not known."""
        is_known = self.sequence_number >= 0 or self.is_before_oldest
        return self.sequence_number if is_known else None

    def is_ahead_of(self, other: Checkpoint) -> bool:
        """Whether it is further on. One whose sequence number is not known was read before anything else was done."""
        return other.last_sequence is None or self.sequence_number > other.sequence_number


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns a partition, as a store listed it.

    ``owner_id`` is empty for a released partition. ``version`` changes with every write, and a claim
    holds only if it names the current one. ``epoch`` rises by one with every change of owner and fences what the
    former owner writes. ``age_seconds`` is by the store's own clock. ``requested_by`` requests a handover.
    """

    key: PartitionKey
    owner_id: str
    epoch: int
    version: str | None = None
    age_seconds: float = 0.0
    requested_by: str | None = None
    request_age_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise ConfigError(f"an epoch must not be negative ({self.key}).")


@dataclass(frozen=True, slots=True)
class Member:
    """A processor that is there, with or without partitions. ``max_partitions`` is None for no limit."""

    owner_id: str
    max_partitions: int | None = None
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupState:
    """Who reads a group, as a store knows it. ``damaged`` maps partitions to what is wrong with their record.

    ``is_partial``: requests are missing, and of the members there are only those that own something. Both would only
    make a share smaller: a member that has nothing to do by a partial state has nothing to do by a complete one.
    """

    ownerships: tuple[Ownership, ...]
    members: tuple[Member, ...]
    damaged: Mapping[str, str] = field(default_factory=dict)
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of a renewal: the records that were renewed, with their requests.

    ``group`` is for stores that have to list the group to renew: then nobody has to list it once more. It may be
    partial, but not if somebody requested a partition of the member that renews.
    """

    renewed: list[Ownership]
    group: GroupState | None = None


@dataclass(frozen=True, slots=True)
class StoreExamination:
    """What a store shows to who looks for faults: its own time of day, and the checkpoints that do not read back.

    ``damaged`` maps partitions to what is wrong with their checkpoint, and how to fix it.
    """

    time: datetime
    damaged: Mapping[str, str] = field(default_factory=dict)


class ReleaseReason(enum.StrEnum):
    """Why a partition was released."""

    REQUESTED = "requested"
    """Another processor requested it."""
    LOST = "lost"
    """Taken by another processor, or the lease expired."""
    STOPPED = "stopped"
    """The processor stops."""
    FAILED = "failed"
    """Its handler failed; it reopens from its checkpoint after a while."""

    @property
    def drains(self) -> bool:
        """Whether the batch in progress is finished and checkpointed first."""
        return self in (ReleaseReason.REQUESTED, ReleaseReason.STOPPED)
