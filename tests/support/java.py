"""An archive of Spark's classes, which Java maps into memory instead of loading them: a driver starts in two thirds of
the time, and a cluster's master in a half. A parallel run of the tests starts dozens; the first ones, until the archive
is there, do without.

``python -m tests.support.java PATH`` makes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Java says so where an archive does not fit its class path, and continues without.
_QUIETLY = "-Xlog:cds=off -Xlog:cds+dynamic=off"


class Archive:
    """One that is being made in the background, in a folder of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hubline-java-"))
        path = self._folder / "spark.jsa"
        self.options = f"-XX:SharedArchiveFile={path} {_QUIETLY}"
        self._making = subprocess.Popen(
            [sys.executable, "-m", __name__, path],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self._making.terminate()
        self._making.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _make(path: Path) -> None:
    unfinished = path.with_suffix(".unfinished")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ['SPARK_SUBMIT_OPTS']} -XX:ArchiveClassesAtExit={unfinished}"
    from tests.support.rehearsal import rehearse

    rehearse(path.parent)
    unfinished.rename(path)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
