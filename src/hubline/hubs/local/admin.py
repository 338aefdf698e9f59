"""Creating, listing, growing and deleting local hubs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hubline.addresses.option_checks import checked
from hubline.errors import HubExists
from hubline.hubs.local.hub_folder import HubFolder, PartitionCount, Retention, is_hub, list_names


@checked
async def create_hub(
    root: Path | str,
    name: str,
    *,
    partitions: PartitionCount,
    retention: Retention | None = None,
    exist_ok: bool = False,
) -> None:
    """Create a hub in a folder, completely or not at all.

    Args:
        root: The folder, which is created if it is missing.
        name: The name of the hub.
        partitions: How many partitions it has: 1 to 1,024.
        retention: How long events are kept. Default: without limit.
        exist_ok: Leave a hub that already exists as it is. Default: False.

    Raises:
        HubExists: There is a hub of that name.
        ConfigError: The name or the number is not valid.

    Example:
        await create_hub("./data", "telemetry", partitions=4)
    """
    folder = HubFolder(root, name)
    try:
        await asyncio.to_thread(folder.create, partitions, retention or Retention())
    except HubExists:
        if not (exist_ok and is_hub(folder.path)):
            raise


async def list_hubs(root: Path | str) -> list[str]:
    """List the names of the hubs in a folder, sorted.

    Args:
        root: The folder.
    """
    return await asyncio.to_thread(list_names, Path(root))


@checked
async def grow_hub(root: Path | str, name: str, *, partitions: PartitionCount) -> None:
    """Add partitions to a hub. Running senders and processors see the new ones within about a second.

    The number of partitions decides where a key goes: from then on, events of one key may go to another partition.

    Args:
        root: The folder.
        name: The name of the hub.
        partitions: How many partitions it has afterwards.

    Raises:
        HubNotFound: There is no such hub.
        ConfigError: The hub has more partitions than that, or the number is not valid.
    """
    await asyncio.to_thread(HubFolder(root, name).grow, partitions)


async def delete_hub(root: Path | str, name: str) -> None:
    """Delete a hub with all its events. Open readers and senders get an error at their next call.

    Args:
        root: The folder.
        name: The name of the hub.

    Raises:
        HubNotFound: There is no such hub.
    """
    await asyncio.to_thread(HubFolder(root, name).delete)
