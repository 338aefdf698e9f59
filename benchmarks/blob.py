"""The blob store, and the HTTP client under it, beside the official packages, on one Azurite in the same run.

``blob-client`` is what the choice of the client rests on (docs/adr/0009): listing 1,024 blobs with their metadata, and
writing the metadata of 32 and of 1,024 blobs under their ETags, with hubline's client and with azure-storage-blob's.

``blob-cycle-1024`` is a dispatch cycle of a group with 1,024 partitions and one member, list and renew: by hubline's
store, at its default intervals (a renewal every 10 s, every ownership blob written every 40 s), and by
azure-eventhub-checkpointstoreblob-aio's, which writes every blob in every cycle. Azurite serves one request at a time,
about 500 writes a second, and takes a core of its own: wall time is bounded by it for both, and the client's CPU time
is given beside it.

Medians of rounds that take turns.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from azure.core import MatchConditions
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import ContainerClient

from benchmarks.harness import Result, benchmark
from hubline.config import BlobAddress, parse_store
from hubline.model import GroupKey, Member, Ownership
from hubline.stores.blob import BlobStore, Written
from hubline.stores.blob.layout import ownership_prefix
from hubline.stores.blob.together import each
from tests.support.azurite import Azurite, azurite

PARTITION_COUNT: Final = 1_024
FEW_COUNT: Final = 32
CLIENT_ROUND_COUNT: Final = 5
CYCLE_ROUND_COUNT: Final = 8  # two whole turns of the blobs, a quarter each
RENEWAL_SECONDS: Final = 10.0
GROUP: Final = GroupKey("namespace.example", "orders", "$default")
SDK_GROUP: Final = GroupKey("namespace.example", "orders", "sdk")
ME: Final = Member("owner")


@dataclass(slots=True)
class Times:
    """Seconds that rounds of one kind took: on the wall, and of this process's CPU."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def measure(self, work: Callable[[], Awaitable[object]]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    @property
    def wall_ms(self) -> float:
        return statistics.median(self.wall) * 1000

    @property
    def cpu_ms(self) -> float:
        return statistics.median(self.cpu) * 1000


@benchmark("blob-client")
def blob_client() -> Iterator[Result]:
    """The thin client and azure-storage-blob."""
    with azurite() as server:
        yield from asyncio.run(_clients(server, server.new_container()))


@benchmark("blob-cycle-1024")
def blob_cycle() -> Iterator[Result]:
    """List and renew 1,024 partitions."""
    with azurite() as server:
        yield from asyncio.run(_cycles(server, server.new_container()))


async def _clients(server: Azurite, address: str) -> list[Result]:
    name = address.rpartition("/")[2]
    async with AsyncExitStack() as closing:
        store = _store(address)
        closing.push_async_callback(store.close)
        official = await closing.enter_async_context(
            ContainerClient.from_connection_string(server.connection_string, name)
        )
        await _claim_all(store, GROUP)
        results: list[Result] = []
        results += await _compare("list-1024", lambda: _list_thin(store), lambda: _list_official(official))
        for count in (FEW_COUNT, PARTITION_COUNT):
            results += await _compare(
                f"renew-{count}",
                lambda count=count: _renew_thin(store, count),  # type: ignore[misc]
                lambda count=count: _renew_official(official, count),  # type: ignore[misc]
            )
        return results


async def _list_thin(store: BlobStore) -> None:
    blobs, _ = await store.container.list(ownership_prefix(GROUP))
    assert len(blobs) == PARTITION_COUNT


async def _list_official(client: ContainerClient) -> None:
    blobs = [blob async for blob in client.list_blobs(ownership_prefix(GROUP), include=["metadata"])]
    assert len(blobs) == PARTITION_COUNT


async def _renew_thin(store: BlobStore, count: int) -> None:
    blobs, _ = await store.container.list(ownership_prefix(GROUP))

    async def renew(name: str, etag: str) -> None:
        assert isinstance(await store.container.replace(name, {"ownerid": "owner"}, etag=etag), Written)

    await each(blobs[:count], lambda blob: renew(blob.name, blob.etag))


async def _renew_official(client: ContainerClient, count: int) -> None:
    blobs = [blob async for blob in client.list_blobs(ownership_prefix(GROUP), include=["metadata"])]

    async def renew(name: str, etag: str) -> None:
        await client.get_blob_client(name).set_blob_metadata(
            {"ownerid": "owner"}, etag=etag, match_condition=MatchConditions.IfNotModified
        )

    await each(blobs[:count], lambda blob: renew(blob.name, blob.etag))


async def _compare(
    name: str, thin: Callable[[], Awaitable[None]], official: Callable[[], Awaitable[None]]
) -> list[Result]:
    ours, theirs = Times(), Times()
    for _ in range(CLIENT_ROUND_COUNT):
        await ours.measure(thin)
        await theirs.measure(official)
    return _results(f"blob-client-{name}", ours, theirs, against="azure-storage-blob")


async def _cycles(server: Azurite, address: str) -> list[Result]:
    name = address.rpartition("/")[2]
    async with AsyncExitStack() as closing:
        store = _store(address)
        closing.push_async_callback(store.close)
        official = await closing.enter_async_context(
            BlobCheckpointStore.from_connection_string(server.connection_string, name)
        )
        held = await _claim_all(store, GROUP)
        await _claim_all(store, SDK_GROUP)

        async def cycle() -> None:
            nonlocal held
            # As if the last one had been as long ago as it is in production.
            now = asyncio.get_running_loop().time()
            store._renewed_at[GROUP, ME.owner_id] = now - RENEWAL_SECONDS
            state = await store.list_ownership(GROUP)
            held = await store.renew_ownership(GROUP, ME, held)
            assert len(state.ownerships) == len(held) == PARTITION_COUNT

        async def official_cycle() -> None:
            owned: Any = await official.list_ownership(SDK_GROUP.namespace, SDK_GROUP.hub, SDK_GROUP.group)
            renewed: Any = await official.claim_ownership(owned)
            assert len(renewed) == PARTITION_COUNT

        ours, theirs = Times(), Times()
        for _ in range(CYCLE_ROUND_COUNT):
            await ours.measure(cycle)
            await theirs.measure(official_cycle)
        return _results("blob-cycle-1024", ours, theirs, against="azure-eventhub-checkpointstoreblob-aio")


def _results(name: str, ours: Times, theirs: Times, *, against: str) -> list[Result]:
    """How many times the peer takes as long."""
    return [
        Result(name, ours.wall_ms, "ms", ratio=theirs.wall_ms / ours.wall_ms, against=f"{against}, times as long"),
        Result(f"{name}-cpu", ours.cpu_ms, "ms", ratio=theirs.cpu_ms / ours.cpu_ms, against=f"{against}, client CPU"),
    ]


def _store(address: str) -> BlobStore:
    parsed = parse_store(address)
    assert isinstance(parsed, BlobAddress)
    return BlobStore(parsed)


async def _claim_all(store: BlobStore, group: GroupKey) -> list[Ownership]:
    claims = [Ownership(group.partition(str(number)), ME.owner_id, epoch=1) for number in range(PARTITION_COUNT)]
    return await store.claim_ownership(claims)
