"""A member of a group in its own process, official or ours: ``python -m tests.checkpoint_stores.blob.member '{...}'``.

The official one for JavaScript is in member.js.

It writes every event that it has handled to a journal, one line each, before it checkpoints it: what was written
survives a kill.
"""

from __future__ import annotations

import asyncio
import enum
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, LeaseOptions, Processor, ProcessorOptions
from tests.support.npm import node_modules

GROUP = "mixed"
# Of the SDK: how often it looks, and when it takes what is not renewed. Short, so that a kill costs seconds.
SDK_INTERVAL_SECONDS = 1.0
SDK_EXPIRY_SECONDS = 8.0
LEASE_SECONDS = 6.0


JAVASCRIPT_PACKAGES = (
    "@azure/event-hubs@6.0.4",
    "@azure/eventhubs-checkpointstore-blob@2.0.0",
    "@azure/storage-blob@12.32.0",
)


class Kind(enum.StrEnum):
    """What a member is made of."""

    OURS = "ours"
    PYTHON = "python"
    JAVASCRIPT = "javascript"


@dataclass(frozen=True, slots=True)
class Task:
    """What a member is to do. ``storage`` is the connection string of the account, ``container`` a name in it."""

    kind: Kind
    hub: str
    storage: str
    container: str
    journal: str


class MemberProcess:
    """The process, as a test sees it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        is_python = task.kind is not Kind.JAVASCRIPT
        command = [sys.executable, "-m", "tests.checkpoint_stores.blob.member", json.dumps(asdict(task))]
        self._process = subprocess.Popen(
            command if is_python else ["node", str(Path(__file__).with_name("member.js")), _for_javascript(task)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, **({} if is_python else {"NODE_PATH": str(javascript_modules())})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def handled(self) -> list[tuple[str, int]]:
        """Partition and sequence number of every event."""
        path = Path(self.task.journal)
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(partition, int(number)) for partition, number in (line.split() for line in lines)]


def javascript_modules() -> Path:
    """The official packages for JavaScript. Raises NodeMissing."""
    return node_modules("eventhubs-checkpointstore-blob-2.0.0", *JAVASCRIPT_PACKAGES)


def _for_javascript(task: Task) -> str:
    namespace = re.search(r"localhost:[0-9]+", task.hub)
    assert namespace is not None
    return json.dumps(
        {
            **asdict(task),
            "namespace": namespace[0],
            "group": GROUP,
            "intervalSeconds": SDK_INTERVAL_SECONDS,
            "expirySeconds": SDK_EXPIRY_SECONDS,
        }
    )


class _Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, partition: str, sequence_number: int) -> None:
        os.write(self._file, f"{partition} {sequence_number}\n".encode())


async def run_official(task: Task, journal: _Journal) -> None:
    store = BlobCheckpointStore.from_connection_string(task.storage, task.container)
    client = EventHubConsumerClient.from_connection_string(
        task.hub,
        GROUP,
        checkpoint_store=store,
        load_balancing_interval=SDK_INTERVAL_SECONDS,
        partition_ownership_expiration_interval=SDK_EXPIRY_SECONDS,
        load_balancing_strategy=LoadBalancingStrategy.GREEDY,
    )

    async def on_event(context: Any, event: Any) -> None:
        journal.write(context.partition_id, event.sequence_number)
        await context.update_checkpoint(event)

    async with store, client:
        await client.receive(on_event, starting_position="-1")


async def run_ours(task: Task, journal: _Journal) -> None:
    processor = Processor(
        task.hub,
        f"{task.storage}Container={task.container}",
        consumer_group=GROUP,
        starting_position=Position.earliest(),
        options=ProcessorOptions(
            checkpoint_policy=CheckpointPolicy.every_batch(),
            lease=LeaseOptions(
                lease_seconds=LEASE_SECONDS,
                load_balancing_interval_seconds=1.0,
                startup_delay_seconds=0.5,
                sdk_lease_seconds=SDK_EXPIRY_SECONDS,
            ),
        ),
    )

    @processor.on_batch
    async def handle(batch: EventBatch) -> None:
        for event in batch:
            journal.write(event.partition, event.sequence_number)

    await processor.run_async()


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    asyncio.run((run_official if task.kind == Kind.PYTHON else run_ours)(task, _Journal(task.journal)))


if __name__ == "__main__":
    main()
