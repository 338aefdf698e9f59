"""Rows into records. Whatever somebody put into a row, it is either a record or a sentence on what is wrong."""

from __future__ import annotations

import math

from hubline.errors import RecordDamaged
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership
from hubline.sql.dialect import Params, Row
from hubline.text import abbreviated


class _Damage(Exception):
    """A value that no hubline wrote. Does not leave this module."""


def read_group(group: GroupKey, rows: list[Row]) -> GroupState:
    """The rows of ``list_group``. A damaged member is left out: its next renewal writes it again."""
    ownerships: list[Ownership] = []
    members: list[Member] = []
    damaged: dict[str, str] = {}
    for kind, *row in rows:
        try:
            if kind == "ownership":
                ownerships.append(_ownership(group, row))
            else:
                members.append(_member(row))
        except _Damage as damage:
            if kind == "ownership":
                damaged[str(row[0])] = (
                    f"the ownership record cannot be read: {damage}, in table hubline_ownership, "
                    f"{_where(group, row[0])}. Correct it, or delete the row: hubline then claims the partition again."
                )
    return GroupState(tuple(ownerships), tuple(members), damaged)


def read_written(group: GroupKey, rows: list[Row]) -> list[Ownership]:
    """The ownership records that a claim or a renewal wrote.

    One that is damaged is left out like a lost claim: its owner stops, and ``list_ownership`` says why.
    """
    written: list[Ownership] = []
    for row in rows:
        try:
            written.append(_ownership(group, row))
        except _Damage:
            continue
    return written


def read_checkpoint(key: PartitionKey, row: Row) -> tuple[int, Checkpoint | None]:
    """The epoch that holds the fence, and the checkpoint unless nothing is done yet. Raises RecordDamaged."""
    epoch, offset, sequence_number = row
    try:
        held_epoch = _number("epoch", epoch)
        if offset is None and sequence_number is None:
            return held_epoch, None
        if (offset, sequence_number) == ("-1", -1):
            return held_epoch, Checkpoint.before_first(key)
        # An empty offset is one that the writer did not know: the sequence number counts.
        known_offset = "" if offset == "" else _text("offset", offset)
        return held_epoch, Checkpoint(key, known_offset, _number("sequence_number", sequence_number))
    except _Damage as damage:
        problem = str(damage)
    raise RecordDamaged(
        f"the checkpoint cannot be read: {problem}, in table hubline_checkpoint, "
        f"{_where(key.group_key, key.partition)}. Set it again with `hubline checkpoints set`, or reset "
        "it with `hubline checkpoints reset`.",
        partition=key.partition,
        record="hubline_checkpoint",
    )


def read_checkpoints(group: GroupKey, rows: list[Row]) -> list[Checkpoint]:
    """The rows of ``list_checkpoints``, without those that are damaged or where nothing is done yet."""
    found: list[Checkpoint] = []
    for partition, *row in rows:
        try:
            _, checkpoint = read_checkpoint(group.partition(_text("partition_id", partition)), tuple(row))
        except (_Damage, RecordDamaged):
            continue
        if checkpoint is not None:
            found.append(checkpoint)
    return found


def damaged_checkpoints(group: GroupKey, rows: list[Row]) -> dict[str, str]:
    """Of the rows of ``list_checkpoints`` those that do not read back, and what is wrong with each."""
    damaged: dict[str, str] = {}
    for partition, *row in rows:
        try:
            read_checkpoint(group.partition(_text("partition_id", partition)), tuple(row))
        except (_Damage, RecordDamaged) as problem:
            damaged[str(partition)] = str(problem)
    return damaged


def _ownership(group: GroupKey, row: Row | list[object]) -> Ownership:
    partition, owner_id, epoch, version, age, requested_by, request_age = row
    is_requested = requested_by is not None
    return Ownership(
        group.partition(_text("partition_id", partition)),
        owner_id=_text("owner_id", owner_id, may_be_empty=True),
        epoch=_number("epoch", epoch),
        version=str(_number("version", version)),
        age_seconds=_age("modified_at", age),
        requested_by=_text("requested_by", requested_by) if is_requested else None,
        request_age_seconds=_age("requested_at", request_age) if is_requested else 0.0,
    )


def _member(row: Row | list[object]) -> Member:
    _, owner_id, max_partitions, _, age, *_ = row
    return Member(
        _text("owner_id", owner_id),
        max_partitions=None if max_partitions is None else _number("max_partitions", max_partitions),
        age_seconds=_age("seen_at", age),
    )


def _text(column: str, value: object, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or (not value.isascii() and _has_broken_characters(value)):
        raise _Damage(f"{column} is {abbreviated(value)}, which is not text")
    if not value and not may_be_empty:
        raise _Damage(f"{column} is empty")
    return value


def _number(column: str, value: object) -> int:
    if not isinstance(value, int):
        raise _Damage(f"{column} is {abbreviated(value)}, which is not a whole number")
    if value < 0:
        raise _Damage(f"{column} is {value}, which is negative")
    return value


def _age(column: str, value: object) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        raise _Damage(f"{column} holds no time")
    return value


def _has_broken_characters(value: str) -> bool:
    """Whether the text came from bytes that are not UTF-8: those were read as lone surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in value)


def _where(group: GroupKey, partition: object) -> str:
    return (
        f"row namespace={group.namespace!r} hub={group.hub!r} consumer_group={group.group!r} "
        f"partition_id={abbreviated(partition)}"
    )


def of_group(group: GroupKey) -> Params:
    """The values of a query that names a group."""
    return {"namespace": group.namespace, "hub": group.hub, "consumer_group": group.group}


def of_partition(key: PartitionKey) -> Params:
    """The values of a query that names a partition."""
    return {**of_group(key.group_key), "partition_id": key.partition}


def of_checkpoint(key: PartitionKey, checkpoint: Checkpoint | None) -> Params:
    """The values of a query that writes a checkpoint."""
    return {
        **of_partition(key),
        "offset": None if checkpoint is None else checkpoint.offset,
        "sequence_number": None if checkpoint is None else checkpoint.sequence_number,
    }
