"""``hubline checkpoints copy``: copies a group's checkpoints to another store or group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name, validate_partition_id
from hubline.addresses.store_address import parse_store
from hubline.cli.arguments import (
    DryRunOption,
    GroupOption,
    HubArgument,
    JsonOption,
    PartitionsOption,
    YesOption,
    option,
)
from hubline.cli.checkpoints.view import sequence_of, step_data
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import confirm, print_json, stderr_console, table
from hubline.cli.session import (
    existing_store,
    group_key,
    looking_into,
    using_hub,
    using_store,
    writable_store,
)
from hubline.errors import ConfigError
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.checkpoints.copy import Step


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

    By default, the command moves no checkpoint of the target back, and skips partitions that have an active owner
    there. To change these too, add --overwrite. The command shows the changes and asks before it makes them. You can
    repeat it at any time.

    \b
    Examples:
      hubline checkpoints copy env:HUB --from-store env:OLD --to-store env:NEW
      hubline checkpoints copy env:HUB --from-store env:STORE \\
          --to-store env:STORE --group billing --to-group audit --dry-run
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
        raise ConfigError("source and target are the same. Use another --to-store, or add --to-group.")
    steps = asyncio.run(_plan(job))
    _show(steps)
    changes = [each for each in steps if each.is_change]
    if changes and not dry_run:
        confirm(f"Copy {counted(len(changes), 'checkpoint')} to the group {job.target_group}?", yes=yes)
        steps = asyncio.run(_apply(job, steps))
    _report(steps, json=json, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Job:
    """The options of the command, checked."""

    hub: str
    source: str
    target: str
    source_group: str
    target_group: str
    partitions: Sequence[str]
    overwrite: bool


async def _plan(job: _Job) -> list[Step]:
    from hubline.checkpoints.copy import plan_copy

    async with using_hub(job.hub) as hub, using_store(job.source) as source, looking_into(job.target) as target:
        return await plan_copy(
            source,
            group_key(hub, job.source_group),
            target,
            group_key(hub, job.target_group),
            hub=hub,
            partitions=job.partitions,
            overwrite=job.overwrite,
        )


async def _apply(job: _Job, steps: Sequence[Step]) -> list[Step]:
    from hubline.checkpoints.copy import do_steps

    async with using_store(job.target) as target:
        return await do_steps(target, steps)


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


def _report(steps: Sequence[Step], *, json: bool, dry_run: bool) -> None:
    changes = [each for each in steps if each.is_change]
    refused = [each for each in steps if each.is_refusal]
    if dry_run:
        say(f"would copy {counted(len(changes), 'checkpoint')}; nothing was changed")
    else:
        say(f"copied {counted(len(changes), 'checkpoint')}" if changes else "nothing to change")
    if json:
        for each in steps:
            print_json(step_data(each, is_done=each.is_change and not dry_run))
    if refused:
        names = ", ".join(each.partition for each in refused)
        say(
            f"hubline: could not copy partition {names}. Stop their owners, or add --overwrite to take the partitions. "
            "Fix damaged records in the source first."
        )
        raise typer.Exit(ExitCode.FAILED)
