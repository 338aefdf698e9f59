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
from hubline.coordination.store_calls import bounded
from hubline.coordination.strategies import Strategy
from hubline.errors import ConfigError, HublineError, ProcessorError
from hubline.hubs.hub_calls import within
from hubline.model.keys import GroupKey
from hubline.model.ownership import Ownership, ReleaseReason
from hubline.processor.context import PartitionContext
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.error_reports import ErrorReports
from hubline.processor.partition_runner import ABANDON_SECONDS_MAX, PartitionRunner
from hubline.processor.paused_partitions import PausedPartitions

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
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._partition_ids = tuple(partition_ids)
        self._runners: dict[str, PartitionRunner] = {}
        self._paused = PausedPartitions()
        self._error_reports = ErrorReports(dependencies.handlers.get("on_error"))
        self._hub_watch: asyncio.Task[None] | None = None
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
        if not self._options.keeps_checkpoints:
            await self._control.call(self._report_unused_checkpoints)
        self._hub_watch = asyncio.create_task(self._watch_hub())
        if self._dependencies.has_control_thread:
            asyncio.run_coroutine_threadsafe(self._watch_loop(), self._control.loop)

    async def _report_unused_checkpoints(self) -> None:
        """Of a group that kept checkpoints before: its lag is still shown by them."""
        seconds_max = self._options.lease.renew_interval_seconds
        if found := await bounded(seconds_max, self._dependencies.store.list_checkpoints)(self._group):
            log.warning(
                "unused_checkpoints group=%s partitions=%d: the processor neither uses nor changes them",
                self._group,
                len(found),
            )

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
                    "owned until their leases expire, and their last events are processed again. Increase "
                    "stop_timeout_seconds, or let handlers finish sooner.",
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
        if self._hub_watch is not None:
            self._hub_watch.cancel()
            await asyncio.wait([self._hub_watch], timeout=ABANDON_SECONDS_MAX)
        await self._error_reports.close(self._options.stop_timeout_seconds)
        await self._control.close()

    async def _watch_loop(self) -> None:
        """On the control loop: says so when the caller's loop is blocked, which nobody on it could say."""
        while True:
            answer = threading.Event()
            self._loop.call_soon_threadsafe(answer.set)
            await asyncio.sleep(self._options.slow_handler_seconds)
            if not answer.is_set():
                log.error(
                    "event_loop_blocked seconds=%g: an async handler blocks it. Make the handler a plain def, or await",
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
        runner = PartitionRunner(ownership, self._dependencies, self, is_paused=partition in self._paused)
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
        self._error_reports.report(error, context)

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
        self._require_known(partition)
        self._paused.set(partition, is_paused=True)
        for runner in self._chosen(partition):
            runner.pause()

    def resume(self, partition: str | None) -> None:
        self._require_known(partition)
        self._paused.set(partition, is_paused=False)
        for runner in self._chosen(partition):
            runner.resume()

    def _require_known(self, partition: str | None) -> None:
        if partition is not None and partition not in self._partition_ids:
            raise ConfigError(
                f"the hub has no partition {partition!r}: it has {', '.join(self._partition_ids)}. Choose one of these."
            )

    def contexts(self) -> list[PartitionContext]:
        return [self._runners[partition].context for partition in self._partition_ids if partition in self._runners]

    def _chosen(self, partition: str | None) -> list[PartitionRunner]:
        return [runner for key, runner in self._runners.items() if partition in (None, key)]
