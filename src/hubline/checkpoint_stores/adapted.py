"""A store of four methods as a checkpoint store: one of your own, or the `CheckpointStore` of the official Python SDK.

Such a store lists ownership, claims ownership, lists checkpoints and updates a checkpoint. Its records are
dictionaries with the keys of the SDK. It keeps no members, no handover requests, no epochs and no fences. This is what
is done in their place:

    members     are the owners in the ownership records. A consumer that owns nothing is not seen by the others.
    requests    there are none: a partition above its owner's share is taken from it, and what the owner processed
                since its last checkpoint is processed again.
    ages        count from when this object saw a record change, by its own monotonic clock. A record that it has
                never seen before counts as new, unless it is very old.
    epochs      are known for what this object wrote. For other records they come from the time of the last write,
                so that they rise from owner to owner.
    fences      before a checkpoint is written, ownership is listed: who is not the owner any more is refused. So is a
                checkpoint behind the one that its owner found at the start or wrote last.

What if an update arrives late, of a former owner or of a call that was given up? It may move the checkpoint back. The
events after it are processed again if the owner dies now; none is skipped. At each renewal the owner lists the
checkpoints, and writes again those that were moved back.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Any, Final, Generic, Self, TypeAlias, TypeVar, cast

from hubline.addresses.option_kinds import Meant
from hubline.errors import ConfigError, RecordDamaged, StoreError, StoreUnavailable
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal
from hubline.ports import CheckpointStore, StoreOrAddress
from hubline.sql.fence import NOBODY, fenced
from hubline.text import abbreviated, sentences

T = TypeVar("T")

_Checkpoints: TypeAlias = dict[str, Checkpoint | RecordDamaged]
"""By partition; those that do not read back are errors."""

FOUR_METHODS: Final = ("list_ownership", "claim_ownership", "list_checkpoints", "update_checkpoint")

ALL_METHODS: Final = tuple(name for name in vars(CheckpointStore) if not name.startswith("_"))

SKEW_SECONDS_MAX: Final = 300.0
"""A record that is first seen counts as new if it was written less than this ago: clocks of hosts differ, and a
processor that takes what is alive costs more than one that waits for a lease."""

TAKE_ATTEMPTS_MAX: Final = 5
"""A reset takes the partition from an owner that renews at most a few times in a minute."""

REPAIR_SECONDS_MAX: Final = 2.0
"""A renewal waits no longer for the checkpoints: by default it has 10 s in all."""

_SALT_BITS: Final = 20
"""Two owners that derive an epoch from the same millisecond differ by these bits, so that one fences the other."""
_MILLISECONDS_MAX: Final = 2**42

_OWNER: Final = re.compile(r"hubline:([0-9]*):([0-9a-f]{8}):(.*)", re.DOTALL)
_RESETTER: Final = "(checkpoint reset)"
"""No processor has this owner id: it has a space."""


def adapt(store: object) -> CheckpointStore:
    """Make a checkpoint store of an object with four methods, such as a `CheckpointStore` of the official Python SDK.

    The methods may be async or plain. Plain ones are called in a thread, one at a time. Wrap the object once for each
    processor. It is not closed: that stays with you.

    Such a store has no handover requests and no fences, and consumers that own nothing are not seen. So, compared
    with hubline's own stores:

    - Partitions move without a handover when a consumer joins: events after the last checkpoint are processed twice.
    - Each checkpoint costs two calls: ownership is listed before it is written, once for all partitions that wait. An
      update that arrives late may still set it back, until the next renewal repairs it.
    - Readers use epoch 0: the last one to come reads, and a former owner finds out within a lease.
    - A checkpoint cannot be removed, only set. `Fixed(lease=...)` is refused.

    Events are processed at least once, as with every store.

    Args:
        store: An object with `list_ownership`, `claim_ownership`, `list_checkpoints` and `update_checkpoint`, which
            take and return what those of `azure.eventhub.CheckpointStore` do. A store of hubline's own is returned
            unchanged.

    Returns:
        The store, for `hubline.Processor`.

    Raises:
        ConfigError: If one of the four methods is missing; or if it has more of the methods of hubline's own stores,
            and not all.

    Example:
        processor = hubline.Processor(hub, adapt(MyStore()), consumer_group="app", starting_position="earliest")
    """
    problem = _refusal(store)
    if problem is None:
        return cast("CheckpointStore", store)
    if not _has_four_alone(store):
        raise ConfigError(problem)
    return AdaptedStore(store)


def _refusal(store: object) -> str | None:
    """Why an object is not a checkpoint store as it is, and what to do; None if it is one."""
    if isinstance(store, type):
        return f"a checkpoint store is an object, and {store.__name__} is a class. Write {store.__name__}(...)."
    if isinstance(store, str):
        return "adapt() takes an object, not the address of a store. Pass the address to the processor as it is."
    missing, name = _missing(store, ALL_METHODS), type(store).__name__
    if not missing:
        return None
    if not _missing(store, FOUR_METHODS):
        return f"{name} lacks {', '.join(missing)} of hubline.ports.CheckpointStore. Add what is missing."
    return (
        f"{name} is not a checkpoint store: it lacks {', '.join(_missing(store, FOUR_METHODS))}. Use an "
        'address such as "sqlite:///state.db", or an object with these methods in '
        "hubline.checkpoint_stores.adapt(store)."
    )


def _has_four_alone(store: object) -> bool:
    """Whether it has the four methods, and none by which it would be one of hubline's own: those have other arguments.

    A method to close it says nothing: the SDK's own has one.
    """
    others = [name for name in ALL_METHODS if name not in FOUR_METHODS and name != "close"]
    is_other = isinstance(store, type | str) or len(_missing(store, others)) < len(others)
    return not is_other and not _missing(store, FOUR_METHODS)


def _meant_store(value: object) -> str | None:
    return "hubline.checkpoint_stores.adapt(...)" if _has_four_alone(value) else None


StoreOption: TypeAlias = Annotated[StoreOrAddress, Meant(_meant_store)]
"""What a `store` option takes. Of an object with the four methods alone, the error says how to wrap it."""


def _missing(store: object, methods: Iterable[str]) -> list[str]:
    return [name for name in methods if not callable(getattr(store, name, None))]


class AdaptedStore:
    """A :class:`~hubline.ports.CheckpointStore` over an object with four methods. See `adapt`.

    ``monotonic`` is the clock by which records age, ``wall`` the time of day.
    """

    shares_with_sdks = True
    keeps_requests = False

    def __init__(
        self,
        store: object,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._wall = wall
        # Names this object in the records that it writes: another process under the same owner id is another owner.
        self._incarnation = secrets.token_hex(4)
        self._salt = secrets.randbits(_SALT_BITS)
        self._orders = itertools.count()
        self._seen: defaultdict[GroupKey, dict[str, _Seen]] = defaultdict(dict)
        self._limits: dict[tuple[GroupKey, str], int | None] = {}
        self._epochs: dict[tuple[PartitionKey, str], int] = {}
        self._released: dict[PartitionKey, tuple[str, int]] = {}
        self._floors: dict[PartitionKey, int] = {}
        self._fences: dict[PartitionKey, int] = {}
        self._reached: dict[PartitionKey, Checkpoint] = {}
        self._ownership_listings: defaultdict[GroupKey, _SharedCall[GroupState]] = defaultdict(_SharedCall)
        self._checkpoint_listings: defaultdict[GroupKey, _SharedCall[_Checkpoints]] = defaultdict(_SharedCall)
        self._thread: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"adapt({type(self._store).__name__})"

    # Ownership

    async def list_ownership(self, group: GroupKey) -> GroupState:
        order = next(self._orders)
        damaged: dict[str, str] = {}
        listed: dict[str, None] = {}
        for partition, record in await self._list("list_ownership", group):
            try:
                self._observe(group, partition, record, order)
            except _Damage as damage:
                damaged[partition] = (
                    f"the ownership record cannot be read: {damage}. Correct or delete it in the store."
                )
            else:
                listed[partition] = None
        seen = self._seen[group]
        for partition in [name for name, one in seen.items() if name not in listed and one.order < order]:
            del seen[partition]
        ownerships = tuple(self._ownership(group.partition(name), seen[name]) for name in listed)
        return GroupState(ownerships, self._members(seen), damaged)

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        won: list[Ownership] = []
        for group, of_group in groupby(sorted(claims, key=_group_of), key=_group_of):
            won += await self._claim(group, list(of_group))
        return won

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        """Writes each record again, and checkpoints that were moved back. Of a member that owns nothing, nothing is
        written; its first call looks at the store.
        """
        if member.max_partitions == 0 and not owned:
            self._limits.pop((group, member.owner_id), None)
            return Renewal([])
        is_joining = (group, member.owner_id) not in self._limits
        if is_joining or member.max_partitions != 0:
            # None at all is the limit of a member that stops. The others cannot ask it: they would take what it drains.
            self._limits[group, member.owner_id] = member.max_partitions
        if not owned:
            return Renewal([], await self.list_ownership(group) if is_joining else None)
        records = {one.key.partition: self._record(one, self._stored_owner_of(one)) for one in owned if one.version}
        written = await self._write(group, records)
        with suppress(StoreError, TimeoutError):  # no lease is lost for it: the next renewal tries again
            async with asyncio.timeout(REPAIR_SECONDS_MAX):
                await self._repair_checkpoints([group.partition(name) for name in written])
        return Renewal([self._ownership(group.partition(name), seen) for name, seen in written.items()])

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        """Nothing is stored: partitions are taken without asking."""

    # Checkpoints

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        """Looks who owns the partition. Within this object, no lower epoch can move the checkpoint from now on."""
        await self._require_not_taken(key, epoch)
        held_epoch = self._fences.get(key, NOBODY)
        if held_epoch > epoch:
            raise fenced(key, epoch=epoch, held_epoch=held_epoch)
        self._fences[key] = epoch
        self._reached.pop(key, None)
        stored = await self._stored_checkpoint(key)
        if stored is not None and self._fences[key] == epoch:
            self._reached[key] = stored
        return stored

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        found = await self._read_checkpoints(group)
        return [one for one in found.values() if isinstance(one, Checkpoint)]

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        key = checkpoint.key
        self._require_fence(key, epoch)
        is_owner = await self._require_not_taken(key, epoch)
        # Nobody but the owner writes it, or an update that arrives late: the owner knows where it stands.
        stored = self._reached.get(key) if is_owner else await self._stored_checkpoint(key)
        self._require_fence(key, epoch)
        if stored is None or checkpoint.is_ahead_of(stored):
            await self._write_checkpoint(checkpoint)
            stored = checkpoint
        reached = self._reached.get(key)
        if self._fences[key] == epoch and (reached is None or stored.is_ahead_of(reached)):
            self._reached[key] = stored

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        """Takes the partition, writes the checkpoint, and releases the partition.

        Dying in between leaves the partition to nobody for a lease. An update that its owner had sent before may
        still arrive after it: look at the checkpoint afterwards.
        """
        if checkpoint is None:
            raise StoreError(
                f"{self!r} cannot remove the checkpoint of {key}: a store of four methods can only set one. Set "
                "it before the first event to process, or delete the record in the store itself."
            )
        taken = await self._take(key)
        self._fences[key] = self._fences.get(key, NOBODY) + 1
        self._reached.pop(key, None)
        await self._write_checkpoint(checkpoint)
        if taken is not None:
            await self._claim(key.group_key, [Ownership(key, "", taken.epoch, taken.version)])

    async def close(self) -> None:
        """Ends the thread in which plain methods are called. The store itself is its maker's to close."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    # What is known of records

    def _observe(
        self, group: GroupKey, partition: str, record: Mapping[str, Any], order: int, *, is_own_write: bool = False
    ) -> _Seen:
        """Remembers a record, and since when it is as it is. Raises Damage."""
        version, owner = _version_of(record), _StoredOwner.of(record)
        before = self._seen[group].get(partition)
        if before is not None and before.order > order:
            return before  # it was written after this listing was asked for
        now, wall = self._monotonic(), self._wall()
        modified_at = _modified_at(record)
        if before is not None and before.version == version:
            changed_at, modified_at = before.changed_at, modified_at or before.modified_at
        else:
            is_first = before is None and not is_own_write
            age_seconds = wall - modified_at if is_first and modified_at is not None else 0.0
            changed_at = now - age_seconds if age_seconds > SKEW_SECONDS_MAX else now
        seen = _Seen(dict(record), version, owner, changed_at, wall if modified_at is None else modified_at, order)
        self._seen[group][partition] = seen
        return seen

    def _ownership(self, key: PartitionKey, seen: _Seen) -> Ownership:
        return Ownership(
            key,
            owner_id=seen.owner.owner_id,
            epoch=self._epoch_of(key, seen),
            version=seen.version,
            age_seconds=max(0.0, self._monotonic() - seen.changed_at),
        )

    def _epoch_of(self, key: PartitionKey, seen: _Seen) -> int:
        """As it was claimed, if this object did; else by the time of the last write, and above all that it claimed."""
        if seen.owner.incarnation == self._incarnation:
            known = self._epochs.get((key, seen.owner.owner_id))
            if known is not None:
                return known
        version, epoch = self._released.get(key, ("", 0))
        if version == seen.version:
            return epoch
        milliseconds = min(max(int(seen.modified_at * 1000), 0), _MILLISECONDS_MAX)
        return max(milliseconds << _SALT_BITS | self._salt, self._floors.get(key, NOBODY) + 1)

    def _members(self, seen: Mapping[str, _Seen]) -> tuple[Member, ...]:
        """The owners that hubline wrote. Others are of the SDKs, which renew at their own pace."""
        members: dict[str, Member] = {}
        now = self._monotonic()
        for one in sorted(seen.values(), key=lambda one: one.changed_at):
            if one.owner.incarnation:
                name = one.owner.owner_id
                members[name] = Member(name, one.owner.max_partitions, max(0.0, now - one.changed_at))
        return tuple(members.values())

    # Writing ownership

    async def _claim(self, group: GroupKey, claims: Sequence[Ownership]) -> list[Ownership]:
        # A version that is empty would be none at all to the store, as if there were no record.
        claims = [claim for claim in claims if claim.version != ""]
        before: dict[str, int | None] = {}
        records: dict[str, dict[str, Any]] = {}
        for claim in claims:
            key = claim.key
            if claim.owner_id:
                # Before it is sent: an answer may be lost, and the record is this owner's all the same.
                before[key.partition] = self._epochs.get((key, claim.owner_id))
                self._epochs[key, claim.owner_id] = claim.epoch
            self._floors[key] = max(self._floors.get(key, NOBODY), claim.epoch)
            records[key.partition] = self._record(claim, self._stored_owner(group, claim.owner_id))
        written = await self._write(group, records)
        won: list[Ownership] = []
        for claim in claims:
            seen = written.get(claim.key.partition)
            if seen is None:
                self._forget_epoch(claim, before.get(claim.key.partition))
                continue
            if not claim.owner_id:
                self._released[claim.key] = (seen.version, claim.epoch)
            won.append(self._ownership(claim.key, seen))
        return won

    def _forget_epoch(self, lost: Ownership, before: int | None) -> None:
        name = (lost.key, lost.owner_id)
        if self._epochs.get(name) == lost.epoch:
            del self._epochs[name]
            if before is not None:
                self._epochs[name] = before

    async def _write(self, group: GroupKey, records: Mapping[str, dict[str, Any]]) -> dict[str, _Seen]:
        """Sends claims to the store; returns what it says that it wrote, by partition."""
        if not records:
            return {}
        sent = {name: (str(record["owner_id"]), _unquoted(record.get("etag"))) for name, record in records.items()}
        answer = await self._call("claim_ownership", list(records.values()))
        order = next(self._orders)
        written: dict[str, _Seen] = {}
        unanswered: set[str] = set()
        for partition, record in _records_of(group, answer, "claim_ownership"):
            owner_id, etag = sent.get(partition, (None, None))
            if owner_id is None or record.get("owner_id") != owner_id:
                continue
            if _unquoted(record.get("etag")) in ("", etag):
                unanswered.add(partition)
            else:
                written[partition] = self._observe(group, partition, record, order, is_own_write=True)
        if unanswered:
            # The SDK's own store in blobs returns records unchanged where a request failed. A list tells what is so:
            # it was written if the record was as sent before, is another one now, and names this owner.
            before = {name: one.version for name, one in self._seen[group].items()}
            await self.list_ownership(group)
            for partition in unanswered & self._seen[group].keys():
                seen, (owner_id, etag) = self._seen[group][partition], sent[partition]
                if before.get(partition, "") == etag != seen.version and str(seen.owner) == owner_id:
                    written[partition] = seen
        return written

    def _record(self, claim: Ownership, owner: str) -> dict[str, Any]:
        """The dictionary to send: as it was listed, if this is what was listed, with its owner."""
        key = claim.key
        seen = self._seen[key.group_key].get(key.partition)
        if seen is not None and claim.version == seen.version:
            return {**seen.record, "owner_id": owner}
        version = {} if claim.version is None else {"etag": claim.version}
        return {**_named(key), "owner_id": owner, **version}

    def _stored_owner(self, group: GroupKey, owner_id: str) -> str:
        if not owner_id:
            return ""
        limit = self._limits.get((group, owner_id))
        return str(_StoredOwner(owner_id, self._incarnation, limit))

    def _stored_owner_of(self, owned: Ownership) -> str:
        seen = self._seen[owned.key.group_key].get(owned.key.partition)
        if seen is not None and seen.version == owned.version:
            return str(seen.owner)
        return self._stored_owner(owned.key.group_key, owned.owner_id)

    async def _take(self, key: PartitionKey) -> Ownership | None:
        """Takes the partition from its owner, so that it cannot move the checkpoint; None if there is no record."""
        name = (key.group_key, _RESETTER)
        self._limits[name] = 1  # a share of its own: nobody takes the partition back meanwhile
        try:
            for _ in range(TAKE_ATTEMPTS_MAX):
                state = await self.list_ownership(key.group_key)
                record = next((one for one in state.ownerships if one.key == key), None)
                if record is None:
                    return None
                claim = Ownership(key, _RESETTER, record.epoch + 1, record.version)
                for taken in await self._claim(key.group_key, [claim]):
                    return taken
        finally:
            del self._limits[name]
        raise StoreUnavailable(f"{self!r}: the owner of {key} changed during every attempt to take it. Try again.")

    # Who may write a checkpoint

    def _require_fence(self, key: PartitionKey, epoch: int) -> None:
        held_epoch = self._fences.get(key, NOBODY)
        if held_epoch != epoch:
            raise fenced(key, epoch=epoch, held_epoch=held_epoch)

    async def _require_not_taken(self, key: PartitionKey, epoch: int) -> bool:
        """Whether this object owns the partition in this epoch. Raises Fenced if another owner has taken it."""
        group = key.group_key
        await self._ownership_listings[group].result(lambda: self.list_ownership(group))
        seen = self._seen[group].get(key.partition)
        held_epoch = NOBODY if seen is None else self._epoch_of(key, seen)
        if held_epoch > epoch:
            raise fenced(key, epoch=epoch, held_epoch=held_epoch)
        return seen is not None and seen.owner.incarnation == self._incarnation and held_epoch == epoch

    async def _repair_checkpoints(self, owned: Sequence[PartitionKey]) -> None:
        """Writes checkpoints again that a late update has moved back. The partitions were just renewed."""
        reached = {key: self._reached[key] for key in owned if key in self._reached}
        if not reached:
            return
        stored = await self._read_checkpoints(owned[0].group_key)
        for key, checkpoint in reached.items():
            found = stored.get(key.partition)
            is_behind = isinstance(found, Checkpoint) and checkpoint.is_ahead_of(found)
            if is_behind and self._reached.get(key) == checkpoint:
                await self._write_checkpoint(checkpoint)

    async def _stored_checkpoint(self, key: PartitionKey) -> Checkpoint | None:
        group = key.group_key
        listed = await self._checkpoint_listings[group].result(lambda: self._read_checkpoints(group))
        found = listed.get(key.partition)
        if isinstance(found, RecordDamaged):
            raise found
        return found

    async def _read_checkpoints(self, group: GroupKey) -> _Checkpoints:
        found: _Checkpoints = {}
        for partition, record in await self._list("list_checkpoints", group):
            try:
                found[partition] = _checkpoint_of(group.partition(partition), record)
            except _Damage as damage:
                text = f"the checkpoint cannot be read: {damage}. Correct or delete it in the store."
                found[partition] = RecordDamaged(text, partition=partition, record="checkpoint")
        return found

    async def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        numbers = {"sequence_number": checkpoint.sequence_number, "offset": checkpoint.offset}
        await self._call("update_checkpoint", {**_named(checkpoint.key), **numbers})

    # Calls

    async def _list(self, method: str, group: GroupKey) -> list[tuple[str, Mapping[str, Any]]]:
        return _records_of(group, await self._call(method, group.namespace, group.hub, group.group), method)

    async def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the store, in a thread if it is a plain one. Whatever it raises is StoreUnavailable."""
        method = getattr(self._store, name)
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments)
            answer = await asyncio.get_running_loop().run_in_executor(self._own_thread(), method, *arguments)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            # A driver of the user's may raise anything, and it may or may not have taken effect.
            message = f"{name} of {type(self._store).__name__} failed with {type(error).__name__}: {error}"
            raise StoreUnavailable(sentences(message, "hubline tries again; if it lasts, fix the store")) from error

    def _own_thread(self) -> ThreadPoolExecutor:
        """One thread: a plain store need not be safe for several."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hubline-adapted-store")
        return self._thread


class _SharedCall(Generic[T]):
    """A call that many wait for at once. Each shares one that begins after it came."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._begun = 0
        self._result: T | None = None

    async def result(self, call: Callable[[], Awaitable[T]]) -> T:
        arrived = self._begun
        async with self._lock:
            if self._begun == arrived or self._result is None:
                await asyncio.sleep(0)  # for those that come at the same moment
                self._begun += 1
                self._result = None
                self._result = await call()
            return self._result


class _Damage(Exception):
    """A record that does not read. Does not leave this module."""


@dataclass(frozen=True, slots=True)
class _StoredOwner:
    """What stands in a record as its owner: a text of hubline's, or one of an SDK.

    hubline's names the object that wrote it and the most partitions that the owner takes, for nobody announces itself.
    It stays the same while the owner runs: the SDKs count owners by it.
    """

    owner_id: str
    incarnation: str = ""
    max_partitions: int | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        if "owner_id" not in record:
            raise _Damage("it has no owner_id")
        text = str(record["owner_id"] or "")
        match = _OWNER.fullmatch(text)
        return cls(match[3], match[2], int(match[1]) if match[1] else None) if match else cls(text)

    def __str__(self) -> str:
        if not self.incarnation:
            return self.owner_id
        limit = "" if self.max_partitions is None else self.max_partitions
        return f"hubline:{limit}:{self.incarnation}:{self.owner_id}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """An ownership record as it was last seen. ``changed_at`` is by the monotonic clock, ``order`` of all calls."""

    record: Mapping[str, Any]
    version: str
    owner: _StoredOwner
    changed_at: float
    modified_at: float
    order: int


def _records_of(group: GroupKey, answer: Any, method: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The records of the group, by partition. The SDK's store in memory lists others' for a group that has none."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise StoreError(f"{method} must return a list of dictionaries, and returned {type(answer).__name__}.")
    names = {"fully_qualified_namespace": group.namespace, "eventhub_name": group.hub, "consumer_group": group.group}
    records: list[tuple[str, Mapping[str, Any]]] = []
    for record in answer:
        if not isinstance(record, Mapping) or not record.get("partition_id"):
            raise StoreError(f'{method} returned a dictionary without "partition_id". Return one in each dictionary.')
        if all(str(record.get(key, name)).casefold() == name.casefold() for key, name in names.items()):
            records.append((str(record["partition_id"]), record))
    return records


def _named(key: PartitionKey) -> dict[str, Any]:
    return {
        "fully_qualified_namespace": key.namespace,
        "eventhub_name": key.hub,
        "consumer_group": key.group,
        "partition_id": key.partition,
    }


def _version_of(record: Mapping[str, Any]) -> str:
    version = _unquoted(record.get("etag"))
    if not version:
        raise _Damage("it has no etag, by which a claim knows that nobody else came first")
    return version


def _unquoted(etag: object) -> str:
    """An etag in one form: the SDK's store in blobs has quotes around those of writes, and none in lists."""
    return "" if etag is None else str(etag).removeprefix('"').removesuffix('"')


def _modified_at(record: Mapping[str, Any]) -> float | None:
    """Seconds since 1970. None if the store does not say it: then it is when the change was seen."""
    modified = record.get("last_modified_time")
    if isinstance(modified, datetime):
        return (modified if modified.tzinfo else modified.replace(tzinfo=UTC)).timestamp()
    if modified is None or isinstance(modified, int | float):
        return modified
    raise _Damage(f"its last_modified_time is {abbreviated(modified)}, which is neither a datetime nor a number")


def _checkpoint_of(key: PartitionKey, record: Mapping[str, Any]) -> Checkpoint:
    offset, sequence = record.get("offset"), record.get("sequence_number")
    offset = "" if offset is None else str(offset)
    if sequence is None or sequence == "":
        sequence_number = -1
    else:
        try:
            sequence_number = int(sequence)
        except (TypeError, ValueError):
            raise _Damage(f"its sequence_number is {abbreviated(sequence)}, which is not a whole number") from None
    if not offset and sequence_number < 0:
        raise _Damage("it has neither an offset nor a sequence_number")
    return Checkpoint(key, offset or "-1", -1) if sequence_number < 0 else Checkpoint(key, offset, sequence_number)


def _group_of(claim: Ownership) -> GroupKey:
    return claim.key.group_key
