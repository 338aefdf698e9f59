"""What is kept open between uses: used by several, or taken by one, and closed when nobody uses it. And time limits."""

from __future__ import annotations

import asyncio
import os
import queue

import pytest

from hubline.concurrency import IdleCache, TimeLimit
from hubline.testing.simulation.virtual_loop import run_virtual

PATIENCE_SECONDS = 30


class Opened:
    """A cache of things that count, and what it has closed."""

    def __init__(self, *, idle_seconds: float = 3600.0) -> None:
        self.opened: list[str] = []
        self.closed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.cache: IdleCache[str, str] = IdleCache(self.closed.put, idle_seconds=idle_seconds, open=self._open)

    def _open(self, key: str) -> str:
        self.opened.append(key)
        return f"{key} {len(self.opened)}"


def test_what_was_lent_is_lent_again() -> None:
    kept = Opened()
    with kept.cache.use("a") as first, kept.cache.use("a") as second, kept.cache.use("b") as other:
        assert first == second == "a 1"
        assert other == "b 2"
    with kept.cache.use("a") as third:
        assert third == first
    assert kept.closed.empty()


def test_what_nobody_uses_is_closed_and_what_somebody_uses_is_not() -> None:
    kept = Opened(idle_seconds=0.0)
    with kept.cache.use("used"):
        with kept.cache.use("used"):
            pass
        with kept.cache.use("idle"):
            pass
        assert kept.closed.get(timeout=PATIENCE_SECONDS) == "idle 2"
        assert kept.closed.empty()
    assert kept.closed.get(timeout=PATIENCE_SECONDS) == "used 1"
    with kept.cache.use("idle") as opened_again:
        assert opened_again == "idle 3"


def test_each_is_closed_in_its_time() -> None:
    kept = Opened(idle_seconds=0.2)
    for key in ("a", "b", "c"):
        with kept.cache.use(key):
            pass
    closed = {kept.closed.get(timeout=PATIENCE_SECONDS) for _ in range(3)}
    assert closed == {"a 1", "b 2", "c 3"}


def test_what_was_put_is_taken_by_one() -> None:
    kept = Opened()
    kept.cache.put("a", "mine")
    assert kept.cache.take("a") == "mine"
    assert kept.cache.take("a") is None
    assert kept.closed.empty()


def test_what_was_put_is_closed_in_time_or_when_another_is_put_in_its_place() -> None:
    kept = Opened(idle_seconds=0.0)
    kept.cache.put("a", "first")
    kept.cache.put("a", "second")
    assert [kept.closed.get(timeout=PATIENCE_SECONDS) for _ in range(2)] == ["first", "second"]
    assert kept.cache.take("a") is None


def test_the_end_closes_all() -> None:
    kept = Opened()
    kept.cache.put("a", "idle")
    with kept.cache.use("b"):
        kept.cache.close()
    assert {kept.closed.get(timeout=PATIENCE_SECONDS) for _ in range(2)} == {"idle", "b 1"}


def test_a_forked_process_opens_its_own() -> None:
    kept = Opened()
    with kept.cache.use("a") as parents:
        child = os.fork()
        if not child:
            with kept.cache.use("a") as own:
                os._exit(0 if own != parents and kept.closed.empty() else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_what_takes_too_long_ends_with_timeout_error() -> None:
    async def run() -> float:
        with pytest.raises(TimeoutError), TimeLimit(5):
            await asyncio.sleep(6)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        return asyncio.get_running_loop().time()

    assert run_virtual(run) == 5


def test_what_ends_in_time_is_not_disturbed_later() -> None:
    async def run() -> str:
        with TimeLimit(5):
            await asyncio.sleep(4)
        await asyncio.sleep(4)
        return "done"

    assert run_virtual(run) == "done"


def test_the_inner_of_two_limits_ends_first() -> None:
    async def run() -> float:
        with TimeLimit(9):
            with pytest.raises(TimeoutError), TimeLimit(5):
                await asyncio.sleep(20)
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert run_virtual(run) == 6


@pytest.mark.parametrize("cancelled_at", [3, 5])
def test_a_task_that_is_cancelled_by_others_is_cancelled(cancelled_at: int) -> None:
    async def limited() -> None:
        with TimeLimit(5):
            await asyncio.sleep(20)

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.create_task(limited())
        loop.call_later(cancelled_at, task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtual(run)


def test_an_error_in_time_stays_what_it_is() -> None:
    async def run() -> None:
        with pytest.raises(KeyError), TimeLimit(5):
            raise KeyError

    run_virtual(run)
