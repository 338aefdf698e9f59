"""SQLite as the local hub uses it: how a file is opened, shared between threads, and what its errors mean."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hubline.errors import HubDamaged, HubError, HubFull, HubUnavailable

# How long a call waits for another process's transaction. Those take milliseconds; a checkpoint of the write-ahead
# log on a slow disk takes a second or two.
BUSY_SECONDS: Final = 10.0

# Twice SQLite's default: measured, a batch of 200 kB takes a sixth less CPU, one of a few hundred bytes a fifth more.
PAGE_BYTES: Final = 8192

# As much of a file is read through a memory map: 300 bytes of events take 0.09 us of processor time in place of 0.14.
# What lies beyond is read as before. Nobody may shorten a file that is open: SQLite would, if it were asked to vacuum.
MAPPED_BYTES_MAX: Final = 1024 * 1024 * 1024

# Idle connections kept open. Each takes up to three file descriptors, and 1,024 of those is a usual limit.
IDLE_CONNECTIONS_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Where:
    """What an error message names: the hub, the partition if it is about one, and the file."""

    hub: str
    path: Path
    partition: str | None = None

    def __str__(self) -> str:
        partition = "" if self.partition is None else f"partition {self.partition} of "
        return f"{partition}hub {self.hub} ({self.path})"


class FileMissing(Exception):
    """The database file is not there (any more). The caller knows what that means."""


class Connections:
    """Open connections of one hub object, handed to one thread at a time and kept for the next.

    A connection belongs to nobody between two uses, so a call whose task was cancelled finishes in its thread
    with a connection of its own, and nothing is closed under it.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[Path, sqlite3.Connection]] = []  # the most recently used last
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def use(self, path: Path) -> Iterator[sqlite3.Connection]:
        """A connection to the file. Raises FileMissing, also where the file went away under an idle connection."""
        if not path.exists():
            self._close_all(self._remove(path))
            raise FileMissing(path)
        connection = self._take(path) or connect(path)
        try:
            yield connection
        except sqlite3.Error:
            connection.close()  # whatever state it is in, the next use opens another one
            raise
        except BaseException:
            self._give_back(path, connection)
            raise
        else:
            self._give_back(path, connection)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        self._close_all([connection for _, connection in idle])

    def _take(self, path: Path) -> sqlite3.Connection | None:
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == path:
                    return self._idle.pop(place)[1]
        return None

    def _give_back(self, path: Path, connection: sqlite3.Connection) -> None:
        with self._lock:
            self._idle.append((path, connection))
            surplus = len(self._idle) if self._is_closed else len(self._idle) - IDLE_CONNECTIONS_MAX
            closing = [self._idle.pop(0)[1] for _ in range(surplus)]
        self._close_all(closing)

    def _remove(self, path: Path) -> list[sqlite3.Connection]:
        with self._lock:
            removed = [connection for kept, connection in self._idle if kept == path]
            self._idle = [(kept, connection) for kept, connection in self._idle if kept != path]
        return removed

    @staticmethod
    def _close_all(connections: list[sqlite3.Connection]) -> None:
        for connection in connections:
            connection.close()


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time. A missing file is an error."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # FULL: every commit is on the disk before it is acknowledged.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA mmap_size = {MAPPED_BYTES_MAX}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, *, writes: bool) -> Iterator[None]:
    """One consistent view; what was written in it is kept whole when the block ends, or not at all."""
    # A write takes its lock at once: upgrading a read later could fail in ways that waiting does not solve.
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors have rolled it back already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def hub_errors(where: Where) -> Iterator[None]:
    """Turns errors of SQLite and of the file system into hubline's."""
    try:
        yield
    except OSError as error:
        raise _translated(error, is_full=error.errno in _FULL_ERRNO, where=where) from error
    except sqlite3.Error as error:
        if not hasattr(error, "sqlite_errorcode"):
            raise  # not from the database: the call itself was wrong
        raise _translated_sqlite(error, error.sqlite_errorcode, where) from error


_FULL_ERRNO: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_CODES: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
_BUSY_CODES: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# SQLITE_ERROR means here that a table is missing: the statements are fixed.
_DAMAGED_CODES: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_PRIMARY_CODE_MASK: Final = 0xFF


def _translated_sqlite(error: sqlite3.Error, code: int, where: Where) -> HubError:
    primary = code & _PRIMARY_CODE_MASK
    if primary in _BUSY_CODES:
        message = f"{where} was locked by another process for {BUSY_SECONDS:g} seconds. Try again."
        return HubUnavailable(message, hub=where.hub, partition=where.partition)
    if primary in _DAMAGED_CODES:
        return damaged(where, str(error))
    is_full = code in _FULL_CODES or (primary == sqlite3.SQLITE_IOERR and _is_disk_full(where.path))
    return _translated(error, is_full=is_full, where=where)


def _translated(error: sqlite3.Error | OSError, *, is_full: bool, where: Where) -> HubError:
    if is_full:
        message = (
            f"no space is left for {where} ({error}). None of the events were stored. Free some disk space, "
            "or lower the retention."
        )
        return HubFull(message, hub=where.hub, partition=where.partition)
    message = f"{where} cannot be used now: {error}. Check that the folder and its files may be read and written."
    return HubUnavailable(message, hub=where.hub, partition=where.partition)


def damaged(where: Where, how: str) -> HubDamaged:
    message = (
        f"{where} cannot be read: {how}. Stop the programs that use it, then restore the file from a "
        "backup, or delete the hub and create it again."
    )
    return HubDamaged(message, hub=where.hub, partition=where.partition)


def _is_disk_full(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False
