"""Telling whether the process of an epoch reader still lives, however it ended.

A hub object with epoch readers holds a lock on a file of its own. The kernel lets go of the lock when the process dies,
also by kill -9, so a dead reader's epoch refuses nobody.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from contextlib import suppress
from pathlib import Path


class Liveness:
    """A lock that is held until ``close``, or until this process ends."""

    def __init__(self, folder: Path) -> None:
        self.id = secrets.token_hex(16)
        self._path = _path(folder, self.id)
        folder.mkdir(exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._descriptor: int | None = descriptor
        # Nobody knows the id yet, so nobody else has tried to lock the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held.add(self)

    def close(self) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            self.let_go()

    def let_go(self) -> None:
        """Closes the file. In a fork of the process that took the lock, that process still holds it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_alive(folder: Path, liveness_id: str) -> bool:
    """Whether the hub object that took the lock is still there. A dead one's file is removed."""
    path = _path(folder, liveness_id)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        with suppress(FileNotFoundError):
            path.unlink()
        return False
    finally:
        os.close(descriptor)


def _path(folder: Path, liveness_id: str) -> Path:
    return folder / f"{liveness_id}.lock"


# A forked child shares the parent's lock, and would hold it beyond the parent's death.
_held: weakref.WeakSet[Liveness] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for liveness in list(_held):
        liveness.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
