"""The factory of the stores under test, and how the tests of the contract use them."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from hubline.model.keys import GroupKey
from hubline.model.ownership import Ownership
from hubline.ports import CheckpointStore

GROUP = GroupKey("namespace.example", "orders", "$Default")
KEY = GROUP.partition("0")
NEVER_FENCED = -1  # the held epoch of a checkpoint that nobody has fenced

# Enough to make a lost update likely: over 4 clients, 20 calls are in flight at once and several truly overlap.
RACER_COUNT = 20
CLIENT_COUNT = 4

# Longer than the resolution of any store's clock (a millisecond), short enough to wait for.
TICK_SECONDS = 0.02


class StoreFactory(ABC):
    """Where the stores under test come from.

    ``round_count`` is how often a race is run, and ``partition_count`` how many partitions "many" are: fewer for a
    store whose calls take long. ``renewal_is_a_write`` says whether each renewal changes the version of each record, so
    that a claim of what was listed before is lost. Where it does not, a renewal proves that the record is still its
    owner's, and makes it young. ``keeps_epochs`` says whether all clients see the epoch that a claim named.

    Most stores leave it to the caller to judge whether a lease has expired, and give a partition to any claim
    under its current version. One that keeps leases itself does so only once the lease has expired: its factory makes
    that happen in ``lapse``, and leaves out `HandoverContract`, because its partitions are never requested.
    """

    round_count = 12
    partition_count = 1024
    renewal_is_a_write = True
    keeps_epochs = True

    @abstractmethod
    def open_store(self) -> CheckpointStore:
        """A client of the test's store, which is empty at first. All clients of a test see the same data."""

    async def pass_time(self, seconds: float) -> None:
        """Lets the store's own clock advance by at least that much. Sleeps, unless overridden."""
        await asyncio.sleep(seconds)

    async def lapse(self, ownership: Ownership) -> None:  # noqa: B027 - most stores have nothing to do
        """Lets the lease of a record end, in a store that keeps leases itself; the record stays as it is."""

    def stored(self, ownership: Ownership) -> Ownership:
        """What all clients see of a record."""
        return untimed(ownership if self.keeps_epochs else replace(ownership, epoch=0))

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[CheckpointStore]]:
        async with AsyncExitStack() as closing:
            stores = [self.open_store() for _ in range(count)]
            for store in stores:
                closing.push_async_callback(store.close)
            yield stores


Factory = TypeVar("Factory", bound=StoreFactory)
Result = TypeVar("Result")


def scenario(test: Callable[[Factory, CheckpointStore], Awaitable[None]]) -> Callable[[Factory], None]:
    """Makes a plain test of a coroutine function that takes an open store."""

    async def play(factory: Factory) -> None:
        async with factory.clients(1) as (store,):
            await test(factory, store)

    return _plain_test(test, play)


def race(test: Callable[[Factory, list[CheckpointStore]], Awaitable[None]]) -> Callable[[Factory], None]:
    """Makes a plain test of a coroutine function that takes several clients of one store."""

    async def play(factory: Factory) -> None:
        async with factory.clients(CLIENT_COUNT) as stores:
            await test(factory, stores)

    return _plain_test(test, play)


def _plain_test(
    test: Callable[..., Awaitable[None]], play: Callable[[Factory], Awaitable[None]]
) -> Callable[[Factory], None]:
    @functools.wraps(test)
    def run(self: Factory) -> None:
        asyncio.run(_await(play(self)))

    del run.__wrapped__  # pytest would take the test's parameters for fixtures
    return run


async def _await(call: Awaitable[Result]) -> Result:
    return await call


async def claim(store: CheckpointStore, owner_id: str, *, epoch: int, partition: str = "0") -> Ownership:
    """Claims a partition that has no record yet."""
    (claimed,) = await store.claim_ownership([Ownership(GROUP.partition(partition), owner_id, epoch)])
    return claimed


async def listed_ownership(store: CheckpointStore, partition: str = "0") -> Ownership:
    """The record of one partition as the store lists it."""
    (found,) = [one for one in (await store.list_ownership(GROUP)).ownerships if one.key.partition == partition]
    return found


def untimed(ownership: Ownership) -> Ownership:
    """The record without its ages, to compare what two calls returned."""
    return replace(ownership, age_seconds=0.0, request_age_seconds=0.0)


async def at_once(calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """Runs the calls side by side and returns their results in order."""
    return list(await asyncio.gather(*calls))
