"""A partition that a query owns: where it stands in Spark, and where in the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from hubline.model.ownership import Ownership
from hubline.spark.source.offsets import Entry, Gap


@dataclass(slots=True)
class HeldPartition:
    """A partition that the query holds.

    Attributes:
        ownership: The query's own record of it, as of the last renewal.
        next_sequence: Where it stood when it was opened; None while that is being found out.
        lookback_next: The first event to replay.
        done_next: Where it stands now.
        checkpointed_next: What the store knows of that. While a replay lasts, it is ahead.
        stored_next: What the store knew when it was opened, be it of a hub that is gone.
        known_offset: The offset of the event before a sequence number. Where a batch ends with the newest event, it
            need not be looked up.
        gap: What was skipped when it was opened.
        replayed: What the batch reads that Spark ran again when the query started.
        follows_spark: Whether Spark's own checkpoint alone says where it stands, as the store keeps none.
        is_closing: Whether it is to be released once its batch is done.
        at_rest: Set when it can be released.
    """

    ownership: Ownership
    next_sequence: int | None = None
    lookback_next: int = 0
    done_next: int = 0
    checkpointed_next: int = 0
    stored_next: int = 0
    known_offset: tuple[int, str] | None = None
    gap: Gap | None = None
    replayed: Entry | None = None
    follows_spark: bool = False
    is_closing: bool = False
    at_rest: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def partition(self) -> str:
        return self.ownership.key.partition

    @property
    def epoch(self) -> int:
        return self.ownership.epoch

    @property
    def is_owed(self) -> bool:
        """Whether the store lags behind."""
        return self.checkpointed_next < self.done_next

    def offset_before(self, next_sequence: int) -> str | None:
        """The offset of the event before this one, if it is known."""
        known_next, offset = self.known_offset or (None, None)
        return offset if known_next == next_sequence else None

    def place(self, entry: Entry | None, *, seen_next: int = 0) -> Entry | None:
        """Where the next batch starts, given what the last one did; None while that is not known.

        A range of the epoch before this one counts as well: nobody has had the partition since, for taking it, or
        resetting its checkpoint, raises the epoch. So does a range of any epoch that was run again since the query
        started, from where the store stands on: each start that died raised the epoch as well. With any other, the
        store says how far it came. The query has read the events before ``seen_next`` already: they are not replayed
        to it. Where Spark's checkpoint alone counts, the query continues after what it has read, whichever query had
        the partition since: that is in its state.
        """
        if self.follows_spark and entry is not None:
            return Entry.at(entry.end, epoch=self.epoch)
        if self.next_sequence is None:
            return None
        if entry is not None and entry.epoch == self.epoch:
            return self._at(entry.end, self.next_sequence)
        if entry is not None and entry.end > self.next_sequence:
            is_next = entry.epoch + 1 == self.epoch
            replayed = self.replayed
            is_rerun = replayed is not None and (replayed.new_start, replayed.end) == (self.next_sequence, entry.end)
            if is_next or is_rerun:
                return self._at(entry.end, self.next_sequence)
        start = min(self.next_sequence, max(self.lookback_next, seen_next))
        return replace(self._at(start, self.next_sequence), gap=self.gap)

    def move_back(self, entry: Entry) -> None:
        """If the batch before this one went back, in a hub that was re-created meanwhile, the partition stands there.

        A replay is behind the checkpoint, too, and says so.
        """
        is_behind = entry.end < self.checkpointed_next and not entry.replayed_to
        if entry.epoch == self.epoch and is_behind:
            self.stored_next = max(self.stored_next, self.checkpointed_next)
            self.next_sequence = self.lookback_next = self.checkpointed_next = entry.start

    def _at(self, sequence: int, next_sequence: int) -> Entry:
        is_replayed = sequence < next_sequence
        return Entry(sequence, sequence, self.epoch, replayed_to=next_sequence if is_replayed else 0)
