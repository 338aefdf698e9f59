"""The blob store, and the HTTP client under it, beside the official packages, on one Azurite in the same run.

``blob-client`` is what the choice of the client rests on (docs/adr/0009): listing 1,024 blobs with their metadata, and
writing the metadata of 32 and of 1,024 blobs under their ETags, with hubline's client and with azure-storage-blob's.

``blob-cycle-1024`` is a dispatch cycle of a group with 1,024 partitions and one member, list and renew: by hubline's
store, at its default intervals (a renewal every 10 s, every ownership blob written every 40 s), and by
azure-eventhub-checkpointstoreblob-aio's, which writes every blob in every cycle. ``-beside-sdk`` is the same in a
group in which an SDK owns a partition too, so that hubline also writes every blob. Azurite serves one request at a
time, about 500 writes a second, and takes a core of its own: wall time is bounded by it for both, and the client's CPU
time is given beside it.

``blob-fixed-renew-32`` is a renewal of 32 partitions with fixed leases, each with the checkpoint that is written at
it: 32 leases, 32 checkpoints and a heartbeat. Beside it as many bare requests of the same kinds, with a signature made
in advance, over a pool of connections of the same size.

Medians of rounds that take turns.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from azure.core import MatchConditions
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob import ContainerSasPermissions, generate_container_sas
from azure.storage.blob.aio import ContainerClient
from yarl import URL

from benchmarks.harness import Result, benchmark
from hubline.addresses.blob_address import EMULATOR_ACCOUNT, EMULATOR_KEY, BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob import BlobStore, Written
from hubline.checkpoint_stores.blob.http import API_VERSION, BULK_REQUESTS_MAX, CONNECTIONS_MAX
from hubline.checkpoint_stores.blob.layout import ownership_blob, ownership_prefix
from hubline.concurrency import map_bounded
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from tests.support.azurite import Azurite, azurite

PARTITION_COUNT: Final = 1_024
FEW_COUNT: Final = 32
CLIENT_ROUND_COUNT: Final = 5
CYCLE_ROUND_COUNT: Final = 8  # two whole turns of the blobs, a quarter each
FIXED_ROUND_COUNT: Final = 40
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
        yield from asyncio.run(_cycles("blob-cycle-1024", server, server.new_container()))


@benchmark("blob-cycle-1024-beside-sdk")
def blob_cycle_beside_sdk() -> Iterator[Result]:
    """The same, with an SDK in the group."""
    with azurite() as server:
        yield from asyncio.run(_cycles("blob-cycle-1024-beside-sdk", server, server.new_container()))


@benchmark("blob-fixed-renew-32")
def blob_fixed_renew() -> Iterator[Result]:
    """Renew 32 locked partitions, and write their checkpoints."""
    with azurite() as server:
        yield from asyncio.run(_fixed_renewals(server.new_container()))


async def _fixed_renewals(address: str) -> list[Result]:
    parsed = parse_store(address)
    assert isinstance(parsed, BlobAddress)
    store = BlobStore(parsed).with_locks(60)
    keys = [GROUP.partition(str(number)) for number in range(FEW_COUNT)]
    held = await store.claim_ownership([Ownership(key, ME.owner_id, epoch=1) for key in keys])
    for key in keys:
        await store.fence(key, 1)
    sequences = itertools.count()

    async def renew() -> None:
        nonlocal held
        held = (await store.renew_ownership(GROUP, ME, held)).renewed
        assert len(held) == FEW_COUNT
        sequence = next(sequences)
        checkpoints = [Checkpoint(key, str(sequence), sequence) for key in keys]
        await map_bounded(
            lambda one: store.update_checkpoint(one, epoch=1), checkpoints, max_concurrent=BULK_REQUESTS_MAX
        )

    async with _bare(address) as put:
        bare_keys = [SDK_GROUP.partition(str(number)) for number in range(FEW_COUNT)]
        ids = {ownership_blob(key): str(uuid.uuid4()) for key in bare_keys}
        acquire = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "60"}
        for blob, lease_id in ids.items():
            await put(blob, "", {"x-ms-blob-type": "BlockBlob"})
            await put(blob, "comp=lease", {**acquire, "x-ms-proposed-lease-id": lease_id})

        async def renew_bare() -> None:
            renewing = {"x-ms-lease-action": "renew"}
            await map_bounded(
                lambda blob: put(blob, "comp=lease", {**renewing, "x-ms-lease-id": ids[blob]}),
                list(ids),
                max_concurrent=BULK_REQUESTS_MAX,
            )
            await put("heartbeat", "", {"x-ms-blob-type": "BlockBlob", "x-ms-meta-ownerid": "owner"})
            metadata = {"x-ms-meta-ownerid": "owner", "x-ms-meta-offset": "1", "x-ms-meta-sequencenumber": "1"}
            await map_bounded(
                lambda blob: put(blob, "comp=metadata", {**metadata, "x-ms-lease-id": ids[blob]}),
                list(ids),
                max_concurrent=BULK_REQUESTS_MAX,
            )

        ours, bare = Times(), Times()
        for _ in range(FIXED_ROUND_COUNT):
            await ours.measure(renew)
            await bare.measure(renew_bare)
    await store.close()
    return _results("blob-fixed-renew-32", ours, bare, against="65 bare requests")


@asynccontextmanager
async def _bare(address: str) -> AsyncIterator[Callable[[str, str, dict[str, str]], Awaitable[None]]]:
    """PUT and nothing else: a blob's name, the query, and headers."""
    signature = generate_container_sas(
        EMULATOR_ACCOUNT,
        address.rpartition("/")[2],
        account_key=EMULATOR_KEY.reveal(),
        permission=ContainerSasPermissions(read=True, write=True, create=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX)) as session:

        async def put(blob: str, query: str, headers: dict[str, str]) -> None:
            url = URL(f"{address}/{quote(blob)}?{query}&{signature}", encoded=True)
            async with session.put(url, headers={"x-ms-version": API_VERSION, **headers}) as answer:
                assert answer.status in (200, 201), await answer.text()

        yield put


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

    await map_bounded(lambda blob: renew(blob.name, blob.etag), blobs[:count], max_concurrent=BULK_REQUESTS_MAX)


async def _renew_official(client: ContainerClient, count: int) -> None:
    blobs = [blob async for blob in client.list_blobs(ownership_prefix(GROUP), include=["metadata"])]

    async def renew(name: str, etag: str) -> None:
        await client.get_blob_client(name).set_blob_metadata(
            {"ownerid": "owner"}, etag=etag, match_condition=MatchConditions.IfNotModified
        )

    await map_bounded(lambda blob: renew(blob.name, blob.etag), blobs[:count], max_concurrent=BULK_REQUESTS_MAX)


async def _compare(
    name: str, thin: Callable[[], Awaitable[None]], official: Callable[[], Awaitable[None]]
) -> list[Result]:
    ours, theirs = Times(), Times()
    for _ in range(CLIENT_ROUND_COUNT):
        await ours.measure(thin)
        await theirs.measure(official)
    return _results(f"blob-client-{name}", ours, theirs, against="azure-storage-blob")


async def _cycles(benchmark_name: str, server: Azurite, address: str) -> list[Result]:
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
            store._ownership._renewed_at[GROUP, ME.owner_id] = now - RENEWAL_SECONDS
            if benchmark_name.endswith("beside-sdk"):
                await store.container.put(ownership_prefix(GROUP) + "sdk", {"ownerid": "an-sdk"})
            renewal = await store.renew_ownership(GROUP, ME, held)
            held = renewal.renewed
            assert renewal.group is not None
            assert len(held) == PARTITION_COUNT <= len(renewal.group.ownerships)

        async def official_cycle() -> None:
            owned: Any = await official.list_ownership(SDK_GROUP.namespace, SDK_GROUP.hub, SDK_GROUP.group)
            renewed: Any = await official.claim_ownership(owned)
            assert len(renewed) == PARTITION_COUNT

        ours, theirs = Times(), Times()
        for _ in range(CYCLE_ROUND_COUNT):
            await ours.measure(cycle)
            await theirs.measure(official_cycle)
        return _results(benchmark_name, ours, theirs, against="azure-eventhub-checkpointstoreblob-aio")


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
