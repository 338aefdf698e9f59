"""The gate of a stage, by which a run ends between two batches.

Spark cannot let a query finish its batch and stop: `query.stop()` cuts it short. So the run closes the gate, and the
planning process, which Spark asks for the next batch whenever one is done, plans no more, and says that it is idle:

    1. run               closes the gate
    2. batch             runs to its end, and is committed by Spark
    3. planning process  is asked for the next one; checkpoints what is done; sees the gate; says "idle"
    4. run               stops the query: there is nothing to cut short, and the partitions are released

Where the next batch is not due for a while, the run sees that none runs, says "done" in place of 3, and the planning
process checkpoints at 4. The run waits until it has left.

A run that ends when all is done (`--once`) leaves the gate open. The planning process plans up to where the hub ended
at the start, and says "idle" when nothing of that is left.

Dying anywhere in between is dying at that moment without a gate. The gate is a folder of the driver's machine, which
both processes can see.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

_READY: Final = "ready"
_CLOSED: Final = "closed"
_DONE: Final = "done"
_IDLE: Final = "idle"
_PLANNER: Final = "planner"
_NOTE: Final = "note"


class Gate:
    """The gate of one stage."""

    is_in_sight = True
    """Whether the run sees what the planning process says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        """For a query that is about to start."""
        for file in self.folder.glob("*"):
            file.unlink(missing_ok=True)

    def enter(self) -> None:
        """The planning process works."""
        self._say(_own(_PLANNER))
        self._say(_READY)

    @property
    def is_ready(self) -> bool:
        return (self.folder / _READY).exists()

    def leave(self) -> None:
        """The planning process has written and released what it had."""
        (self.folder / _own(_PLANNER)).unlink(missing_ok=True)

    @property
    def is_left(self) -> bool:
        return not self._processes(_PLANNER)

    def close(self) -> None:
        """Lets no further batch begin."""
        self._say(_CLOSED)

    @property
    def is_closed(self) -> bool:
        return (self.folder / _CLOSED).exists()

    def mark_idle(self) -> None:
        self._say(_own(_IDLE))

    def mark_busy(self) -> None:
        """A partition came from another instance: there is something to read after all."""
        (self.folder / _own(_IDLE)).unlink(missing_ok=True)

    @property
    def is_idle(self) -> bool:
        """Whether no batch runs, and none will. One that has read of another hub before the gate was closed does."""
        idle = self._processes(_IDLE)
        return bool(idle) and self._processes(_PLANNER) <= idle

    def mark_done(self) -> None:
        self._say(_DONE)

    @property
    def is_done(self) -> bool:
        """Whether all that was planned is done: no batch ran once the gate was closed."""
        return (self.folder / _DONE).exists()

    def leave_note(self, text: str) -> None:
        """The planning process has something to say to the people who watch the run."""
        note = self.folder / f"{_NOTE}.{time.time_ns()}"
        self._say(written := f"new-{note.name}")
        (self.folder / written).write_text(text)
        (self.folder / written).rename(note)  # so that nobody reads half of it

    def take_notes(self) -> list[str]:
        """What the planning process had to say since the last call."""
        texts: list[str] = []
        for file in sorted(self.folder.glob(f"{_NOTE}.*")):
            texts.append(file.read_text())
            file.unlink(missing_ok=True)
        return texts

    def _say(self, name: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)  # a cleaner of temporary files may have been there
        (self.folder / name).touch()

    def _processes(self, said: str) -> set[str]:
        return {file.suffix for file in self.folder.glob(f"{said}.*")}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class FarGate(Gate):
    """The gate of a stage whose planning process is on a machine that the run cannot see: a server's of Spark Connect.

    It cannot be closed: a batch in progress is cut short at the end of a run, and the next run repeats it.
    """

    is_in_sight = False

    def open(self) -> None:
        """Nobody has closed it."""

    def close(self) -> None:
        """Nothing that the planning process could see."""

    def mark_done(self) -> None:
        """Nothing that the planning process could see."""

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return True

    @property
    def is_left(self) -> bool:
        return True


def _own(name: str) -> str:
    """What a planning process says for itself: a stage of several hubs has one for each."""
    return f"{name}.{os.getpid()}"
