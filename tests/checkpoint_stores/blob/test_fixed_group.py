"""Processors of fixed partitions over real locks: one is killed, one frozen, and the service is away for a while."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hubline.checkpoint_stores.blob import BlobStore
from hubline.checkpoint_stores.blob.layout import checkpoint_blob, ownership_blob
from hubline.coordination.strategies import Fixed
from hubline.errors import LeaseLost, StoreUnavailable
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import EventBatch, new_events
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.processor import PartitionContext, Processor
from hubline.testing.memory_hub import MemoryHub
from tests.checkpoint_stores.blob.fixed_member import GROUP, LEASE_SECONDS, FixedMember, Task, options
from tests.checkpoint_stores.blob.support import blob_store, eventually
from tests.support.azurite import azurite

pytestmark = [pytest.mark.xdist_group("azurite"), pytest.mark.kills]

# Several leases, and far longer than it takes on a quiet machine: a bound on waiting, not a measure.
PATIENCE_SECONDS = 120.0

FIXED = Fixed(2, lease=LEASE_SECONDS)


until = functools.partial(eventually, seconds_max=PATIENCE_SECONDS)


def test_a_standby_takes_over_from_the_killed_and_the_frozen_who_can_write_nothing(
    container: str, tmp_path: Path
) -> None:
    members: list[FixedMember] = []
    try:
        asyncio.run(_take_over(container, tmp_path, members))
    finally:
        for member in members:
            member.kill()


async def _take_over(container: str, folder: Path, members: list[FixedMember]) -> None:
    await create_hub(folder, "orders", partitions=2)
    hub = LocalHub(folder, "orders")
    sender = await hub.open_sender()
    store = blob_store(container)
    group = GroupKey(hub.namespace, hub.name, GROUP)

    async def owners() -> dict[str, tuple[str, int]]:
        listed = (await store.list_ownership(group)).ownerships
        return {one.owner_id: (one.key.partition, one.epoch) for one in listed if one.age_seconds < LEASE_SECONDS}

    async def progress() -> dict[str, int]:
        return {one.key.partition: one.sequence_number for one in await store.list_checkpoints(group)}

    for partition in ("0", "1"):
        await sender.send(new_events([b"x"] * 5), partition=partition)
    members += [
        FixedMember(Task(f"local:{folder}/orders", container, name, str(folder / name)))
        for name in ("killed", "frozen")
    ]
    killed, frozen = members
    await until(lambda: _is(progress(), {"0": 4, "1": 4}))
    partition_of = {name: partition for name, (partition, _) in (await owners()).items()}

    handled: list[tuple[str, int]] = []
    may_finish = asyncio.Event()
    standby = Processor(
        hub,
        container,
        consumer_group=GROUP,
        starting_position=Position.earliest(),
        load_balancing=FIXED,
        owner_id="standby",
        options=options(),
    )

    @standby.on_batch
    async def handle(batch: EventBatch) -> None:
        handled.extend((event.partition, event.sequence_number) for event in batch)
        if batch[0].partition == partition_of["frozen"]:
            await may_finish.wait()

    await standby.start()
    await sender.send(new_events([b"wait"]), partition=partition_of["frozen"])
    await until(lambda: f"began {partition_of['frozen']} 5" in frozen.journal())
    assert standby.partitions == []

    frozen.freeze()
    killed.kill()
    await sender.send(new_events([b"x"]), partition=partition_of["killed"])
    # Both locks lapse. It continues after the checkpoints, in the next epoch.
    await until(lambda: sorted(handled) == [("0", 5), ("1", 5)])
    await until(lambda: _is(progress(), {partition_of["killed"]: 5, partition_of["frozen"]: 4}))
    assert {partition.epoch for partition in standby.partitions} == {2}
    before = await _etag(store, group, partition_of["frozen"])

    frozen.wake()  # its handler returns, and what it has done is ahead of the checkpoint
    await until(lambda: "lost" in frozen.journal())

    assert await _etag(store, group, partition_of["frozen"]) == before
    frozen.kill()
    may_finish.set()
    await standby.stop()
    assert await progress() == {"0": 5, "1": 5}
    await sender.close()
    await hub.close()
    await store.close()


async def _is(value: Awaitable[object], expected: object) -> bool:
    return await value == expected


async def _etag(store: BlobStore, group: GroupKey, partition: str) -> str:
    found = await store.container.look(checkpoint_blob(group.partition(partition)))
    assert found is not None
    return found.etag


def test_a_killed_owner_keeps_its_partition_until_its_lock_ends(container: str, tmp_path: Path) -> None:
    """The lease of its record, which is shorter, has ended long before."""
    members: list[FixedMember] = []
    try:
        asyncio.run(_outlast(container, tmp_path, members))
    finally:
        for member in members:
            member.kill()


async def _outlast(container: str, folder: Path, members: list[FixedMember]) -> None:
    lease_seconds = 3.0
    await create_hub(folder, "orders", partitions=1)
    hub = LocalHub(folder, "orders")
    sender = await hub.open_sender()
    await sender.send(new_events([b"x"] * 5), partition="0")
    store = blob_store(container)
    group = GroupKey(hub.namespace, hub.name, GROUP)
    name = ownership_blob(group.partition("0"))
    members.append(
        FixedMember(Task(f"local:{folder}/orders", container, "killed", str(folder / "killed"), lease_seconds))
    )
    standby = Processor(
        hub,
        container,
        consumer_group=GROUP,
        starting_position=Position.earliest(),
        load_balancing=FIXED,
        owner_id="standby",
        options=options(lease_seconds=lease_seconds),
    )
    handled: list[int] = []

    @standby.on_batch
    async def handle(batch: EventBatch) -> None:
        handled.extend(event.sequence_number for event in batch)

    await until(lambda: _is(_sequence(store, group), 4))
    await standby.start()
    members[0].kill()
    killed_at = time.monotonic()
    await sender.send(new_events([b"x"]), partition="0")

    found = None
    while found is None or found.metadata["ownerid"] == "killed":
        assert time.monotonic() < killed_at + PATIENCE_SECONDS
        held = standby.partitions  # before the look, which is of a later time
        found = await store.container.look(name)
        assert found is not None
        assert held == [] or found.metadata["ownerid"] == "standby"
        await asyncio.sleep(0.1)

    assert time.monotonic() - killed_at > 3 * lease_seconds
    await until(lambda: handled == [5])
    assert (found.metadata["ownerid"], found.metadata["hublineepoch"]) == ("standby", "2")
    await standby.stop()
    await sender.close()
    await hub.close()
    await store.close()


async def _sequence(store: BlobStore, group: GroupKey) -> int | None:
    return next((one.sequence_number for one in await store.list_checkpoints(group)), None)


def test_an_outage_within_the_lease_costs_nothing_and_a_longer_one_no_event() -> None:
    with azurite(is_on_disk=True) as server:
        asyncio.run(_outages(server.stop, server.start, server.new_container()))


async def _outages(stop: Callable[[], None], start: Callable[[], None], container: str) -> None:
    hub = MemoryHub(2)
    group = GroupKey(hub.namespace, hub.name, GROUP)
    store = blob_store(container)
    handled: set[tuple[str, int]] = set()
    errors: list[Exception] = []
    renewals: list[str] = []
    processor = Processor(
        hub, store, consumer_group=GROUP, starting_position="earliest", load_balancing=FIXED, options=options()
    )

    @processor.on_batch
    async def handle(batch: EventBatch) -> None:
        handled.update((event.partition, event.sequence_number) for event in batch)

    @processor.on_renewed
    async def renewed(partition: PartitionContext) -> None:
        renewals.append(partition.partition_id)

    @processor.on_error
    async def failed(error: Exception) -> None:
        errors.append(error)

    def append() -> None:
        for partition in ("0", "1"):
            hub.append(partition, [b"x"] * 5)

    append()
    await processor.start()
    await until(lambda: len(handled) == 10)

    await asyncio.to_thread(stop)
    await until(lambda: any(isinstance(error, StoreUnavailable) for error in errors))
    await asyncio.to_thread(start)
    renewals.clear()
    await until(lambda: {"0", "1"} <= set(renewals))
    assert not any(isinstance(error, LeaseLost) for error in errors)
    assert {partition.epoch for partition in processor.partitions} == {1}

    await asyncio.to_thread(stop)
    await until(lambda: sum(isinstance(error, LeaseLost) for error in errors) == 2)
    append()
    await asyncio.to_thread(start)
    await until(lambda: len(handled) == 20)
    await processor.stop()

    checkpoints = await store.list_checkpoints(group)
    assert {one.key.partition: one.sequence_number for one in checkpoints} == {"0": 9, "1": 9}
    assert {one.epoch for one in (await store.list_ownership(group)).ownerships} == {2}
    await store.close()
