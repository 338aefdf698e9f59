"""Stores over a container of Azurite, and what the official store does to the same blobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob import BlobStore, Container, Written
from hubline.checkpoint_stores.blob.auth import credential_of
from hubline.checkpoint_stores.blob.http import Transport
from hubline.checkpoint_stores.blob.ownership import REFRESH_SECONDS
from hubline.model.keys import GroupKey
from tests.support.azurite import Azurite


def blob_address(address: str) -> BlobAddress:
    parsed = parse_store(address)
    assert isinstance(parsed, BlobAddress)
    return parsed


def blob_store(
    address: str, *, refresh_seconds: float = REFRESH_SECONDS, clock: Callable[[], float] = time.time
) -> BlobStore:
    return BlobStore(blob_address(address), refresh_seconds=refresh_seconds, clock=clock)


def locking_blob_store(address: str, *, seconds: int = 15, refresh_seconds: float = REFRESH_SECONDS) -> BlobStore:
    """One that also locks partitions, for the shortest time that the service grants unless said otherwise."""
    return blob_store(address, refresh_seconds=refresh_seconds).with_locks(seconds)


def play(address: str, scenario: Callable[[BlobStore], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario with an open store."""

    async def run() -> None:
        store = blob_store(address, **settings)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


async def write(container: Container, name: str, metadata: Mapping[str, str]) -> None:
    """A blob as somebody else left it."""
    assert isinstance(await container.put(name, metadata), Written)


class Official:
    """The official store, for one partition of a group."""

    def __init__(self, store: Any, group: GroupKey) -> None:
        self._store = store
        self._names = {
            "fully_qualified_namespace": group.namespace,
            "eventhub_name": group.hub,
            "consumer_group": group.group,
        }

    async def list_ownership(self) -> dict[str, dict[str, Any]]:
        return {one["partition_id"]: one for one in await self._store.list_ownership(**self._names)}

    async def claim(self, partition: str, owner_id: str) -> bool:
        """Takes a partition from any owner, as an SDK takes one that it steals."""
        known = (await self.list_ownership()).get(partition, {"etag": None})
        wanted = {**self._names, "partition_id": partition, "owner_id": owner_id, "etag": known["etag"]}
        return len(list(await self._store.claim_ownership([wanted]))) == 1

    async def list_checkpoints(self) -> dict[str, tuple[str, int]]:
        listed = await self._store.list_checkpoints(**self._names)
        return {one["partition_id"]: (one["offset"], one["sequence_number"]) for one in listed}

    async def update_checkpoint(self, partition: str, sequence_number: int) -> None:
        """Without any condition, as an SDK does."""
        await self._store.update_checkpoint(
            {
                **self._names,
                "partition_id": partition,
                "offset": f"at {sequence_number}",
                "sequence_number": sequence_number,
            }
        )


@asynccontextmanager
async def official(server: Azurite, address: str, group: GroupKey) -> AsyncIterator[Official]:
    name = address.rpartition("/")[2]
    async with BlobCheckpointStore.from_connection_string(server.connection_string, name) as store:
        yield Official(store, group)


def transport_of(address: str) -> Transport:
    parsed = blob_address(address)
    return Transport(parsed, credential_of(parsed))


async def eventually(is_true: Callable[[], bool] | Callable[[], Awaitable[bool]], *, seconds_max: float) -> None:
    """Returns once it is so."""
    async with asyncio.timeout(seconds_max):
        while True:
            truth = is_true()
            if truth if isinstance(truth, bool) else await truth:
                return
            await asyncio.sleep(0.05)
