"""Calls of a checkpoint store with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from hubline.errors import StoreError, StoreUnavailable
from hubline.model.ownership import Checkpoint
from hubline.ports import CheckpointStore

P = ParamSpec("P")
T = TypeVar("T")


def bounded(seconds_max: float, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A store's method with a bound on its time, whose every failure is a StoreError."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with asyncio.timeout(seconds_max):
                return await function(*args, **kwargs)
        except TimeoutError:
            raise StoreUnavailable(f"the store did not answer within {seconds_max:g} s") from None
        except StoreError:
            raise
        except Exception as error:
            # A store of the user's own may raise anything; unseen, it would end the dispatch cycle for good.
            raise StoreError(f"the store failed with {type(error).__name__}: {error}") from error

    return call


async def set_back(store: CheckpointStore, checkpoint: Checkpoint, *, epoch: int, seconds_max: float) -> None:
    """Sets a checkpoint that is of a hub that is no more, by who owns the partition, to a place in the one made anew.

    That gives the partition up, by Fenced: whoever claims it next goes on from there.
    """
    fence = bounded(seconds_max, store.fence)
    await fence(checkpoint.key, epoch)  # whose it is by now has seen to it
    await bounded(seconds_max, store.reset_checkpoint)(checkpoint.key, checkpoint)
    await fence(checkpoint.key, epoch)
