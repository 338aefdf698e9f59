"""The end of a run: gates close, batches in progress commit, partitions are released, queries stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from hubline.pipeline.stage_run import POLL_SECONDS, StageRun, State
from hubline.spark.source.owned_partitions import STOP_SECONDS_MAX

DRAIN_SECONDS_MAX: Final = 60.0
"""How long a batch in progress is waited for at the end. Supervisors kill after 30 to 90 seconds."""


def drain(stages: Sequence[StageRun], *, is_forced: Callable[[], bool]) -> None:
    """Lets batches in progress end, and stops. What is still running after a while, or when forced, is cut short."""
    active = [each for each in stages if each.is_active]
    for each in active:
        each.gate.close()
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while active:
        is_late = is_forced() or time.monotonic() >= deadline
        for each in [each for each in active if is_late or each.is_at_rest]:
            active.remove(each)
            each.stop(is_cut=not each.is_at_rest)
        time.sleep(POLL_SECONDS if active else 0)
    # Each planning process writes and releases what it has before it leaves.
    deadline = time.monotonic() + STOP_SECONDS_MAX
    gates = [each.gate for each in stages if each.query is not None]
    while not (is_forced() or time.monotonic() >= deadline or all(gate.is_left for gate in gates)):
        time.sleep(POLL_SECONDS)
    for each in stages:
        each.state = each.state if each.is_over else State.STOPPED


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Within it the handler gets these signals. A program that runs something in a thread has signals of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, other)
