"""``hubline checkpoints migrate``: moves checkpoints from old blobs to those that hubline reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.cli.arguments import DryRunOption, JsonOption, YesOption, env_variable, option
from hubline.cli.checkpoints.view import sequence_of, step_data
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import confirm, print_json, stderr_console, table
from hubline.cli.session import using_store
from hubline.errors import ConfigError
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.checkpoint_stores.blob import BlobStore
    from hubline.checkpoints.migrate import Move


def migrate(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            envvar=env_variable("store"),
            help="The blob container: https://ACCOUNT.blob.core.windows.net/CONTAINER, env:NAME or file:PATH.",
        ),
    ],
    prefix: Annotated[
        str, option("--prefix", "Only blobs whose names start with this. Default: all blobs.", metavar="TEXT")
    ] = "",
    delete_old: Annotated[bool, option("--delete-old", "Delete the old blobs whose checkpoints are moved.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Move checkpoints out of blobs that hubline does not read.

    These old blobs have capital letters in their names (from the Go and Rust SDKs), or are JSON leases of the Event
    Processor Host. The command moves their checkpoints to the blobs that hubline and most SDKs read. If a partition has
    several positions, the furthest one counts. The command shows the changes and asks before it makes them. You can
    repeat it at any time.

    \b
    Examples:
      hubline checkpoints migrate env:STORE --dry-run
      hubline checkpoints migrate env:STORE --delete-old
    """
    address = parse_store(store)
    if not isinstance(address, BlobAddress):
        raise ConfigError("only blob containers have old blobs. Write https://ACCOUNT.blob.core.windows.net/CONTAINER.")
    moves = asyncio.run(_plan(store, prefix))
    if not moves:
        say("there are no old blobs, so nothing to change")
        return
    _show(moves)
    changes = [each for each in moves if each.step.is_change]
    deletable = [blob for each in moves if delete_old and each.is_deletable for blob in each.old.blobs]
    if (changes or deletable) and not dry_run:
        deleting = f", and delete {counted(len(deletable), 'old blob')}" if deletable else ""
        confirm(f"Move {counted(len(changes), 'checkpoint')}{deleting}?", yes=yes)
        moves = asyncio.run(_apply(store, moves, delete_old=delete_old))
    _report(moves, json=json, dry_run=dry_run)


async def _plan(store: str, prefix: str) -> list[Move]:
    from hubline.checkpoints.migrate import plan_migration

    async with using_store(store) as opened:
        return await plan_migration(_blobs(opened), prefix)


async def _apply(store: str, moves: Sequence[Move], *, delete_old: bool) -> list[Move]:
    from hubline.checkpoints.migrate import do_moves

    async with using_store(store) as opened:
        return await do_moves(_blobs(opened), moves, delete_old=delete_old)


def _blobs(store: object) -> BlobStore:
    from hubline.checkpoint_stores.blob import BlobStore

    assert isinstance(store, BlobStore)  # noqa: S101 (its address is that of a container)
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
    changes = [each for each in moves if each.step.is_change]
    refused = [each for each in moves if each.step.is_refusal]
    deleted_count = sum(each.deleted_count for each in moves)
    deleting = f", and deleted {counted(deleted_count, 'old blob')}" if deleted_count else ""
    left_count = sum(len(each.old.blobs) - each.deleted_count for each in moves if each.is_deletable)
    if dry_run:
        say(f"would move {counted(len(changes), 'checkpoint')}; nothing was changed")
    else:
        say(f"moved {counted(len(changes), 'checkpoint')}{deleting}" if changes or deleting else "nothing to change")
        if left_count:
            say(f"{counted(left_count, 'old blob')} can be deleted. Run the command again with --delete-old.")
    if json:
        for each in moves:
            print_json(_data(each, is_done=each.step.is_change and not dry_run))
    if refused:
        say(f"hubline: could not move {counted(len(refused), 'partition')}. Fix the reasons above, then try again.")
        raise typer.Exit(ExitCode.FAILED)


def _data(move: Move, *, is_done: bool) -> dict[str, object]:
    key, step = move.old.key, move.step
    return {
        "namespace": key.namespace,
        "hub": key.hub,
        "consumerGroup": key.group,
        **step_data(step, is_done=is_done),
        "oldBlobs": [blob.name for blob in move.old.blobs],
        "deletedBlobs": move.deleted_count,
    }
