"""Problems that only blob containers have: old blobs beside the new ones, and settings that make lists slow."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hubline.checkpoints.migrate import Move
from hubline.checkpoints.old_blobs import OldPartition
from hubline.doctor.findings import Finding, note, ok, warning
from hubline.model.keys import GroupKey
from hubline.text import counted

# Enough to see what the container is for.
GROUPS_SHOWN_MAX: Final = 5

_MIGRATE: Final = "stop the consumers that write them, then run `hubline checkpoints migrate STORE`"
_DELETE: Final = "do nothing; or delete them with `hubline checkpoints migrate STORE --delete-old`"


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """Whether the account keeps blobs that were overwritten or deleted. None: unknown."""

    soft_delete_days: int | None
    has_versions: bool | None


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """The whole container: its groups, in lower case, and the partitions with old blobs."""

    groups: frozenset[GroupKey]
    moves: tuple[Move, ...]
    """The change that a migration would make for each old partition."""


def check_other_groups(group: GroupKey, groups: frozenset[GroupKey]) -> list[Finding]:
    """A container that has other groups but not this one is likely the wrong container, or a name is misspelled."""
    if in_lower_case(group) in groups or not groups:
        return []
    where = ", ".join(sorted(map(str, groups))[:GROUPS_SHOWN_MAX])
    message = f"the container has no records of this group, but of {counted(len(groups), 'other group')}"
    fix = "if the group has not started yet, do nothing; otherwise correct the container, the hub or the group"
    return [warning("blob.other-groups", message, where=where, fix=fix)]


def in_lower_case(group: GroupKey) -> GroupKey:
    return GroupKey(group.namespace.lower(), group.hub.lower(), group.group.lower())


def check_old_blobs(group: GroupKey, moves: Sequence[Move]) -> list[Finding]:
    """Checkpoints of this group, and of others, in blobs that only some SDKs read.

    Moved checkpoints don't count, although a migration keeps their blobs unless `--delete-old` is given.
    """
    waiting = [each.old for each in moves if not each.is_done]
    names = tuple(name.lower() for name in (group.namespace, group.hub, group.group))
    own = {each.key.partition: each for each in waiting if _names(each) == names}
    findings = []
    if own:
        partitions = {name: _describe(each) for name, each in own.items()}
        message = f"the checkpoints of {counted(len(own), 'partition')} are in old blobs, which hubline does not read"
        findings.append(warning("blob.old", message, fix=_MIGRATE, partitions=partitions))
    others = {_names(each) for each in waiting} - {names}
    if others:
        message = f"the container has old blobs of {counted(len(others), 'other group')}"
        where = ", ".join(sorted("/".join(each) for each in others))
        findings.append(note("blob.old-others", message, where=where, fix=_MIGRATE))
    if done := [each.old for each in moves if each.is_done]:
        count = sum(len(each.blobs) for each in done)
        message = f"the checkpoints of {counted(count, 'old blob')} are moved, so hubline does not need these blobs"
        where = ", ".join(sorted({"/".join(_names(each)) for each in done}))
        findings.append(note("blob.old-moved", message, where=where, fix=_DELETE))
    return findings or [ok("blob.layout", "the container has no old blobs")]


def _names(old: OldPartition) -> tuple[str, str, str]:
    return old.key.namespace, old.key.hub, old.key.group


def _describe(old: OldPartition) -> str:
    if old.active_owner:
        return f"{old.active_owner} writes {old.blobs[0].name}, so it and the other consumers do not see each other"
    if old.damage:
        return old.damage
    at = "no checkpoint" if old.checkpoint is None else f"a checkpoint at {old.checkpoint.sequence_number:,}"
    return f"{at} in {old.blobs[0].name}"


def check_settings(settings: BlobSettings) -> list[Finding]:
    """Every renewal and every checkpoint overwrites a blob. If the account keeps the old ones, lists get slow."""
    findings = []
    fix = "keep checkpoints in an account without it, because processors overwrite their blobs every few seconds"
    if settings.soft_delete_days:
        message = (
            f"soft delete keeps overwritten blobs for {counted(settings.soft_delete_days, 'day')}, so lists get slow"
        )
        findings.append(warning("blob.soft-delete", message, fix=fix))
    if settings.has_versions:
        message = "versioning keeps every renewal and checkpoint as a version, so lists get slow and storage costs grow"
        findings.append(warning("blob.versioning", message, fix=fix))
    if settings.soft_delete_days is None or settings.has_versions is None:
        unknown = "soft delete" if settings.soft_delete_days is None else "versioning"
        message = f"hubline can't read whether {unknown} is on: no blob exists yet, or you lack the right to"
        findings.append(
            note(
                "blob.settings",
                message,
                fix="turn off soft delete and versioning in the data protection of the account",
            )
        )
    return findings or [ok("blob.settings", "neither soft delete nor versioning makes lists slow")]


def soft_delete_days(properties: bytes) -> int | None:
    """From the Blob service properties of the account: how long deleted blobs are kept, 0 if not; None if unknown."""
    root = _xml(properties)
    if root is None:
        return None
    if root.findtext("DeleteRetentionPolicy/Enabled") != "true":
        return 0
    days = root.findtext("DeleteRetentionPolicy/Days") or ""
    return int(days) if days.isascii() and days.isdigit() else 1


def _xml(body: bytes) -> ET.Element | None:
    try:
        text = body.decode("utf-8-sig")
        # There is none, and without one there are no entities that could grow.
        return None if "<!DOCTYPE" in text else ET.fromstring(text)  # noqa: S314
    except (UnicodeDecodeError, ET.ParseError):
        return None
