"""Reads from the store: whether it answers and can be written, its clock, the group's records, and old blobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from hubline import errors
from hubline.adapters import open_store
from hubline.addresses.store_address import MemoryAddress, SqliteAddress, StoreAddress, parse_store
from hubline.checkpoint_stores.blob import BlobStore, Container
from hubline.checkpoint_stores.blob.layout import group_prefix
from hubline.checkpoints.migrate import plan_for
from hubline.checkpoints.old_blobs import groups_in
from hubline.coordination.lease_options import LeaseOptions
from hubline.doctor.check_blobs import (
    BlobSettings,
    ContainerFacts,
    check_old_blobs,
    check_other_groups,
    check_settings,
    soft_delete_days,
)
from hubline.doctor.check_intervals import check_clock, check_sdk_intervals, check_speed
from hubline.doctor.examination import Examination, attempt
from hubline.doctor.findings import error, ok, warning
from hubline.doctor.observations import ClockFacts, GroupFacts
from hubline.model.keys import GroupKey
from hubline.model.ownership import GroupState, Member
from hubline.ports import CheckpointStore, Examinable, shares_with_sdks

# No consumer has this ID, so a renewal in its name changes nothing, but needs the right to write.
NOBODYS_ID: Final = "hubline-doctor"


@asynccontextmanager
async def opened_store(examination: Examination) -> AsyncIterator[CheckpointStore | None]:
    try:
        address = parse_store(examination.request.store)
        examination.places["store"] = str(address)
        store = open_store(examination.request.store) if _is_there(examination, address) else None
    except errors.ConfigError as problem:
        examination.findings.append(error("store.address", str(problem), fix="correct the address of the store"))
        store = None
    if store is None:
        yield None
        return
    examination.report(f"asking the store {address}")
    try:
        yield store
    finally:
        await attempt(store.close(), examination.request.seconds_max)


async def examine_store(
    examination: Examination, store: CheckpointStore, group: GroupKey, lease: LeaseOptions
) -> GroupFacts | None:
    facts = await examination.ask("store", _group_facts(store, group))
    if facts is None:
        return None
    examination.findings.append(ok("store.ok", f"the store answers in {facts.list_seconds * 1000:.0f} ms"))
    await examination.ask("store", store.renew_ownership(group, Member(NOBODYS_ID, 0), ()), code="store.read-only")
    if shares_with_sdks(store):
        facts = replace(facts, sdk_owners=_sdk_owners(facts.state, lease))
    if isinstance(store, BlobStore):
        await _examine_blobs(examination, store, group)
    if isinstance(store, Examinable):
        facts = await _look_into(examination, store, facts)
    examination.findings += check_speed(lease, facts)
    examination.findings += check_sdk_intervals(lease, facts)
    return facts


def _is_there(examination: Examination, address: StoreAddress) -> bool:
    """Whether there is a store to examine: the examination must not create one."""
    match address:
        case MemoryAddress():
            message = "other processes, such as this one, can't see a memory: store"
            fix = "use sqlite:/// for processes on one machine, or PostgreSQL or blobs for several machines"
            examination.findings.append(warning("store.in-memory", message, fix=fix))
        case SqliteAddress(path) if not path.exists():
            message = f"there is no file {path}: no processor has created it yet, or the path is wrong"
            fix = "if the file should exist, correct the path; a relative path starts at the current directory"
            examination.findings.append(warning("store.no-file", message, fix=fix))
            return False
    return True


async def _look_into(examination: Examination, store: Examinable, facts: GroupFacts) -> GroupFacts:
    asked_at = datetime.now(UTC)
    examined = await examination.ask("store", store.examine(facts.group))
    if examined is None:
        return facts
    clock = ClockFacts(asked_at, examined.time, datetime.now(UTC))
    examination.findings += check_clock(clock, sdk_members=bool(facts.sdk_owners))
    return replace(facts, damaged_checkpoints=examined.damaged)


async def _examine_blobs(examination: Examination, store: BlobStore, group: GroupKey) -> None:
    container = store.container
    settings = await examination.probe_optional(
        "blob.settings", "the account's settings", _blob_settings(container, group_prefix(group))
    )
    examination.findings += check_settings(settings) if settings else []
    examination.report("looking for old blobs")
    message = "which other records the container has"
    found = await examination.probe_optional("blob.layout", message, _container_facts(store))
    if found is not None:
        examination.findings += check_old_blobs(group, found.moves)
        examination.findings += check_other_groups(group, found.groups)


async def _group_facts(store: CheckpointStore, group: GroupKey) -> GroupFacts:
    await store.list_ownership(group)  # the first call connects; the second one takes as long as those of processors
    asked_at = time.monotonic()
    state = await store.list_ownership(group)
    list_seconds = time.monotonic() - asked_at
    checkpoints = {each.key.partition: each for each in await store.list_checkpoints(group)}
    return GroupFacts(group, state, checkpoints, list_seconds)


def _sdk_owners(state: GroupState, lease: LeaseOptions) -> frozenset[str]:
    """Active owners that are not members. In a store that SDKs can use, these are SDKs: hubline registers members."""
    owned = [each for each in state.ownerships if each.owner_id and each.age_seconds <= lease.sdk_lease_seconds]
    return frozenset(each.owner_id for each in owned) - {each.owner_id for each in state.members}


async def _blob_settings(container: Container, prefix: str) -> BlobSettings:
    properties = await container.service_properties()
    return BlobSettings(
        soft_delete_days=None if properties is None else soft_delete_days(properties),
        has_versions=await container.keeps_versions(prefix),
    )


async def _container_facts(store: BlobStore) -> ContainerFacts:
    blobs, _ = await store.container.list("")
    return ContainerFacts(groups=frozenset(groups_in(blobs)), moves=tuple(await plan_for(store, blobs)))
