"""Whether a group's checkpoints still lead anywhere: against what the hub's partitions hold."""

from __future__ import annotations

from collections.abc import Mapping

from hubline.doctor.findings import Finding, error, note, ok
from hubline.doctor.observations import GroupFacts, HubFacts
from hubline.errors import PositionInvalid
from hubline.model.hubs import PartitionProperties
from hubline.model.ownership import Checkpoint
from hubline.text import counted


def check_checkpoints(hub: HubFacts, facts: GroupFacts, refused: Mapping[str, PositionInvalid]) -> list[Finding]:
    """Every checkpoint against its partition. ``refused`` has what the hub itself said of those that were tried."""
    expired: dict[str, int] = {}
    ahead: dict[str, int] = {}
    foreign: dict[str, str] = {}
    good_count = behind_count = 0
    for partition, checkpoint in facts.checkpoints.items():
        held = hub.held.get(partition)
        if held is None:
            continue
        reason = refused[partition].reason if partition in refused else None
        # Of what an SDK wrote the number may not be known: then only the hub can tell.
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
    """Whether it names the partition's newest event by its number, and another one by its offset."""
    is_newest = checkpoint.last_sequence == held.last_sequence >= 0
    return is_newest and held.last_offset is not None and checkpoint.offset not in ("", held.last_offset)


def check_damage(facts: GroupFacts) -> list[Finding]:
    """Checkpoints that do not read back."""
    damaged = facts.damaged_checkpoints
    if not damaged:
        return []
    message = f"{counted(len(damaged), 'checkpoint')} that cannot be read: the partition stops"
    fix = "set them again with `hubline checkpoints set`, or reset them with `hubline checkpoints reset`"
    return [error("checkpoint.damaged", message, fix=fix, partitions=dict(damaged))]


def _expired(expired: Mapping[str, int]) -> list[Finding]:
    if not expired:
        return []
    message = f"retention removed {counted(sum(expired.values()), 'event')} before they were processed: they are lost"
    fix = (
        "processors stop there unless on_data_loss is set; `hubline checkpoints reset` continues with "
        "what is left. Lengthen the hub's retention, or add processors, so that it does not happen again"
    )
    partitions = {partition: f"{lost:,} lost" for partition, lost in expired.items()}
    return [error("checkpoint.expired", message, fix=fix, partitions=partitions)]


def _recreated(ahead: Mapping[str, int], foreign: Mapping[str, str]) -> list[Finding]:
    """Checkpoints of a hub that is gone: beyond the end of the new one, or at other offsets."""
    fix = "start over with `hubline checkpoints reset`, or correct the address of the hub or the store"
    findings = []
    if ahead:
        partitions = {partition: f"{beyond:,} beyond the last event" for partition, beyond in ahead.items()}
        message = f"{counted(len(ahead), 'checkpoint')} beyond the last event: the hub was deleted and created again"
        findings.append(error("checkpoint.ahead", message, fix=fix, partitions=partitions))
    if foreign:
        message = f"{counted(len(foreign), 'checkpoint')} of another hub, or of one of this name that was deleted"
        findings.append(error("checkpoint.foreign", message, fix=fix, partitions=foreign))
    return findings


def _missing(hub: HubFacts, facts: GroupFacts) -> list[Finding]:
    known = {*facts.checkpoints, *facts.damaged_checkpoints}
    missing = [partition for partition in hub.properties.partition_ids if partition not in known]
    if not missing or not facts.checkpoints:
        return []
    message = (
        f"{counted(len(missing), 'partition')} without a checkpoint: processors begin there at their start position"
    )
    return [note("checkpoint.missing", message, partitions=dict.fromkeys(missing, "has none"))]


def _good(facts: GroupFacts, good_count: int, behind_count: int) -> list[Finding]:
    if not facts.checkpoints:
        return [note("checkpoint.none", "the group has no checkpoints: processors begin at their start position")]
    if not good_count:
        return []
    summary = f"{counted(good_count, 'good checkpoint')}; {counted(behind_count, 'event')} to be handled"
    return [ok("checkpoint.ok", summary)]
