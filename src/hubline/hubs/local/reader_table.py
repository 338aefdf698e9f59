"""The table of epoch readers in a partition's file: who reads it for which group. Used in an open transaction."""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass
from typing import Final

from hubline.errors import HubError, ReaderRefused, ReaderStolen
from hubline.hubs.local.sqlite_files import Where, damaged

SCHEMA: Final = """
CREATE TABLE readers (
    group_name TEXT PRIMARY KEY,
    reader_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    liveness_id TEXT
);
"""


@dataclass(frozen=True, slots=True)
class ReaderLease:
    """A reader's right to read. It lasts while ``holder_id`` is what the partition says for the group.

    That is the id of the reader itself if it has an epoch; otherwise of the last one that had (None: there was
    none), which no longer lives. Readers without an epoch thus continue side by side until one with an epoch comes.
    """

    group: str
    epoch: int | None
    holder_id: str | None


@dataclass(frozen=True, slots=True)
class Holder:
    """The last reader of a group that had an epoch. ``liveness_id`` stands for its process, until it lets go."""

    reader_id: str
    epoch: int
    liveness_id: str | None


def find_holder(connection: sqlite3.Connection, group: str) -> Holder | None:
    row = connection.execute(
        "SELECT reader_id, epoch, liveness_id FROM readers WHERE group_name = ?", (group,)
    ).fetchone()
    return Holder(*row) if row else None


def take_over(connection: sqlite3.Connection, group: str, *, epoch: int, liveness_id: str | None) -> ReaderLease:
    """Makes a new reader the holder."""
    lease = ReaderLease(group, epoch, secrets.token_hex(16))
    connection.execute(
        "INSERT OR REPLACE INTO readers VALUES (?, ?, ?, ?)", (group, lease.holder_id, epoch, liveness_id)
    )
    return lease


def release(connection: sqlite3.Connection, lease: ReaderLease) -> None:
    """Lets the partition go, unless another reader has taken it since."""
    # The row stays, so that a reader that lost to this one still learns so.
    connection.execute(
        "UPDATE readers SET liveness_id = NULL WHERE group_name = ? AND reader_id = ?",
        (lease.group, lease.holder_id),
    )


def require_held(connection: sqlite3.Connection, where: Where, lease: ReaderLease) -> None:
    """Raises ReaderStolen if another reader has taken the partition since."""
    holder = find_holder(connection, lease.group)
    if lease.holder_id != (holder.reader_id if holder else None):
        raise _stolen(where, lease, holder)


def refused(where: Where, epoch: int | None, holder: Holder) -> ReaderRefused:
    own = "no epoch" if epoch is None else f"epoch {epoch}"
    return ReaderRefused(
        f"{where} is being read with epoch {holder.epoch}, so a reader with {own} is refused. "
        "Close that reader, or read with a higher epoch.",
        hub=where.hub,
        partition=where.partition or "",
        epoch=epoch,
        held_epoch=holder.epoch,
    )


def _stolen(where: Where, lease: ReaderLease, holder: Holder | None) -> HubError:
    if holder is None:
        return damaged(where, "it has lost track of its readers")
    return ReaderStolen(
        f"another reader took {where} with epoch {holder.epoch}. Stop one of them, or use another consumer group.",
        hub=where.hub,
        partition=where.partition or "",
        epoch=lease.epoch,
        taken_by_epoch=holder.epoch,
    )
