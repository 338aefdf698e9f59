"""Opens hubs and stores for commands, and closes them at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hubline.adapters import is_there, open_hub, open_store, require_there
from hubline.addresses.names import validate_group_name
from hubline.addresses.store_address import MemoryAddress, parse_store
from hubline.errors import ConfigError, PartitionNotFound

if TYPE_CHECKING:
    from hubline.model.keys import GroupKey
    from hubline.model.ownership import Checkpoint
    from hubline.ports import CheckpointStore, Hub


@asynccontextmanager
async def using_hub(address: str) -> AsyncIterator[Hub]:
    """The hub, closed at the end."""
    hub = open_hub(address)
    try:
        yield hub
    finally:
        await hub.close()


@asynccontextmanager
async def using_store(address: str) -> AsyncIterator[CheckpointStore]:
    """The store, closed at the end."""
    store = open_store(address)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def looking_into(address: str) -> AsyncIterator[CheckpointStore]:
    """The store as it is before a change. A missing file is not created yet: the store is an empty one in memory."""
    if is_there(parse_store(address)):
        async with using_store(address) as store:
            yield store
        return
    from hubline.checkpoint_stores.memory import MemoryStore

    yield MemoryStore()


def existing_store(address: str) -> str:
    """The address of a store to read, which must exist."""
    require_there(parse_store(address))
    return address


def writable_store(address: str, *, option: str) -> str:
    """The address of a store to change."""
    if isinstance(parse_store(address), MemoryAddress):
        raise ConfigError(f"{option} memory: ends with this command. Give a store that lasts, such as sqlite:///PATH.")
    return address


def group_key(hub: Hub, group: str) -> GroupKey:
    """The key of a hub's consumer group, from the name that the user typed."""
    from hubline.model.keys import GroupKey

    return GroupKey(hub.namespace, hub.name, validate_group_name(group))


async def listed_checkpoints(store: CheckpointStore, group: GroupKey) -> list[Checkpoint]:
    """The group's checkpoints, in the order of partitions."""
    from hubline.model.keys import partition_order

    return sorted(await store.list_checkpoints(group), key=lambda each: partition_order(each.key.partition))


async def chosen_partitions(hub: Hub, wanted: Sequence[str]) -> Sequence[str]:
    """The wanted partitions if the hub has them all; all partitions if none is wanted."""
    there = (await hub.describe()).partition_ids
    for partition in wanted:
        if partition not in there:
            raise PartitionNotFound(
                f"hub {hub.name} has no partition {partition}. Choose from {_listed(there)}.",
                hub=hub.name,
                partition=partition,
            )
    return list(dict.fromkeys(wanted)) or there


def _listed(partitions: Sequence[str]) -> str:
    return ", ".join(partitions) if len(partitions) <= 8 else f"{', '.join(partitions[:3])}, ... {partitions[-1]}"
