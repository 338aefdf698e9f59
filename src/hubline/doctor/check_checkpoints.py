"""Compares a group's checkpoints with the events that the partitions of the hub hold."""

from __future__ import annotations

from collections.abc import Mapping

from hubline.doctor.findings import Finding, error, note, ok
from hubline.doctor.observations import GroupFacts, HubFacts
from hubline.errors import PositionInvalid
from hubline.model.hubs import PartitionProperties
from hubline.model.ownership import Checkpoint
from hubline.text import counted


def check_checkpoints(hub: HubFacts, facts: GroupFacts, refused: Mapping[str, PositionInvalid]) -> list[Finding]:
    """Compares every checkpoint with its partition. ``refused`` has the errors of those that the hub refused."""
    expired: dict[str, int] = {}
    ahead: dict[str, int] = {}
    foreign: dict[str, str] = {}
    good_count = behind_count = 0
    for partition, checkpoint in facts.checkpoints.items():
        held = hub.held.get(partition)
        if held is None:
            continue
        reason = refused[partition].reason if partition in refused else None
        # A checkpoint of an SDK may have no sequence number. Then only the hub can tell.
        last_sequence = held.last_sequence if checkpoint.last_sequence is None else checkpoint.last_sequence
        lost_count = max(0, held.begin_sequence - last_sequence - 1)
        if (beyond_count := last_sequence - held.last_sequence) > 0:
            ahead[partition] = beyond_count
        elif lost_count or reason == "expired":
            expired[partition] = lost_count
        elif reason or is_foreign(checkpoint, held):
            foreign[partition] = f"the hub does not know its offset {checkpoint.offset}"
        else:
            good_count += 1
            behind_count += held.last_sequence - last_sequence
    return [
        *_expired(expired),
        *_recreated(ahead, foreign),
        *_missing(hub, facts),
        *_good(facts, good_count, behind_count),
    ]


def is_foreign(checkpoint: Checkpoint, held: PartitionProperties) -> bool:
    """Whether its sequence number is that of the newest event, and its offset that of another event."""
    is_newest = checkpoint.last_sequence == held.last_sequence >= 0
    return is_newest and held.last_offset is not None and checkpoint.offset not in ("", held.last_offset)


def check_damage(facts: GroupFacts) -> list[Finding]:
    """Checkpoints that cannot be read."""
    damaged = facts.damaged_checkpoints
    if not damaged:
        return []
    message = f"{counted(len(damaged), 'checkpoint')} cannot be read, so processing stops there"
    fix = "set them again with `hubline checkpoints set`, or reset them with `hubline checkpoints reset`"
    return [error("checkpoint.damaged", message, fix=fix, partitions=dict(damaged))]


def _expired(expired: Mapping[str, int]) -> list[Finding]:
    if not expired:
        return []
    message = (
        f"retention removed {counted(sum(expired.values()), 'event')} before they were processed, so they are lost"
    )
    fix = (
        "to continue with the events that are left, run `hubline checkpoints reset`, or set on_data_loss. Lengthen the "
        "retention of the hub, or add processors, so that it does not happen again"
    )
    partitions = {partition: f"{lost:,} lost" for partition, lost in expired.items()}
    return [error("checkpoint.expired", message, fix=fix, partitions=partitions)]


def _recreated(ahead: Mapping[str, int], foreign: Mapping[str, str]) -> list[Finding]:
    """Checkpoints of a deleted hub: beyond the end of the new one, or at other offsets."""
    fix = "start over with `hubline checkpoints reset`, or correct the address of the hub or the store"
    findings = []
    if ahead:
        partitions = {partition: f"{beyond:,} beyond the last event" for partition, beyond in ahead.items()}
        message = f"{counted(len(ahead), 'checkpoint')} beyond the last event: the hub was recreated"
        findings.append(error("checkpoint.ahead", message, fix=fix, partitions=partitions))
    if foreign:
        message = f"{counted(len(foreign), 'checkpoint')} of another hub, or of a deleted hub with this name"
        findings.append(error("checkpoint.foreign", message, fix=fix, partitions=foreign))
    return findings


def _missing(hub: HubFacts, facts: GroupFacts) -> list[Finding]:
    known = {*facts.checkpoints, *facts.damaged_checkpoints}
    missing = [partition for partition in hub.properties.partition_ids if partition not in known]
    if not missing or not facts.checkpoints:
        return []
    message = (
        f"{counted(len(missing), 'partition')} without a checkpoint: processors start there at their start position"
    )
    return [note("checkpoint.missing", message, partitions=dict.fromkeys(missing, "has none"))]


def _good(facts: GroupFacts, good_count: int, behind_count: int) -> list[Finding]:
    if not facts.checkpoints:
        return [note("checkpoint.none", "the group has no checkpoints: processors start at their start position")]
    if not good_count:
        return []
    summary = f"{counted(good_count, 'checkpoint')} without problems; lag {counted(behind_count, 'event')}"
    return [ok("checkpoint.ok", summary)]
