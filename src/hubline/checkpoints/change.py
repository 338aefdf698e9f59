"""Moves or removes the checkpoints of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hubline.concurrency import map_bounded
from hubline.errors import ConfigError, PositionInvalid
from hubline.hubs.position_check import PositionCheck
from hubline.model.hubs import PartitionProperties
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.monitoring.lag import peek
from hubline.ports import CheckpointStore, Hub


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """The checkpoint of one partition before and after a change. None stands for no checkpoint."""

    key: PartitionKey
    before: Checkpoint | None
    after: Checkpoint | None

    @property
    def is_before_oldest(self) -> bool:
        """Whether processing continues at the oldest event that the partition holds."""
        return self.after is not None and self.after.is_before_oldest


async def plan_move(
    hub: Hub, store: CheckpointStore, group: GroupKey, partitions: Sequence[str], position: Position
) -> list[CheckpointChange]:
    """Says which checkpoints change if processing continues at the position. It changes nothing.

    Raises:
        ConfigError: The position is beyond the end of a partition, or its checkpoint cannot move there.
    """
    return await _plan(store, group, partitions, lambda key: checkpoint_before(hub, key, position))


async def plan_reset(store: CheckpointStore, group: GroupKey, partitions: Sequence[str]) -> list[CheckpointChange]:
    """Says which checkpoints a reset removes. It changes nothing."""

    async def removed(_key: PartitionKey) -> None:
        return None

    return await _plan(store, group, partitions, removed)


async def apply_changes(store: CheckpointStore, changes: Sequence[CheckpointChange]) -> None:
    """Makes the changes. A running owner cannot overwrite them, and continues from them."""
    # Dying in between leaves some partitions changed and the others as they were; running it again is fine.
    for each in changes:
        await store.reset_checkpoint(each.key, each.after)


async def _plan(
    store: CheckpointStore,
    group: GroupKey,
    partitions: Sequence[str],
    decide: Callable[[PartitionKey], Awaitable[Checkpoint | None]],
) -> list[CheckpointChange]:
    before = {each.key.partition: each for each in await store.list_checkpoints(group)}
    keys = [group.partition(each) for each in partitions]
    after = await map_bounded(decide, keys)
    changes = [CheckpointChange(key, before.get(key.partition), new) for key, new in zip(keys, after, strict=True)]
    return [each for each in changes if each.before != each.after]


async def checkpoint_before(hub: Hub, key: PartitionKey, position: Position) -> Checkpoint:
    """Returns the checkpoint with which processing continues at the position: the event before it."""
    held = await hub.describe_partition(key.partition)
    try:
        next_sequence = await _next_sequence(hub, held, position)
    except PositionInvalid as error:
        if error.reason != "beyond":
            raise
        raise ConfigError(
            f"partition {key.partition} {_described(held)}: {position} is beyond the end. To continue with "
            "the next event that arrives, use the position latest (--position latest)."
        ) from None
    if held.last_offset is None:
        return Checkpoint.before_first(key)
    if held.is_empty:
        return Checkpoint(key, held.last_offset, held.last_sequence)  # retention took it, and what comes is after it
    if next_sequence <= held.begin_sequence:
        return Checkpoint.before_oldest(key, held.begin_sequence)
    previous = await peek(hub, key.partition, Position.sequence(next_sequence - 1, inclusive=True))
    if previous is None:  # retention took it just now
        return Checkpoint.before_oldest(key, next_sequence)
    return Checkpoint(key, previous.offset, previous.sequence_number)


def _described(held: PartitionProperties) -> str:
    if held.last_offset is None:
        return "never had an event"
    if held.is_empty:
        return f"holds no events, and the last one was {held.last_sequence}"
    return f"holds events {held.begin_sequence} to {held.last_sequence}"


async def _next_sequence(hub: Hub, held: PartitionProperties, position: Position) -> int:
    """The sequence number of the first event at the position; the one after the last if it is still to come."""
    try:
        known = PositionCheck(hub.name).known_sequence(position, held)
        event = await peek(hub, held.partition, position) if known is None else None
    except PositionInvalid as error:
        if held.is_empty and error.reason == "expired":
            return held.last_sequence + 1  # retention took it, and all that came after it
        raise
    if known is not None:
        return known
    return held.last_sequence + 1 if event is None else event.sequence_number
