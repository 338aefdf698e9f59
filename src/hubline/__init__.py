"""hubline: partitioned event hubs, reliable to consume from Python.

Every partition has one owner; events arrive in columnar batches; progress is checkpointed and fenced.

    processor = hubline.Processor("local:./data/telemetry", "sqlite:///state.db", group="billing",
                                  start=hubline.Position.earliest())

    @processor.on_batch
    async def handle(batch): ...

    processor.run()
"""

from hubline.balance import Balanced, Fixed, Greedy
from hubline.connect import open_hub, open_store
from hubline.model import Checkpoint, DeadLetter, Event, EventBatch, Position, StartPositions, outgoing
from hubline.processor import (
    CheckpointPolicy,
    FailureChoice,
    InvalidPositionChoice,
    LeaseOptions,
    PartitionContext,
    Processor,
    ProcessorOptions,
    ReleaseReason,
    RetryPolicy,
)

__all__ = [
    "Balanced",
    "Checkpoint",
    "CheckpointPolicy",
    "DeadLetter",
    "Event",
    "EventBatch",
    "FailureChoice",
    "Fixed",
    "Greedy",
    "InvalidPositionChoice",
    "LeaseOptions",
    "PartitionContext",
    "Position",
    "Processor",
    "ProcessorOptions",
    "ReleaseReason",
    "RetryPolicy",
    "StartPositions",
    "open_hub",
    "open_store",
    "outgoing",
]
