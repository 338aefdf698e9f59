"""What the parts of a processor are given."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from hubline.errors import HublineError, ProcessorError
from hubline.model.positions import StartPositions
from hubline.ports import CheckpointStore, DeadLetterSink, Hub
from hubline.processor.handlers.handler import Handler
from hubline.processor.options import ProcessorOptions
from hubline.read_ahead import ReadAheadPool
from hubline.sinks import SqlSink
from hubline.text import sentences

if TYPE_CHECKING:
    from hubline.processor.context import PartitionContext

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionDependencies:
    """What a processor was given, as the runners of its partitions share it.

    With `has_control_thread`, the dispatch cycle runs in a thread of its own: a handler that blocks the event loop of
    the partitions holds up no renewal.
    """

    hub: Hub
    store: CheckpointStore
    handlers: Mapping[str, Handler]
    options: ProcessorOptions
    start: StartPositions
    rng: random.Random
    read_ahead: ReadAheadPool
    sink: SqlSink | None = None
    dead_letters: DeadLetterSink | None = None
    has_control_thread: bool = True
    now: Callable[[], float] = time.time

    @property
    def handler_name(self) -> str:
        """Which of the two handlers of events there is."""
        return "on_event" if "on_event" in self.handlers else "on_batch"


class Control(Protocol):
    """What the runner of a partition needs of the processor around it."""

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a coroutine function on the control loop, where the store is used."""
        ...

    def is_current(self, partition: str, epoch: int) -> bool:
        """Whether the lease still runs. Any thread may ask."""
        ...

    def release_fenced(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        """Releases a partition that another epoch holds."""
        ...

    def report(self, error: HublineError, context: PartitionContext | None) -> None:
        """Logs an error, and calls on_error."""
        ...


def unexpected(partition: str, error: Exception) -> ProcessorError:
    """An error of a hub or a store of the user's own, which may raise anything."""
    problem = f"partition {partition} failed with {type(error).__name__}: {error}"
    found = ProcessorError(
        sentences(problem, "hubline opens it again; if it lasts, fix the cause"), partition=partition
    )
    found.__cause__ = error
    return found
