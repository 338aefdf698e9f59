"""``hubline hub ...``: creates, grows and deletes local hubs, and shows any hub."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.addresses.hub_address import LocalHubAddress, parse_hub, parse_local_root
from hubline.addresses.values import parse_duration, parse_size
from hubline.cli.arguments import HubArgument, JsonOption, YesOption, env_variable, option
from hubline.cli.exit_codes import say
from hubline.cli.output import bytes_text, confirm, json_time, print_json, stdout_console, table, timestamp
from hubline.cli.session import using_hub
from hubline.concurrency import map_bounded
from hubline.errors import ConfigError, HubError
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.model.hubs import HubProperties, PartitionProperties

# Enough for a few processors to share on one machine, and cheap.
DEFAULT_PARTITIONS = 4


def create(
    hub: HubArgument,
    partitions: Annotated[
        int,
        option(
            "--partitions", "The number of partitions. You can add more later, but not remove any.", min=1, metavar="N"
        ),
    ] = DEFAULT_PARTITIONS,
    retention: Annotated[
        str | None,
        option("--retention", "How long to keep events, such as 12h or 7d. Default: forever.", metavar="DURATION"),
    ] = None,
    retention_size: Annotated[
        str | None,
        option(
            "--retention-size", "How much to keep in each partition, such as 500MB. Default: no limit.", metavar="SIZE"
        ),
    ] = None,
) -> None:
    """Create a local hub.

    \b
    Examples:
      hubline hub create local:./data/orders
      hubline hub create local:./data/orders --partitions 8 --retention 7d
      hubline hub create local:./data/orders --retention-size 1GB
    """
    from hubline.hubs.local import Retention, create_hub

    address = _local(hub)
    kept = Retention(
        seconds=parse_duration(retention).total_seconds() if retention else None,
        bytes=parse_size(retention_size) if retention_size else None,
    )
    asyncio.run(create_hub(address.root, address.name, partitions=partitions, retention=kept))
    say(f"created {address} with {counted(partitions, 'partition')}")


def list_(
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", envvar=env_variable("folder"), help="The folder of the hubs: local:PATH."),
    ],
    json: JsonOption = False,
) -> None:
    """List the local hubs in a folder.

    \b
    Examples:
      hubline hub list local:./data
      hubline hub list local:./data --json
    """
    root = parse_local_root(folder)
    hubs = asyncio.run(_describe_all(root))
    if json:
        for hub in hubs:
            print_json(hub)
    elif not hubs:
        say(f"there are no hubs in {root}. Create one: hubline hub create local:{root}/NAME")
    else:
        rows = [(hub["hub"], hub["partitionCount"], hub["createdTime"], hub["problem"]) for hub in hubs]
        stdout_console().print(table(("hub", ">partitions", "created", "?problem"), rows))


def show(hub: HubArgument, json: JsonOption = False) -> None:
    """Show a hub and the events that its partitions hold.

    \b
    Examples:
      hubline hub show local:./data/orders
      hubline hub show local:./data/orders --json
    """
    properties, held = asyncio.run(_describe(hub))
    if json:
        print_json({**_hub_data(properties), "partitions": [_partition_data(each) for each in held]})
        return
    print(f"{properties.namespace}/{properties.name}, created {timestamp(properties.created_at)}")
    columns = ("partition", ">events", ">first", ">last", "last enqueued", ">size")
    stdout_console().print(table(columns, [_partition_row(each) for each in held]))


def grow(
    hub: HubArgument,
    partitions: Annotated[int, option("--partitions", "The new number of partitions.", min=1, metavar="N")],
) -> None:
    """Add partitions to a local hub.

    Running consumers start to read the new partitions by themselves. A partition key may belong to another partition
    afterwards, so the order of its events before and after the change is not guaranteed.

    \b
    Examples:
      hubline hub grow local:./data/orders --partitions 16
    """
    from hubline.hubs.local import grow_hub

    address = _local(hub)
    asyncio.run(grow_hub(address.root, address.name, partitions=partitions))
    say(f"{address} now has {counted(partitions, 'partition')}")


def delete(hub: HubArgument, yes: YesOption = False) -> None:
    """Delete a local hub with all its events.

    \b
    Examples:
      hubline hub delete local:./data/orders
      hubline hub delete local:./data/orders --yes
    """
    from hubline.hubs.local import delete_hub

    address = _local(hub)
    _, held = asyncio.run(_describe(hub))
    events = sum(each.last_sequence - each.begin_sequence + 1 for each in held)
    held_text = f"{counted(len(held), 'partition')} and {counted(events, 'event')}"
    confirm(f"Delete {address} with {held_text}?", yes=yes)
    asyncio.run(delete_hub(address.root, address.name))
    say(f"deleted {address}")


def _local(hub: str) -> LocalHubAddress:
    address = parse_hub(hub)
    if not isinstance(address, LocalHubAddress):
        raise ConfigError(
            f"{address}: hubline creates, grows and deletes local hubs only. Use the tools of the service, such as the "
            "Azure portal."
        )
    return address


async def _describe(hub: str) -> tuple[HubProperties, list[PartitionProperties]]:
    async with using_hub(hub) as opened:
        properties = await opened.describe()
        return properties, await map_bounded(opened.describe_partition, properties.partition_ids)


async def _describe_all(root: Path) -> list[dict[str, object]]:
    """Every hub of the folder. One that cannot be read says why, and does not stop the others."""
    from hubline.hubs.local import LocalHub, list_hubs

    async def data_of(name: str) -> dict[str, object]:
        hub = LocalHub(root, name)
        try:
            return {**_hub_data(await hub.describe()), "problem": None}
        except HubError as error:
            facts = {"namespace": hub.namespace, "hub": name, "partitionCount": None, "createdTime": None}
            return {**facts, "problem": str(error)}
        finally:
            await hub.close()

    return await map_bounded(data_of, await list_hubs(root))


def _hub_data(properties: HubProperties) -> dict[str, object]:
    return {
        "namespace": properties.namespace,
        "hub": properties.name,
        "partitionCount": len(properties.partition_ids),
        "createdTime": json_time(properties.created_at),
    }


def _partition_data(held: PartitionProperties) -> dict[str, object]:
    return {
        "partition": held.partition,
        "beginningSequenceNumber": held.begin_sequence,
        "lastEnqueuedSequenceNumber": held.last_sequence,
        "lastEnqueuedOffset": held.last_offset,
        "lastEnqueuedTime": json_time(held.last_enqueued_time),
        "bytes": held.bytes_count,
    }


def _partition_row(held: PartitionProperties) -> tuple[object, ...]:
    if held.is_empty:
        return held.partition, 0, None, None, None, bytes_text(held.bytes_count)
    return (
        held.partition,
        held.last_sequence - held.begin_sequence + 1,
        held.begin_sequence,
        held.last_sequence,
        held.last_enqueued_time,
        bytes_text(held.bytes_count),
    )
