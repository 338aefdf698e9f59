"""Reads from the hub: its partitions, its clock, the consumer group, and the offsets of the checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from hubline import errors
from hubline.adapters import open_hub
from hubline.addresses.hub_address import parse_hub
from hubline.concurrency import map_bounded
from hubline.doctor.check_intervals import check_hub_clock
from hubline.doctor.examination import Examination, attempt
from hubline.doctor.findings import error, ok
from hubline.doctor.observations import GroupFacts, HubFacts
from hubline.model.hubs import PartitionProperties
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.monitoring.lag import CLI_GROUP, peek
from hubline.ports import Hub
from hubline.text import counted


@asynccontextmanager
async def opened_hub(examination: Examination) -> AsyncIterator[Hub | None]:
    try:
        examination.places["hub"] = str(parse_hub(examination.request.hub))
        hub = open_hub(examination.request.hub)
    except errors.ConfigError as problem:
        examination.findings.append(error("hub.address", str(problem), fix="correct the address of the hub"))
        yield None
        return
    examination.report(f"asking the hub {examination.places['hub']}")
    try:
        yield hub
    finally:
        await attempt(hub.close(), examination.request.seconds_max)


async def examine_hub(examination: Examination, hub: Hub) -> HubFacts | None:
    facts = await examination.ask("hub", _hub_facts(hub))
    if facts is None:
        return None
    if facts.unreadable:
        message = f"{counted(len(facts.unreadable), 'partition')} of the hub cannot be read"
        fix = "see the reason of each partition; the other partitions are fine"
        examination.findings.append(error("hub.partitions", message, fix=fix, partitions=facts.unreadable))
    count = len(facts.properties.partition_ids)
    examination.findings.append(ok("hub.ok", f"the hub {hub.name} answers, and has {counted(count, 'partition')}"))
    newest = [each.last_enqueued_time for each in facts.held.values() if each.last_enqueued_time]
    ahead = max(((each - facts.read_at).total_seconds() for each in newest), default=0.0)
    examination.findings += check_hub_clock(ahead)
    if facts.held:
        await _try_group(examination, hub, next(iter(facts.held)))
    return facts


async def refused_positions(
    examination: Examination, hub: Hub, hub_facts: HubFacts, facts: GroupFacts
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

    async def read_on(checkpoint: Checkpoint) -> None:
        try:
            await peek(hub, checkpoint.key.partition, checkpoint.resume)
        except errors.PositionInvalid as problem:
            refused[checkpoint.key.partition] = problem

    examination.report(f"trying {counted(len(open_ends), 'checkpoint')}")
    message = f"whether the hub knows the offsets of the checkpoints (in the consumer group {CLI_GROUP})"
    await examination.probe_optional("checkpoint.unverified", message, map_bounded(read_on, open_ends))
    return refused


async def _try_group(examination: Examination, hub: Hub, partition: str) -> None:
    """Opens a reader without an epoch, which does not affect consumers, to see whether the hub knows the group."""
    group = examination.request.group
    is_known = await examination.probe_optional(
        "hub.group", f"whether the hub has the group {group}", _knows(hub, partition, group)
    )
    if is_known is False:
        fix = "create the consumer group in the hub, or correct --group"
        examination.findings.append(error("hub.group", f"the hub has no consumer group {group}", fix=fix))


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


async def _knows(hub: Hub, partition: str, group: str) -> bool:
    """Whether the hub has the consumer group."""
    try:
        receiver = await hub.open_receiver(partition, group=group, position=Position.latest())
    except (errors.ReaderRefused, errors.ReaderStolen):
        return True  # it has readers
    except (errors.HubNotFound, errors.PartitionNotFound):
        return False  # hub and partition exist, so it is the group
    await receiver.close()
    return True


def _has_more(checkpoint: Checkpoint, held: PartitionProperties) -> bool:
    """Whether the partition holds the event after the checkpoint, by its sequence number."""
    if checkpoint.last_sequence is None:
        return not held.is_empty and checkpoint.offset != held.last_offset
    return held.begin_sequence <= checkpoint.last_sequence + 1 <= held.last_sequence
