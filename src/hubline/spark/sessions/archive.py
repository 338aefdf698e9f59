"""The classes that Java loads when Spark starts, kept ready for the next time.

Java finds, reads and checks some fifteen thousand classes until the first micro-batch is done. It can write them into a
file when it ends, and map that file when it starts again (class data sharing): about five of sixteen seconds less.
:func:`make` has it do so at the end of :mod:`.rehearsal`, and sessions use what it made. The file lies in
the environment that Python runs in, for it fits this Spark alone. Where Java finds that it does not fit, it passes it
over and loads its classes as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hubline.errors import ConfigError
from hubline.spark.sessions.java import Java, find_java, release_of

OPTIONS_VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Options of Java that spark-submit passes on, beside those in Spark's settings."""

REHEARSAL_SECONDS_MAX: Final = 300
"""A rehearsal takes less than a minute, and a few times as long on a busy machine."""

# Where it does not fit, Java would say so on standard output.
_QUIETLY: Final = "-Xlog:cds*=off"
_FOLDER: Final = Path(sys.prefix, "share", "hubline")
_SETTLED: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")


def archive_of(java: Java) -> Path:
    """Where the classes are kept for this Java and this Spark, be they there or not."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    release = release_of(java.home) or str(java.version)
    whole = "\n".join([str(java.home), release, str(_find_spark_home()), pyspark.__version__])
    return _FOLDER / f"spark-{hashlib.sha256(whole.encode()).hexdigest()[:16]}.jsa"


def with_archive(java: Java, environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment has to say for Java to use its archive: nothing if there is none, or the user said how."""
    options = environment.get(OPTIONS_VARIABLE, "")
    archive = archive_of(java)
    if any(word in options for word in _SETTLED) or not archive.is_file():
        return {}
    return {OPTIONS_VARIABLE: f'{options} -XX:SharedArchiveFile="{archive}" {_QUIETLY}'.strip()}


def make() -> Path:
    """Rehearses, and keeps the classes; what was kept before goes. Raises ConfigError where Java cannot do so."""
    archive = archive_of(find_java())
    try:
        _FOLDER.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="rehearsal-", dir=_FOLDER)
    except OSError as error:
        raise ConfigError(f"{_FOLDER} cannot be written: run this as the owner of {sys.prefix} ({error})") from error
    with folder as name:
        made = Path(name, archive.name)
        _run_rehearsal(made)
        # Whoever starts meanwhile has mapped the old file, or finds the new one whole.
        for old in _FOLDER.glob("spark-*.jsa"):
            old.unlink()
        made.replace(archive)
    return archive


def _run_rehearsal(made: Path) -> None:
    options = f'-XX:ArchiveClassesAtExit="{made}" {_QUIETLY}'
    environment = {**os.environ, OPTIONS_VARIABLE: f"{os.environ.get(OPTIONS_VARIABLE, '')} {options}".strip()}
    command = [sys.executable, "-m", "hubline.spark.sessions.rehearsal", str(made.parent)]
    try:
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=REHEARSAL_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the rehearsal did not end within {REHEARSAL_SECONDS_MAX} s: try again") from None
    if not made.is_file():
        said = (run.stdout + run.stderr).strip()
        raise ConfigError(f"{find_java()} kept no classes: it needs an archive of its own first. It said: {said}")
