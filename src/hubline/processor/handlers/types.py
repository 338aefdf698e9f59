"""What the decorators of a processor take: functions of these types, plain or async, with all arguments or the first.

They are for editors and type checkers. :mod:`.handler` checks what it is given by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hubline.errors import HublineError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import ReleaseReason
from hubline.processor.context import PartitionContext
from hubline.processor.handlers.transaction import AsyncTransaction
from hubline.sinks import Transaction

BatchHandler = TypeVar(
    "BatchHandler",
    bound=Callable[[EventBatch], object]
    | Callable[[EventBatch, PartitionContext], object]
    | Callable[[EventBatch, Transaction], object]
    | Callable[[EventBatch, AsyncTransaction], object]
    | Callable[[EventBatch, PartitionContext, Transaction], object]
    | Callable[[EventBatch, PartitionContext, AsyncTransaction], object],
)
EventHandler = TypeVar(
    "EventHandler",
    bound=Callable[[Event], object]
    | Callable[[Event, PartitionContext], object]
    | Callable[[Event, Transaction], object]
    | Callable[[Event, AsyncTransaction], object]
    | Callable[[Event, PartitionContext, Transaction], object]
    | Callable[[Event, PartitionContext, AsyncTransaction], object],
)
PartitionHandler = TypeVar("PartitionHandler", bound=Callable[[PartitionContext], object])
ReleaseHandler = TypeVar(
    "ReleaseHandler",
    bound=Callable[[PartitionContext], object] | Callable[[PartitionContext, ReleaseReason], object],
)
ErrorHandler = TypeVar(
    "ErrorHandler",
    bound=Callable[[HublineError], object] | Callable[[HublineError, PartitionContext | None], object],
)
DeadLetterHandler = TypeVar(
    "DeadLetterHandler",
    bound=Callable[[DeadLetter], object] | Callable[[DeadLetter, PartitionContext], object],
)
