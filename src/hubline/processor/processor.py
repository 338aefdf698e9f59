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
from contextlib import contextmanager
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

HandlerT = TypeVar("HandlerT", bound=Callable[..., object])


class Processor:
    """Shares the partitions of a hub with the other processors of its group, and feeds their events to handlers.

        processor = hubline.Processor(
            "local:./data/telemetry",
            "sqlite:///data/state.db",
            consumer_group="billing",
            starting_position=hubline.Position.earliest(),
        )

        @processor.on_batch
        async def handle(batch):
            ...

        processor.run()

    ``hub`` and ``store`` are addresses or objects; those made from addresses are closed at the end.
    ``starting_position`` is where partitions without a checkpoint start; it has no default. ``load_balancing``
    says how partitions are shared; by default, greedily. ``owner_id`` names this processor; give a stable one, unique
    among the running processors, and a restart takes its own partitions back at once.

    Handlers are given by decorator, or by overriding the same names in a subclass. Each may be plain or async; plain
    ones run in a thread of their partition. Each takes the arguments below, or the first of them:

        on_batch(batch, partition)         events of one partition, in order; this one or the next is required
        on_event(event, partition)         the same events one by one
        on_assigned(partition)             before the first batch; may call partition.seek(position)
        on_renewed(partition)              the lease was renewed
        on_released(partition, reason)     requested, lost, stopped or failed
        on_error(error, partition)         what went wrong beside the handlers; partition may be None
        on_dead_letter(dead_letter, partition)  an event that its handler could not take, if on_failure says so

    A wrong argument is refused at once with a ConfigError, which says what to write.

    With a ``sink``, what on_batch and on_event return (Arrow, or dictionaries) goes into its table, together with the
    checkpoint and the dead letters, exactly once. An argument called ``tx`` is given the transaction, for SQL of one's
    own. Where progress stands is then the sink's to say; the store's checkpoints follow it.
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
        """Registers the handler of batches: `(batch)`, `(batch, partition)`, and with a sink also `tx`."""
        return self._register("on_batch", handler)

    def on_event(self, *handler: EventHandler) -> EventHandler:
        """Registers the handler of single events: `(event)`, `(event, partition)`, and with a sink also `tx`."""
        return self._register("on_event", handler)

    def on_assigned(self, *handler: PartitionHandler) -> PartitionHandler:
        """Registers what is called before a partition's first batch: `(partition)`."""
        return self._register("on_assigned", handler)

    def on_renewed(self, *handler: PartitionHandler) -> PartitionHandler:
        """Registers what is called when a lease was renewed: `(partition)`."""
        return self._register("on_renewed", handler)

    def on_released(self, *handler: ReleaseHandler) -> ReleaseHandler:
        """Registers what is called when a partition was released: `(partition)` or `(partition, reason)`."""
        return self._register("on_released", handler)

    def on_error(self, *handler: ErrorHandler) -> ErrorHandler:
        """Registers a handler of errors: `(error)` or `(error, partition)`, which may be None."""
        return self._register("on_error", handler)

    def on_dead_letter(self, *handler: DeadLetterHandler) -> DeadLetterHandler:
        """Registers what takes failed events: `(dead_letter)` or `(dead_letter, partition)`.

        If it raises, the partition stops.
        """
        return self._register("on_dead_letter", handler)

    # Running

    async def start(self) -> None:
        """Joins the group and begins to process. Returns once that is under way; raises if it cannot be."""
        async with self._starting_or_stopping:
            dependencies = self._dependencies()
            try:
                await self._start(dependencies)
            except BaseException:
                await self._close_owned()
                raise

    async def stop(self) -> None:
        """Stops cleanly: batches in progress finish, progress is checkpointed, partitions are released.

        After ``stop_timeout_seconds`` what still runs is left behind, and its partitions to the end of their leases.
        Before the start there is nothing to stop.
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
        """Starts, runs until SIGINT or SIGTERM, and stops. A second signal ends the process at once."""
        asyncio.run(self.run_async())

    async def run_async(self) -> None:
        """``run`` inside an event loop of one's own, in the main thread. Leaves signal handlers as it found them."""
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
                await stop.wait()
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
        """Stops delivering batches of one partition, or of all; ownership is kept."""
        self._running().pause(partition)

    def resume(self, partition: str | None = None) -> None:
        """Delivers batches again."""
        self._running().resume(partition)

    @property
    def consumer_group(self) -> str:
        """The name of the consumer group."""
        return self._group_name

    @property
    def partitions(self) -> list[PartitionContext]:
        """The partitions that this processor runs now, with their progress."""
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
