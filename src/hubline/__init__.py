"""hubline: partitioned event hubs, reliable to consume from Python.

Every partition has one owner; events arrive in columnar batches; progress is checkpointed and fenced.

    processor = hubline.Processor("local:./data/telemetry", "sqlite:///state.db", consumer_group="billing",
                                  starting_position="earliest")

    @processor.on_batch
    async def handle(batch): ...

    processor.run()
"""

import importlib
from typing import TYPE_CHECKING

from hubline import errors as errors  # costs nothing, and belongs to every name below

if TYPE_CHECKING:
    from hubline.adapters import open_hub
    from hubline.coordination.lease_options import LeaseOptions
    from hubline.coordination.strategies import Balanced, Fixed, Greedy
    from hubline.model.events import Event, EventBatch, new_events
    from hubline.model.positions import Position
    from hubline.pipeline import Pipeline
    from hubline.processor import CheckpointPolicy, PartitionContext, Processor, ProcessorOptions
    from hubline.producer import BufferedProducer, Producer
    from hubline.retry import RetryPolicy
    from hubline.sinks import SqlSink

__all__ = [
    "Balanced",
    "BufferedProducer",
    "CheckpointPolicy",
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
    "Producer",
    "RetryPolicy",
    "SqlSink",
    "new_events",
    "open_hub",
]

_NAMES_BY_MODULE = {
    "hubline.adapters": ("open_hub",),
    "hubline.coordination.lease_options": ("LeaseOptions",),
    "hubline.coordination.strategies": ("Balanced", "Fixed", "Greedy"),
    "hubline.model.events": ("Event", "EventBatch", "new_events"),
    "hubline.model.positions": ("Position",),
    "hubline.pipeline": ("Pipeline",),
    "hubline.processor": ("CheckpointPolicy", "PartitionContext", "Processor", "ProcessorOptions"),
    "hubline.producer": ("BufferedProducer", "Producer"),
    "hubline.retry": ("RetryPolicy",),
    "hubline.sinks": ("SqlSink",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

if not TYPE_CHECKING:  # to a type checker, it would make every misspelled name an object

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for: the command line's help must not cost Arrow."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
