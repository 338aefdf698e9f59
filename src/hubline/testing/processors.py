"""``hubline.testing.run_processor``: a processor of the user's on the events of a test, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import Count, Named, PositiveSeconds
from hubline.addresses.store_address import SqliteAddress
from hubline.addresses.values import parse_starting_position
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import parse_load_balancing
from hubline.errors import ConfigError, HublineError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import NewEvent
from hubline.model.keys import GroupKey
from hubline.model.ownership import ReleaseReason
from hubline.processor import PartitionContext, Processor
from hubline.processor.handlers.handler import HANDLER_ARGUMENTS, Handler
from hubline.processor.handlers.registry import HandlerRegistry
from hubline.sinks import SqlSink
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.faults import Weather
from hubline.testing.simulation.recording_sink import RemoteSink, SimulatedDatabase
from hubline.testing.simulation.virtual_loop import SimProcess, World, require_no_loop, run_now
from hubline.testing.simulation.virtual_processor import make_virtual
from hubline.testing.sinks import dead_letters_in, rows_of

_LOOK_SECONDS: Final = 0.05
"""How often it is looked whether all events are handled. Virtual seconds cost nothing."""


_REPLACED: Final = (
    "_dead_letters",
    "_has_control_thread",
    "_hub",
    "_now",
    "_owned_resources",
    "_registry",
    "_rng",
    "_run",
    "_sink",
    "_start_positions",
    "_starting_or_stopping",
    "_store",
    "_strategy",
)
"""What a processor is given for a run, or gets in it. What a subclass keeps beside it is the user's."""


@dataclass(frozen=True, slots=True)
class ProcessorResult:
    """What a processor made of the events of a test.

    Attributes:
        rows: The rows of its sink's table, in the order in which they were written. Empty without a sink.
        dead_letters: The events that it stored as dead letters.
        checkpoints: By partition, the sequence number of the last event that is done.
        errors: What `on_error` was called with, in order.
    """

    rows: list[dict[str, Any]]
    dead_letters: list[DeadLetter]
    checkpoints: dict[str, int]
    errors: list[HublineError]


@checked
def run_processor(
    processor: Processor,
    events: Annotated[Sequence[NewEvent], Named("a list of events, such as [b'21.5']")],
    *,
    partitions: Count = 1,
    seconds: PositiveSeconds = 3600.0,
) -> ProcessorResult:
    """Run a processor on the events of a test until all are handled, and return what came of them.

    The processor runs in virtual time, with its own handlers and options: retries and `asyncio.sleep` take no time. Its
    hub, its store and its sink are in memory for as long as it runs; yours are not opened. It owns all partitions, and
    reads them from the first event, whatever its starting position. Afterwards it is as it was: run it again with other
    events.

    Args:
        processor: The processor, not started. A handler that takes `tx` cannot be run.
        events: The events, as `hubline.new_events` takes them. Those with a partition key go to its partition, the
            others to the partitions in turn.
        partitions: How many partitions the hub has. Default: 1.
        seconds: How long the processor may take, in virtual seconds. Default: an hour.

    Returns:
        Rows, dead letters, checkpoints and errors.

    Raises:
        Exception: What your handler raised, where that stops its partition (`on_failure="stop"`).
        TimeoutError: Not all events were handled within `seconds`.
        ConfigError: The processor cannot be run.

    Example:
        from app import processor

        def test_hot_readings_are_stored():
            result = hubline.testing.run_processor(processor, [b"20.0", b"31.5"])
            assert result.rows == [{"celsius": 31.5}]
    """
    require_no_loop("run_processor")
    _require_fit(processor)
    with _Run(processor, partitions) as run:
        for number, event in enumerate(events):
            run.hub.append_events(str(number % partitions), [event])
        run.until_handled(seconds)
        return run.result()


def _require_fit(processor: Processor) -> None:
    if processor._run is not None:  # noqa: SLF001
        raise ConfigError("run_processor: the processor was started before. Make a new one.")
    if any(handler.takes_tx for handler in processor._registry.handlers.values()):  # noqa: SLF001
        raise ConfigError(
            "run_processor: a handler that takes tx cannot be run here, because its SQL is for your own database. "
            "Return the rows, or test it with the fixtures hubline_hub, hubline_store and hubline_sink."
        )


class _Run:
    """A processor in a world of its own. At the end it is given back as it was."""

    def __init__(self, processor: Processor, partitions: int) -> None:
        self._world = World(0)
        started = time.time()
        self._process = SimProcess(self._world, "test", clock_start=started)  # type: ignore[abstract]
        self.hub = MemoryHub(partitions, now=lambda: started + self._world.now)
        self._store = MemoryStore(now=lambda: self._world.now)
        self._database = SimulatedDatabase()
        self._processor = processor
        self._before = {name: value for name, value in vars(processor).items() if name in _REPLACED}
        self._sink = None if processor._sink is None else self._in_memory(processor._sink)  # noqa: SLF001
        self._dead_letters: list[DeadLetter] = []
        self._errors: list[HublineError] = []
        self._has_failed = False

    def __enter__(self) -> Self:
        processor = self._processor
        make_virtual(processor, random.Random(0))
        registry = HandlerRegistry()
        registry.handlers = self._observed(processor._registry.handlers)  # noqa: SLF001
        vars(processor).update(
            _hub=self.hub,
            _store=self._store,
            _sink=self._sink,
            _strategy=parse_load_balancing("greedy"),
            _start_positions=parse_starting_position("earliest"),
            _registry=registry,
            _owned_resources=[],
            _starting_or_stopping=asyncio.Lock(),
        )
        if processor._dead_letters is not None:  # noqa: SLF001
            processor._dead_letters = _Kept(self._dead_letters)  # noqa: SLF001
        return self

    def __exit__(self, *_: object) -> None:
        self._world.end()
        self._database.close()
        for name in _REPLACED:
            vars(self._processor).pop(name, None)
        vars(self._processor).update(self._before)

    def until_handled(self, seconds: float) -> None:
        running = self._process.spawn(self._handle_all())
        self._world.run_until(seconds, is_done=running.done)
        if self._world.failures:
            raise AssertionError("; ".join(self._world.failures))
        if self._has_failed or (self._errors and not running.done()):
            raise next((error.__cause__ for error in reversed(self._errors) if error.__cause__), self._errors[-1])
        if not running.done():
            raise TimeoutError(f"the processor did not handle all events within {seconds:g} virtual seconds")
        running.result()

    def result(self) -> ProcessorResult:
        group = GroupKey(self.hub.namespace, self.hub.name, self._processor.consumer_group)
        checkpoints = run_now(self._store.list_checkpoints(group))
        rows: list[dict[str, Any]] = []
        dead_letters = self._dead_letters
        if self._sink is not None:
            rows, dead_letters = rows_of(self._sink), dead_letters_in(self._database.connection)
        done = {each.key.partition: each.sequence_number for each in checkpoints}
        return ProcessorResult(rows, dead_letters, done, self._errors)

    async def _handle_all(self) -> None:
        last = {event.partition: event.sequence_number for event in self.hub.events()}
        async with self._processor as running:
            while not (self._has_failed or _is_stopped(running)):  # a handler may stop its processor
                handled = {each.partition_id: each.last_handled_sequence for each in running.partitions}
                if all(
                    partition in handled and handled[partition] == last.get(partition)
                    for partition in self.hub.partition_ids
                ):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    # What it is given

    def _in_memory(self, sink: SqlSink) -> RemoteSink:
        """The sink with its options, in a database that has its table as soon as there are rows."""
        settings = sink.database.settings
        table = settings.table and replace(settings.table, schema=None)
        settings = replace(
            settings, address=SqliteAddress(Path(":memory:")), table=table, create_table=table is not None
        )
        return RemoteSink(settings, self._process, self._database, Weather())

    def _observed(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        notes: dict[str, Callable[..., None]] = {"on_error": self._note_error, "on_released": self._note_release}
        if "on_dead_letter" in handlers:
            notes["on_dead_letter"] = self._note_dead_letter
        return {**handlers, **{name: _noting(name, note, handlers.get(name)) for name, note in notes.items()}}

    def _note_error(self, error: HublineError, _: PartitionContext | None) -> None:
        self._errors.append(error)

    def _note_release(self, _: PartitionContext, reason: ReleaseReason) -> None:
        self._has_failed = self._has_failed or reason is ReleaseReason.FAILED

    def _note_dead_letter(self, dead_letter: DeadLetter, _: PartitionContext) -> None:
        self._dead_letters.append(dead_letter)


def _noting(name: str, note: Callable[..., None], handler: Handler | None) -> Handler:
    """A handler that notes what it is given, and then calls the user's."""

    async def call(*arguments: object) -> None:
        note(*arguments)
        returned = None if handler is None else handler.invoke(*arguments)
        if inspect.isawaitable(returned):
            await returned

    return Handler(call, True, tuple(range(len(HANDLER_ARGUMENTS[name]))))


def _is_stopped(processor: Processor) -> bool:
    return processor._run is not None and processor._run.is_stopped  # noqa: SLF001


class _Kept:
    """A sink of dead letters that keeps them."""

    def __init__(self, kept: list[DeadLetter]) -> None:
        self._kept = kept

    async def add(self, dead_letters: Sequence[DeadLetter]) -> None:
        self._kept += dead_letters

    async def close(self) -> None:
        """Nothing to let go."""
