"""A processor in a process of its own, for tests that signal and kill: ``python -m tests.support.worker '{...}'``.

Everything it does is written to a journal, one line a fact, each with one system call: what was written survives a
kill. Times are of the machine's monotonic clock, so the journals of several processes can be put in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, LeaseOptions, PartitionContext, Processor, ProcessorOptions

READY_SECONDS_MAX = 60.0
"""A Python with Arrow starts within a second or two; a busy machine takes many times that."""

END_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to do. ``handler`` is "plain" or "async", or one that hangs: "hung plain", "hung async"."""

    hub: str
    store: str
    owner_id: str
    journal: str
    lease_seconds: float = 3.0
    handler: str = "async"
    handler_seconds: float = 0.0
    stop_timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a journal: ``assigned`` with the checkpoint's sequence number, or ``handled`` from first to last."""

    at: int
    worker: str
    what: str
    partition: str = ""
    epoch: int = 0
    first: int = -1
    last: int = -1


class Worker:
    """The process, as a test sees it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._errors: str | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.worker", json.dumps(asdict(task))],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def facts(self) -> list[Fact]:
        path = Path(self.task.journal)
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [Fact(**json.loads(line)) for line in lines]

    def await_fact(self, what: str, *, count: int = 1) -> None:
        """Returns once the worker has written so many facts of a kind."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while sum(fact.what == what for fact in self.facts()) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the worker never said {what!r}:\n{self.kill()}")
            time.sleep(POLL_SECONDS)

    def await_drain(self) -> None:
        """Returns once the worker has taken its first signal: it does not catch a second one any more."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        status = Path(f"/proc/{self.process.pid}/status")
        while _caught_signals(status.read_text()) & _STOP_SIGNALS:
            assert time.monotonic() < deadline, "the worker does not take its signal"
            time.sleep(POLL_SECONDS)

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end:\n{self.kill()}") from None

    def kill(self) -> str:
        """Ends it at once, whatever it does; returns what it said on standard error."""
        self.process.kill()
        if self._errors is None:
            self._errors = self.process.communicate()[1].decode(errors="replace")
        return self._errors


_STOP_SIGNALS = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1


def _caught_signals(status: str) -> int:
    """The mask of signals that a process handles, from its /proc/PID/status."""
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))


class Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._worker = f"{Path(path).stem}"

    def write(self, what: str, partition: PartitionContext | None = None, *, first: int = -1, last: int = -1) -> None:
        name, epoch = (partition.partition_id, partition.epoch) if partition else ("", 0)
        fact = Fact(time.monotonic_ns(), self._worker, what, name, epoch, first, last)
        os.write(self._file, json.dumps(asdict(fact)).encode() + b"\n")


def processor_of(task: Task, journal: Journal) -> Processor:
    processor = Processor(
        task.hub,
        task.store,
        consumer_group="tests",
        starting_position=Position.earliest(),
        owner_id=task.owner_id,
        options=ProcessorOptions(
            max_batch_size=50,
            checkpoint_policy=CheckpointPolicy.every(seconds=0.2),
            lease=LeaseOptions(
                lease_seconds=task.lease_seconds, load_balancing_interval_seconds=0.3, startup_delay_seconds=0.1
            ),
            stop_timeout_seconds=task.stop_timeout_seconds,
        ),
    )

    @processor.on_assigned
    async def assigned(partition: PartitionContext) -> None:
        checkpoint = partition.initial_checkpoint
        journal.write("assigned", partition, last=-1 if checkpoint is None else checkpoint.sequence_number)

    @processor.on_released
    async def released(partition: PartitionContext, reason: str) -> None:
        journal.write(f"released {reason}", partition)

    async def handle_async(batch: EventBatch, partition: PartitionContext) -> None:
        journal.write("begun", partition, first=batch.first_sequence, last=batch.last_sequence)
        await asyncio.sleep(1e6 if task.handler.startswith("hung") else task.handler_seconds)
        journal.write("handled", partition, first=batch.first_sequence, last=batch.last_sequence)

    def handle_plain(batch: EventBatch, partition: PartitionContext) -> None:
        journal.write("begun", partition, first=batch.first_sequence, last=batch.last_sequence)
        time.sleep(1e6 if task.handler.startswith("hung") else task.handler_seconds)
        journal.write("handled", partition, first=batch.first_sequence, last=batch.last_sequence)

    processor.on_batch(handle_plain if task.handler.endswith("plain") else handle_async)
    return processor


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    journal = Journal(task.journal)
    processor_of(task, journal).run()
    journal.write("ended")


if __name__ == "__main__":
    main()
