"""The factory of the hubs under test, and how the tests of the contract use them."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar

from hubline.model.events import Event, new_events
from hubline.model.positions import Position
from hubline.ports import Hub, Receiver

GROUP: Final = "$Default"
OTHER_GROUP: Final = "audit"
CLI_GROUP: Final = "tests"

# For events that are on their way: far longer than any hub takes, so that a slow machine fails no test.
ARRIVAL_SECONDS: Final = 30.0
# Turns of the event loop after which a task that was started is likely to be waiting.
STEPS_TO_BEGIN: Final = 20


class HubFactory(ABC):
    """Where the hubs under test come from."""

    @abstractmethod
    async def create_hub(self, partition_count: int) -> Hub:
        """A hub that is new and empty, with the partitions "0", "1", and so on. Every call makes another one."""

    @asynccontextmanager
    async def hub(self, partition_count: int) -> AsyncIterator[Hub]:
        hub = await self.create_hub(partition_count)
        try:
            yield hub
        finally:
            await hub.close()


Factory = TypeVar("Factory", bound=HubFactory)
Rows: TypeAlias = Sequence[bytes | str | Mapping[str, Any]]


def scenario(
    *, partitions: int = 1
) -> Callable[[Callable[[Factory, Hub], Awaitable[None]]], Callable[[Factory], None]]:
    """Makes a plain test of a coroutine function that takes a fresh hub."""

    def made(test: Callable[[Factory, Hub], Awaitable[None]]) -> Callable[[Factory], None]:
        @functools.wraps(test)
        def run(self: Factory) -> None:
            async def play() -> None:
                async with self.hub(partitions) as hub:
                    await test(self, hub)

            asyncio.run(play())

        del run.__wrapped__  # pytest would take the test's parameters for fixtures
        return run

    return made


async def opened(
    hub: Hub,
    position: Position | None = None,
    *,
    partition: str = "0",
    group: str = GROUP,
    epoch: int | None = None,
) -> Receiver:
    """A receiver of the group, from the start by default."""
    return await hub.open_receiver(partition, group=group, position=position or Position.earliest(), epoch=epoch)


async def send(hub: Hub, rows: Rows, *, partition: str | None = None) -> None:
    sender = await hub.open_sender()
    await sender.send(new_events(rows), partition=partition)
    await sender.close()


async def sent(hub: Hub, rows: Rows, *, partition: str = "0") -> list[Event]:
    """Sends to one partition, and reads back what was sent."""
    last_sequence = (await hub.describe_partition(partition)).last_sequence
    await send(hub, rows, partition=partition)
    receiver = await opened(hub, Position.sequence(last_sequence), partition=partition, group=CLI_GROUP)
    try:
        return await events(receiver, len(rows))
    finally:
        await receiver.close()


async def sent_later_than(hub: Hub, event: Event, *, body: str = "later") -> Event:
    """Sends until the hub's clock has moved on: the first event with a later time than the given one's."""
    while True:
        (later,) = await sent(hub, [body])
        if later.enqueued_time > event.enqueued_time:
            return later


async def events(receiver: Receiver, count: int) -> list[Event]:
    """The next events, as many as asked for; fails if they do not come."""
    received: list[Event] = []
    while len(received) < count:
        batch = await receiver.receive(max_count=count - len(received), wait_seconds=ARRIVAL_SECONDS)
        assert len(batch), f"only {len(received)} of {count} events came"
        received += batch
    return received


async def bodies(receiver: Receiver, count: int) -> list[bytes]:
    return [event.body for event in await events(receiver, count)]


async def everything(hub: Hub) -> dict[str, list[Event]]:
    """All events by partition."""
    found: dict[str, list[Event]] = {}
    for partition in (await hub.describe()).partition_ids:
        described = await hub.describe_partition(partition)
        receiver = await opened(hub, partition=partition, group=CLI_GROUP)
        found[partition] = await events(receiver, described.last_sequence - described.begin_sequence + 1)
        await receiver.close()
    return found


async def begun(*tasks: asyncio.Task[Any]) -> None:
    """Lets tasks run up to a wait. Which one it is does not matter to the tests: they hold for all."""
    for _ in range(STEPS_TO_BEGIN):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
