"""``hubline checkpoints copy``: a group's progress into another store, or for another group."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name, validate_partition_id
from hubline.addresses.store_address import parse_store
from hubline.cli.arguments import GroupOption, HubArgument, JsonOption, PartitionsOption, YesOption, option
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import confirm, counted, print_json, stderr_console, table
from hubline.cli.session import (
    existing_store,
    group_key,
    in_order,
    listed_checkpoints,
    looking_into,
    using_hub,
    using_store,
    writable_store,
)
from hubline.cli.status import checkpoint_data
from hubline.concurrency import map_bounded
from hubline.errors import ConfigError, Fenced, HubError, RecordDamaged, StoreError
from hubline.monitoring.lag import peek

if TYPE_CHECKING:
    from hubline.model.keys import GroupKey
    from hubline.model.ownership import Checkpoint, GroupState, Ownership
    from hubline.ports import CheckpointStore, Hub

# As long as the slowest of the official SDKs waits before it counts an owner as gone, and longer than our own lease.
LIVING_SECONDS: Final = 180.0
# Each attempt learns who holds the fence; another owner in between every one of them would be a fight of its own.
FENCE_ATTEMPTS_MAX: Final = 5

DryRunOption = Annotated[bool, option("--dry-run", "Show what would change, and change nothing.")]


def copy(
    hub: HubArgument,
    from_store: Annotated[str, option("--from-store", "The store to copy from.", metavar="STORE")],
    to_store: Annotated[str, option("--to-store", "The store to copy to. It can be the same.", metavar="STORE")],
    group: GroupOption = DEFAULT_GROUP,
    to_group: Annotated[
        str | None, option("--to-group", "The group to copy to. Default: the same group.", metavar="GROUP")
    ] = None,
    partition: PartitionsOption = None,
    overwrite: Annotated[
        bool, option("--overwrite", "Also move checkpoints back, and take partitions from active owners.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Copy the checkpoints of a group to another store or group.

    Without --overwrite it keeps checkpoints of the target that are further, and skips partitions that have an active
    owner there. The command shows the changes and asks before it makes them. You can repeat it at any time.

    \b
    Examples:
      hubline checkpoints copy env:HUB --from-store sqlite:///state.db --to-store env:DATABASE --group billing
      hubline checkpoints copy env:HUB --from-store env:STORE --to-store env:STORE --to-group audit --dry-run
    """
    job = _Job(
        hub=hub,
        source=existing_store(from_store),
        target=writable_store(to_store, option="--to-store"),
        source_group=validate_group_name(group),
        target_group=validate_group_name(to_group or group),
        partitions=tuple(validate_partition_id(each) for each in partition or ()),
        overwrite=overwrite,
    )
    if parse_store(job.source) == parse_store(job.target) and job.source_group == job.target_group:
        raise ConfigError("source and target are the same: use another --to-store or a --to-group")
    steps = asyncio.run(_plan(job))
    _show(steps)
    changes = [each for each in steps if each.kind in CHANGES]
    if changes and not dry_run:
        confirm(f"Copy {counted(len(changes), 'checkpoint')} to the group {job.target_group}?", yes=yes)
        steps = asyncio.run(_apply(job, steps))
    _report(steps, json=json, dry_run=dry_run)


class Kind(enum.StrEnum):
    """What happens to a partition's checkpoint in the target."""

    SET = "set"
    """There is none yet."""
    FORWARD = "forward"
    BACK = "back"
    """By --overwrite only."""
    REPAIRED = "repaired"
    """What was there did not read back. By --overwrite only."""
    SAME = "same"
    KEPT = "kept"
    """The target is further."""
    OWNED = "owned"
    """Refused: a living owner reads the partition."""
    DAMAGED = "damaged"
    """Refused: the record does not read back, in the source or in the target."""
    FAILED = "failed"
    """Somebody took the partition meanwhile."""


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
        return self.source if self.kind in CHANGES else self.before


@dataclass(frozen=True, slots=True)
class Side:
    """What a store has of a group."""

    checkpoints: Mapping[str, Checkpoint]
    owners: Mapping[str, Ownership]
    damaged: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Job:
    hub: str
    source: str
    target: str
    source_group: str
    target_group: str
    partitions: Sequence[str]
    overwrite: bool


def plan_steps(source: Side, target: Side, group: GroupKey, *, overwrite: bool) -> list[Step]:
    """What to do with every partition that the source has a checkpoint of."""
    partitions = sorted({*source.checkpoints, *source.damaged}, key=in_order)
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
        return Step(partition, Kind.OWNED, checkpoint, before, _read_by(owner))
    return Step(partition, kind, checkpoint, before, reason, takes=owner is not None)


def _read_by(owner: Ownership) -> str:
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
    from hubline.model.ownership import Checkpoint

    return Checkpoint(group.partition(checkpoint.key.partition), checkpoint.offset, checkpoint.sequence_number)


async def _plan(job: _Job) -> list[Step]:
    async with using_hub(job.hub) as hub, using_store(job.source) as source, looking_into(job.target) as target:
        source_group, target_group = group_key(hub, job.source_group), group_key(hub, job.target_group)
        there = await look_at(source, source_group, hub)
        wanted = job.partitions or tuple({*there.checkpoints, *there.damaged})
        if missing := [each for each in wanted if each not in there.checkpoints and each not in there.damaged]:
            raise StoreError(f"the source has no checkpoint of partition {missing[0]} for {source_group}")
        if not wanted:
            raise StoreError(
                f"the source has no checkpoints for {source_group}: check the hub's name, the group and the store"
            )
        steps = plan_steps(there, await look_at(target, target_group, hub), target_group, overwrite=job.overwrite)
    return [each for each in steps if each.partition in wanted]


async def look_at(store: CheckpointStore, group: GroupKey, hub: Hub | None = None) -> Side:
    """What a store has of a group. A checkpoint of which a part is not known is completed by the hub, if it can."""
    from hubline.ports import Examinable

    listed = await listed_checkpoints(store, group)
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
        owners={
            each.key.partition: each
            for each in state.ownerships
            if each.owner_id and each.age_seconds <= LIVING_SECONDS
        },
        damaged=damaged,
    )


def living_owners(state: GroupState) -> dict[str, Ownership]:
    """Who reads which partition, as far as anybody can tell."""
    return {
        each.key.partition: each for each in state.ownerships if each.owner_id and each.age_seconds <= LIVING_SECONDS
    }


def _is_whole(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.offset) and checkpoint.last_sequence is not None


async def _completed(checkpoint: Checkpoint, hub: Hub | None) -> Checkpoint | None:
    """With the offset and the sequence number of its event; None if the hub does not have that any more."""
    from hubline.model.ownership import Checkpoint
    from hubline.model.positions import Position

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


async def _apply(job: _Job, steps: Sequence[Step]) -> list[Step]:
    async with using_store(job.target) as target:
        return await do_steps(target, steps)


async def do_steps(target: CheckpointStore, steps: Sequence[Step]) -> list[Step]:
    """Does the steps of one group that change something, and gives all of them back as they went.

    People take their time to answer: a partition that somebody began to read meanwhile is left alone.
    """
    changes = [each.source.key.group_key for each in steps if each.kind in CHANGES and each.source]
    owners = living_owners(await target.list_ownership(changes[0])) if changes else {}
    # Dying in between leaves some partitions copied and the others as they were; doing it again copies the rest.
    return await map_bounded(lambda each: _do(target, each, owners.get(each.partition)), steps)


async def _do(target: CheckpointStore, step: Step, owner: Ownership | None) -> Step:
    if step.kind not in CHANGES or step.source is None:
        return step
    if step.takes or step.kind in (Kind.BACK, Kind.REPAIRED):
        await target.reset_checkpoint(step.source.key, step.source)
        return step
    if owner is not None:
        return replace(step, kind=Kind.OWNED, reason=_read_by(owner))
    try:
        await move_forward(target, step.source)
    except (Fenced, RecordDamaged) as problem:
        return replace(step, kind=Kind.FAILED, reason=str(problem))
    return step


async def move_forward(store: CheckpointStore, checkpoint: Checkpoint) -> None:
    """Moves a checkpoint that nobody works on; one that is further by now stays. Raises Fenced if somebody came.

    Written under the epoch that holds the fence, whichever that is: so it can neither go back, as by the hand of an
    operator it could, nor shut out an owner.
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


def _show(steps: Sequence[Step]) -> None:
    rows = [
        (
            each.partition,
            sequence_of(each.source),
            sequence_of(each.before),
            sequence_of(each.after),
            each.kind,
            each.reason,
        )
        for each in steps
    ]
    stderr_console().print(table(("partition", ">source", ">target", ">becomes", "step", "?reason"), rows))


def sequence_of(checkpoint: Checkpoint | None) -> int | None:
    """For a table."""
    return None if checkpoint is None else checkpoint.last_sequence


def _report(steps: Sequence[Step], *, json: bool, dry_run: bool) -> None:
    changes = [each for each in steps if each.kind in CHANGES]
    refused = [each for each in steps if each.kind in REFUSALS]
    if dry_run:
        say(f"would copy {counted(len(changes), 'checkpoint')}; nothing was changed")
    else:
        say(f"copied {counted(len(changes), 'checkpoint')}" if changes else "nothing to change")
    if json:
        for each in steps:
            print_json(step_data(each, is_done=each.kind in CHANGES and not dry_run))
    if refused:
        names = ", ".join(each.partition for each in refused)
        say(
            f"hubline: not copied: partition {names}. Stop their owners, or add --overwrite to take them; fix damaged "
            "records in the source first"
        )
        raise typer.Exit(ExitCode.FAILED)


def step_data(step: Step, *, is_done: bool) -> dict[str, object]:
    """For ``--json``."""
    return {
        "partition": step.partition,
        "step": step.kind.value,
        "done": is_done,
        "source": checkpoint_data(step.source),
        "before": checkpoint_data(step.before),
        "checkpoint": checkpoint_data(step.after),
        "reason": step.reason,
    }
