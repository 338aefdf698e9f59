"""A processor that writes into PostgreSQL exactly once, in a process that is killed, frozen and started again.

Processes are forked from a server that has loaded everything already: a thousand of them take minutes, not hours. One
can be set to die, or to freeze, at a step of the sink's commit: the steps are methods of the sink's connection, so
nothing of this is in the product.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.processor import CheckpointPolicy, LeaseOptions, Processor, ProcessorOptions, RetryPolicy
from hubline.sinks import SqlSink
from hubline.sinks.sql_sink import postgres_copy
from hubline.sinks.sql_sink.postgres import PostgresSinkConnection

COPY = "copy"
"""Not a step by itself, but the middle of one: some of the rows are sent, and the server waits for more."""

STEPS = ("begin", "write", "write_skipping_rejected", "write_dead_letters", "commit")
"""The steps of a commit, by what the sink's connection is asked for."""

LEASE_SECONDS = 3.0
TRANSACTION_SECONDS_MAX = 2
"""Shorter than the lease: a frozen owner's transaction is ended by the server, and the next owner continues."""

BAD = b"bad"
TABLE = "CREATE TABLE results (place bigserial, partition text, sequence bigint, body text CHECK (body <> 'bad'))"


@dataclass(frozen=True, slots=True)
class Fault:
    """A signal to oneself, before or after the n-th time that a step is taken."""

    step: str
    is_before: bool
    signum: int = signal.SIGKILL
    count: int = 2


@dataclass(frozen=True, slots=True)
class Task:
    hub: str
    url: str
    owner_id: str
    fault: Fault | None = None


def start(task: Task) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=run, args=(task,), daemon=True)
    process.start()
    return process


def run(task: Task) -> None:
    if task.fault is not None:
        _plant(task.fault)
    processor = Processor(
        task.hub,
        task.url,
        consumer_group="tests",
        starting_position=Position.earliest(),
        owner_id=task.owner_id,
        sink=SqlSink(task.url, table="results", transaction_timeout_seconds=TRANSACTION_SECONDS_MAX),
        options=ProcessorOptions(
            max_batch_size=20,
            checkpoint_policy=CheckpointPolicy.on_renewal(),
            lease=LeaseOptions(
                lease_seconds=LEASE_SECONDS, load_balancing_interval_seconds=0.3, startup_delay_seconds=0.05
            ),
            reconnect_backoff=RetryPolicy(initial_backoff_seconds=0.05, max_backoff_seconds=0.5),
        ),
    )

    @processor.on_batch
    def handle(batch: EventBatch) -> pa.Table:
        columns = batch.arrow
        sequences = columns.column("sequenceNumber")
        return pa.table(
            {
                "partition": columns.column("partition"),
                "sequence": sequences,
                "body": pc.cast(columns.column("body"), pa.string()),
                "sequenceNumber": sequences,
            }
        )

    processor.run()


def _plant(fault: Fault) -> None:
    if fault.step == COPY:
        _plant_in_copy(fault)
        return
    original = getattr(PostgresSinkConnection, fault.step)
    left = [fault.count]

    def strike() -> None:
        """Once, at the first moment after the count: a step that raises has no "after"."""
        if left and left[0] <= 0:
            left.clear()
            os.kill(os.getpid(), fault.signum)

    def step(self: PostgresSinkConnection, *args: Any, **kwargs: Any) -> Any:
        if left:
            left[0] -= 1
        if fault.is_before:
            strike()
        result = original(self, *args, **kwargs)
        if not fault.is_before:
            strike()
        return result

    setattr(PostgresSinkConnection, fault.step, step)


def _plant_in_copy(fault: Fault) -> None:
    original = postgres_copy.encode_binary
    left = [fault.count]

    def encoded(rows: pa.Table, plan: Any) -> Iterator[bytes]:
        if left:
            left[0] -= 1
        for data in original(rows, plan):
            yield data
            if left and left[0] <= 0:  # once, in whichever partition's thread comes first
                left.clear()
                time.sleep(0.2)  # what was sent is on its way
                os.kill(os.getpid(), fault.signum)

    postgres_copy.encode_binary = encoded
