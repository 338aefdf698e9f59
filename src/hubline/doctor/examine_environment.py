"""Questions to this machine. Each is asked by itself: one that fails stops no other. Nothing of it stays."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import resource
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from shutil import disk_usage
from typing import Final

from hubline.doctor.check_environment import (
    check_disk,
    check_open_files,
    check_packages,
    check_spark_home,
    check_sqlite,
    check_time,
    check_variables,
    file_system_of,
    install,
)
from hubline.doctor.findings import Finding, error, note, ok, warning
from hubline.errors import ConfigError
from hubline.secrets import redact

# Where `hubline serve` listens by default.
SERVE_PORT: Final = 5672
# Starting Spark takes ten seconds, and many more on a machine that is busy or downloads something first.
START_SECONDS_MAX: Final = 300.0

VARIABLES: Final = (
    "HUBLINE_AMQP_CORE",
    "HUBLINE_TRANSPORT",
    "HUBLINE_SERVE_KEY",
    "HUBLINE_SPARK_TASKS",
    "JAVA_HOME",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_LOCAL_IP",
    "SPARK_LOCAL_DIRS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_PYTHON",
    "PYSPARK_SUBMIT_ARGS",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "HTTPS_PROXY",
    "NO_PROXY",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
)
"""What hubline, Spark and Azure's packages read beside the variables of options."""

# Exit code 0 if the locks that another process holds keep this one out.
_TRY_LOCKS: Final = """
import fcntl, sqlite3, sys
refused = 0
try:
    fcntl.flock(open(sys.argv[1] + "/file"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    refused += 1
try:
    sqlite3.connect(sys.argv[1] + "/database", timeout=0).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    refused += 1
sys.exit(refused != 2)
"""

_START_SPARK: Final = """
import hubline.spark
spark = hubline.spark.session("hubline-doctor", master="local[1]")
assert spark.range(3).count() == 3
spark.stop()
"""


def examine_environment(
    options: Collection[str], report: Callable[[str], None], *, start_spark: bool = False
) -> list[Finding]:
    """All findings about this machine. `options` are the variables of the command line's options; `report` gets the
    name of each step; `start_spark` starts a Spark session as well."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "Python": _python,
        "packages": _packages,
        "Spark and Java": spark_and_java,
        "a Spark session": _start_spark if start_spark else list,
        "ports": _ports,
        "directories": _directories,
        "locks": _locks,
        "the clock": _clock,
        "limits": _open_files,
        "variables": lambda: check_variables(os.environ, options, VARIABLES),
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        report(f"checking {name}")
        try:
            findings += check()
        except Exception as problem:  # noqa: BLE001 (one check must not stop the others)
            message = f"the check of {name} failed in an unforeseen way: {type(problem).__name__}"
            findings.append(error("doctor.failed", message, fix="this is a bug of hubline: please report it"))
    return findings


def _python() -> list[Finding]:
    version = f"Python {platform.python_version()}, hubline {metadata.version('hubline')}"
    return [ok("environment.python", version, where=sys.executable)]


def _packages() -> list[Finding]:
    # As hubline's own metadata writes them; the directory of a package that was half removed has no name.
    names = ((each.metadata["Name"] or "", each.version) for each in metadata.distributions())
    installed = {name.lower().replace("_", "-"): version for name, version in names}
    findings = check_packages(metadata.requires("hubline") or [], installed)
    for name in ("numpy", "pyarrow"):
        try:
            importlib.import_module(name)
        except Exception as problem:  # noqa: BLE001 (whatever a package compiled for another machine raises)
            message = f"{name} does not load: {redact(str(problem))}"
            findings.append(error("environment.packages", message, fix=f"pip install --force-reinstall {name}"))
    return findings


def spark_and_java() -> list[Finding]:
    """Whether pipelines can run: whether there is a Spark, and a Java for it. Neither is started."""
    if (package := importlib.util.find_spec("pyspark")) is None:
        message = "pyspark is not installed: pipelines and hubline.spark need it, processors do not"
        return [note("environment.spark", message, fix=install("spark"))]
    try:
        from hubline.spark.sessions.java import find_java
    except ImportError as problem:
        return [error("environment.spark", str(problem), fix=install("spark"))]
    version = metadata.version("pyspark")
    findings = [ok("environment.spark", f"Spark {version}", where=str(Path(package.origin or "").parent))]
    if home := os.environ.get("SPARK_HOME"):
        findings += check_spark_home(version, home, [each.name for each in Path(home, "jars").glob("*.jar")])
    try:
        java = find_java()
    except ConfigError as problem:
        return [*findings, error("environment.java", str(problem), fix=f"where there is no Java, {install('java')}")]
    passed_over = "".join(f"; passed over: {other}" for other in java.passed_over)
    return [*findings, ok("environment.java", f"{java}{passed_over}")]


def _start_spark() -> list[Finding]:
    began = time.monotonic()
    fix = "see what it says, and set what is wrong in the environment of Spark and Java"
    try:
        # In a process of its own: it can be ended, and its Java ends with it.
        ran = subprocess.run(
            [sys.executable, "-c", _START_SPARK], capture_output=True, text=True, timeout=START_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return [error("environment.spark-start", f"Spark did not start within {START_SECONDS_MAX:g} s", fix=fix)]
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return [error("environment.spark-start", f"Spark does not start: {redact(last)}", fix=fix)]
    return [ok("environment.spark-start", f"a Spark session starts and counts, in {time.monotonic() - began:.0f} s")]


def _ports() -> list[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            pass
    except OSError as problem:
        message = f"no connection over 127.0.0.1 ({problem.strerror or problem}): Spark and `hubline serve` need it"
        return [error("environment.ports", message, fix="allow connections on the loopback interface")]
    try:
        with socket.create_server(("127.0.0.1", SERVE_PORT)):
            return [ok("environment.ports", f"loopback works, and port {SERVE_PORT} of `hubline serve` is free")]
    except OSError:
        message = f"port {SERVE_PORT}, on which `hubline serve` listens by default, is in use"
        return [note("environment.ports", message, fix="hubline serve --port 0 takes a free one")]


def _directories() -> list[Finding]:
    here, temporary = Path.cwd(), Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    no_temporary = error(
        "environment.directory",
        "the directory of temporary files cannot be written to: Java and Spark need it",
        where=str(temporary),
        fix="set TMPDIR to a directory that can be written to",
    )
    not_here = warning(
        "environment.directory",
        "the current directory cannot be written to: local hubs and SQLite files cannot be created here",
        where=str(here),
        fix="change to a directory of your own",
    )
    findings = []
    for path, problem in {temporary: no_temporary, here: not_here}.items():
        where = str(path)
        if _modified_time(path) is None:
            findings.append(problem)
        else:
            findings += [ok("environment.directory", "the directory can be written to", where=where)]
            findings += check_disk(disk_usage(path).free, where)
    return findings


def _modified_time(folder: Path) -> float | None:
    """The time that a new file in this directory has; None where none can be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".hubline-doctor-") as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def _clock() -> list[Finding]:
    here = Path.cwd()
    modified_time = _modified_time(here)
    skew_seconds = 0.0 if modified_time is None else modified_time - time.time()
    return check_time(datetime.now(UTC).year, skew_seconds, str(here))


def _locks() -> list[Finding]:
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        return []  # which is a finding of its own
    mounts = Path("/proc/mounts")
    kind = file_system_of(here, mounts.read_text(errors="replace")) if mounts.exists() else ""
    with tempfile.TemporaryDirectory(dir=here, prefix=".hubline-doctor-") as folder:
        refuses = _refuses_others(folder)
    return check_sqlite(sqlite3.sqlite_version_info, refuses_others=refuses, file_system=kind, where=str(here))


def _refuses_others(folder: str) -> bool:
    """Whether what this process locks is locked to another one."""
    database, file = Path(folder, "database"), Path(folder, "file")
    try:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection, file.open("w") as locked:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return subprocess.run([sys.executable, "-c", _TRY_LOCKS, folder], check=False).returncode == 0
    except (OSError, sqlite3.Error):
        return False  # a file system without locks


def _open_files() -> list[Finding]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return check_open_files(None if limit == resource.RLIM_INFINITY else limit)
