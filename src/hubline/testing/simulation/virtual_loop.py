"""Virtual time: event loops that jump from one callback to the next, several of them as if they were processes.

A :class:`World` holds one clock and one queue of callbacks; a :class:`SimProcess` is an event loop in it that can be
paused (as SIGSTOP does) and killed (as SIGKILL does: nothing of it runs any more, no ``finally``, no cancellation).
Production code runs unchanged: it sees an ordinary asyncio loop. Given the same seed, the same callbacks run in the
same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from heapq import heappop, heappush
from itertools import chain, count, repeat
from typing import Any, TypeVar

from hubline.errors import ConfigError

T = TypeVar("T")


_NO_CONTEXT = contextvars.Context()

_END_ROUNDS = 50
"""Cancelling a task may start others, to clean up, which are cancelled in turn: so often at the most."""


class World:
    """Virtual time and everything that is to happen in it."""

    def __init__(self, seed: int | str) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.steps_count = 0
        self.failures: list[str] = []
        self.is_over = False
        self.processes: list[SimProcess] = []
        self._numbers = count()
        # What is due now, in order, and what is due later, with its number: most callbacks are due at once.
        self.ready: deque[_Handle] = deque()
        self._later: list[tuple[float, int, _Handle]] = []

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Runs a callback that belongs to no process: the network, a server, the producer of faults."""
        self.place(when, _Handle(callback, (), None, _NO_CONTEXT))

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.place(self.now + delay, _Handle(callback, (), None, _NO_CONTEXT))

    def run_until(self, when: float, *, is_done: Callable[[], bool] | None = None) -> None:
        """Runs what is due, in order, until virtual time reaches ``when`` or ``is_done``, or something failed."""
        failures = self.failures
        if not self._run(when, failures.__len__ if is_done is None else lambda: failures or is_done()):
            self.now = max(self.now, when)

    def look_for_failed_tasks(self) -> None:
        """A task that failed and that nobody looked at is a failure of the run."""
        for process in self.processes:
            for task in process.tasks:
                if not process.is_dead and task.done() and not task.cancelled() and task._log_traceback:  # noqa: SLF001
                    self.failures.append(f"unseen failure: {process.name}: {task.exception()!r}")

    def end(self) -> None:
        """Ends every task that is left, so that none is closed by the garbage collector in mid-air."""
        self.is_over = True
        for _ in range(_END_ROUNDS):
            left = [task for process in self.processes for task in process.revive()]
            if not (left or self.ready or self._later):
                break
            for task in left:
                task.cancel()
            steps = repeat(False, len(self.ready) + len(self._later))
            self._run(math.inf, chain(steps, repeat(True)).__next__)
        for process in self.processes:
            process.tasks.clear()

    def place(self, when: float, handle: _Handle) -> None:
        """Has a callback run at a time; those of one moment run in the order in which they were given."""
        if when > self.now:
            heappush(self._later, (when, next(self._numbers), handle))
        else:
            self.ready.append(handle)

    def _run(self, until: float, is_done: Callable[[], object]) -> bool:
        """Runs what is due, in order, until ``is_done``; of what is due now, what was given first.

        Returns whether that is so: otherwise, what is left is later than ``until``. Its parts are not functions of
        their own, since it goes round some ten thousand times a seed.
        """
        ready, enter = self.ready, asyncio._set_running_loop  # noqa: SLF001 - as event loops do
        running: SimProcess | None = None
        try:
            while not is_done():
                if not (ready or self._move_on(until)):
                    return False
                handle = ready.popleft()
                callback, process = handle.callback, handle.process
                if callback is None:
                    continue
                if process is not None and process.paused_until > self.now:
                    self.place(process.paused_until, handle)
                    continue
                self.steps_count += 1
                if process is not running:
                    running = process
                    enter(process)
                if process is None:
                    callback()
                elif process.is_dead:
                    process.never_run.append(handle)
                else:
                    if process.steps_to_live is not None:
                        process.count_down()
                    try:
                        handle.context.run(callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - the loop continues
                        process.call_exception_handler({"message": f"{callback} failed", "exception": error})
            return True
        finally:
            enter(None)

    def _move_on(self, until: float) -> bool:
        """Moves the time on to what is due next, all of which is ready then. Not beyond ``until``."""
        ready, later = self.ready, self._later
        while later and later[0][2].callback is None:
            heappop(later)
        if not later or later[0][0] > until:
            return False
        self.now = now = max(self.now, later[0][0])
        while later and later[0][0] <= now:
            ready.append(heappop(later)[2])
        return True


class _Handle:
    """A callback and its process, if it has one. asyncio's own handle takes four times as long to make."""

    __slots__ = ("args", "callback", "context", "process")

    def __init__(
        self,
        callback: Callable[..., object] | None,
        args: tuple[Any, ...],
        process: SimProcess | None,
        context: contextvars.Context,
    ) -> None:
        self.callback = callback
        self.args = args
        self.process = process
        self.context = context

    def cancel(self) -> None:
        """It is passed over when due, and lets go of what it holds at once."""
        self.callback, self.args, self.context = None, (), _NO_CONTEXT

    def cancelled(self) -> bool:
        return self.callback is None


class SimProcess(asyncio.AbstractEventLoop):
    """An event loop that lives in a world, as if in a process of its own.

    Its clock starts anywhere and runs at ``rate`` seconds per second of the world.
    """

    def __init__(self, world: World, name: str, *, rate: float = 1.0, clock_start: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        self.steps_to_live: int | None = None
        self.call_latency: Callable[[], float] | None = None
        """How long what a plain function asks for is on its way, there and back; None runs it in place."""
        self._rate = rate
        self._clock_start = clock_start
        # Kept, so that no coroutine of a killed process is closed, and its ``finally`` run, by the garbage collector.
        self.tasks: list[asyncio.Task[Any]] = []
        self.never_run: list[_Handle] = []
        world.processes.append(self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task in this process from outside."""
        task = asyncio.Task(coroutine, loop=self)
        self.tasks.append(task)
        return task

    def kill(self, *, after_steps: int = 0) -> None:
        """SIGKILL: nothing of this process runs from now on, or after so many more callbacks: at any await."""
        self.steps_to_live = after_steps
        self.is_dead = after_steps == 0

    def sleep(self, seconds: float) -> asyncio.Future[None]:
        """As ``asyncio.sleep`` in a task of this process, in half of its time."""
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        self.call_later(seconds, _wake, future)
        return future

    @property
    def is_doomed(self) -> bool:
        """Whether it is dead, or will be in a few steps."""
        return self.is_dead or self.steps_to_live is not None

    def pause(self, seconds: float) -> None:
        """SIGSTOP for a while: callbacks wait, the clock continues."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def revive(self) -> list[asyncio.Task[Any]]:
        """At the end of the world, to let tasks end cleanly: what was missed runs late. Returns what has not ended."""
        self.is_dead, self.paused_until, self.steps_to_live = False, 0.0, None
        for handle in self.never_run:
            self.world.ready.append(handle)
        self.never_run.clear()
        return [task for task in self.tasks if not task.done()]

    def count_down(self) -> None:
        """It is to be killed, and runs one more callback."""
        assert self.steps_to_live is not None
        self.steps_to_live -= 1
        self.is_dead = self.steps_to_live <= 0

    # The event loop's interface, as far as asyncio itself needs it

    def time(self) -> float:
        return self._clock_start + self.world.now * self._rate

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, self, contextvars.copy_context() if context is None else context)
        self.world.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, self, contextvars.copy_context() if context is None else context)
        self.world.place(self.world.now + delay / self._rate, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, self, contextvars.copy_context() if context is None else context)
        self.world.place((when - self._clock_start) / self._rate, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self.tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Executor | None,  # noqa: ARG002
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Runs plain functions in place: the virtual world has no threads.

        With a latency, they take effect in the world and not in the process, which may be paused or killed meanwhile.
        """
        future, latency = self.create_future(), self.call_latency

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - handed to the task that awaits
                answer(functools.partial(future.set_exception, error))
            else:
                answer(functools.partial(future.set_result, result))

        def answer(outcome: Callable[[], None]) -> None:
            if latency is None:
                outcome()
            else:
                self.world.call_later(latency(), lambda: None if future.done() else outcome())

        if latency is None:
            self.call_soon(run)
        else:
            self.world.call_later(latency(), lambda: None if self.world.is_over else run())
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody looked at is a failure of the run."""
        if not self.is_dead and not self.world.is_over:
            self.world.failures.append(f"{self.name}: {context.get('message')}: {context.get('exception')!r}")


def _wake(sleeping: asyncio.Future[None]) -> None:
    if not sleeping.done():  # the task was cancelled meanwhile
        sleeping.set_result(None)


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits for something: it cannot be run in one step")


def require_no_loop(caller: str) -> None:
    """Refuses to be called from a coroutine, whose event loop would be lost."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"{caller} runs event loops of its own. Call it from a plain function, not from an async one.")


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]], *, seed: int | str = 0, seconds_max: float = 1e6) -> T:
    """``asyncio.run`` in virtual time: sleeping takes none, and a wait that never ends is an error."""
    world = World(seed)
    task = SimProcess(world, "main").spawn(main())  # type: ignore[abstract]
    world.run_until(seconds_max, is_done=task.done)
    if world.failures:
        raise AssertionError("; ".join(world.failures))
    if not task.done():
        raise TimeoutError(f"nothing is left to happen, or {seconds_max:g} virtual seconds have passed")
    world.end()
    return task.result()
