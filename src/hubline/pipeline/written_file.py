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

    def __call__(self, written: Written) -> None:
        """Adds what a batch wrote. Where the folder is gone, so is the run that would read it."""
        if self.path.parent.is_dir():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(written)) + "\n")

    def take(self) -> Iterator[Written]:
        """What was added since the last call."""
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
        except FileNotFoundError:
            lines = []
        new, self._read = lines[self._read :], len(lines)
        return (Written(**json.loads(line)) for line in new)
