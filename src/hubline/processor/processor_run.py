"""One run of a processor: the dispatcher on the control loop, the runners on the caller's loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from hubline.coordination.control_loop import ControlLoop, call_on
from hubline.coordination.dispatcher import Dispatcher
from hubline.coordination.strategies import Strategy
from hubline.errors import ConfigError, HublineError, ProcessorError
from hubline.hubs.hub_calls import within
from hubline.model.keys import GroupKey
from hubline.model.ownership import Ownership, ReleaseReason
from hubline.processor.context import PartitionContext
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.handler import Handler, caller
from hubline.processor.handlers.thread import HandlerThread
from hubline.processor.partition_runner import ABANDON_SECONDS_MAX, PartitionRunner
from hubline.tracebacks import format_failure, where_raised

log = logging.getLogger("hubline.processor")

P = ParamSpec("P")
T = TypeVar("T")


class ProcessorRun:
    """One run of a processor: the dispatcher on the control loop, the runners on the caller's.

    It is the dispatcher's Holder and the runners' Control, and carries calls between the two loops.
    """

    def __init__(
        self,
        dependencies: PartitionDependencies,
        *,
        group: GroupKey,
        owner_id: str,
        strategy: Strategy,
        partition_ids: Sequence[str],
    ) -> None:
        self._dependencies = dependencies
        self._options = dependencies.options
        self._loop = asyncio.get_running_loop()
        self._partition_ids = tuple(partition_ids)
        self._runners: dict[str, PartitionRunner] = {}
        self._default_paused = False
        self._listed: set[str] = set()
        self._tasks: dict[asyncio.Task[None], None] = {}  # a set in the order of its making
        self._errors_thread = HandlerThread("hubline-errors")
        self.is_stopped = False
        self._control = ControlLoop(in_thread=dependencies.has_control_thread)
        self._dispatcher = Dispatcher(
            dependencies.store,
            self,
            group=group,
            owner_id=owner_id,
            strategy=strategy,
            partitions=lambda: self._partition_ids,
            lease=self._options.lease,
            rng=random.Random(dependencies.rng.random()),  # noqa: S311 - the control loop's own: two threads, one order each
        )

    async def start(self) -> None:
        await self._control.call(self._dispatcher.start)
        self._spawn(self._watch_hub())
        if self._dependencies.has_control_thread:
            asyncio.run_coroutine_threadsafe(self._watch_loop(), self._control.loop)

    async def stop(self) -> None:
        self.is_stopped = True
        try:
            async with asyncio.timeout(self._options.stop_timeout_seconds):
                await self._control.call(self._dispatcher.stop)
        except TimeoutError:
            running = ", ".join(sorted(self._runners)) or "none"
            log.error("stop_timeout seconds=%g partitions=%s", self._options.stop_timeout_seconds, running)
            self.report(
                ProcessorError(
                    f"stopping took longer than {self._options.stop_timeout_seconds:g} s: partitions {running} stay "
                    "owned until their leases expire, and their last events will be repeated",
                    partition="",
                ),
                None,
            )
        finally:
            await self.close()

    async def close(self) -> None:
        self.is_stopped = True
        await self._control.call(self._dispatcher.abort)
        await asyncio.gather(*(runner.abandon() for runner in self._runners.values()))
        # An on_error that stops the processor is not waited for: it waits for this.
        others = [task for task in self._tasks if task is not caller()]
        reports = [task for task in others if task.get_name() == "hubline-report"]
        if reports:
            await asyncio.wait(reports, timeout=self._options.stop_timeout_seconds)
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=ABANDON_SECONDS_MAX)
        self._errors_thread.abandon()
        self._errors_thread.shutdown()
        await self._control.close()

    async def _watch_loop(self) -> None:
        """On the control loop: says so when the caller's loop is blocked, which nobody on it could say."""
        while True:
            answer = threading.Event()
            self._loop.call_soon_threadsafe(answer.set)
            await asyncio.sleep(self._options.slow_handler_seconds)
            if not answer.is_set():
                log.error(
                    "event_loop_blocked seconds=%g: an async handler blocks it; make it a plain def, or await",
                    self._options.slow_handler_seconds,
                )

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a stop would wait for the task."""
        return any(runner.waits_for(task) for runner in self._runners.values())

    # What the runners need of the control plane

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._control.call(function, *args, **kwargs)

    def is_current(self, partition: str, epoch: int) -> bool:
        return self._dispatcher.is_current(partition, epoch)

    def release_fenced(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        release = functools.partial(self._dispatcher.release_fenced, partition, epoch=epoch, held_epoch=held_epoch)
        self._control.loop.call_soon_threadsafe(release)

    # What the dispatcher needs of the runners; called on the control loop

    def open(self, ownership: Ownership) -> None:
        self._loop.call_soon_threadsafe(self._open, ownership)

    def renewed(self, ownership: Ownership) -> None:
        self._loop.call_soon_threadsafe(self._renewed, ownership)

    async def close_partition(self, partition: str, reason: ReleaseReason) -> None:
        await call_on(self._loop, self._close, partition, reason)

    def report_of(self, error: HublineError, partition: str | None) -> None:
        self._loop.call_soon_threadsafe(self._report_of, error, partition)

    # On the caller's loop

    def _open(self, ownership: Ownership) -> None:
        partition = ownership.key.partition
        is_paused = self._default_paused != (partition in self._listed)
        runner = PartitionRunner(ownership, self._dependencies, self, is_paused=is_paused)
        runner.start(after=self._runners.get(partition))
        self._runners[partition] = runner

    def _renewed(self, ownership: Ownership) -> None:
        runner = self._runners.get(ownership.key.partition)
        if runner is not None and runner.epoch == ownership.epoch:
            runner.renewed()

    async def _close(self, partition: str, reason: ReleaseReason) -> None:
        runner = self._runners.get(partition)
        if runner is None:
            return
        await runner.close(reason)
        if self._runners.get(partition) is runner:
            del self._runners[partition]

    def _report_of(self, error: HublineError, partition: str | None) -> None:
        runner = self._runners.get(partition) if partition is not None else None
        self.report(error, runner.context if runner else None)

    def report(self, error: HublineError, context: PartitionContext | None) -> None:
        partition, where = context.partition_id if context else None, ""
        if isinstance(error, ProcessorError) and error.__cause__ is not None:
            where = "".join(f"\n{line}" for line in where_raised(error.__cause__))
        log.warning("error partition=%s %s: %s%s", partition, type(error).__name__, error, where)
        handler = self._dependencies.handlers.get("on_error")
        if handler is not None:
            self._spawn(self._call_on_error(handler, error, context), name="hubline-report")

    async def _call_on_error(self, handler: Handler, error: HublineError, context: PartitionContext | None) -> None:
        try:
            await handler.call(error, context, thread=self._errors_thread, name="on_error")
        except Exception as failed:  # noqa: BLE001 - nothing comes after on_error: its own failure can only be logged
            log.error("on_error_failed %s", format_failure(failed))

    async def _watch_hub(self) -> None:
        """Looks for partitions that were added to the hub, once a dispatch interval."""
        while True:
            await asyncio.sleep(self._options.lease.load_balancing_interval_seconds)
            try:
                describing = within(
                    self._options.hub_timeout_seconds, self._dependencies.hub.describe(), what="describe itself"
                )
                self._partition_ids = (await describing).partition_ids
            except Exception as error:  # noqa: BLE001 - a hub of the user's own may raise anything
                log.warning("hub_not_described %s: %s", type(error).__name__, error)

    def pause(self, partition: str | None) -> None:
        self._remember(partition, is_paused=True)
        for runner in self._chosen(partition):
            runner.pause()

    def resume(self, partition: str | None) -> None:
        self._remember(partition, is_paused=False)
        for runner in self._chosen(partition):
            runner.resume()

    def _remember(self, partition: str | None, *, is_paused: bool) -> None:
        """For partitions that are opened later, or again."""
        if partition is None:
            self._default_paused = is_paused
            self._listed.clear()
        elif partition not in self._partition_ids:
            raise ConfigError(f"the hub has no partition {partition!r}: it has {', '.join(self._partition_ids)}")
        elif is_paused != self._default_paused:
            self._listed.add(partition)
        else:
            self._listed.discard(partition)

    def contexts(self) -> list[PartitionContext]:
        return [self._runners[partition].context for partition in self._partition_ids if partition in self._runners]

    def _chosen(self, partition: str | None) -> list[PartitionRunner]:
        return [runner for key, runner in self._runners.items() if partition in (None, key)]

    def _spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str | None = None) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
