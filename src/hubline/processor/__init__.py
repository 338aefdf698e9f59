"""The asyncio runtime: the dispatch cycle, the runners of partitions, batching and retry."""

from hubline.coordination.lease_options import LeaseOptions
from hubline.model.ownership import ReleaseReason
from hubline.processor.context import PartitionContext
from hubline.processor.handlers.transaction import AsyncTransaction
from hubline.processor.options import CheckpointPolicy, OnFailure, ProcessorOptions
from hubline.processor.processor import Processor
from hubline.retry import RetryPolicy

__all__ = [
    "AsyncTransaction",
    "CheckpointPolicy",
    "LeaseOptions",
    "OnFailure",
    "PartitionContext",
    "Processor",
    "ProcessorOptions",
    "ReleaseReason",
    "RetryPolicy",
]
