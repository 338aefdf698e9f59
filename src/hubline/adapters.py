"""The one place that turns addresses into adapters.

Adapters are loaded when an address asks for them, so that naming a hub does not cost a database driver.
Opening reads nothing and connects to nothing; the adapter does that when it is first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.hub_address import (
    EventHubsAddress,
    HubAddress,
    LocalHubAddress,
    Transport,
    parse_hub,
    parse_transport,
)
from hubline.addresses.option_checks import check_value
from hubline.addresses.store_address import MemoryAddress, PostgresAddress, SqliteAddress, StoreAddress, parse_store
from hubline.errors import StoreNotFound

if TYPE_CHECKING:
    from hubline.checkpoint_stores.memory import MemoryStore
    from hubline.ports import CheckpointStore, Hub

TRANSPORT_VARIABLE: Final = "HUBLINE_TRANSPORT"
"""How Event Hubs are spoken to where an address does not say it."""


def open_hub(hub: str | HubAddress | Hub) -> Hub:
    """Open a hub by its address.

    It connects when you first use it. Only then does a hub that does not exist raise `HubNotFound`.

    Args:
        hub: `local:PATH/NAME`, a connection string, `eventhubs://NAMESPACE/NAME`, `env:NAME` or `file:PATH`. An open
            hub is returned as it is.

    Returns:
        The hub. Close it with `await hub.close()`.

    Raises:
        ConfigError: The address is not valid, or its variable or file does not exist.

    Example:
        hub = hubline.open_hub("local:./data/telemetry")
        print((await hub.describe()).partition_ids)  # ('0', '1', '2', '3')
    """
    match parse_hub(hub) if isinstance(hub, str) else hub:
        case LocalHubAddress(root, name):
            from hubline.hubs.local import LocalHub

            return LocalHub(root, name)
        case EventHubsAddress() as address:
            return _event_hubs(address)
        case opened:
            from hubline.ports import HubOrAddress

            checked: Hub = check_value("hub", HubOrAddress, opened)
            return checked


def _event_hubs(address: EventHubsAddress) -> Hub:
    transport = address.transport or parse_transport(
        os.environ.get(TRANSPORT_VARIABLE) or Transport.AMQP, what=f"the environment variable {TRANSPORT_VARIABLE}"
    )
    if transport is Transport.SDK:
        from hubline.hubs.eventhubs.sdk import SdkHub

        return SdkHub(address)
    from hubline.hubs.eventhubs import EventHubsHub

    return EventHubsHub(address, transport=transport)


def open_store(store: str | StoreAddress | CheckpointStore) -> CheckpointStore:
    """Open a checkpoint store by its address.

    It connects when you first use it. Within a process, all users of one `memory:` address share a store.

    Args:
        store: `memory:NAME`, `sqlite:///PATH`, `postgresql://...`, the `https://` address of a blob container,
            `env:NAME` or `file:PATH`. An open store is returned as it is.

    Returns:
        The store. Close it with `await store.close()`.

    Raises:
        ConfigError: The address is not valid, or the object lacks methods of a store. Wrap an object that has the four
            methods of the Azure SDK's stores with `hubline.checkpoint_stores.adapt`.
    """
    match parse_store(store) if isinstance(store, str) else store:
        case MemoryAddress(name):
            return _memory_store(name)
        case SqliteAddress(path):
            from hubline.checkpoint_stores.sqlite import SqliteStore

            return SqliteStore(path)
        case PostgresAddress(conninfo):
            from hubline.checkpoint_stores.postgres import PostgresStore

            return PostgresStore(conninfo)
        case BlobAddress() as address:
            from hubline.checkpoint_stores.blob import BlobStore

            return BlobStore(address)
        case opened:
            from hubline.checkpoint_stores.adapted import StoreOption

            checked: CheckpointStore = check_value("store", StoreOption, opened)
            return checked


def is_there(address: StoreAddress) -> bool:
    """Whether there is anything to open. Only of a file is this known without asking for it."""
    return not isinstance(address, SqliteAddress) or address.path.exists()


def require_there(address: StoreAddress) -> None:
    """Refuses a file that is not there, for who only looks: opening it would make an empty one, and find nothing."""
    if not is_there(address):
        raise StoreNotFound(
            f"{address}: there is no such file. Create it by starting a processor or pipeline that uses it, "
            "or correct the path."
        )


_memory_stores: dict[str, MemoryStore] = {}


def _memory_store(name: str) -> MemoryStore:
    from hubline.checkpoint_stores.memory import MemoryStore

    return _memory_stores.setdefault(name, MemoryStore())
