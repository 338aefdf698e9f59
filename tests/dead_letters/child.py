"""A redrive in a process of its own, which kills itself at a step: ``python -m tests.dead_letters.child '{...}'``."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hubline.dead_letters.handler_redrive import HandlerRedrive
from hubline.dead_letters.redrive import Progress, Redrive
from hubline.dead_letters.repository import DeadLetterRepository
from hubline.dead_letters.resend import Republisher
from hubline.hubs.local import LocalHub
from hubline.model.dead_letters import DeadLetterSelection
from hubline.model.events import Event
from hubline.model.positions import Position
from hubline.processor import Processor, ProcessorOptions, RetryPolicy
from hubline.sinks import SqlSink
from hubline.sinks.sql_sink.connection import SinkConnection
from hubline.sinks.sql_sink.postgres import PostgresSinkConnection
from hubline.sinks.sql_sink.redrive_transaction import RedriveTransaction
from hubline.sinks.sql_sink.sqlite import SqliteSinkConnection

END_SECONDS_MAX = 60.0

FAILING = 7
"""Events whose sequence number can be divided by it fail again."""

STEPS = ("begun", "locked", "handled", "written", "failed", "settled", "committed")


@dataclass(frozen=True, slots=True)
class Task:
    """What to redrive, and where to die: at a step of the batch with this number, from 0. No target: by a handler."""

    url: str
    root: str
    step: str = ""
    batch: int = 0
    target: str = ""

    def run_apart(self) -> int:
        """Runs it in a process of its own; returns how that ended."""
        command = [sys.executable, "-m", "tests.dead_letters.child", json.dumps(asdict(self))]
        return subprocess.run(command, cwd=Path(__file__).parents[2], timeout=END_SECONDS_MAX, check=False).returncode

    async def run(self) -> list[Progress]:
        repository = DeadLetterRepository(self.url)
        hub = LocalHub(self.root, self.target or "orders")
        try:
            job, closing = await self._job(hub)
            counts = await repository.count(job.selection)
            done = [each async for each in job.run(counts)]
            await closing()
            job.sink.close()
            return done
        finally:
            await repository.close()
            await hub.close()

    async def _job(self, hub: LocalHub) -> tuple[Redrive, Callable[[], Any]]:
        if not self.target:
            rerun = HandlerRedrive.of(processor_of(self))
            made = rerun.redrive(DeadLetterSelection(), body_group="readers")
            return Redrive(made.sink, made.selection, made.work, max_batch_size=10), rerun.dependencies.hub.close
        sender = await hub.open_sender()
        return Redrive(
            SqlSink(self.url), DeadLetterSelection(), Republisher(hub, sender), max_batch_size=10
        ), sender.close


def processor_of(task: Task) -> Processor:
    processor = Processor(
        f"local:{task.root}/orders",
        "memory:",
        consumer_group="billing",
        starting_position=Position.earliest(),
        sink=SqlSink(task.url, table="readings"),
        options=ProcessorOptions(handler_retry=RetryPolicy(max_attempts=1)),
    )

    @processor.on_event
    def handle(event: Event, tx: Any) -> dict[str, object]:
        if event.sequence_number % FAILING == 0:
            raise LookupError("no customer")
        tx.execute(f"INSERT INTO own VALUES ({event.sequence_number})")
        return {"n": event.sequence_number}

    return processor


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str, batch: int) -> None:
    """Lets this process die just after a step of a batch."""
    current = -1

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal current
            current += 1
            return method(*args, **kwargs)

        return wrapped

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if current == batch:
                die()
            return result

        return wrapped

    patched: dict[str, list[tuple[Any, str]]] = {
        "begun": [(PostgresSinkConnection, "begin"), (SqliteSinkConnection, "begin")],
        "locked": [(RedriveTransaction, "_on_locked")],
        "handled": [(RedriveTransaction, "execute"), (Republisher, "_send")],
        "written": [(RedriveTransaction, "insert")],
        "failed": [(RedriveTransaction, "dead_letter")],
        "settled": [(RedriveTransaction, "_commit_plan")],
        "committed": [(PostgresSinkConnection, "commit"), (SqliteSinkConnection, "commit")],
    }
    for owner in (PostgresSinkConnection, SqliteSinkConnection):
        owner.begin = counting(owner.begin)  # type: ignore[method-assign]
    for owner, name in patched[step]:
        method = getattr(owner, name)
        setattr(owner, name, _dying_later(method, dying) if asyncio.iscoroutinefunction(method) else dying(method))
    assert issubclass(PostgresSinkConnection, SinkConnection)


def _dying_later(method: Callable[..., Any], dying: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        await method(*args, **kwargs)
        dying(lambda: None)()

    return wrapped


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    if task.step:
        die_at(task.step, task.batch)
    asyncio.run(task.run())


if __name__ == "__main__":
    main()
