"""Commands run in this process, through the same entry point as the real ones."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hubline.adapters import open_hub, open_store
from hubline.cli.app import main
from hubline.hubs.local import create_hub
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from hubline.ports import CheckpointStore

PARTITIONS = 4


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only object that was printed."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs ``hubline`` with arguments and stdin, in an empty folder."""
    for name in [name for name in os.environ if name.startswith("HUBLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*args: str, stdin: bytes = b"") -> Result:
        path = tmp_path / "stdin"
        path.write_bytes(stdin)
        with path.open() as file, monkeypatch.context() as patched:
            patched.setattr("sys.stdin", file)
            code = main(args)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def hub(tmp_path: Path) -> str:
    """The address of an empty hub."""
    asyncio.run(create_hub(tmp_path / "data", "orders", partitions=PARTITIONS))
    return f"local:{tmp_path}/data/orders"


@dataclass(frozen=True)
class Group:
    """A consumer group of the hub, and the store that keeps its progress."""

    store_address: str
    store: CheckpointStore
    key: GroupKey

    @property
    def args(self) -> tuple[str, ...]:
        return "--store", self.store_address, "--group", self.key.group


@pytest.fixture
def group(hub: str, tmp_path: Path) -> Group:
    address = f"memory:{tmp_path.name}"
    opened = open_hub(hub)
    return Group(address, open_store(address), GroupKey(opened.namespace, opened.name, "billing"))


def append(hub: str, partition: str, *bodies: str | bytes) -> None:
    """Appends events to one partition."""

    async def appending() -> None:
        opened = open_hub(hub)
        sender = await opened.open_sender()
        await sender.send(new_events(bodies), partition=partition)
        await sender.close()
        await opened.close()

    asyncio.run(appending())
