"""Letters run again through the handler that failed them, by the very way that events take into the sink.

The processor is not started: it owns nothing, reads nothing, and moves no checkpoint. Its handler of events is called
as ever, with its retries, its ``tx``, and what it returns for the sink; its other handlers are not called.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from hubline.addresses.store_address import PostgresAddress, SqliteAddress
from hubline.dead_letters.redrive import EventLookup, Redrive
from hubline.dead_letters.redrive_transaction import LetterTransaction
from hubline.errors import ConfigError, HublineError
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, Stage
from hubline.model.events import EVENT_SCHEMA, Event, EventBatch
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, Ownership
from hubline.processor import Processor
from hubline.processor.failure_limits import LetterLimits, LetterTally
from hubline.processor.partition_runner import PartitionContext, PartitionDependencies, PartitionPump
from hubline.processor.sql_delivery import Delivery
from hubline.sinks import OpenedPartition, SqlSink
from hubline.sinks.sql_sink.deduplication import DeduplicatedBatch

log = logging.getLogger("hubline.redrive")

P = ParamSpec("P")
T = TypeVar("T")

LETTERS_COUNT_MAX = 20
"""Letters in one transaction, which is open while their handler runs: on SQLite every other writer waits for it."""

_NO_LIMITS = LetterLimits(in_row_max=sys.maxsize, ratio_max=1.0, per_minute_max=None)
"""Whatever fails again was among the dead letters before."""


@dataclass(frozen=True, slots=True)
class HandlerRedrive:
    """The work of a redrive by a processor's handler. Make one with :meth:`of`."""

    wiring: PartitionDependencies
    sink: SqlSink
    group: GroupKey

    @classmethod
    def of(cls, processor: Processor) -> HandlerRedrive:
        """Raises ConfigError where the processor could not be started, or has no sink."""
        wiring = processor.wiring()
        if wiring.sink is None:
            raise ConfigError(
                "the processor has no sink, whose transaction a redrive needs: without one, send the letters to a hub"
            )
        hub = wiring.hub
        return cls(wiring, wiring.sink, GroupKey(hub.namespace, hub.name, processor.consumer_group))

    @property
    def address(self) -> PostgresAddress | SqliteAddress:
        """The database of the rows and the letters."""
        return self.sink.address

    def redrive(self, choice: DeadLetterSelection, *, body_group: str, removes: bool = False) -> Redrive:
        """The redrive of the processor's own letters; bodies that are not kept are read from its hub."""
        own = replace(choice, namespace=self.group.namespace, hub=self.group.hub, group=self.group.group)
        bodies = EventLookup(self.wiring.hub, body_group)
        return Redrive(self.sink, own, self, bodies, removes=removes, lot_count_max=LETTERS_COUNT_MAX)

    async def __call__(self, letters: Sequence[DeadLetter], transaction: LetterTransaction) -> None:
        partition = _LetterPartition(self.sink, letters[0].key, transaction)
        pump = _LetterPump(partition.key, self.wiring)
        manner = self.wiring.manner(self.sink)
        # What once followed a failed event follows it now, also if the processor was told otherwise since.
        follows = any(letter.stage == Stage.QUARANTINE for letter in letters)
        manner = replace(manner, stops_on_failure=False, quarantines_keys=manner.quarantines_keys or follows)
        delivery = _LetterDelivery(partition, manner, pump, LetterTally(_NO_LIMITS, partition.key.partition))
        try:
            await delivery.deliver(batch_of(letters), asyncio.get_running_loop().time())
        finally:
            pump.end()


class _LetterPartition(OpenedPartition):
    """A partition as a delivery sees it, whose one transaction is about its letters, and moves no checkpoint."""

    def __init__(self, sink: SqlSink, key: PartitionKey, transaction: LetterTransaction) -> None:
        super().__init__(sink.database, key, 0, None)
        self._transaction = transaction

    def transaction(self, checkpoint: Checkpoint) -> LetterTransaction:  # noqa: ARG002 - it does not move
        return self._transaction.again()


class _LetterDelivery(Delivery):
    """A delivery of letters: that letters of a key wait does not hold them up, for they are these."""

    async def _quarantined(self) -> set[str]:
        return set()

    async def _deduplicated(self, batch: EventBatch) -> DeduplicatedBatch:
        # Their ids were remembered when they failed, and they would pass for repeats of themselves.
        return DeduplicatedBatch(batch, {})


class _LetterPump(PartitionPump):
    """What calls the handler. It is never started."""

    def __init__(self, key: PartitionKey, wiring: PartitionDependencies) -> None:
        super().__init__(Ownership(key, owner_id="redrive", epoch=0), wiring, _NoControl(), is_paused=False)

    def end(self) -> None:
        self._thread.shutdown()


class _NoControl:
    """The processor around a pump, where there is no lease to lose: the letters are locked."""

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await function(*args, **kwargs)

    def is_current(self, partition: str, epoch: int) -> bool:  # noqa: ARG002
        return True

    def surrender(self, partition: str, *, epoch: int, held_epoch: int) -> None:
        """There is nothing to give up."""

    def report(self, error: HublineError, context: PartitionContext | None) -> None:
        log.warning("error partition=%s %s: %s", context.partition if context else None, type(error).__name__, error)


def batch_of(letters: Sequence[DeadLetter]) -> EventBatch:
    """The events of letters, all of one partition, in order."""
    return EventBatch(
        letters[0].key.partition, pa.RecordBatch.from_pylist([_row(each.event) for each in letters], EVENT_SCHEMA)
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
