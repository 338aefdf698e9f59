"""Migrates checkpoints from old blobs to the ones that hubline and most SDKs read."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hubline.checkpoint_stores.blob import Blob, BlobStore
from hubline.checkpoints.copy import ACTIVE_SECONDS_MAX, Kind, Side, Step, do_steps, look_at, plan_steps
from hubline.checkpoints.old_blobs import OldPartition, find_old
from hubline.concurrency import map_bounded
from hubline.model.keys import GroupKey


@dataclass(frozen=True, slots=True)
class Move:
    """One partition: what is old of it, what happens to its checkpoint, and how many old blobs were deleted."""

    old: OldPartition
    step: Step
    deleted_count: int = 0

    @property
    def is_deletable(self) -> bool:
        """Whether the old blobs may go once the step is done: the new one then has all that they say."""
        return not self.step.is_refusal

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to move: the new blob has all that the old ones say."""
        return self.is_deletable and not self.step.is_change


def plan_moves(group: GroupKey, olds: Sequence[OldPartition], target: Side) -> list[Move]:
    """What to do with the old partitions of one group."""
    by_partition = {each.key.partition: each for each in olds}
    source = Side(
        checkpoints={name: each.checkpoint for name, each in by_partition.items() if each.checkpoint},
        owners={},
        damaged={name: each.damage for name, each in by_partition.items() if each.damage},
    )
    steps = {each.partition: each for each in plan_steps(source, target, group, overwrite=False)}
    return [Move(each, _guarded(each, steps.get(name), target)) for name, each in by_partition.items()]


def _guarded(old: OldPartition, step: Step | None, target: Side) -> Step:
    """The step, unless somebody still writes the old blobs: then moving now would leave behind what comes."""
    before = target.checkpoints.get(old.key.partition)
    if old.active_owner is not None:
        reason = f"{old.active_owner} still writes the old blobs: stop it first"
        return Step(old.key.partition, Kind.OWNED, old.checkpoint, before, reason)
    return step or Step(old.key.partition, Kind.SAME, None, before, "nothing was done there")


async def plan_migration(store: BlobStore, prefix: str = "") -> list[Move]:
    """Finds the old blobs whose names start with the prefix, and says what becomes of them. It changes nothing."""
    listed, _ = await store.container.list(prefix)
    return await plan_for(store, listed)


async def plan_for(store: BlobStore, blobs: Sequence[Blob]) -> list[Move]:
    """What becomes of the old ones among these blobs. It changes nothing."""
    found = await find_old(store.container, blobs, active_seconds=ACTIVE_SECONDS_MAX)
    moves: list[Move] = []
    for group, olds in groupby(found, key=lambda each: each.key.group_key):
        moves += plan_moves(group, list(olds), await look_at(store, group))
    return moves


async def do_moves(store: BlobStore, moves: Sequence[Move], *, delete_old: bool) -> list[Move]:
    """Moves the checkpoints, and deletes their old blobs if asked to. Returns the moves with their outcome."""
    # Dying anywhere leaves the old blobs of what was not moved: running it again moves and deletes the rest.
    done: list[Move] = []
    for _, in_group in groupby(moves, key=lambda each: each.old.key.group_key):
        group = list(in_group)
        steps = await do_steps(store, [each.step for each in group])
        done += [replace(move, step=step) for move, step in zip(group, steps, strict=True)]
    if delete_old:
        done = await map_bounded(functools.partial(_cleared, store), done)
    return done


async def _cleared(store: BlobStore, move: Move) -> Move:
    """Without its old blobs, except those that were written since they were read: what they say now was not moved."""
    if not move.is_deletable:
        return move
    deleted = [await store.container.delete(blob.name, etag=blob.etag) for blob in move.old.blobs]
    if all(deleted):
        return replace(move, deleted_count=len(deleted))
    reason = "old blobs were written meanwhile, and are kept: stop their consumers, and run the command again"
    return replace(move, step=replace(move.step, kind=Kind.FAILED, reason=reason), deleted_count=sum(deleted))
