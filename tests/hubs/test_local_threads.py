"""Where calls that block run: on the event loop while they are quick, in threads when they are not."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from hubline.hubs.local import thread_runner as module
from hubline.hubs.local.thread_runner import QUICK_SECONDS, Threads


def test_quick_calls_run_on_the_loop_and_slow_ones_send_the_next_to_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))

    async def scenario() -> list[bool]:
        threads = Threads("hub")

        def call(seconds: float) -> bool:
            nonlocal now
            now += seconds
            return threading.current_thread() is threading.main_thread()

        slow, quick = 2 * QUICK_SECONDS, QUICK_SECONDS / 2
        on_loop = [await threads.run_quick(call, seconds) for seconds in (slow, slow, quick, slow, quick, quick)]
        await threads.close(lambda: None)
        return on_loop

    # The first never is; after a quick one the next is, and after a slow one the next is not.
    assert asyncio.run(scenario()) == [False, False, False, True, False, True]


def test_a_caller_whose_calls_are_all_quick_lets_others_run() -> None:
    async def scenario() -> int:
        threads = Threads("hub")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(100):
            await threads.run_quick(int)
        task.cancel()
        await threads.close(lambda: None)
        return turns

    assert asyncio.run(scenario()) >= 100
