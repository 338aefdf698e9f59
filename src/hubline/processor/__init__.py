"""The asyncio runtime: the dispatch cycle, the partition pumps, batching and retry."""

from hubline.processor.delivery import AsyncTransaction
from hubline.processor.options import (
    CheckpointPolicy,
    FailureChoice,
    InvalidPositionChoice,
    LeaseOptions,
    ProcessorOptions,
    ReleaseReason,
    RetryPolicy,
)
from hubline.processor.processor import Processor
from hubline.processor.pump import PartitionContext

__all__ = [
    "AsyncTransaction",
    "CheckpointPolicy",
    "FailureChoice",
    "InvalidPositionChoice",
    "LeaseOptions",
    "PartitionContext",
    "Processor",
    "ProcessorOptions",
    "ReleaseReason",
    "RetryPolicy",
]
