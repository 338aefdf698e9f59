"""``hubline checkpoints ...``: shows and changes the checkpoints of a consumer group."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name, validate_partition_id
from hubline.addresses.values import parse_position
from hubline.cli.arguments import GroupOption, HubArgument, JsonOption, PartitionsOption, StoreOption, YesOption, option
from hubline.cli.exit_codes import say
from hubline.cli.output import confirm, counted, print_json, stderr_console, stdout_console, table
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
from hubline.cli.status import checkpoint_data
from hubline.concurrency import map_bounded
from hubline.errors import ConfigError, PositionInvalid
from hubline.monitoring.lag import peek

if TYPE_CHECKING:
    from hubline.model.hubs import PartitionProperties
    from hubline.model.keys import PartitionKey
    from hubline.model.ownership import Checkpoint
    from hubline.model.positions import Position
    from hubline.ports import Hub

app = typer.Typer(no_args_is_help=True, help="Show, move, reset, copy and migrate the checkpoints of a group.")


@app.command()
def show(hub: HubArgument, store: StoreOption, group: GroupOption = DEFAULT_GROUP, json: JsonOption = False) -> None:
    """Show the checkpoint of each partition: the last processed event.

    \b
    Examples:
      hubline checkpoints show local:./data/orders --store sqlite:///state.db --group billing
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


@app.command("set")
def set_(
    hub: HubArgument,
    store: StoreOption,
    position: Annotated[
        str,
        option(
            "--position",
            "Where processing continues: latest, offset:VALUE, sequence:N or time:-2h.",
            metavar="POSITION",
        ),
    ],
    group: GroupOption = DEFAULT_GROUP,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Move checkpoints forward (to skip events) or back (to replay events).

    Running consumers continue from there at once. The command shows the changes and asks before it makes them.

    \b
    Examples:
      hubline checkpoints set local:./data/orders --store sqlite:///state.db --position time:-2h
      hubline checkpoints set local:./data/orders --store sqlite:///state.db --position sequence:41 --partition 0 --yes
    """
    target = parse_position(position)

    async def moved(opened: Hub, key: PartitionKey) -> Checkpoint:
        return await checkpoint_before(opened, key, target)

    choice = _Choice(hub, writable_store(store, option="--store"), group, partition or ())
    _change(choice, "Set", moved, yes=yes, json=json)


@app.command()
def reset(
    hub: HubArgument,
    store: StoreOption,
    group: GroupOption = DEFAULT_GROUP,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove checkpoints: consumers begin again at their starting position.

    \b
    Examples:
      hubline checkpoints reset local:./data/orders --store sqlite:///state.db --group billing
      hubline checkpoints reset local:./data/orders --store sqlite:///state.db --partition 3 --yes
    """

    async def removed(_hub: Hub, _key: PartitionKey) -> Checkpoint | None:
        return None

    _change(_Choice(hub, existing_store(store), group, partition or ()), "Remove", removed, yes=yes, json=json)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which checkpoints a command is about."""

    hub: str
    store: str
    group: str
    partitions: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Change:
    key: PartitionKey
    before: Checkpoint | None
    after: Checkpoint | None


Decide = Callable[["Hub", "PartitionKey"], Coroutine[object, object, "Checkpoint | None"]]
"""What becomes of the checkpoint of a partition."""


def _change(choice: _Choice, verb: str, decide: Decide, *, yes: bool, json: bool) -> None:
    """Shows what would change, asks, and does it."""
    changes = asyncio.run(_plan(choice, decide))
    if not changes:
        say("nothing to change")
        return
    rows = [(each.key.partition, _sequence(each.before), _sequence(each.after)) for each in changes]
    stderr_console().print(table(("partition", ">checkpoint", ">becomes"), rows))
    confirm(f"{verb} {counted(len(changes), 'checkpoint')} of the group {choice.group}?", yes=yes)
    asyncio.run(_apply(choice.store, changes))
    say(f"changed {counted(len(changes), 'checkpoint')}")
    if json:
        for each in changes:
            before, after = checkpoint_data(each.before), checkpoint_data(each.after)
            print_json({"partition": each.key.partition, "before": before, "checkpoint": after})


def _sequence(checkpoint: Checkpoint | None) -> int | None:
    return None if checkpoint is None else checkpoint.last_sequence


async def _list(hub: str, store: str, group: str) -> list[Checkpoint]:
    async with using_hub(hub) as opened, using_store(store) as opened_store:
        return await listed_checkpoints(opened_store, group_key(opened, group))


async def _plan(choice: _Choice, decide: Decide) -> list[_Change]:
    wanted = [validate_partition_id(each) for each in choice.partitions]
    async with using_hub(choice.hub) as hub, looking_into(choice.store) as store:
        group = group_key(hub, choice.group)
        before = {each.key.partition: each for each in await listed_checkpoints(store, group)}
        keys = [group.partition(each) for each in await chosen_partitions(hub, wanted)]
        after = await map_bounded(functools.partial(decide, hub), keys)
    changes = [_Change(key, before.get(key.partition), new) for key, new in zip(keys, after, strict=True)]
    return [each for each in changes if each.before != each.after]


async def _apply(store: str, changes: Sequence[_Change]) -> None:
    # Dying in between leaves some partitions changed and the others as they were; running it again is fine.
    async with using_store(store) as opened:
        for each in changes:
            await opened.reset_checkpoint(each.key, each.after)


async def checkpoint_before(hub: Hub, key: PartitionKey, position: Position) -> Checkpoint:
    """The checkpoint after which reading goes on at the position: the event that stands before it."""
    from hubline.model.ownership import Checkpoint
    from hubline.model.positions import Position

    held = await hub.describe_partition(key.partition)
    try:
        next_sequence = await _next_sequence(hub, held, position)
    except PositionInvalid as error:
        if error.reason == "foreign":
            raise
        next_sequence = held.begin_sequence
        if error.reason == "beyond":
            raise ConfigError(
                f"partition {key.partition} {_described(held)}: {position} is beyond the end. To continue with the "
                "next event that arrives, use --position latest"
            ) from None
    if held.last_offset is None:
        return Checkpoint.before_first(key)
    if held.is_empty:
        return Checkpoint(key, held.last_offset, held.last_sequence)  # retention took it, and what comes is after it
    previous = None
    if held.begin_sequence < next_sequence:
        previous = await peek(hub, key.partition, Position.sequence(next_sequence - 1, inclusive=True))
    if previous is None:
        raise ConfigError(
            f"partition {key.partition} {_described(held)}: its checkpoint cannot move to {position}, because the "
            "event before that does not exist any more. To start from the oldest event, run `hubline checkpoints "
            "reset`, with consumers whose starting position is earliest"
        )
    return Checkpoint(key, previous.offset, previous.sequence_number)


def _described(held: PartitionProperties) -> str:
    if held.last_offset is None:
        return "never had an event"
    if held.is_empty:
        return f"holds no events, and the last one was {held.last_sequence}"
    return f"holds events {held.begin_sequence} to {held.last_sequence}"


async def _next_sequence(hub: Hub, held: PartitionProperties, position: Position) -> int:
    """The sequence number of the first event at the position; the one after the last if it is still to come."""
    from hubline.hubs.position_check import PositionCheck

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
