"""The processor: what people construct, give handlers, and run."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Annotated, Self, TypeVar

from hubline.adapters import open_hub, open_store
from hubline.addresses.names import validate_group_name, validate_owner_id
from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import Meant, Named, Valid
from hubline.addresses.values import STARTING_POSITIONS, byte_count, parse_starting_position
from hubline.checkpoint_stores.adapted import StoreOption
from hubline.coordination.dispatcher import locking_store
from hubline.coordination.strategies import StrategyOrText, parse_load_balancing
from hubline.errors import ConfigError, ProcessorError
from hubline.hubs.hub_calls import within
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.ports import DeadLetterSink, HubOrAddress
from hubline.processor.context import PartitionContext
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.handler import caller
from hubline.processor.handlers.registry import HandlerRegistry
from hubline.processor.handlers.types import (
    BatchHandler,
    DeadLetterHandler,
    ErrorHandler,
    EventHandler,
    PartitionHandler,
    ReleaseHandler,
)
from hubline.processor.options import ProcessorOptions
from hubline.processor.processor_run import ProcessorRun
from hubline.read_ahead import ReadAheadPool
from hubline.sinks import SqlSink
from hubline.sinks.meant import meant_dead_letters, meant_sink

log = logging.getLogger("hubline.processor")

PROGRESS_SECONDS = 2.0
"""How often a program logs its progress: soon enough for a person who watches its first events."""

HandlerT = TypeVar("HandlerT", bound=Callable[..., object])


class Processor:
    """Process a hub's events with your functions, and share its partitions with the group's other processors.

    Start as many as you like with the same hub, store and consumer group: each gets a part of the partitions. Register
    handlers by decorator, or override the same names in a subclass. One of `on_batch` and `on_event` is required.
    Handlers may be `async`; plain ones run in a thread of their partition.

    With a `sink`, the rows that `on_batch` or `on_event` returns (Arrow or dictionaries) are written in one transaction
    with the checkpoint and the dead letters: exactly once. A handler with an argument `tx` gets that transaction, for
    SQL of its own. The sink then holds the progress, and the store's checkpoints follow it.

    Args:
        hub: An address (`local:PATH/NAME`, a connection string, `eventhubs://NAMESPACE/NAME`, `env:NAME`) or an open
            hub, which stays open.
        store: Where owners and checkpoints are kept: an address (`sqlite:///PATH`, `postgresql://...`, a blob
            container, `memory:`) or an open store, which stays open.
        consumer_group: The name of the consumer group.
        starting_position: Where a partition without a checkpoint starts: a `Position`, text such as `"earliest"` or
            `"time:-24h"`, or a mapping from partition ids to these. Required.
        load_balancing: How partitions are shared: `"greedy"`, `"balanced"`, or `Greedy`, `Balanced` or `Fixed`.
            Default: `"greedy"`.
        owner_id: The name of this processor, unique among those that run. With a stable name, a restarted processor
            takes its partitions back at once. Default: the host's name, the process id and a random part.
        options: Batch sizes, checkpoints, leases, retries and limits. Default: `ProcessorOptions()`.
        sink: The `SqlSink` for the rows that handlers return. Default: None.
        dead_letters: Where events go that keep failing, if there is no sink: a `DeadLetterHub`. Default: None.

    Raises:
        ConfigError: An argument is not valid. The message says what to write instead.

    Example:
        processor = hubline.Processor(
            "local:./data/telemetry", "sqlite:///state.db", consumer_group="billing", starting_position="earliest"
        )

        @processor.on_batch
        def handle(batch):
            print(batch.partition, len(batch))

        processor.run()  # until Ctrl-C or SIGTERM
    """

    _has_control_thread = True

    @checked
    def __init__(
        self,
        hub: HubOrAddress,
        store: StoreOption,
        *,
        consumer_group: Annotated[str, Valid(validate_group_name)],
        starting_position: Annotated[
            Position | str | Mapping[str, Position | str], Named(STARTING_POSITIONS), Valid(parse_starting_position)
        ],
        load_balancing: Annotated[StrategyOrText, Valid(parse_load_balancing)] = "greedy",
        owner_id: Annotated[str, Valid(validate_owner_id)] | None = None,
        options: ProcessorOptions | None = None,
        sink: Annotated[SqlSink | None, Meant(meant_sink)] = None,
        dead_letters: Annotated[DeadLetterSink | None, Meant(meant_dead_letters)] = None,
    ) -> None:
        self._group_name = validate_group_name(consumer_group)
        self._start_positions = parse_starting_position(starting_position)
        self._strategy = parse_load_balancing(load_balancing)
        self._options = _resolved(options or ProcessorOptions(), sink)
        self._sink = sink
        self._dead_letters = dead_letters
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._now = time.time
        self.owner_id = _fresh_owner_id() if owner_id is None else owner_id
        self._hub = open_hub(hub)
        opened = open_store(store)
        self._store = locking_store(opened, self._strategy, self._options.lease)
        self._owned_resources = [made for given, made in ((hub, self._hub), (store, opened)) if given is not made]
        self._run: ProcessorRun | None = None
        self._registry = HandlerRegistry()
        self._registry.register_overrides(self, Processor)
        self._starting_or_stopping = asyncio.Lock()

    # Handlers

    def on_batch(self, *handler: BatchHandler) -> BatchHandler:
        """Register the function that processes batches.

        Args:
            handler: Takes `(batch)` or `(batch, partition)`, and with a sink also `tx`: an `EventBatch`, a
                `PartitionContext` and the transaction. With a sink it may return rows.
        """
        return self._register("on_batch", handler)

    def on_event(self, *handler: EventHandler) -> EventHandler:
        """Register the function that processes events one by one.

        Args:
            handler: Takes `(event)` or `(event, partition)`, and with a sink also `tx`: an `Event`, a
                `PartitionContext` and the transaction. With a sink it may return rows.
        """
        return self._register("on_event", handler)

    def on_assigned(self, *handler: PartitionHandler) -> PartitionHandler:
        """Register a function that hubline calls before a partition's first batch.

        Args:
            handler: Takes `(partition)`. It may call `partition.seek(position)`.
        """
        return self._register("on_assigned", handler)

    def on_renewed(self, *handler: PartitionHandler) -> PartitionHandler:
        """Register a function that hubline calls when it has renewed the lease of a partition.

        Args:
            handler: Takes `(partition)`.
        """
        return self._register("on_renewed", handler)

    def on_released(self, *handler: ReleaseHandler) -> ReleaseHandler:
        """Register a function that hubline calls when it has released a partition.

        Args:
            handler: Takes `(partition)` or `(partition, reason)`, with a `ReleaseReason`.
        """
        return self._register("on_released", handler)

    def on_error(self, *handler: ErrorHandler) -> ErrorHandler:
        """Register a function that hubline calls with errors of the hub, of the store and of handlers.

        Args:
            handler: Takes `(error)` or `(error, partition)`. The partition is None if the error concerns all.
        """
        return self._register("on_error", handler)

    def on_dead_letter(self, *handler: DeadLetterHandler) -> DeadLetterHandler:
        """Register a function that keeps events that failed, with `on_failure="dead_letter"`.

        If it raises, the partition stops.

        Args:
            handler: Takes `(dead_letter)` or `(dead_letter, partition)`, with a `DeadLetter`.
        """
        return self._register("on_dead_letter", handler)

    # Running

    async def start(self) -> None:
        """Join the consumer group and start to process. Use it in an event loop of your own; see also `run`.

        Raises:
            ConfigError: No handler is registered, or the handlers do not go with the options.
            HubError: The hub does not answer, or does not exist.
            StoreError: The store does not answer, or does not exist.
        """
        async with self._starting_or_stopping:
            dependencies = self._dependencies()
            try:
                await self._start(dependencies)
            except BaseException:
                await self._close_owned()
                raise

    async def stop(self) -> None:
        """Stop cleanly: finish the batches in progress, write checkpoints, and release the partitions.

        Handlers that still run after `stop_timeout_seconds` are left behind. Their partitions go to others when the
        leases expire. Calling it twice, or before the start, does nothing.

        Raises:
            ProcessorError: A handler waits for it, which would wait for the handler.
        """
        if self._run is not None and (waiting := caller()) is not None and self._run.waits_for(waiting):
            raise ProcessorError(
                "a handler cannot wait for stop(), which itself waits for the handler. Start it with "
                "asyncio.create_task(processor.stop()) and return.",
                partition="",
            )
        async with self._starting_or_stopping:
            if self._run is None:
                return  # nothing is open: it may yet be started
            try:
                if not self._run.is_stopped:
                    await self._run.stop()
                    log.info("stopped owner_id=%s", self.owner_id)
            finally:
                await self._close_owned()

    def run(self) -> None:
        """Start, process until SIGINT or SIGTERM, and stop cleanly. A second signal ends the process at once.

        If your program has not set up logging, hubline's log goes to stderr, from INFO on.

        Raises:
            ConfigError: No handler is registered, or the handlers do not go with the options.
            HubError: The hub does not answer, or does not exist.
            StoreError: The store does not answer, or does not exist.
            ProcessorError: This is not the main thread, which alone gets signals.
        """
        with _log_to_stderr():
            asyncio.run(self.run_async())

    async def run_async(self) -> None:
        """Do the same as `run` inside your own event loop, in the main thread. It restores signal handlers at the end.

        It does not set up logging.

        Raises:
            ProcessorError: This is not the main thread, which alone gets signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ProcessorError(
                "run() works only in the main thread, which receives signals. In other threads, call start() "
                "and stop().",
                partition="",
            )
        stop = asyncio.Event()
        with _first_signal(stop.set):
            try:
                await self.start()
                await self._log_progress(stop)
            finally:
                await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def pause(self, partition: str | None = None) -> None:
        """Stop calling handlers, and keep the partitions.

        Args:
            partition: The id of a partition. Default: all.
        """
        self._running().pause(partition)

    def resume(self, partition: str | None = None) -> None:
        """Call handlers again after `pause`.

        Args:
            partition: The id of a partition. Default: all.
        """
        self._running().resume(partition)

    @property
    def consumer_group(self) -> str:
        """The name of the consumer group."""
        return self._group_name

    @property
    def partitions(self) -> list[PartitionContext]:
        """The partitions that this processor owns now, with their progress."""
        return self._run.contexts() if self._run else []

    async def _start(self, dependencies: PartitionDependencies) -> None:
        hub = await within(self._options.hub_timeout_seconds, self._hub.describe(), what="describe itself")
        group = GroupKey(hub.namespace, hub.name, self._group_name)
        self._run = ProcessorRun(
            dependencies,
            group=group,
            owner_id=self.owner_id,
            strategy=self._strategy,
            partition_ids=hub.partition_ids,
        )
        try:
            await self._run.start()
        except BaseException:
            await self._run.close()
            raise
        log.info("started group=%s owner_id=%s partitions=%d", group, self.owner_id, len(hub.partition_ids))

    async def _log_progress(self, stop: asyncio.Event) -> None:
        """Until the stop, every `PROGRESS_SECONDS` in which there is some."""
        events = logged = 0
        counts: dict[str, int] = {}
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await stop.wait()
            before, counts = counts, {each.partition_id: each.handled_count for each in self.partitions}
            for partition, count in counts.items():
                former = before.get(partition, 0)
                events += count - former if count >= former else count  # it was opened again, and counts from 0
            if events > logged:
                log.info("progress events=%d partitions=%d", events, len(counts))
                logged = events

    def _running(self) -> ProcessorRun:
        if self._run is None:
            raise ProcessorError(
                "the processor is not running. Call start() first, or use it as: async with processor.", partition=""
            )
        return self._run

    def _register(self, name: str, functions: tuple[HandlerT, ...]) -> HandlerT:
        if self._run is not None:
            raise ConfigError(f"{name} cannot be registered while the processor runs. Register it before the start.")
        self._registry.register(name, functions)
        return functions[0]

    def _dependencies(self) -> PartitionDependencies:
        """What its partitions are run with. Raises ConfigError where it cannot be started."""
        if self._run is not None:
            raise ProcessorError(
                "the processor was already started once. Create another one to start again.", partition=""
            )
        self._registry.check(self._options, self._sink, self._dead_letters)
        return PartitionDependencies(
            self._hub,
            self._store,
            self._registry.handlers,
            self._options,
            self._start_positions,
            self._rng,
            ReadAheadPool(byte_count(self._options.max_prefetch_bytes)),
            self._sink,
            self._dead_letters,
            self._has_control_thread,
            self._now,
        )

    async def _close_owned(self) -> None:
        for resource in self._owned_resources:
            await resource.close()
        if self._sink is not None:
            await asyncio.to_thread(self._sink.close)  # its idle connections: the next use opens new ones


def partition_dependencies(processor: Processor) -> PartitionDependencies:
    """What a redrive runs the processor's handlers with. Raises ConfigError where it cannot be started."""
    return processor._dependencies()  # noqa: SLF001


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Shows the log of a program that has not set up logging: by warnings alone, nothing would seem to go on."""
    logger = logging.getLogger("hubline")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(level or logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _first_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Calls back at the first SIGINT or SIGTERM. From then on they do what they do by default: end the process."""
    loop = asyncio.get_running_loop()
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

    def on_signal() -> None:
        for signum in before:
            loop.remove_signal_handler(signum)
            # Not Python's own for SIGINT: its KeyboardInterrupt would wait for what hangs.
            signal.signal(signum, signal.SIG_DFL)
        callback()

    for signum in before:
        loop.add_signal_handler(signum, on_signal)
    try:
        yield
    finally:
        for signum, handler in before.items():
            loop.remove_signal_handler(signum)
            if handler is not None:  # set by something other than Python
                signal.signal(signum, handler)


def _resolved(options: ProcessorOptions, sink: SqlSink | None) -> ProcessorOptions:
    """With the default choice made: where there is a place for dead letters, one event does not stop the others.

    Raises:
        ConfigError: The options do not go with a sink.
    """
    if sink is not None and not options.keeps_checkpoints:
        raise ConfigError(
            'Processor: checkpoint_policy="never" does not go with a sink, whose rows and checkpoint are one '
            "transaction. Leave checkpoint_policy out."
        )
    if options.on_failure is not None:
        return options
    return replace(options, on_failure="stop" if sink is None else "dead_letter")


def _fresh_owner_id() -> str:
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
