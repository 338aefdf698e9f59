"""Redrives dead letters: their events go through the same handler into the sink, as new events do.

The processor is not started: it owns nothing, reads nothing, and moves no checkpoint. Its handler of events is called
as usual, with its retries, its ``tx``, and what it returns for the sink; its other handlers are not called.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from hubline.addresses.store_address import SqlAddress
from hubline.dead_letters.event_lookup import EventLookup
from hubline.dead_letters.redrive import Redrive
from hubline.errors import ConfigError, HublineError
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, Stage
from hubline.model.events import EVENT_SCHEMA, Event, EventBatch
from hubline.model.keys import GroupKey
from hubline.processor import Processor
from hubline.processor.checkpointer import Checkpointer
from hubline.processor.context import HandlerContext, PartitionContext
from hubline.processor.delivery.attempt import Part
from hubline.processor.delivery.failure_limits import FailureCount, FailureLimits
from hubline.processor.delivery.into_sink import DeliveryIntoSink, DeliveryPolicy
from hubline.processor.dependencies import PartitionDependencies
from hubline.processor.handlers.caller import HandlerCaller
from hubline.processor.partition_status import PartitionStatus
from hubline.processor.processor import partition_dependencies
from hubline.sinks import OpenedPartition, SqlSink
from hubline.sinks.sql_sink.redrive_transaction import RedriveTransaction

log = logging.getLogger("hubline.dead_letters")

P = ParamSpec("P")
T = TypeVar("T")

MAX_BATCH_SIZE = 20
"""Dead letters in one transaction, which is open while their handler runs: on SQLite every other writer waits for
it."""

_NO_LIMITS = FailureLimits(max_consecutive=sys.maxsize, max_ratio=1.0)
"""Events that fail again were among the dead letters before."""


@dataclass(frozen=True, slots=True)
class HandlerRedrive:
    """The work of a redrive by a processor's handler. Make one with :meth:`of`."""

    dependencies: PartitionDependencies
    sink: SqlSink
    group: GroupKey

    @classmethod
    def of(cls, processor: Processor) -> HandlerRedrive:
        """Raises ConfigError where the processor could not be started, or has no sink."""
        dependencies = partition_dependencies(processor)
        if dependencies.sink is None:
            raise ConfigError(
                "the processor has no sink, and a redrive needs the transaction of one. Give the processor a "
                "sink, or send the dead letters to a hub."
            )
        hub = dependencies.hub
        return cls(dependencies, dependencies.sink, GroupKey(hub.namespace, hub.name, processor.consumer_group))

    @property
    def address(self) -> SqlAddress:
        """The database of the rows and the dead letters."""
        return self.sink.address

    def redrive(self, selection: DeadLetterSelection, *, body_group: str, removes: bool = False) -> Redrive:
        """The redrive of the processor's own dead letters; bodies that are not kept are read from its hub."""
        own = replace(selection, namespace=self.group.namespace, hub=self.group.hub, group=self.group.group)
        bodies = EventLookup(self.dependencies.hub, body_group)
        return Redrive(self.sink, own, self, bodies, removes=removes, max_batch_size=MAX_BATCH_SIZE)

    async def __call__(self, dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
        key = dead_letters[0].key
        status = PartitionStatus(key, 0, is_current=lambda: True, is_paused=False)
        checkpointer = Checkpointer(status, self.dependencies, _NoControl(), report=_report)
        caller = HandlerCaller(status, self.dependencies, HandlerContext(status, checkpointer), report=_report)
        delivery = DeliveryIntoSink(
            OpenedPartition(self.sink.database, key, 0, None),
            caller,
            self._policy(dead_letters),
            FailureCount(_NO_LIMITS, key.partition),
            is_closing=status.is_closing,
            begin=lambda _: transaction.again(),  # the dead letters' own, which moves no checkpoint
        )
        try:
            await delivery.deliver(Part(batch_of(dead_letters)), asyncio.get_running_loop().time())
        finally:
            caller.thread.shutdown()

    def _policy(self, dead_letters: Sequence[DeadLetter]) -> DeliveryPolicy:
        policy = DeliveryPolicy.of(self.dependencies)
        # An event that followed a failed one to the dead letters follows it now, also if the options changed since.
        follows = any(dead_letter.stage == Stage.QUARANTINE for dead_letter in dead_letters)
        return replace(
            policy,
            stops_on_failure=False,
            preserve_key_order=policy.preserve_key_order or follows,
            hold_keys=False,  # the dead letters that wait are these
            in_parts=False,
            deduplicate=False,  # their ids were recorded when they failed: they would count as duplicates of themselves
        )


class _NoControl:
    """The processor around a partition, where there is no lease to lose: the dead letters are locked."""

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await function(*args, **kwargs)

    def is_current(self, partition: str, epoch: int) -> bool:  # noqa: ARG002
        return True

    def release_fenced(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        """There is nothing to release."""

    def report(self, error: HublineError, context: PartitionContext | None) -> None:  # noqa: ARG002
        _report(error)


def _report(error: HublineError) -> None:
    log.warning("error %s: %s", type(error).__name__, error)


def batch_of(dead_letters: Sequence[DeadLetter]) -> EventBatch:
    """The events of dead letters, all of one partition, in order."""
    return EventBatch(
        dead_letters[0].key.partition,
        pa.RecordBatch.from_pylist([_row(each.event) for each in dead_letters], EVENT_SCHEMA),
    )


def _row(event: Event) -> dict[str, object]:
    return {
        "body": event.body,
        "partition": event.partition,
        "offset": event.offset,
        "sequenceNumber": event.sequence_number,
        "enqueuedTime": event.enqueued_time,
        "partitionKey": event.partition_key,
        "properties": list(event.properties.items()) or None,
    }
