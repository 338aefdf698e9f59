"""Asks hub and store, each question bounded in time, and has the answers judged. One that fails stops no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from hubline import errors
from hubline.adapters import open_hub, open_store
from hubline.addresses.hub_address import parse_hub
from hubline.addresses.store_address import MemoryAddress, SqliteAddress, StoreAddress, parse_store
from hubline.checkpoint_stores.blob import BlobStore, Container
from hubline.checkpoint_stores.blob.layout import group_prefix
from hubline.checkpoints.copy import ACTIVE_SECONDS_MAX
from hubline.checkpoints.old_blobs import find_old, groups_in
from hubline.concurrency import map_bounded
from hubline.coordination.lease_options import LeaseOptions
from hubline.doctor.check_blobs import (
    BlobSettings,
    ContainerFacts,
    check_neighbours,
    check_old_blobs,
    check_settings,
    soft_delete_days,
)
from hubline.doctor.check_checkpoints import check_checkpoints, check_damage
from hubline.doctor.check_group import check_group
from hubline.doctor.check_intervals import (
    check_clock,
    check_hub_clock,
    check_lease,
    check_sdk_intervals,
    check_speed,
)
from hubline.doctor.findings import Finding, error, note, ok, warning
from hubline.doctor.observations import ClockFacts, GroupFacts, HubFacts
from hubline.model.hubs import PartitionProperties
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, GroupState
from hubline.model.positions import Position
from hubline.monitoring.lag import CLI_GROUP, peek
from hubline.ports import CheckpointStore, Examinable, Hub, shares_with_sdks
from hubline.text import counted

Result = TypeVar("Result")

# Nobody has this id: forgetting it changes nothing, and needs the right to write.
NOBODYS_ID: Final = "hubline-doctor"

# Without a hub there is no group to ask about; that the store answers can be seen by any.
UNKNOWN: Final = GroupKey("unknown", "unknown", "unknown")


@dataclass(frozen=True, slots=True)
class ExaminationRequest:
    """What to examine. ``seconds_max`` bounds each question. Without a ``lease_seconds`` it is the processors'
    default."""

    hub: str
    store: str
    group: str
    lease_seconds: float | None
    renew_interval_seconds: float
    handover_timeout_seconds: float
    sdk_lease_seconds: float
    seconds_max: float


async def examine(order: ExaminationRequest, tell: Callable[[str], None]) -> list[Finding]:
    """All findings, in the order of the checks. ``tell`` hears what is being looked at."""
    visit = Examination(order, tell)
    await visit.examine_all()
    return visit.findings


class Examination:
    """One examination: what was found so far, and how questions are asked."""

    def __init__(self, order: ExaminationRequest, tell: Callable[[str], None]) -> None:
        self._order = order
        self._tell = tell
        self._places: dict[str, str] = {}
        self.findings: list[Finding] = []

    async def examine_all(self) -> None:
        order = self._order
        lease, judged = check_lease(
            order.lease_seconds or LeaseOptions().lease_seconds,
            order.renew_interval_seconds,
            order.handover_timeout_seconds,
            order.sdk_lease_seconds,
        )
        self.findings += judged
        async with self._opened_hub() as hub:
            hub_facts = await self._examine_hub(hub) if hub else None
            group = GroupKey(hub.namespace, hub.name, order.group) if hub else UNKNOWN
            async with self._opened_store() as store:
                facts = await self._examine_store(store, group, lease) if store else None
            if hub and facts:
                there = hub_facts.properties.partition_ids if hub_facts else None
                self.findings += check_group(facts, lease, there)
                self.findings += check_damage(facts)
            if hub and hub_facts and facts:
                refused = await self._try_positions(hub, hub_facts, facts)
                self.findings += check_checkpoints(hub_facts, facts, refused)
            else:
                skipped = "owners and checkpoints were not compared with what the hub holds"
                self.findings.append(
                    note("doctor.skipped", skipped, fix="fix the findings above, then run `hubline doctor` again")
                )

    # The hub -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened_hub(self) -> AsyncIterator[Hub | None]:
        try:
            self._places["hub"] = str(parse_hub(self._order.hub))
            hub = open_hub(self._order.hub)
        except errors.ConfigError as problem:
            self.findings.append(error("hub.address", str(problem), fix="correct the address of the hub"))
            yield None
            return
        self._tell(f"asking the hub {self._places['hub']}")
        try:
            yield hub
        finally:
            await _attempt(hub.close(), self._order.seconds_max)

    async def _examine_hub(self, hub: Hub) -> HubFacts | None:
        facts = await self._ask("hub", _hub_facts(hub))
        if facts is None:
            return None
        if facts.unreadable:
            message = f"{counted(len(facts.unreadable), 'partition')} of the hub that cannot be read"
            fix = "each says why; the others are fine"
            self.findings.append(error("hub.partitions", message, fix=fix, partitions=facts.unreadable))
        count = len(facts.properties.partition_ids)
        self.findings.append(ok("hub.ok", f"the hub {hub.name} answers, and has {counted(count, 'partition')}"))
        newest = [each.last_enqueued_time for each in facts.held.values() if each.last_enqueued_time]
        ahead = max(((each - facts.read_at).total_seconds() for each in newest), default=0.0)
        self.findings += check_hub_clock(ahead)
        if facts.held:
            await self._try_group(hub, next(iter(facts.held)))
        return facts

    async def _try_group(self, hub: Hub, partition: str) -> None:
        """Opens a reader without an epoch, which takes nothing from anybody, to see whether the hub knows the group."""
        group = self._order.group
        is_known = await self.probe_optional(
            "hub.group", f"whether the hub has the group {group}", _knows(hub, partition, group)
        )
        if is_known is False:
            fix = "create the consumer group in the hub, or correct --group"
            self.findings.append(error("hub.group", f"the hub has no consumer group {group}", fix=fix))

    async def _try_positions(
        self, hub: Hub, hub_facts: HubFacts, facts: GroupFacts
    ) -> dict[str, errors.PositionInvalid]:
        """Reads on from every checkpoint that has events after it, to see whether the hub knows its offset."""
        open_ends = [
            each
            for partition, each in facts.checkpoints.items()
            if partition in hub_facts.held and _has_more(each, hub_facts.held[partition])
        ]
        refused: dict[str, errors.PositionInvalid] = {}
        if not open_ends:
            return refused

        async def attempt(checkpoint: Checkpoint) -> None:
            try:
                await peek(hub, checkpoint.key.partition, checkpoint.resume)
            except errors.PositionInvalid as problem:
                refused[checkpoint.key.partition] = problem

        self._tell(f"trying {counted(len(open_ends), 'checkpoint')}")
        message = f"whether the hub knows the checkpoints' offsets (read in the consumer group {CLI_GROUP})"
        await self.probe_optional("checkpoint.untried", message, map_bounded(attempt, open_ends))
        return refused

    # The store -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened_store(self) -> AsyncIterator[CheckpointStore | None]:
        try:
            address = parse_store(self._order.store)
            self._places["store"] = str(address)
            store = open_store(self._order.store) if self._is_there(address) else None
        except errors.ConfigError as problem:
            self.findings.append(error("store.address", str(problem), fix="correct the address of the store"))
            store = None
        if store is None:
            yield None
            return
        self._tell(f"asking the store {address}")
        try:
            yield store
        finally:
            await _attempt(store.close(), self._order.seconds_max)

    def _is_there(self, address: StoreAddress) -> bool:
        """Whether there is anything to look at: looking must not make an empty store."""
        match address:
            case MemoryAddress():
                message = "a memory: store is seen by its own process alone: this is another one"
                fix = "use sqlite:/// for the processes of one machine, or a store that many machines reach"
                self.findings.append(warning("store.private", message, fix=fix))
            case SqliteAddress(path) if not path.exists():
                message = f"there is no file {path}: the first processor makes it, or the path is wrong"
                fix = "correct the path if there should be something; relative ones begin where hubline is started"
                self.findings.append(warning("store.new", message, fix=fix))
                return False
        return True

    async def _examine_store(self, store: CheckpointStore, group: GroupKey, lease: LeaseOptions) -> GroupFacts | None:
        facts = await self._ask("store", _group_facts(store, group))
        if facts is None:
            return None
        self.findings.append(ok("store.ok", f"the store answers, in {facts.list_seconds * 1000:.0f} ms"))
        await self._ask("store", store.leave(group, NOBODYS_ID), code="store.read-only")
        if shares_with_sdks(store):
            facts = replace(facts, sdk_owners=_sdk_owners(facts.state, lease))
        if isinstance(store, BlobStore):
            await self._examine_blobs(store, group)
        if isinstance(store, Examinable):
            facts = await self._look_into(store, facts)
        self.findings += check_speed(lease, facts)
        self.findings += check_sdk_intervals(lease, facts)
        return facts

    async def _look_into(self, store: Examinable, facts: GroupFacts) -> GroupFacts:
        asked_at = datetime.now(UTC)
        examined = await self._ask("store", store.examine(facts.group))
        if examined is None:
            return facts
        clock = ClockFacts(asked_at, examined.time, datetime.now(UTC))
        self.findings += check_clock(clock, sdk_members=bool(facts.sdk_owners))
        return replace(facts, damaged_checkpoints=examined.damaged)

    async def _examine_blobs(self, store: BlobStore, group: GroupKey) -> None:
        container = store.container
        settings = await self.probe_optional(
            "blob.settings", "the account's settings", _blob_settings(container, group_prefix(group))
        )
        self.findings += check_settings(settings) if settings else []
        self._tell("looking for old blobs")
        message = "what else is in the container"
        found = await self.probe_optional("blob.layout", message, _container_facts(container))
        if found is not None:
            self.findings += check_old_blobs(group, found.olds)
            self.findings += check_neighbours(group, found.groups)

    # Asking --------------------------------------------------------------------------------------------------------

    async def _ask(self, whom: str, question: Awaitable[Result], *, code: str = "") -> Result | None:
        """The answer; None if there is none, and a finding that says why, under this code if it was refused."""
        answer = await _attempt(question, self._order.seconds_max)
        if not isinstance(answer, _Failure):
            return answer
        found = code if code and answer.kind == "refused" else f"{whom}.{answer.kind}"
        if answer.kind == "bug":
            found = "doctor.failed"
        self.findings.append(error(found, answer.message, where=self._places[whom], fix=_FIXES[answer.kind]))
        return None

    async def probe_optional(self, code: str, message: str, question: Awaitable[Result]) -> Result | None:
        """An answer that is good to have; None, and a note, if it does not come."""
        answer = await _attempt(question, self._order.seconds_max)
        if not isinstance(answer, _Failure):
            return answer
        self.findings.append(note(code, f"could not find out {message}: {answer.message}"))
        return None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why there is no answer: its kind, which is the end of a finding's code, and in words, without a secret."""

    kind: str
    message: str


async def _attempt(question: Awaitable[Result], seconds_max: float) -> Result | _Failure:
    """The answer, or why there is none: one check must not stop the others."""
    try:
        async with asyncio.timeout(seconds_max):
            return await question
    except TimeoutError:
        return _Failure("unreachable", f"no answer for {seconds_max:g} s")
    except errors.HublineError as problem:
        return _Failure(_kind(problem), str(problem))
    except OSError as problem:
        return _Failure("failed", problem.strerror or type(problem).__name__)
    except Exception as problem:  # noqa: BLE001 (its text may hold a secret, and is not shown)
        return _Failure("bug", f"a check failed in an unforeseen way: {type(problem).__name__}")


_FIXES: Final = {
    "address": "correct the address",
    "missing": "create it, or correct the address",
    "refused": "check the credentials, and what they allow; see what it says",
    "unreachable": "check the network, the address, and that it runs; trying again may help",
    "incompatible": "upgrade hubline here, to the version that the others have",
    "damaged": "restore it from a backup, or create it again",
    "failed": "see what it says",
    "bug": "this is a bug of hubline: please report it",
}


def _kind(problem: errors.HublineError) -> str:
    match problem:
        case errors.ConfigError():
            return "address"
        case errors.HubNotFound() | errors.StoreNotFound():
            return "missing"
        case errors.HubUnavailable() | errors.StoreUnavailable():
            return "unreachable"
        case errors.StoreIncompatible():
            return "incompatible"
        case errors.HubDamaged():
            return "damaged"
        case errors.AccessDenied() | errors.StoreError():
            return "refused"
        case _:
            return "failed"


async def _hub_facts(hub: Hub) -> HubFacts:
    properties = await hub.describe()
    held: dict[str, PartitionProperties] = {}
    unreadable: dict[str, str] = {}

    async def look(partition: str) -> None:
        try:
            held[partition] = await hub.describe_partition(partition)
        except errors.HubError as problem:
            unreadable[partition] = str(problem)

    await map_bounded(look, properties.partition_ids)
    return HubFacts(properties, held, unreadable, datetime.now(UTC))


async def _group_facts(store: CheckpointStore, group: GroupKey) -> GroupFacts:
    await store.list_ownership(group)  # the first call connects; the second one is as those of processors
    asked_at = time.monotonic()
    state = await store.list_ownership(group)
    list_seconds = time.monotonic() - asked_at
    checkpoints = {each.key.partition: each for each in await store.list_checkpoints(group)}
    return GroupFacts(group, state, checkpoints, list_seconds)


async def _knows(hub: Hub, partition: str, group: str) -> bool:
    """Whether the hub has the consumer group."""
    try:
        receiver = await hub.open_receiver(partition, group=group, position=Position.latest())
    except (errors.ReaderRefused, errors.ReaderStolen):
        return True  # by its readers
    except (errors.HubNotFound, errors.PartitionNotFound):
        return False  # both are there
    await receiver.close()
    return True


def _sdk_owners(state: GroupState, lease: LeaseOptions) -> frozenset[str]:
    """Living owners that are no members: where SDKs may be, those are theirs, for everybody else announces itself."""
    owned = [each for each in state.ownerships if each.owner_id and each.age_seconds <= lease.sdk_lease_seconds]
    return frozenset(each.owner_id for each in owned) - {each.owner_id for each in state.members}


async def _blob_settings(container: Container, prefix: str) -> BlobSettings:
    properties = await container.service_properties()
    return BlobSettings(
        soft_delete_days=None if properties is None else soft_delete_days(properties),
        has_versions=await container.keeps_versions(prefix),
    )


async def _container_facts(container: Container) -> ContainerFacts:
    blobs, _ = await container.list("")
    return ContainerFacts(
        groups=frozenset(groups_in(blobs)),
        olds=tuple(await find_old(container, blobs, active_seconds=ACTIVE_SECONDS_MAX)),
    )


def _has_more(checkpoint: Checkpoint, held: PartitionProperties) -> bool:
    """Whether the event after the checkpoint is there, by its number."""
    if checkpoint.last_sequence is None:
        return not held.is_empty and checkpoint.offset != held.last_offset
    return held.begin_sequence <= checkpoint.last_sequence + 1 <= held.last_sequence
