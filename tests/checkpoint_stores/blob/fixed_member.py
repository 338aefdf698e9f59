"""A processor of fixed partitions in its own process: ``python -m tests.checkpoint_stores.blob.fixed_member '{...}'``.

It journals what it does, a line each: what was written survives a kill. An event whose body is ``wait`` is handled
only once the file ``go`` is there, so that a test can freeze the process in the middle of a batch.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hubline.coordination.strategies import Fixed
from hubline.errors import LeaseLost
from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, LeaseOptions, Processor, ProcessorOptions

GROUP = "fixed"
# The shortest lock that the service grants.
LEASE_SECONDS = 15


def options(*, lease_seconds: float = LEASE_SECONDS) -> ProcessorOptions:
    return ProcessorOptions(
        checkpoint_policy=CheckpointPolicy.every_batch(),
        lease=LeaseOptions(
            lease_seconds=lease_seconds,
            renew_interval_seconds=1.0,
            load_balancing_interval_seconds=1.0,
            startup_delay_seconds=0.1,
        ),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What the member is to do. ``folder`` is where it keeps its journal, and looks for ``go``."""

    hub: str
    store: str
    owner_id: str
    folder: str
    lease_seconds: float = LEASE_SECONDS


class FixedMember:
    """The process, as a test sees it."""

    def __init__(self, task: Task) -> None:
        self._folder = Path(task.folder)
        self._folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.checkpoint_stores.blob.fixed_member", json.dumps(asdict(task))],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def journal(self) -> list[str]:
        path = self._folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        (self._folder / "go").touch()
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def run(task: Task) -> None:
    folder = Path(task.folder)
    processor = Processor(
        task.hub,
        task.store,
        consumer_group=GROUP,
        starting_position=Position.earliest(),
        load_balancing=Fixed(1, lease=LEASE_SECONDS),
        owner_id=task.owner_id,
        options=options(lease_seconds=task.lease_seconds),
    )

    with (folder / "journal").open("a", buffering=1) as journal:

        @processor.on_batch
        def handle(batch: EventBatch) -> None:
            for event in batch:
                journal.write(f"began {event.partition} {event.sequence_number}\n")
                while event.body == b"wait" and not (folder / "go").exists():
                    time.sleep(0.05)

        @processor.on_error
        async def failed(error: Exception) -> None:
            if isinstance(error, LeaseLost):
                journal.write("lost\n")

        await processor.run_async()


if __name__ == "__main__":
    asyncio.run(run(Task(**json.loads(sys.argv[1]))))
