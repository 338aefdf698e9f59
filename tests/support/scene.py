"""A hub, a store and processors in virtual time, and a record of what their handlers saw."""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import Strategy
from hubline.errors import HublineError, StoreUnavailable
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal
from hubline.model.positions import Position
from hubline.ports import CheckpointStore, Hub
from hubline.processor import LeaseOptions, PartitionContext, Processor, ProcessorOptions, ReleaseReason, RetryPolicy
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.virtual_loop import SimProcess, run_virtual
from hubline.testing.simulation.virtual_processor import VirtualProcessor

P = ParamSpec("P")
T = TypeVar("T")

GROUP = "tests"

POLL_SECONDS = 0.05
"""How often a condition is looked at: it costs nothing in virtual time, and little in real time."""

LEASE = LeaseOptions(lease_seconds=6.0, load_balancing_interval_seconds=2.0, startup_delay_seconds=0.5)
"""In virtual seconds, so none of them is waited for."""

Behaviour = Callable[[EventBatch, PartitionContext], Awaitable[None]]


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a plain test of a coroutine function: it runs in virtual time, and may leave no task behind."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def play() -> None:
            await test(*args, **kwargs)
            await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"tasks are left running: {left}"
            world = cast("SimProcess", asyncio.get_running_loop()).world
            world.look_for_failed_tasks()
            assert not world.failures

        run_virtual(play)

    return run


async def until(condition: Callable[[], object], *, seconds_max: float = 300.0) -> None:
    """Waits for a condition. In virtual time this is exact to the poll and takes none."""
    try:
        async with asyncio.timeout(seconds_max):
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"what was waited for did not come within {seconds_max:g} s") from None


class FaultyStore:
    """A store that fails on demand. ``failing`` maps a method, or "*", to what it raises; ``calls`` counts them."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self.failing: dict[str, Exception] = {}
        self.delay_seconds: dict[str, float] = {}
        self.calls: Counter[str] = Counter()

    def go_down(self) -> None:
        self.failing["*"] = StoreUnavailable("the store is down")

    def come_up(self) -> None:
        self.failing.clear()

    async def list_ownership(self, group: GroupKey) -> GroupState:
        await self._pass("list_ownership")
        return await self.store.list_ownership(group)

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        await self._pass("claim_ownership")
        return await self.store.claim_ownership(claims)

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        await self._pass("renew_ownership")
        return await self.store.renew_ownership(group, member, owned)

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        await self._pass("request_handover")
        await self.store.request_handover(keys, owner_id=owner_id)

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        await self._pass("fence")
        return await self.store.fence(key, epoch)

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        await self._pass("list_checkpoints")
        return await self.store.list_checkpoints(group)

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        await self._pass("update_checkpoint")
        await self.store.update_checkpoint(checkpoint, epoch=epoch)

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        await self._pass("reset_checkpoint")
        await self.store.reset_checkpoint(key, checkpoint)

    async def close(self) -> None:
        await self.store.close()

    async def _pass(self, method: str) -> None:
        self.calls[method] += 1
        if seconds := self.delay_seconds.get(method, 0.0):
            await asyncio.sleep(seconds)
        if error := self.failing.get(method, self.failing.get("*")):
            raise error


class Recorder:
    """A processor, and what its handlers saw. ``handled`` are the sequence numbers of batches that succeeded."""

    def __init__(self, processor: Processor, behaviour: Behaviour | None = None) -> None:
        self.processor = processor
        self.behaviour = behaviour
        self.assigning: Callable[[PartitionContext], None] = lambda partition: None
        self.lettering: Callable[[DeadLetter], Awaitable[None]] | None = None
        self.handled: defaultdict[str, list[int]] = defaultdict(list)
        self.batches: list[EventBatch] = []
        self.delivered_at: list[float] = []
        self.happened: list[str] = []
        self.errors: list[HublineError] = []
        self.dead_letters: list[DeadLetter] = []
        self.contexts: dict[str, PartitionContext] = {}
        processor.on_batch(self._on_batch)
        processor.on_assigned(self._on_assigned)
        processor.on_released(self._on_released)
        processor.on_error(self._on_error)
        processor.on_dead_letter(self._on_dead_letter)

    @property
    def sequences(self) -> list[int]:
        """What was handled of partition 0."""
        return self.handled["0"]

    @property
    def owned(self) -> set[str]:
        return set(self.contexts)

    @property
    def released(self) -> list[str]:
        return [what for what in self.happened if what.startswith("released")]

    def errors_of(self, kind: type[HublineError]) -> list[HublineError]:
        return [error for error in self.errors if isinstance(error, kind)]

    def clear(self) -> None:
        """Forgets what was handled so far."""
        self.handled.clear()
        self.batches.clear()
        self.delivered_at.clear()

    async def _on_batch(self, batch: EventBatch, partition: PartitionContext) -> None:
        self.batches.append(batch)
        self.delivered_at.append(asyncio.get_running_loop().time())
        if self.behaviour is not None:
            await self.behaviour(batch, partition)
        self.handled[batch.partition] += batch.arrow.column("sequenceNumber").to_pylist()

    async def _on_assigned(self, partition: PartitionContext) -> None:
        self.assigning(partition)
        self.happened.append(f"assigned {partition.partition_id}")
        self.contexts[partition.partition_id] = partition

    async def _on_released(self, partition: PartitionContext, reason: ReleaseReason) -> None:
        self.happened.append(f"released {partition.partition_id} {reason}")
        self.contexts.pop(partition.partition_id, None)

    async def _on_error(self, error: HublineError, partition: PartitionContext | None) -> None:
        self.errors.append(error)

    async def _on_dead_letter(self, dead_letter: DeadLetter, partition: PartitionContext) -> None:
        if self.lettering is not None:
            await self.lettering(dead_letter)
        self.dead_letters.append(dead_letter)


class Scene:
    """A hub and a store in memory, on the clock of the running event loop, and processors that share them."""

    def __init__(self, partitions_count: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        clock = self.loop.time
        self.hub = MemoryHub(partitions_count, now=clock)
        self.store = FaultyStore(MemoryStore(now=clock))
        self.group = GroupKey(self.hub.namespace, self.hub.name, GROUP)

    def append(self, count: int, *, partition: str = "0", body: bytes = b"x") -> None:
        self.hub.append(partition, [body] * count)

    def processor(
        self,
        behaviour: Behaviour | None = None,
        *,
        owner_id: str = "a",
        **arguments: Any,
    ) -> Recorder:
        """A processor whose handlers are recorded; the arguments are those of ``bare``."""
        return Recorder(self.bare(owner_id=owner_id, **arguments), behaviour)

    def bare(
        self,
        *,
        owner_id: str = "a",
        starting_position: Position | Mapping[str, Position] | None = None,
        load_balancing: Strategy | str = "greedy",
        hub: Hub | None = None,
        **options: Any,
    ) -> Processor:
        """A processor without handlers."""
        options = {
            "lease": LEASE,
            "handler_retry": RetryPolicy(max_attempts=3, initial_backoff_seconds=0.1),
            **options,
        }
        return VirtualProcessor(
            hub or self.hub,
            self.store,
            consumer_group=GROUP,
            starting_position=starting_position or Position.earliest(),
            load_balancing=load_balancing,
            owner_id=owner_id,
            options=ProcessorOptions(**options),
            rng=random.Random(owner_id),
        )

    async def checkpoint(self, partition: str = "0") -> int | None:
        """The stored sequence number; None where there is no checkpoint."""
        stored = await self.store.store.list_checkpoints(self.group)
        return next((c.sequence_number for c in stored if c.key.partition == partition), None)

    async def set_checkpoint(self, sequence: int, partition: str = "0") -> None:
        """As if an earlier run had left it."""
        key = self.group.partition(partition)
        await self.store.store.reset_checkpoint(key, Checkpoint(key, self.hub.offset_of(sequence), sequence))

    async def owners(self) -> dict[str, str]:
        state = await self.store.store.list_ownership(self.group)
        return {ownership.key.partition: ownership.owner_id for ownership in state.ownerships}


def partitions_of(*recorders: Recorder) -> list[str]:
    """Every partition as often as it is owned."""
    return sorted(partition for recorder in recorders for partition in recorder.owned)
