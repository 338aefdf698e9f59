"""Blocking calls run in threads that a hub object waits for when it closes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hubline.errors import HubError
from hubline.hubs.local.threads import Threads

from .support import ARRIVAL_SECONDS, run


def test_closing_waits_for_what_runs_and_for_what_that_starts() -> None:
    async def test() -> None:
        threads, may_end, done = Threads("local:/x/y"), threading.Event(), []

        def work() -> None:
            may_end.wait(ARRIVAL_SECONDS)
            done.append("work")
            threads.start(done.append, "what it started")

        abandoned = asyncio.create_task(threads.run(work))
        await asyncio.sleep(0)
        abandoned.cancel()
        closing = asyncio.create_task(threads.close(lambda: done.append("last call")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(HubError, match="closed"):
            await threads.run(work)

        may_end.set()
        await closing
        await threads.close(lambda: done.append("not again"))

        assert done == ["work", "what it started", "last call"]

    run(test())


def test_a_close_that_was_cancelled_can_be_finished() -> None:
    async def test() -> None:
        threads, may_end, done = Threads("local:/x/y"), threading.Event(), []
        working = asyncio.create_task(threads.run(may_end.wait, ARRIVAL_SECONDS))
        await asyncio.sleep(0)
        closing = asyncio.create_task(threads.close(lambda: done.append("cancelled")))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])

        may_end.set()
        await threads.close(lambda: done.append("closed"))

        assert await working
        assert done == ["closed"]

    run(test())
