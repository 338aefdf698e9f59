"""The checkpoints of the partitions that a query owns: what Spark has done is reported to the store.

A checkpoint carries the offset of its event, which has to be asked for; while a batch runs is the time for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from hubline.concurrency import BackgroundTasks, cancel
from hubline.coordination.store_calls import bounded, set_back
from hubline.errors import Fenced, HublineError, PositionInvalid
from hubline.model.ownership import Checkpoint
from hubline.ports import CheckpointStore
from hubline.retry import Backoff, RetryPolicy
from hubline.spark.source.held_partition import HeldPartition
from hubline.spark.source.position_lookup import Places

log = logging.getLogger("hubline.spark")

# After a store did not take a checkpoint. A query asks a hundred times a second whether there is something to do.
RETRY: Final = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=5.0)


class CheckpointWriter:
    """Writes checkpoints, under the epochs of their partitions."""

    def __init__(
        self,
        store: CheckpointStore,
        places: Places,
        *,
        seconds_max: float,
        on_fenced: Callable[[HeldPartition, Fenced], None],
    ) -> None:
        self._store = store
        self._places = places
        self._seconds_max = seconds_max
        self._on_fenced = on_fenced
        self._backoff = Backoff(RETRY)
        self._retry_at = 0.0
        self._learning = BackgroundTasks()

    async def stop(self) -> None:
        await cancel(self._learning)

    async def fence(self, held: HeldPartition) -> Checkpoint | None:
        """Takes the checkpoint for the partition's epoch: no former owner can move it from now on."""
        return await bounded(self._seconds_max, self._store.fence)(held.ownership.key, held.epoch)

    async def write_all(self, partitions: Collection[HeldPartition]) -> None:
        """Writes what is ahead of the store. If the store is down, a crash costs duplicates, but no progress."""
        behind = [held for held in partitions if held.is_owed]
        loop = asyncio.get_running_loop()
        if not behind or loop.time() < self._retry_at:
            return
        written = await asyncio.gather(*map(self.write, behind))
        if all(written):
            self._backoff.reset()
        else:
            self._retry_at = loop.time() + self._backoff.next_delay()

    async def write(self, held: HeldPartition) -> bool:
        """Whether there is nothing left to write: the store has it, or another owner has the partition."""
        done_next = held.done_next
        try:
            checkpoint = Checkpoint(held.ownership.key, await self._offset_before(held), done_next - 1)
            if done_next > held.stored_next:
                await self._update(checkpoint, held.epoch)
            else:  # the store has more of a hub that is gone: the query went back, in the re-created one
                await set_back(self._store, checkpoint, epoch=held.epoch, seconds_max=self._seconds_max)
        except Fenced as error:
            # Another owner has it, and started from the checkpoint before this one: this query reads it no more.
            self._on_fenced(held, error)
        except HublineError as error:
            log.warning("error partition=%s %s: %s", held.partition, type(error).__name__, error)
            return False
        held.checkpointed_next = done_next
        return True

    async def write_start(self, held: HeldPartition, next_sequence: int) -> None:
        """The place where a partition without a checkpoint starts, as a checkpoint."""
        key = held.ownership.key
        if next_sequence == 0:
            await self._update(Checkpoint.before_first(key), held.epoch)
            return
        offset = await self._offset_of(held.partition, next_sequence - 1)
        await self._update(Checkpoint(key, offset, next_sequence - 1), held.epoch)

    def learn_offset(self, held: HeldPartition, next_sequence: int) -> None:
        """Asks in the background for the offset that a checkpoint will need."""
        if held.offset_before(next_sequence) is None:
            self._learning.spawn(self._learn_offset(held, next_sequence))

    async def _learn_offset(self, held: HeldPartition, next_sequence: int) -> None:
        with suppress(HublineError):  # then it is asked for again, when it is needed
            held.known_offset = (next_sequence, await self._offset_of(held.partition, next_sequence - 1))

    async def _offset_before(self, held: HeldPartition) -> str:
        known = held.offset_before(held.done_next)
        return await self._offset_of(held.partition, held.done_next - 1) if known is None else known

    async def _offset_of(self, partition: str, sequence: int) -> str:
        """Of an event; empty where it was removed by now, and its offset with it: the sequence number has to do."""
        try:
            return await self._places.offset_of(partition, sequence)
        except PositionInvalid:
            return ""

    async def _update(self, checkpoint: Checkpoint, epoch: int) -> None:
        await bounded(self._seconds_max, self._store.update_checkpoint)(checkpoint, epoch=epoch)


class NoCheckpoints(CheckpointWriter):
    """Writes none, and looks at none: the store keeps who owns what, and no progress."""

    async def fence(self, held: HeldPartition) -> Checkpoint | None:  # noqa: ARG002
        return None

    async def write(self, held: HeldPartition) -> bool:
        held.checkpointed_next = held.done_next
        return True

    async def write_start(self, held: HeldPartition, next_sequence: int) -> None:
        pass

    def learn_offset(self, held: HeldPartition, next_sequence: int) -> None:
        pass
