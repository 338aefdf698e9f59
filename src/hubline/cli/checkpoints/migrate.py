"""``hubline checkpoints migrate``: checkpoints from old blobs into the ones that everybody reads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.cli.arguments import JsonOption, YesOption, env_twin, option
from hubline.cli.checkpoints.copy import (
    CHANGES,
    LIVING_SECONDS,
    REFUSALS,
    DryRunOption,
    Kind,
    Side,
    Step,
    do_steps,
    look_at,
    plan_steps,
    sequence_of,
    step_data,
)
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import confirm, counted, print_json, stderr_console, table
from hubline.cli.session import using_store
from hubline.concurrency import map_bounded
from hubline.errors import ConfigError

if TYPE_CHECKING:
    from hubline.checkpoint_stores.blob import BlobStore
    from hubline.cli.checkpoints.old_blobs import OldPartition
    from hubline.model.keys import GroupKey


def migrate(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            envvar=env_twin("store"),
            help="The blob container: https://ACCOUNT.blob.core.windows.net/CONTAINER, env:NAME or file:PATH.",
        ),
    ],
    prefix: Annotated[
        str, option("--prefix", "Only blobs whose names start with this. Default: all blobs.", metavar="TEXT")
    ] = "",
    delete_old: Annotated[bool, option("--delete-old", "Delete old blobs after their checkpoints were moved.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Move checkpoints from old blobs to those that hubline and most SDKs read.

    Old blobs are those with capital letters in their names, as the Go and Rust SDKs write them, and the JSON leases of
    the Event Processor Host. If a partition has several positions, the furthest one counts. The command shows the
    changes and asks before it makes them. You can repeat it at any time.

    \b
    Examples:
      hubline checkpoints migrate https://acme.blob.core.windows.net/checkpoints --dry-run
      hubline checkpoints migrate env:STORE --delete-old
    """
    address = parse_store(store)
    if not isinstance(address, BlobAddress):
        raise ConfigError("only blob containers have old blobs: write https://ACCOUNT.blob.core.windows.net/CONTAINER")
    moves = asyncio.run(_plan(store, prefix))
    if not moves:
        say("there are no old blobs: nothing to change")
        return
    _show(moves)
    changes = [each for each in moves if each.step.kind in CHANGES]
    doomed = [blob for each in moves if delete_old and each.is_deletable for blob in each.old.blobs]
    if (changes or doomed) and not dry_run:
        deleting = f", and delete {counted(len(doomed), 'old blob')}" if doomed else ""
        confirm(f"Move {counted(len(changes), 'checkpoint')}{deleting}?", yes=yes)
        moves = asyncio.run(_apply(store, moves, delete_old=delete_old))
    _report(moves, json=json, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class Move:
    """One partition: what is old of it, what happens to its checkpoint, and how many old blobs were deleted."""

    old: OldPartition
    step: Step
    deleted_count: int = 0

    @property
    def is_deletable(self) -> bool:
        """Whether all that the old blobs say is in the new one."""
        return self.step.kind not in REFUSALS


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
    if old.living is not None:
        reason = f"{old.living} still writes the old blobs: stop it first"
        return Step(old.key.partition, Kind.OWNED, old.checkpoint, before, reason)
    return step or Step(old.key.partition, Kind.SAME, None, before, "nothing was done there")


async def _plan(store: str, prefix: str) -> list[Move]:
    from hubline.cli.checkpoints.old_blobs import find_old

    async with using_store(store) as opened:
        container = _blobs(opened).container
        listed, _ = await container.list(prefix)
        found = await find_old(container, listed, living_seconds=LIVING_SECONDS)
        moves: list[Move] = []
        for group, olds in groupby(found, key=lambda each: each.key.group_key):
            moves += plan_moves(group, list(olds), await look_at(opened, group))
    return moves


async def _apply(store: str, moves: Sequence[Move], *, delete_old: bool) -> list[Move]:
    # Dying anywhere leaves the old blobs of what was not moved: doing it again moves and deletes the rest.
    done: list[Move] = []
    async with using_store(store) as opened:
        for _, in_group in groupby(moves, key=lambda each: each.old.key.group_key):
            group = list(in_group)
            steps = await do_steps(opened, [each.step for each in group])
            done += [replace(move, step=step) for move, step in zip(group, steps, strict=True)]
        if delete_old:
            done = await map_bounded(functools.partial(_cleared, _blobs(opened)), done)
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


def _blobs(store: object) -> BlobStore:
    from hubline.checkpoint_stores.blob import BlobStore

    assert isinstance(store, BlobStore)  # noqa: S101 (its address is a container's)
    return store


def _show(moves: Sequence[Move]) -> None:
    rows = [
        (
            each.old.key.group_key,
            each.step.partition,
            len(each.old.blobs),
            sequence_of(each.step.source),
            sequence_of(each.step.before),
            sequence_of(each.step.after),
            each.step.kind,
            each.step.reason,
        )
        for each in moves
    ]
    columns = ("group", "partition", ">old blobs", ">old", ">new", ">becomes", "step", "?reason")
    stderr_console().print(table(columns, rows))


def _report(moves: Sequence[Move], *, json: bool, dry_run: bool) -> None:
    changes = [each for each in moves if each.step.kind in CHANGES]
    refused = [each for each in moves if each.step.kind in REFUSALS]
    deleted_count = sum(each.deleted_count for each in moves)
    deleting = f", and deleted {counted(deleted_count, 'old blob')}" if deleted_count else ""
    if dry_run:
        say(f"would move {counted(len(changes), 'checkpoint')}; nothing was changed")
    else:
        say(f"moved {counted(len(changes), 'checkpoint')}{deleting}" if changes or deleting else "nothing to change")
    if json:
        for each in moves:
            print_json(_data(each, is_done=each.step.kind in CHANGES and not dry_run))
    if refused:
        say(f"hubline: {counted(len(refused), 'partition')} not moved: see the reasons above")
        raise typer.Exit(ExitCode.FAILED)


def _data(move: Move, *, is_done: bool) -> dict[str, object]:
    key, step = move.old.key, move.step
    return {
        "namespace": key.namespace,
        "hub": key.hub,
        "group": key.group,
        **step_data(step, is_done=is_done),
        "oldBlobs": [blob.name for blob in move.old.blobs],
        "deleted": move.deleted_count,
    }
