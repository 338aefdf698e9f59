"""hubline: partitioned event hubs, reliable to consume from Python.

Every partition has one owner; events arrive in columnar batches; progress is checkpointed and fenced.

    processor = hubline.Processor("local:./data/telemetry", "sqlite:///state.db", group="billing",
                                  start=hubline.Position.earliest())

    @processor.on_batch
    async def handle(batch): ...

    processor.run()
"""

import importlib
from typing import TYPE_CHECKING

from hubline import errors as errors  # costs nothing, and belongs to every name below

if TYPE_CHECKING:
    from hubline.adapters import open_hub, open_store
    from hubline.coordination.strategies import Balanced, Fixed, Greedy
    from hubline.model.dead_letters import DeadLetter
    from hubline.model.events import Event, EventBatch, outgoing
    from hubline.model.ownership import Checkpoint
    from hubline.model.positions import Position, StartPositions
    from hubline.pipeline import Pipeline
    from hubline.processor import (
        AsyncTransaction,
        CheckpointPolicy,
        LeaseOptions,
        PartitionContext,
        Processor,
        ProcessorOptions,
        ReleaseReason,
        RetryPolicy,
    )
    from hubline.sinks import SqlSink, Transaction
    from hubline.sinks.dead_letter_hub import DeadLetterHub, letter_of

__all__ = [
    "AsyncTransaction",
    "Balanced",
    "Checkpoint",
    "CheckpointPolicy",
    "DeadLetter",
    "DeadLetterHub",
    "Event",
    "EventBatch",
    "Fixed",
    "Greedy",
    "LeaseOptions",
    "PartitionContext",
    "Pipeline",
    "Position",
    "Processor",
    "ProcessorOptions",
    "ReleaseReason",
    "RetryPolicy",
    "SqlSink",
    "StartPositions",
    "Transaction",
    "letter_of",
    "open_hub",
    "open_store",
    "outgoing",
]

# Where each name comes from, if not from the processor.
_ROOMS = {
    "hubline.adapters": ("open_hub", "open_store"),
    "hubline.coordination.strategies": ("Balanced", "Fixed", "Greedy"),
    "hubline.model.dead_letters": ("DeadLetter",),
    "hubline.model.events": ("Event", "EventBatch", "outgoing"),
    "hubline.model.ownership": ("Checkpoint",),
    "hubline.model.positions": ("Position", "StartPositions"),
    "hubline.pipeline": ("Pipeline",),
    "hubline.sinks": ("SqlSink", "Transaction"),
    "hubline.sinks.dead_letter_hub": ("DeadLetterHub", "letter_of"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

if not TYPE_CHECKING:  # to a type checker, it would make every misspelled name an object

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for: the command line's help must not cost Arrow."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES.get(name, "hubline.processor")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
