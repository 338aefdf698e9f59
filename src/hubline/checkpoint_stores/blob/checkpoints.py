"""Where each partition's checkpoint stands, in blobs, and which epoch may move it.

Where the service offers one blob at a time, these are the steps, and what dying between them leaves:

    first checkpoint   1. put it into the fence's blob   2. make the checkpoint's blob   3. delete the fence's
             between: who takes the fence next finds it there, and continues with 2
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hubline.checkpoint_stores.blob import layout
from hubline.checkpoint_stores.blob.client import Blob, Container, Written
from hubline.checkpoint_stores.blob.contention import CONTENTION_MAX, contend, contended, yield_to_others
from hubline.checkpoint_stores.blob.records import (
    EPOCH,
    Damage,
    checkpoint_metadata,
    checkpoint_or_raise,
    damaged_checkpoint,
    partitions_of,
    read_checkpoint,
    read_epoch,
)
from hubline.concurrency import gather_two
from hubline.errors import Fenced, RecordDamaged
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, StoreExamination
from hubline.sql.fence import NOBODY, fenced


@dataclass(frozen=True, slots=True)
class _Fence:
    """Who holds a partition's checkpoint, and where that stands.

    ``official`` is the checkpoint's blob, which the SDKs read. They could not read one without a position, so until
    there is one the epoch is kept in ``own``, a blob of the store's own. Of both the ETag and the metadata are known.
    A checkpoint that ``is_pending`` has come as far as that blob only: its writer died, or is not finished yet.
    """

    epoch: int
    checkpoint: Checkpoint | None
    official: Blob | None
    own: Blob | None
    is_pending: bool = False


class BlobCheckpoints:
    """The checkpoints of groups in a container. ``owner_epoch`` looks up the epoch of a partition's ownership record.

    It remembers the fences that it took, as they were last written or read: the next update continues from there.
    """

    def __init__(
        self, container: Container, *, owner_epoch: Callable[[PartitionKey], Coroutine[Any, Any, int]]
    ) -> None:
        self._container = container
        self._owner_epoch = owner_epoch
        self._fences: dict[PartitionKey, _Fence] = {}

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        # The ownership record too: an SDK takes no fence, and who reopens a partition that one has taken would take its
        # reader back.
        stood, owner_epoch = await gather_two(self._read_fence(key), self._owner_epoch(key))
        if owner_epoch > epoch:
            raise fenced(key, epoch=epoch, held_epoch=owner_epoch)
        for _ in range(CONTENTION_MAX):
            if stood.epoch > epoch:
                raise fenced(key, epoch=epoch, held_epoch=stood.epoch)
            taken = await self._write_fence(key, stood, stood.checkpoint, epoch=epoch)
            if isinstance(taken, _Fence):
                self._fences[key] = taken
                return taken.checkpoint
            stood = await self._read_fence(key, official=taken)
        raise contended(self._what(key))

    async def list_group(self, group: GroupKey) -> list[Checkpoint]:
        checkpoints, _, _ = await self._read_all(group)
        return list(checkpoints.values())

    async def update(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        known = self._fences.get(checkpoint.key)
        if known is not None and known.epoch != epoch:
            known = None
        await self._move(checkpoint, epoch=epoch, known=known, is_current=known is not None)

    async def reset(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        """By an operator's hand: from here on the owner can write nothing."""
        self._fences.pop(key, None)
        await contend(lambda: self._reset(key, checkpoint), what=self._what(key))

    async def examine(self, group: GroupKey) -> StoreExamination:
        _, damaged, now = await self._read_all(group)
        return StoreExamination(datetime.fromtimestamp(now, UTC), damaged)

    async def repair(self, group: GroupKey) -> None:
        """Writes checkpoints again that an SDK, late to see that it lost a partition, has moved back."""
        ours = {key: fence for key, fence in self._fences.items() if key.group_key == group and fence.checkpoint}
        if not ours:
            return
        stored, _, _ = await self._read_all(group)
        for key, fence in ours.items():
            found = stored.get(key.partition)
            if found is not None and fence.checkpoint is not None and fence.checkpoint.is_ahead_of(found):
                with suppress(Fenced, RecordDamaged):  # the partition's own next checkpoint says so to who owns it
                    await self._move(fence.checkpoint, epoch=fence.epoch, known=fence, is_current=False)

    async def _read_all(self, group: GroupKey) -> tuple[dict[str, Checkpoint], dict[str, str], float]:
        """The checkpoints by partition, what is wrong with the others, and the service's time."""
        prefix = layout.checkpoint_prefix(group)
        blobs, now = await self._container.list(prefix)
        checkpoints: dict[str, Checkpoint] = {}
        damaged: dict[str, str] = {}
        for key, blob in partitions_of(group, blobs, prefix):
            try:
                checkpoint = read_checkpoint(key, blob)
            except Damage as damage:
                damaged[key.partition] = str(damaged_checkpoint(key, blob, damage))
            else:
                if checkpoint is not None:
                    checkpoints[key.partition] = checkpoint
        return checkpoints, damaged, now

    async def _move(self, checkpoint: Checkpoint, *, epoch: int, known: _Fence | None, is_current: bool) -> None:
        """Moves a checkpoint forward. ``known`` is what this epoch wrote last; another may have written since."""
        key = checkpoint.key
        # An SDK that was late may have moved it back: the progress of this epoch must not be lost.
        target = _furthest(checkpoint, known.checkpoint if known else None)
        stood = known if is_current else None
        for _ in range(CONTENTION_MAX):
            stood = stood or await self._read_fence(key)
            if stood.epoch != epoch:
                self._fences.pop(key, None)
                raise fenced(key, epoch=epoch, held_epoch=stood.epoch)
            goal = _furthest(target, stood.checkpoint)
            is_there = goal == stood.checkpoint and not stood.is_pending
            moved = stood if is_there else await self._write_fence(key, stood, goal, epoch=epoch)
            if isinstance(moved, _Fence):
                self._fences[key] = moved
                return
            await yield_to_others()
            stood = None
        raise contended(self._what(key))

    async def _read_fence(self, key: PartitionKey, *, official: Blob | None = None) -> _Fence:
        """Raises RecordDamaged. A checkpoint's blob that was just seen is not looked at again."""
        official, own = (official, None) if official else await self._look_at_fence(key)
        checkpoint, pending = checkpoint_or_raise(key, official), checkpoint_or_raise(key, own)
        is_pending = pending is not None and (checkpoint is None or pending.is_ahead_of(checkpoint))
        epoch = await self._held_epoch(key, official, own)
        return _Fence(epoch, pending if is_pending else checkpoint, official, own, is_pending)

    async def _look_at_fence(self, key: PartitionKey) -> tuple[Blob | None, Blob | None]:
        name = layout.checkpoint_blob(key)
        official, own = await gather_two(self._container.look(name), self._container.look(layout.fence_blob(key)))
        if official is None and own is None:
            # The first is made before the second is deleted: it may have been made between the two looks.
            official = await self._container.look(name)
        return official, own

    async def _held_epoch(self, key: PartitionKey, official: Blob | None, own: Blob | None) -> int:
        """Who holds the checkpoint. Where an SDK wrote last, and so removed the epoch, it is who owns the partition."""
        epochs = [
            epoch for blob in (official, own) if blob is not None and (epoch := _epoch_or_raise(key, blob)) is not None
        ]
        if epochs:
            return max(epochs)
        return NOBODY if official is None else await self._owner_epoch(key)

    async def _write_fence(
        self, key: PartitionKey, stood: _Fence, checkpoint: Checkpoint | None, *, epoch: int
    ) -> _Fence | Blob | None:
        """Writes epoch and checkpoint over what stood there.

        If that has changed meanwhile, returns the checkpoint's blob as it is now, or None if there is none.
        """
        if stood.official is None:
            return await self._write_first(key, stood.own, checkpoint, epoch=epoch)
        if checkpoint is None or checkpoint == checkpoint_or_raise(key, stood.official):
            # Exactly as another one wrote it: nothing better is known of it.
            metadata = {**stood.official.metadata, EPOCH: str(epoch)}
        else:
            metadata = checkpoint_metadata(checkpoint, epoch)
        written = await self._container.replace(stood.official.name, metadata, etag=stood.official.etag)
        if not isinstance(written, Written):
            return written
        if stood.own is not None:
            await self._container.delete(stood.own.name, etag=stood.own.etag)
        return _Fence(epoch, checkpoint, _written_blob(stood.official.name, metadata, written), None)

    async def _write_first(
        self, key: PartitionKey, own: Blob | None, checkpoint: Checkpoint | None, *, epoch: int
    ) -> _Fence | Blob | None:
        name = layout.fence_blob(key)
        metadata = {EPOCH: str(epoch)} if checkpoint is None else checkpoint_metadata(checkpoint, epoch)
        if own is None:
            held = await self._container.create(name, metadata)
        else:
            held = await self._container.replace(name, metadata, etag=own.etag)
        if not isinstance(held, Written):
            return None
        if checkpoint is None:
            return _Fence(epoch, None, None, _written_blob(name, metadata, held))
        # Dying here leaves the checkpoint in the fence's blob, where the next to take the fence finds it.
        official = layout.checkpoint_blob(key)
        made = await self._container.create(official, metadata)
        if not isinstance(made, Written):
            return None  # an SDK made it meanwhile: both are read, and it is decided again
        await self._container.delete(name, etag=held.etag)
        return _Fence(epoch, checkpoint, _written_blob(official, metadata, made), None)

    async def _reset(self, key: PartitionKey, checkpoint: Checkpoint | None) -> bool:
        """Whether nobody came in between."""
        official, own = await self._look_at_fence(key)
        epoch = await self._epoch_of_damaged(key, official, own) + 1
        if checkpoint is None:
            await self._container.put(layout.fence_blob(key), {EPOCH: str(epoch)})
            return official is None or await self._container.delete(official.name, etag=official.etag)
        metadata = checkpoint_metadata(checkpoint, epoch)
        if official is None:
            written = await self._container.create(layout.checkpoint_blob(key), metadata)
        else:
            written = await self._container.replace(official.name, metadata, etag=official.etag)
        if not isinstance(written, Written):
            return False
        await self._container.delete(layout.fence_blob(key))
        return True

    async def _epoch_of_damaged(self, key: PartitionKey, official: Blob | None, own: Blob | None) -> int:
        try:
            return await self._held_epoch(key, official, own)
        except RecordDamaged:
            return await self._owner_epoch(key)

    def _what(self, key: PartitionKey) -> str:
        return f"{self._container.shown}: the checkpoint of {key}"


def _furthest(checkpoint: Checkpoint, other: Checkpoint | None) -> Checkpoint:
    """The other one, if this is not ahead of it."""
    return checkpoint if other is None or checkpoint.is_ahead_of(other) else other


def _epoch_or_raise(key: PartitionKey, blob: Blob) -> int | None:
    try:
        return read_epoch(blob)
    except Damage as damage:
        problem = damaged_checkpoint(key, blob, damage)
    raise problem


def _written_blob(name: str, metadata: Mapping[str, str], written: Written) -> Blob:
    return Blob(name, written.etag, written.modified_at, 0.0, metadata)
