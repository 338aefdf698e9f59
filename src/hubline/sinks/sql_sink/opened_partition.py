"""A partition that a sink has opened for an epoch: where it stands, and what it needs for its next transaction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hubline.model.dead_letters import DeadLetter
from hubline.model.events import EventBatch
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.database import SinkDatabase
from hubline.sinks.sql_sink.deduplication import (
    DeduplicatedBatch,
    Deduplication,
    HighWaterMarks,
    deduplicate_known,
    deduplicate_ordered,
    ids_in,
)
from hubline.sinks.sql_sink.partition_transaction import Move, PartitionTransaction
from hubline.sinks.sql_sink.rejected_rows import Rejected
from hubline.sinks.sql_sink.row_writer import Rows
from hubline.sinks.sql_sink.transaction import Transaction
from hubline.sql.fence import fenced


class OpenedPartition:
    """A partition that `SqlSink.open` returned. After an error, open it again: only the database knows what is there.

    Attributes:
        database: For hubline's own parts: the connections.
        key: The partition.
        epoch: The epoch that holds it.
        checkpoint: The last event that the sink has; None if it has none. Continue after it.
    """

    def __init__(self, database: SinkDatabase, key: PartitionKey, epoch: int, checkpoint: Checkpoint | None) -> None:
        self.database = database
        self.key = key
        self.epoch = epoch
        self.checkpoint = checkpoint
        self.marks: HighWaterMarks = {}
        self.ids_forgotten_at = 0.0
        self.last_dead_letter: int | None = None  # of those that were there before this opening; None until it matters

    def require_held(self) -> None:
        """Raises Fenced if another epoch holds the partition: that of a new owner, or of a checkpoint that was set."""
        with self.database.connection() as connection:
            held_epoch, _ = connection.read_fence(self.key)
        if held_epoch != self.epoch:
            raise fenced(self.key, epoch=self.epoch, held_epoch=held_epoch)

    def waiting_keys(self) -> set[str]:
        """The partition keys that have a dead letter waiting, of events before the checkpoint.

        Later events have dead letters if the checkpoint was moved back: those events are replayed.
        """
        if self.checkpoint is None:
            return set()
        with self.database.connection() as connection:
            return connection.dead_letters.waiting_keys(self.key, last_sequence=self.checkpoint.sequence_number)

    def deduplicate(self, batch: EventBatch) -> DeduplicatedBatch:
        """Return a batch without the events that the sink already has. Pass the result to `Transaction.record_ids`.

        Args:
            batch: The events.
        """
        return DeduplicatedBatch.of(batch, self.deduplicate_events(batch.arrow.column("properties")))

    def deduplicate_first(self, fresh: EventBatch) -> DeduplicatedBatch:
        """Return the first events of a batch that was deduplicated, with what to remember of these alone.

        It asks the database nothing.

        Args:
            fresh: The events.
        """
        properties = fresh.arrow.column("properties")
        if self.database.settings.drop_duplicates == "ordered":
            return DeduplicatedBatch.of(fresh, deduplicate_ordered(properties, self.marks))
        if self.database.settings.drop_duplicates == "any_order":
            return DeduplicatedBatch.of(fresh, deduplicate_known(ids_in(properties), set()))
        return DeduplicatedBatch(fresh, {})

    def deduplicate_events(self, properties: pa.MapArray) -> Deduplication:
        """Find the events that the sink does not have yet.

        Args:
            properties: The column `properties` of the events, in order.
        """
        how = self.database.settings.drop_duplicates
        if how == "ordered" and len(properties):
            return deduplicate_ordered(properties, self.marks)
        ids = ids_in(properties) if how == "any_order" else [None] * len(properties)
        if not (given := [one for one in ids if one is not None]):
            return Deduplication(np.ones(len(ids), np.bool_), {})
        with self.database.connection() as connection:
            return deduplicate_known(ids, connection.ids.known(self.key.group_key, given))

    def transaction(self, checkpoint: Checkpoint) -> Transaction:
        """Return a transaction that moves the partition. It begins when it is first used.

        Args:
            checkpoint: The new checkpoint.
        """
        return PartitionTransaction(self.database, [Move(self, checkpoint)])

    def commit(
        self, checkpoint: Checkpoint, rows: Rows | None = None, *, dead_letters: Sequence[DeadLetter] = ()
    ) -> list[Rejected]:
        """Writes rows, dead letters and checkpoint in one transaction. Returns the events whose rows were rejected.

        To make dead letters of rejected events in the same transaction, use `transaction`.

        Args:
            checkpoint: The new checkpoint of the partition.
            rows: The rows. A column `sequenceNumber` names the event of each.
            dead_letters: The events that failed.

        Raises:
            RowsRejected: The database rejects rows that have no column `sequenceNumber`.
        """
        with self.transaction(checkpoint) as transaction:
            if rows is not None:
                transaction.insert(rows)
            transaction.dead_letter(dead_letters)
        return transaction.rejected
