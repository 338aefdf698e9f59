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
    """Creates a hub in the folder ``root``, whole or not at all.

    Raises HubExists; with ``exist_ok`` a hub that is there already is left as it is.
    """
    folder = HubFolder(root, name)
    try:
        await asyncio.to_thread(folder.create, partitions, retention or Retention())
    except HubExists:
        if not (exist_ok and is_hub(folder.path)):
            raise


async def list_hubs(root: Path | str) -> list[str]:
    """The names of the hubs in the folder ``root``, sorted."""
    return await asyncio.to_thread(list_names, Path(root))


@checked
async def grow_hub(root: Path | str, name: str, *, partitions: PartitionCount) -> None:
    """Raises the number of partitions. Senders and processors that run pick the new ones up within about a second.

    Keys are dealt out by the number of partitions: events of one key may go to another partition from then on.
    """
    await asyncio.to_thread(HubFolder(root, name).grow, partitions)


async def delete_hub(root: Path | str, name: str) -> None:
    """Deletes a hub with all its events. Readers and senders that are open get an error at their next call."""
    await asyncio.to_thread(HubFolder(root, name).delete)
