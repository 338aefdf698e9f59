"""A real server of Spark Connect, as start-connect-server.sh of Spark's wheel starts it, on a port of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
START_SECONDS_MAX = 120.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}

MISSING = None if importlib.util.find_spec("grpc") else "Spark Connect needs gRPC: pip install 'hubline[connect]'"
"""Why there can be none."""


class ConnectServer:
    """One server. It can be killed, and started again at the same address."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        master: str = "local[2]",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._environment = environment or {}
        self._master = master
        self._settings = {**SETTINGS, **(settings or {})}
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._folder / "server.log"

    def start(self) -> None:
        settings = {**self._settings, "spark.connect.grpc.binding.port": str(self._port)}
        arguments = [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
            **self._environment,
            "SPARK_HOME": str(HOME),
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [HOME / "sbin" / "start-connect-server.sh", "--master", self._master, *arguments],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """With all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def connect_server(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[ConnectServer]:
    server = ConnectServer(folder, environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
