"""Calls of a checkpoint store with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from hubline.concurrency import TimeLimit
from hubline.errors import StoreError, StoreUnavailable
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal
from hubline.ports import CheckpointStore
from hubline.text import sentences

P = ParamSpec("P")
T = TypeVar("T")


def bounded(seconds_max: float, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A store's method with a bound on its time, whose every failure is a StoreError."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with TimeLimit(seconds_max):
                return await function(*args, **kwargs)
        except TimeoutError:
            raise StoreUnavailable(
                f"the store did not answer within {seconds_max:g} s. hubline tries again. If it lasts, check "
                "that the store can be reached and is not overloaded."
            ) from None
        except StoreError:
            raise
        except Exception as error:
            # A store of the user's own may raise anything; unseen, it would end the dispatch cycle for good.
            problem = f"the store failed with {type(error).__name__}: {error}"
            raise StoreError(sentences(problem, "hubline tries again; if it lasts, fix the store")) from error

    return call


class GroupCalls:
    """The calls about one consumer group; none takes longer than ``seconds_max``, the time between two renewals."""

    def __init__(self, store: CheckpointStore, group: GroupKey, *, seconds_max: float) -> None:
        self.store = store
        self.group = group
        self._seconds_max = seconds_max

    async def join(self, member: Member, *, seconds_max: float) -> Renewal:
        return await bounded(seconds_max, self.store.renew_ownership)(self.group, member, ())

    async def renew(self, member: Member, owned: Sequence[Ownership]) -> Renewal:
        return await self._bounded(self.store.renew_ownership)(self.group, member, owned)

    async def list_ownership(self) -> GroupState:
        return await self._bounded(self.store.list_ownership)(self.group)

    async def claim(self, claims: Sequence[Ownership]) -> list[Ownership]:
        return await self._bounded(self.store.claim_ownership)(claims)

    async def request_handover(self, partitions: Iterable[str], *, owner_id: str) -> None:
        keys = [self.group.partition(partition) for partition in partitions]
        await self._bounded(self.store.request_handover)(keys, owner_id=owner_id)

    def _bounded(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        return bounded(self._seconds_max, function)


async def set_back(store: CheckpointStore, checkpoint: Checkpoint, *, epoch: int, seconds_max: float) -> None:
    """Moves the checkpoint of a hub that was re-created to a position in the new one. Only its owner calls this.

    It ends with Fenced, which releases the partition: the next owner continues from there.
    """
    fence = bounded(seconds_max, store.fence)
    await fence(checkpoint.key, epoch)  # whose it is by now has seen to it
    await bounded(seconds_max, store.reset_checkpoint)(checkpoint.key, checkpoint)
    await fence(checkpoint.key, epoch)
