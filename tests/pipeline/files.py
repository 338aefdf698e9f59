"""Pipelines for tests: files as a person writes them, hubs to read, and what came of it."""

from __future__ import annotations

import asyncio
import json
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hubline.adapters import open_hub, open_store
from hubline.hubs.local import create_hub
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from hubline.pipeline.progress import StageReport
from tests.spark.hubs import TestHub

PARTITIONS = 2
# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 240.0


class Notes:
    """A view that keeps its notes and the last reports."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.reports: dict[str, StageReport] = {}

    def show(self, reports: Sequence[StageReport]) -> None:
        self.reports = {report.label: report for report in reports}

    def note(self, text: str) -> None:
        self.notes.append(text)


class Ended(Exception):
    """The view has seen enough of its run."""


class Watching(Notes):
    """Ends its run when asked to: in a thread, a run gets no signals."""

    def __init__(self) -> None:
        super().__init__()
        self.is_enough = threading.Event()
        self._has_ended = False

    def show(self, reports: Sequence[StageReport]) -> None:
        super().show(reports)
        if self.is_enough.is_set() and not self._has_ended:
            self._has_ended = True  # the last report still comes
            raise Ended


def write(folder: Path, name: str, code: str, config: str) -> Path:
    """A pipeline's two files."""
    file = folder / f"{name}.py"
    file.write_text(textwrap.dedent(code).lstrip())
    (folder / f"{name}.toml").write_text(textwrap.dedent(config).lstrip())
    return file


def new_hub(root: Path, name: str) -> TestHub:
    asyncio.run(create_hub(root, name, partitions=PARTITIONS))
    return TestHub(f"local:{root}/{name}", root, name)


def send(hub: TestHub, bodies: Sequence[bytes], partition: str | None = None) -> None:
    async def sent() -> None:
        opened = open_hub(hub.address)
        sender = await opened.open_sender()
        await sender.send(new_events(bodies), partition=partition)
        await opened.close()

    asyncio.run(sent())


def readings(count: int, first: int = 0) -> list[bytes]:
    return [json.dumps({"id": number, "celsius": number / 2}).encode() for number in range(first, first + count)]


def checkpoints(store: str, hub: TestHub, group: str) -> dict[str, int | None]:
    """By partition, the last sequence number that is done."""

    async def listed() -> dict[str, int | None]:
        opened, at = open_store(store), open_hub(hub.address)
        try:
            found = await opened.list_checkpoints(GroupKey(at.namespace, at.name, group))
        finally:
            await opened.close()
            await at.close()
        return {each.key.partition: each.last_sequence for each in found}

    return asyncio.run(listed())


def eventually(is_so: Callable[[], bool]) -> None:
    """Waits until it is so: a planning process releases its partitions after its query has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def owners(store: str, hub: TestHub, group: str) -> set[str]:
    """Who owns a partition now."""

    async def listed() -> set[str]:
        opened, at = open_store(store), open_hub(hub.address)
        try:
            found = await opened.list_ownership(GroupKey(at.namespace, at.name, group))
        finally:
            await opened.close()
            await at.close()
        return {each.owner_id for each in found.ownerships if each.owner_id}

    return asyncio.run(listed())
