"""How far a consumer group is: who owns what, up to where it is done, and how much is left.

The lag in events is what a partition still holds after its checkpoint; without a checkpoint, all that it holds. The
lag in seconds is how long the oldest of those events has been waiting: now minus the time it was enqueued.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from hubline.concurrency import map_bounded
from hubline.errors import PositionInvalid
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.model.events import Event
    from hubline.model.hubs import PartitionProperties
    from hubline.model.keys import GroupKey
    from hubline.model.ownership import Checkpoint, Member, Ownership
    from hubline.model.positions import Position
    from hubline.ports import CheckpointStore, Hub

# An event that is known to be there comes at once from a disk, and within a few round trips from a service.
PEEK_SECONDS_MAX: Final = 5.0

# Looking must not disturb: a reader with an epoch shuts out others of its group, so looking has a group of its own.
CLI_GROUP: Final = "hubline-cli"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as a group sees it. A lag is None where it is unknown; ``problem`` says why."""

    held: PartitionProperties
    ownership: Ownership | None
    checkpoint: Checkpoint | None
    lag_events: int | None
    lag_seconds: float | None
    problem: str | None
    is_damaged: bool = False
    """Whether the store has a record of the partition that does not read back."""

    @property
    def is_known(self) -> bool:
        """Whether the store has anything of the partition."""
        return self.is_damaged or self.ownership is not None or self.checkpoint is not None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group at one moment."""

    group: GroupKey
    time: datetime
    partitions: tuple[PartitionLag, ...]
    members: tuple[Member, ...]

    @property
    def lag_events(self) -> int:
        return sum(each.lag_events or 0 for each in self.partitions)

    @property
    def lag_seconds(self) -> float:
        return max((each.lag_seconds or 0.0 for each in self.partitions), default=0.0)

    @property
    def unknown_count(self) -> int:
        """Of how many partitions the lag is unknown."""
        return sum(each.lag_events is None for each in self.partitions)

    @property
    def is_known(self) -> bool:
        """Whether the store has anything of the group: an owner, a member or a checkpoint, readable or not."""
        return bool(self.members) or any(each.is_known for each in self.partitions)

    @property
    def owned_count(self) -> Counter[str]:
        """How many partitions each owner has."""
        return Counter(each.ownership.owner_id for each in self.partitions if each.ownership)


async def measure(hub: Hub, store: CheckpointStore, group: GroupKey, *, now: datetime) -> GroupLag:
    """Asks store and hub once each; what changes in between shows in the later answer alone."""
    partition_ids = (await hub.describe()).partition_ids
    state = await store.list_ownership(group)
    checkpoints = {each.key.partition: each for each in await store.list_checkpoints(group)}
    ownerships = {each.key.partition: each for each in state.ownerships}

    async def measured(partition: str) -> PartitionLag:
        held = await hub.describe_partition(partition)
        checkpoint = checkpoints.get(partition)
        events, seconds, problem = await _lag(hub, held, checkpoint, now)
        is_damaged = partition in state.damaged
        problem = state.damaged.get(partition, problem)
        return PartitionLag(held, ownerships.get(partition), checkpoint, events, seconds, problem, is_damaged)

    return GroupLag(group, now, tuple(await map_bounded(measured, partition_ids)), state.members)


async def peek(hub: Hub, partition: str, position: Position) -> Event | None:
    """The event that reading would start with; None if it has not come yet."""
    receiver = await hub.open_receiver(partition, group=CLI_GROUP, position=position)
    try:
        batch = await receiver.receive(max_count=1, wait_seconds=PEEK_SECONDS_MAX)
    finally:
        await receiver.close()
    return batch[0] if len(batch) else None


async def _lag(
    hub: Hub, held: PartitionProperties, checkpoint: Checkpoint | None, now: datetime
) -> tuple[int | None, float | None, str | None]:
    """The lag in events and in seconds, and what is wrong."""
    from hubline.model.positions import Position

    if checkpoint is not None and checkpoint.last_sequence is None:
        return await _lag_by_offset(hub, held, checkpoint, now)
    next_sequence = held.begin_sequence if checkpoint is None else checkpoint.sequence_number + 1
    events = held.last_sequence + 1 - max(next_sequence, held.begin_sequence)
    if events < 0:
        return None, None, f"the checkpoint is {counted(-events, 'event')} beyond the last one: was the hub re-created?"
    if events == 0:
        return 0, 0.0, None
    try:
        oldest = await peek(hub, held.partition, Position.earliest() if checkpoint is None else checkpoint.resume)
    except PositionInvalid as error:
        if error.reason != "expired":
            return None, None, str(error)
        oldest = await peek(hub, held.partition, Position.earliest())
        return events, _waiting_seconds(oldest, now), str(error)
    return events, _waiting_seconds(oldest, now), None


async def _lag_by_offset(
    hub: Hub, held: PartitionProperties, checkpoint: Checkpoint, now: datetime
) -> tuple[int | None, float | None, str | None]:
    """Of a checkpoint that tells no sequence number: by the event that comes after it."""
    if held.is_empty or checkpoint.offset == held.last_offset:
        return 0, 0.0, None
    try:
        oldest = await peek(hub, held.partition, checkpoint.resume)
    except PositionInvalid as error:
        return None, None, str(error)
    if oldest is None:
        return 0, 0.0, None
    return held.last_sequence + 1 - oldest.sequence_number, _waiting_seconds(oldest, now), None


def _waiting_seconds(oldest: Event | None, now: datetime) -> float | None:
    # Clocks differ a little: an event that is newer than now has waited for no time.
    return None if oldest is None else max(0.0, (now - oldest.enqueued_time).total_seconds())
