"""What batches wrote, in a file: over Spark Connect, a process of the server's writes them, and the run reads of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hubline.spark.sql_sink.batch_target import Written


@dataclass(slots=True)
class WrittenFile:
    """One for each query. Pickled with what writes its batches; the run's own object reads."""

    path: Path
    _read: int = 0
    """How many bytes were taken: a run of days has a line for each of its batches."""

    def __call__(self, written: Written) -> None:
        """Adds what a batch wrote. Where the folder is gone, so is the run that would read it."""
        if self.path.parent.is_dir():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(written)) + "\n")

    def take(self) -> Iterator[Written]:
        """What was added since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                added = file.read()
        except FileNotFoundError:
            self._read, added = 0, b""
        whole = added[: added.rfind(b"\n") + 1]  # the last line may be half written
        self._read += len(whole)
        return (Written(**json.loads(line)) for line in whole.splitlines())
