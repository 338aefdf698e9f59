"""A checkpoint store in this process's memory: for tests, for the simulator, and for a single process."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal
from hubline.sql.fence import NOBODY, fenced

P = ParamSpec("P")
T = TypeVar("T")


def _atomic(
    method: Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, T]]:
    """Makes a method that awaits nothing one step, for all threads."""

    @functools.wraps(method)
    async def locked(store: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store._lock:  # noqa: SLF001 - this module's own
            return await method(store, *args, **kwargs)

    return locked


class MemoryStore:
    """A :class:`~hubline.ports.CheckpointStore` that lasts as long as its process.

    No method awaits anything, and each holds a lock: processors of one process call from threads of their own.
    ``now`` is the store's own clock, in seconds.
    Everything is listed in the order in which it first appeared: the same calls give the same answers.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._groups: defaultdict[GroupKey, _Group] = defaultdict(_Group)
        self._fences: dict[PartitionKey, _Fence] = {}

    @_atomic
    async def list_ownership(self, group: GroupKey) -> GroupState:
        state, now = self._groups[group], self._now()
        return GroupState(
            ownerships=tuple(_listed(record, now) for record in state.records.values()),
            members=tuple(
                Member(owner_id, seen.max_partitions, _age(seen.seen_at, now))
                for owner_id, seen in state.members.items()
            ),
        )

    @_atomic
    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        owned = ((claim, self._groups[claim.key.group_key].records) for claim in claims)
        return [self._write_claim(claim, records) for claim, records in owned if _is_current(claim, records)]

    @_atomic
    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        state = self._groups[group]
        if member.max_partitions == 0 and not owned:
            state.members.pop(member.owner_id, None)
        else:
            state.members[member.owner_id] = _Seen(member.max_partitions, self._now())
        records = state.records
        return Renewal([self._renew(records[one.key.partition]) for one in owned if _is_current(one, records)])

    @_atomic
    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        for key in keys:
            record = self._groups[key.group_key].records.get(key.partition)
            if record is not None:
                record.requested_by, record.requested_at = owner_id, self._now()

    @_atomic
    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        fence = self._fences.setdefault(key, _Fence(epoch))
        if fence.epoch > epoch:
            raise fenced(key, epoch=epoch, held_epoch=fence.epoch)
        fence.epoch = epoch
        return fence.checkpoint

    @_atomic
    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        checkpoints = (fence.checkpoint for fence in self._fences.values())
        return [one for one in checkpoints if one is not None and one.key.group_key == group]

    @_atomic
    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        key = checkpoint.key
        fence = self._fences.get(key)
        if fence is None or fence.epoch != epoch:
            raise fenced(key, epoch=epoch, held_epoch=NOBODY if fence is None else fence.epoch)
        if fence.checkpoint is None or fence.checkpoint.sequence_number < checkpoint.sequence_number:
            fence.checkpoint = checkpoint

    @_atomic
    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        fence = self._fences.setdefault(key, _Fence(NOBODY))
        fence.epoch, fence.checkpoint = fence.epoch + 1, checkpoint
        record = self._groups[key.group_key].records.get(key.partition)
        if record is not None:
            record.owner_id, record.epoch = "", record.epoch + 1
            self._touched(record)

    async def close(self) -> None:
        """Nothing to let go: what was stored stays as long as the object does."""

    def _write_claim(self, claim: Ownership, records: dict[str, _Record]) -> Ownership:
        record = records.setdefault(claim.key.partition, _Record(claim.key))
        if claim.owner_id and claim.epoch != record.epoch:
            record.requested_by = None
        record.owner_id, record.epoch = claim.owner_id, claim.epoch
        return self._touched(record)

    def _renew(self, record: _Record) -> Ownership:
        return self._touched(record)

    def _touched(self, record: _Record) -> Ownership:
        record.version += 1
        record.modified_at = self._now()
        return _listed(record, record.modified_at)


@dataclass(slots=True)
class _Record:
    key: PartitionKey
    owner_id: str = ""
    epoch: int = 0
    version: int = 0
    modified_at: float = 0.0
    requested_by: str | None = None
    requested_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    max_partitions: int | None
    seen_at: float


@dataclass(slots=True)
class _Fence:
    epoch: int
    checkpoint: Checkpoint | None = None


@dataclass(slots=True)
class _Group:
    records: dict[str, _Record] = field(default_factory=dict)
    members: dict[str, _Seen] = field(default_factory=dict)


def _is_current(ownership: Ownership, records: Mapping[str, _Record]) -> bool:
    record = records.get(ownership.key.partition)
    return ownership.version == (None if record is None else str(record.version))


def _listed(record: _Record, now: float) -> Ownership:
    return Ownership(
        record.key,
        record.owner_id,
        record.epoch,
        str(record.version),
        _age(record.modified_at, now),
        record.requested_by,
        0.0 if record.requested_by is None else _age(record.requested_at, now),
    )


def _age(since: float, now: float) -> float:
    # A clock that was turned back makes no record older, and none younger than now.
    return now - since if now > since else 0.0
