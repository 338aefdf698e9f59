"""The asyncio runtime: the dispatch cycle, the partition pumps, batching and retry."""

from hubline.coordination.lease_options import LeaseOptions
from hubline.model.ownership import ReleaseReason
from hubline.processor.options import CheckpointPolicy, OnFailure, ProcessorOptions
from hubline.processor.partition_runner import PartitionContext
from hubline.processor.processor import Processor
from hubline.processor.sql_delivery import AsyncTransaction
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
