"""A standalone cluster of Spark's: a master and two workers, as real processes on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from hubline.spark.sessions.java import find_java, java_home

# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 400


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a cluster of two workers with a core each, once both are there.

    The master chooses its port: where another process took one that was free, it would silently take the next. And a
    driver that comes before it gives up after a minute, which is not long on a busy machine.
    """
    with ExitStack() as stack:
        java = stack.enter_context(java_home(find_java()))
        ports = ["--port", "0", "--webui-port", "0"]
        stack.enter_context(running(folder, java, "master", "master.Master", "--host", "127.0.0.1", *ports))
        address = said(folder, "master", r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            arguments = ["--cores", "1", "--memory", "700m", "--webui-port", "0", "--host", "127.0.0.1"]
            arguments += ["--work-dir", str(folder / f"worker-{number}")]
            stack.enter_context(running(folder, java, f"worker-{number}", "worker.Worker", *arguments, address))
        for number in range(2):
            said(folder, f"worker-{number}", r"Successfully registered with master (\S+)")
        yield address


def said(folder: Path, name: str, pattern: str) -> str:
    """What a process of the cluster writes into its log, once it does."""
    log = folder / f"{name}.log"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := re.search(pattern, log.read_text())) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} never said {pattern!r}:\n{log.read_text()}")
        time.sleep(0.1)
    return found[1]


def executors(folder: Path) -> list[int]:
    """The executors of the cluster in a folder, which work below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
            if is_executor and (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile
    return found


@contextmanager
def running(folder: Path, java: Path, name: str, kind: str, *arguments: str) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
