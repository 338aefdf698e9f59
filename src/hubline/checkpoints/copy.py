"""Copies a group's checkpoints to another store, or to another group."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hubline.concurrency import map_bounded
from hubline.errors import Fenced, HubError, RecordDamaged, StoreError
from hubline.model.keys import GroupKey, partition_order
from hubline.model.ownership import Checkpoint, GroupState, Ownership
from hubline.model.positions import Position
from hubline.monitoring.lag import peek
from hubline.ports import CheckpointStore, Examinable, Hub

# As long as the slowest of the official SDKs waits before it counts an owner as gone, and longer than our own lease.
ACTIVE_SECONDS_MAX: Final = 180.0
# Each attempt learns who holds the fence; another owner in between every one of them would be a fight of its own.
FENCE_ATTEMPTS_MAX: Final = 5


class Kind(enum.StrEnum):
    """What happens to a partition's checkpoint in the target."""

    SET = "set"
    """The target has none yet."""
    FORWARD = "forward"
    BACK = "back"
    """With ``overwrite`` only."""
    REPAIRED = "repaired"
    """The record of the target did not read back. With ``overwrite`` only."""
    SAME = "same"
    KEPT = "kept"
    """The target is further."""
    OWNED = "owned"
    """Refused: the partition has an active owner."""
    DAMAGED = "damaged"
    """Refused: the record does not read back, in the source or in the target."""
    FAILED = "failed"
    """Another consumer took the partition meanwhile."""


CHANGES: Final = frozenset({Kind.SET, Kind.FORWARD, Kind.BACK, Kind.REPAIRED})
REFUSALS: Final = frozenset({Kind.OWNED, Kind.DAMAGED, Kind.FAILED})


@dataclass(frozen=True, slots=True)
class Step:
    """One partition: what the source has, what the target has, and what happens."""

    partition: str
    kind: Kind
    source: Checkpoint | None
    before: Checkpoint | None
    reason: str | None = None
    takes: bool = False
    """Whether the partition is taken from its owner."""

    @property
    def after(self) -> Checkpoint | None:
        """What the target has once the step is done."""
        return self.source if self.is_change else self.before

    @property
    def is_change(self) -> bool:
        """Whether the target's checkpoint changes."""
        return self.kind in CHANGES

    @property
    def is_refusal(self) -> bool:
        """Whether the checkpoint is not copied, and a person has to do something."""
        return self.kind in REFUSALS


@dataclass(frozen=True, slots=True)
class Side:
    """What a store has of a group."""

    checkpoints: Mapping[str, Checkpoint]
    owners: Mapping[str, Ownership]
    damaged: Mapping[str, str]


def plan_steps(source: Side, target: Side, group: GroupKey, *, overwrite: bool) -> list[Step]:
    """What to do with every partition that the source has a checkpoint of."""
    partitions = sorted({*source.checkpoints, *source.damaged}, key=partition_order)
    return [_step(each, source, target, group, overwrite=overwrite) for each in partitions]


def _step(partition: str, source: Side, target: Side, group: GroupKey, *, overwrite: bool) -> Step:
    if partition in source.damaged:
        return Step(partition, Kind.DAMAGED, None, target.checkpoints.get(partition), source.damaged[partition])
    checkpoint = _for_group(source.checkpoints[partition], group)
    before, owner = target.checkpoints.get(partition), target.owners.get(partition)
    kind = _kind(checkpoint, before, is_damaged=partition in target.damaged)
    reason = target.damaged.get(partition)
    if kind is Kind.BACK and not overwrite:
        return Step(partition, Kind.KEPT, checkpoint, before, "the target is further")
    if kind is Kind.REPAIRED and not overwrite:
        return Step(partition, Kind.DAMAGED, checkpoint, before, reason)
    if kind in CHANGES and owner is not None and not overwrite:
        return Step(partition, Kind.OWNED, checkpoint, before, _owned_by(owner))
    return Step(partition, kind, checkpoint, before, reason, takes=owner is not None)


def _owned_by(owner: Ownership) -> str:
    return f"{owner.owner_id} owns it, and renewed it {owner.age_seconds:.0f} s ago"


def _kind(source: Checkpoint, before: Checkpoint | None, *, is_damaged: bool) -> Kind:
    if is_damaged:
        return Kind.REPAIRED
    if before is None:
        return Kind.SET
    if before.sequence_number == source.sequence_number:
        return Kind.SAME
    return Kind.FORWARD if before.sequence_number < source.sequence_number else Kind.BACK


def _for_group(checkpoint: Checkpoint, group: GroupKey) -> Checkpoint:
    return Checkpoint(group.partition(checkpoint.key.partition), checkpoint.offset, checkpoint.sequence_number)


async def plan_copy(
    source: CheckpointStore,
    source_group: GroupKey,
    target: CheckpointStore,
    target_group: GroupKey,
    *,
    hub: Hub,
    partitions: Sequence[str] = (),
    overwrite: bool = False,
) -> list[Step]:
    """Compares two groups of a hub, and says what copying would do with each partition. It changes nothing.

    Args:
        source: The store to copy from.
        source_group: The group whose checkpoints are copied.
        target: The store to copy to. It can be the same.
        target_group: The group that gets the checkpoints.
        hub: Completes checkpoints that lack the offset or the sequence number.
        partitions: The partitions to copy. Default: all that the source has a checkpoint of.
        overwrite: Also move checkpoints back, take partitions from active owners, and replace damaged records.

    Raises:
        StoreError: The source has no checkpoint of a partition, or none of the group.
    """
    found = await look_at(source, source_group, hub)
    wanted = tuple(partitions) or tuple({*found.checkpoints, *found.damaged})
    if missing := [each for each in wanted if each not in found.checkpoints and each not in found.damaged]:
        raise StoreError(
            f"the source has no checkpoint of partition {missing[0]} for {source_group}. Choose partitions "
            "that have one: `hubline checkpoints show` lists them."
        )
    if not wanted:
        raise StoreError(
            f"the source has no checkpoints for {source_group}. Check the hub's name, the group and the store."
        )
    steps = plan_steps(found, await look_at(target, target_group, hub), target_group, overwrite=overwrite)
    return [each for each in steps if each.partition in wanted]


async def look_at(store: CheckpointStore, group: GroupKey, hub: Hub | None = None) -> Side:
    """What a store has of a group. A checkpoint of which a part is not known is completed by the hub, if it can."""
    listed = sorted(await store.list_checkpoints(group), key=lambda each: partition_order(each.key.partition))
    state = await store.list_ownership(group)
    damaged = dict((await store.examine(group)).damaged) if isinstance(store, Examinable) else {}
    checkpoints: dict[str, Checkpoint] = {}
    for each in listed:
        whole = each if _is_whole(each) else await _completed(each, hub)
        if whole is None:
            damaged[each.key.partition] = (
                "it lacks the offset or the sequence number, and the hub does not have that event"
            )
        else:
            checkpoints[each.key.partition] = whole
    return Side(
        checkpoints=checkpoints,
        owners=active_owners(state),
        damaged=damaged,
    )


def active_owners(state: GroupState) -> dict[str, Ownership]:
    """The owner of each partition that renewed its ownership lately."""
    return {
        each.key.partition: each
        for each in state.ownerships
        if each.owner_id and each.age_seconds <= ACTIVE_SECONDS_MAX
    }


def _is_whole(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.offset) and checkpoint.last_sequence is not None


async def _completed(checkpoint: Checkpoint, hub: Hub | None) -> Checkpoint | None:
    """With the offset and the sequence number of its event; None if the hub does not have that any more."""
    if hub is None:
        return None
    at_sequence = Position.sequence(max(checkpoint.sequence_number, 0), inclusive=True)
    position = Position.offset(checkpoint.offset, inclusive=True) if checkpoint.offset else at_sequence
    try:
        event = await peek(hub, checkpoint.key.partition, position)
    except HubError:
        return None
    if event is None or event.offset != (checkpoint.offset or event.offset):
        return None
    return Checkpoint(checkpoint.key, event.offset, event.sequence_number)


async def do_steps(target: CheckpointStore, steps: Sequence[Step]) -> list[Step]:
    """Does the steps of one group that change something, and returns all of them with their outcome.

    Between planning and doing, a person may have been asked: a partition that got an owner meanwhile is skipped.
    """
    changes = [each.source.key.group_key for each in steps if each.kind in CHANGES and each.source]
    owners = active_owners(await target.list_ownership(changes[0])) if changes else {}
    # Dying in between leaves some partitions copied and the others as they were; running it again copies the rest.
    return await map_bounded(lambda each: _do(target, each, owners.get(each.partition)), steps)


async def _do(target: CheckpointStore, step: Step, owner: Ownership | None) -> Step:
    if step.kind not in CHANGES or step.source is None:
        return step
    if step.takes or step.kind in (Kind.BACK, Kind.REPAIRED):
        await target.reset_checkpoint(step.source.key, step.source)
        return step
    if owner is not None:
        return replace(step, kind=Kind.OWNED, reason=_owned_by(owner))
    try:
        await move_forward(target, step.source)
    except (Fenced, RecordDamaged) as problem:
        return replace(step, kind=Kind.FAILED, reason=str(problem))
    return step


async def move_forward(store: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Moves a checkpoint forward; one that is further by now stays. Raises Fenced if the partition got an owner.

    Written under the epoch that holds the fence, whichever that is: so it can neither move the checkpoint back, as a
    reset could, nor shut out an owner.
    """
    epoch = 0
    for _ in range(FENCE_ATTEMPTS_MAX - 1):
        try:
            return await _move_under(store, checkpoint, epoch)
        except Fenced as error:
            epoch = max(epoch, error.held_epoch)
    return await _move_under(store, checkpoint, epoch)


async def _move_under(store: CheckpointStore, checkpoint: Checkpoint, epoch: int) -> None:
    await store.fence(checkpoint.key, epoch)
    await store.update_checkpoint(checkpoint, epoch=epoch)
