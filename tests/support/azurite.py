"""Azurite, Microsoft's own emulator of Blob Storage, for tests and benchmarks.

It is installed once a machine, started on a free port of the loopback interface, and ends with who started it.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hubline.addresses.blob_address import EMULATOR_ACCOUNT, EMULATOR_KEY, BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob.auth import credential_of
from hubline.checkpoint_stores.blob.http import Transport
from tests.support.npm import NodeMissing, node_modules

VERSION: Final = "3.35.0"  # later ones need a newer Node
# A start takes a second; a busy machine takes many times that.
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05


class AzuriteMissing(Exception):
    """What it needs is not on this machine."""


class Azurite:
    """A running server. ``is_on_disk`` keeps its data where a stop and another start find them."""

    def __init__(self, folder: Path, *, is_on_disk: bool = False) -> None:
        self._program = _installed()
        self._folder = folder
        self._is_on_disk = is_on_disk
        self.port = _free_port()
        self._names = (f"test{number}" for number in itertools.count())
        self.start()

    def start(self) -> None:
        """Starts the server, and returns once it answers."""
        persistence = ["--location", str(self._folder)] if self._is_on_disk else ["--inMemoryPersistence"]
        flags = ["--skipApiVersionCheck", "--disableTelemetry", "--silent", "--blobHost", "127.0.0.1"]
        node = shutil.which("node") or "node"
        # It ends with its input: tests that are killed leave no server behind.
        script = f"process.stdin.resume().on('end', () => process.emit('SIGTERM')); require({str(self._program)!r})"
        self._process = subprocess.Popen(
            [node, "-e", script, "azurite", *persistence, *flags, "--blobPort", str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Azurite did not start")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ends the server, in good order: what is on disk is whole."""
        self._process.communicate(timeout=STOP_SECONDS_MAX)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{EMULATOR_ACCOUNT}"

    @property
    def connection_string(self) -> str:
        """As the official packages take it."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={EMULATOR_ACCOUNT};AccountKey={EMULATOR_KEY.reveal()};"
            f"BlobEndpoint={self.endpoint};"
        )

    def new_container(self) -> str:
        """The address of a fresh, empty container."""
        address = f"{self.endpoint}/{next(self._names)}"
        asyncio.run(_create(address))
        return address

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=2).close()  # noqa: S310 (our own server)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True


@contextmanager
def azurite(*, is_on_disk: bool = False) -> Iterator[Azurite]:
    """A server for as long as the block lasts. Raises AzuriteMissing."""
    with tempfile.TemporaryDirectory(prefix="hubline-azurite-") as folder:
        server = Azurite(Path(folder), is_on_disk=is_on_disk)
        try:
            yield server
        finally:
            server.stop()


async def _create(address: str) -> None:
    parsed = parse_store(address)
    assert isinstance(parsed, BlobAddress)
    transport = Transport(parsed, credential_of(parsed))
    try:
        answer = await transport.send("PUT", query={"restype": "container"})
        assert answer.status == 201, answer
    finally:
        await transport.close()


def _installed() -> Path:
    """The server's main module."""
    try:
        modules = node_modules(f"azurite-{VERSION}", f"azurite@{VERSION}")
    except NodeMissing as missing:
        raise AzuriteMissing(f"Azurite cannot run: {missing}") from None
    return modules / "azurite" / "dist" / "src" / "blob" / "main.js"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
