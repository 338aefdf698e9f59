"""A standalone cluster of Spark's: a master and two workers, as real processes on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from hubline.spark.java import find_java, java_home

# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 400


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a cluster of two workers with a core each."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        java = stack.enter_context(java_home(find_java()))
        ports = ["--port", str(port), "--webui-port", "0"]
        stack.enter_context(running(folder, java, "master", "master.Master", "--host", "127.0.0.1", *ports))
        for number in range(2):
            arguments = ["--cores", "1", "--memory", "700m", "--webui-port", "0", "--host", "127.0.0.1"]
            arguments += ["--work-dir", str(folder / f"worker-{number}")]
            stack.enter_context(running(folder, java, f"worker-{number}", "worker.Worker", *arguments, address))
        yield address


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
