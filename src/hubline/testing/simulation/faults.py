"""A store and a hub as a process sees them over a bad network: late, failing before or after the effect, stale."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hubline.errors import HubUnavailable, StoreUnavailable
from hubline.model.events import EventBatch
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal
from hubline.model.positions import Position
from hubline.ports import CheckpointStore, Hub, Receiver, Sender
from hubline.testing.simulation.virtual_loop import SimProcess, World, run_now

T = TypeVar("T")


@dataclass(slots=True)
class Weather:
    """How bad the network is at the moment; probabilities are per call. ``counts`` tells what was injected."""

    latency_seconds: float = 0.005
    spike: float = 0.0
    spike_seconds: float = 5.0
    fail_before: float = 0.0
    fail_after: float = 0.0
    stale: float = 0.0
    is_store_down: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """From now on everything works."""
        self.latency_seconds = 0.001
        self.spike = self.fail_before = self.fail_after = self.stale = 0.0
        self.is_store_down = False

    def count(self, fault: str) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def strikes(self, world: World, fault: str, probability: float) -> bool:
        if probability and world.rng.random() < probability:
            self.count(fault)
            return True
        return False

    def latency(self, world: World) -> float:
        draw = world.rng.random
        if self.spike and draw() < self.spike:
            self.count("latency")
            return self.spike_seconds * draw()
        return self.latency_seconds * (0.2 + 1.6 * draw())


class RemoteStore:
    """A process's connection to a store whose methods never wait, such as a MemoryStore.

    The effect takes place in the world, not in the process: a call that was sent takes effect even if its
    process is paused or killed meanwhile.
    """

    def __init__(self, process: SimProcess, store: CheckpointStore, weather: Weather) -> None:
        self._process = process
        self._store = store
        self._weather = weather
        self._seen: dict[GroupKey, tuple[float, GroupState]] = {}

    async def list_ownership(self, group: GroupKey) -> GroupState:
        world = self._process.world
        if group in self._seen and self._weather.strikes(world, "stale_list", self._weather.stale):
            seen_at, state = self._seen[group]
            await self._process.sleep(self._weather.latency(world))
            return _aged(state, world.now - seen_at)
        state = await self._call(lambda: self._store.list_ownership(group))
        self._seen[group] = (world.now, state)
        return state

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        return await self._call(lambda: self._store.claim_ownership(claims))

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        return await self._call(lambda: self._store.renew_ownership(group, member, owned))

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        await self._call(lambda: self._store.request_handover(keys, owner_id=owner_id))

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        return await self._call(lambda: self._store.fence(key, epoch))

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        return await self._call(lambda: self._store.list_checkpoints(group))

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        await self._call(lambda: self._store.update_checkpoint(checkpoint, epoch=epoch))

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        await self._call(lambda: self._store.reset_checkpoint(key, checkpoint))

    async def close(self) -> None:
        """Nothing to let go."""

    async def _call(self, method: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await call_over_network(self._process, self._weather, lambda: run_now(method()))


async def call_over_network(
    process: SimProcess,
    weather: Weather,
    function: Callable[[], T],
    *,
    failure: Callable[[str], Exception] = StoreUnavailable,
) -> T:
    """Calls a function as a server does for a process: late, and failing at times, before or after its effect."""
    world = process.world
    if world.is_over:
        raise asyncio.CancelledError
    answer: asyncio.Future[T] = process.create_future()

    def reply(outcome: Callable[[], None]) -> None:
        world.call_later(weather.latency(world), lambda: None if answer.done() else outcome())

    def serve() -> None:
        if weather.is_store_down:
            weather.count("store_down")
            reply(lambda: answer.set_exception(failure("the store is down")))
            return
        if weather.strikes(world, "fail_before", weather.fail_before):
            reply(lambda: answer.set_exception(failure("failed before the effect")))
            return
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            reply(lambda error=error: answer.set_exception(error))  # type: ignore[misc]
            return
        if weather.strikes(world, "fail_after", weather.fail_after):
            reply(lambda: answer.set_exception(failure("failed after the effect")))
            return
        reply(lambda: answer.set_result(result))

    world.call_later(weather.latency(world), serve)
    return await answer


class RemoteHub:
    """A process's connection to a hub: late, and at times unreachable."""

    def __init__(self, process: SimProcess, hub: Hub, weather: Weather) -> None:
        self._process = process
        self._hub = hub
        self._weather = weather

    @property
    def namespace(self) -> str:
        return self._hub.namespace

    @property
    def name(self) -> str:
        return self._hub.name

    async def describe(self) -> HubProperties:
        await self.travel()
        return await self._hub.describe()

    async def describe_partition(self, partition: str) -> PartitionProperties:
        await self.travel()
        return await self._hub.describe_partition(partition)

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> Receiver:
        await self.travel()
        receiver = await self._hub.open_receiver(partition, group=group, position=position, epoch=epoch)
        return _RemoteReceiver(self, receiver)

    async def open_sender(self) -> Sender:
        return await self._hub.open_sender()

    async def close(self) -> None:
        """Nothing to let go."""

    async def travel(self) -> None:
        """What a request suffers on its way."""
        world, weather = self._process.world, self._weather
        await self._process.sleep(weather.latency(world))
        if weather.strikes(world, "hub_unavailable", weather.fail_before):
            raise HubUnavailable("the simulated hub cannot be reached. hubline tries again.", hub=self.name)


class _RemoteReceiver:
    def __init__(self, hub: RemoteHub, receiver: Receiver) -> None:
        self._hub = hub
        self._receiver = receiver

    @property
    def last_sequence(self) -> int | None:
        return self._receiver.last_sequence

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        # Late before, not after: a receive that is cancelled must not have taken events with it.
        await self._hub.travel()
        return await self._receiver.receive(max_count=max_count, wait_seconds=wait_seconds)

    async def close(self) -> None:
        await self._receiver.close()


def _aged(state: GroupState, seconds: float) -> GroupState:
    """A listing from a cache: the records are old, their ages right."""
    return GroupState(
        ownerships=tuple(
            replace(o, age_seconds=o.age_seconds + seconds, request_age_seconds=o.request_age_seconds + seconds)
            for o in state.ownerships
        ),
        members=tuple(replace(m, age_seconds=m.age_seconds + seconds) for m in state.members),
    )
