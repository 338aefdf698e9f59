"""Dead letters of the events of a transaction: kept for those that failed, answered for those that were handled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hubline.errors import SinkError
from hubline.model.dead_letters import DeadLetter
from hubline.model.keys import PartitionKey
from hubline.sinks.sql_sink.connection import SinkConnection
from hubline.sinks.sql_sink.rejected_rows import RowEvents

if TYPE_CHECKING:  # whose transactions use this
    from hubline.sinks.sql_sink.opened_partition import OpenedPartition


class DeadLetterWriter:
    """The dead letters of some partitions.

    Replayed events have dead letters only after the checkpoint was moved back, so each partition remembers the newest
    one that was there when it was opened, and beyond it nothing is looked up.
    """

    def __init__(self, partitions: Iterable[OpenedPartition], *, keep_bodies: bool) -> None:
        self._partitions = {partition.key: partition for partition in partitions}
        self._keep_bodies = keep_bodies

    def resolve(self, connection: SinkConnection, key: PartitionKey, sequences: RowEvents) -> None:
        """Marks what waits for these events as done, since they came again: no redrive must run them once more."""
        first, last = int(sequences[0]), int(sequences[-1])
        if first <= self._last_before(connection, key):
            waiting = connection.dead_letters.waiting_sequences(key, first_sequence=first, last_sequence=last)
            for sequence in np.intersect1d(waiting, sequences).tolist():
                connection.dead_letters.mark_redriven(key, int(sequence))

    def add(self, connection: SinkConnection, dead_letters: Sequence[DeadLetter]) -> None:
        """Keeps events that failed. One that failed before its checkpoint was moved back has one dead letter: this."""
        for each in dead_letters:
            if each.event.sequence_number <= self._last_before(connection, each.key):
                connection.dead_letters.remove(each.key, each.event.sequence_number)
        connection.add_dead_letters(dead_letters, keep_bodies=self._keep_bodies)

    def _last_before(self, connection: SinkConnection, key: PartitionKey) -> int:
        partition = self._partitions.get(key)
        if partition is None:
            raise SinkError(
                f"a dead letter of {key} cannot be written in a transaction of other partitions. Write it in a "
                "transaction of its own partition."
            )
        if partition.last_dead_letter is None:
            partition.last_dead_letter = connection.dead_letters.last_sequence(key)
        return partition.last_dead_letter
