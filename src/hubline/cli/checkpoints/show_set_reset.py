"""``hubline checkpoints show``, ``set`` and ``reset``: show, move or remove the checkpoints of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name, validate_partition_id
from hubline.addresses.values import parse_position
from hubline.cli.arguments import GroupOption, HubArgument, JsonOption, PartitionsOption, StoreOption, YesOption, option
from hubline.cli.checkpoints.view import checkpoint_data, sequence_of
from hubline.cli.exit_codes import say
from hubline.cli.output import confirm, print_json, stderr_console, stdout_console, table
from hubline.cli.session import (
    chosen_partitions,
    existing_store,
    group_key,
    listed_checkpoints,
    looking_into,
    using_hub,
    using_store,
    writable_store,
)
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.checkpoints.change import CheckpointChange
    from hubline.model.ownership import Checkpoint
    from hubline.model.positions import Position


def show(hub: HubArgument, store: StoreOption, group: GroupOption = DEFAULT_GROUP, json: JsonOption = False) -> None:
    """Show the checkpoint of each partition: its last processed event.

    \b
    Examples:
      hubline checkpoints show local:./data/orders --store sqlite:///state.db
      hubline checkpoints show env:HUB --store env:STORE --group billing --json
    """
    checkpoints = asyncio.run(_list(hub, existing_store(store), validate_group_name(group)))
    if json:
        for each in checkpoints:
            print_json({"partition": each.key.partition, "checkpoint": checkpoint_data(each)})
    elif not checkpoints:
        say(f"the group {group} has no checkpoints in this store")
    else:
        rows = [(each.key.partition, each.last_sequence, each.offset or None) for each in checkpoints]
        stdout_console().print(table(("partition", ">sequence", "offset"), rows))


def set_(
    hub: HubArgument,
    store: StoreOption,
    position: Annotated[
        str,
        option(
            "--position",
            "Where to continue: earliest, latest, offset:VALUE, sequence:N or time:-2h.",
            metavar="POSITION",
        ),
    ],
    group: GroupOption = DEFAULT_GROUP,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Move checkpoints forward to skip events, or back to replay them.

    Running consumers continue from the new position after their next renewal. The command shows the changes and asks
    before it makes them.

    \b
    Examples:
      hubline checkpoints set env:HUB --store env:STORE --position time:-2h
      hubline checkpoints set local:./data/orders --store sqlite:///state.db \\
          --position sequence:41 --partition 0 --yes
    """
    target = parse_position(position)
    choice = _Choice(hub, writable_store(store, option="--store"), group, partition or ())
    _change(choice, "Set", target, yes=yes, json=json)


def reset(
    hub: HubArgument,
    store: StoreOption,
    group: GroupOption = DEFAULT_GROUP,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove checkpoints, so that consumers start over.

    Consumers then start at their starting position: running ones after their next renewal. The command shows the
    changes and asks before it makes them.

    \b
    Examples:
      hubline checkpoints reset local:./data/orders --store sqlite:///state.db
      hubline checkpoints reset env:HUB --store env:STORE --partition 3 --yes
    """

    _change(_Choice(hub, existing_store(store), group, partition or ()), "Remove", None, yes=yes, json=json)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The checkpoints that a command shows or changes."""

    hub: str
    store: str
    group: str
    partitions: Sequence[str]


def _change(choice: _Choice, action: str, position: Position | None, *, yes: bool, json: bool) -> None:
    """Shows the changes, asks, and makes them."""
    changes = asyncio.run(_plan(choice, position))
    if not changes:
        say("nothing to change")
        return
    rows = [
        (
            each.key.partition,
            sequence_of(each.before),
            sequence_of(each.after),
            "before the oldest event" if each.is_before_oldest else None,
        )
        for each in changes
    ]
    stderr_console().print(table(("partition", ">checkpoint", ">becomes", "?place"), rows))
    confirm(f"{action} {counted(len(changes), 'checkpoint')} of the group {choice.group}?", yes=yes)
    asyncio.run(_apply(choice.store, changes))
    say(f"changed {counted(len(changes), 'checkpoint')}")
    if json:
        for each in changes:
            before, after = checkpoint_data(each.before), checkpoint_data(each.after)
            print_json({"partition": each.key.partition, "before": before, "checkpoint": after})


async def _list(hub: str, store: str, group: str) -> list[Checkpoint]:
    async with using_hub(hub) as opened, using_store(store) as opened_store:
        return await listed_checkpoints(opened_store, group_key(opened, group))


async def _plan(choice: _Choice, position: Position | None) -> list[CheckpointChange]:
    """The changes that move the checkpoints to a position, or remove them if there is none."""
    from hubline.checkpoints.change import plan_move, plan_reset

    wanted = [validate_partition_id(each) for each in choice.partitions]
    async with using_hub(choice.hub) as hub, looking_into(choice.store) as store:
        group, partitions = group_key(hub, choice.group), await chosen_partitions(hub, wanted)
        if position is None:
            return await plan_reset(store, group, partitions)
        return await plan_move(hub, store, group, partitions, position)


async def _apply(store: str, changes: Sequence[CheckpointChange]) -> None:
    from hubline.checkpoints.change import apply_changes

    async with using_store(store) as opened:
        await apply_changes(opened, changes)
