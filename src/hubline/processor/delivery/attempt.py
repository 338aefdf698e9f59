"""Events on their way into the sink: which are handled together, what came of them so far, and which are left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hubline.errors import HandlerFailed
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import EventBatch
from hubline.processor.delivery.failure_isolation import halves
from hubline.processor.delivery.handler_output import HandlerOutput


@dataclass(frozen=True, slots=True)
class Part:
    """Events to be delivered together.

    Attributes:
        batch: The events.
        failed: How they, or the first of them, failed last; None if they were not tried.
        is_half: They are half of a batch that failed. They are tried once.
    """

    batch: EventBatch
    failed: HandlerFailed | None = None
    is_half: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Where handling stopped before the end: what comes before it is handled.

    Attributes:
        sequence: The first event that is left.
        failed: How it failed, or the batch that it begins. Its retry comes after a pause.
        is_split: Rather, that batch is to be handled in halves.
    """

    sequence: int
    failed: HandlerFailed | None
    is_split: bool = False

    def split(self, batch: EventBatch) -> tuple[EventBatch, list[Part]]:
        """The events before the stop, and what is left."""
        count = self.count_before(batch)
        rest = batch.slice(count)
        if self.is_split:
            return batch.slice(0, count), [Part(half, self.failed, is_half=True) for half in halves(rest)]
        return batch.slice(0, count), [Part(rest, self.failed)]

    def count_before(self, batch: EventBatch) -> int:
        """How many of the batch's events come before the stop."""
        return int(np.searchsorted(batch.arrow.column("sequenceNumber").to_numpy(), self.sequence))


@dataclass(slots=True)
class DeliveryAttempt:
    """One try at a batch.

    Attributes:
        parts: What is to be handled.
        failed: What failed before, if this is a retry.
        is_half: It is half of a batch that failed.
        tried: How often what failed was tried, by its first and last event, also if it succeeded since: so the tries
            come to an end where all is done once more for each.
        dead_letters: The events that are known to fail.
        outputs: What handlers returned.
        handled: What they returned it for, before this try.
    """

    parts: list[EventBatch]
    failed: HandlerFailed | None = None
    is_half: bool = False
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    outputs: list[HandlerOutput] = field(default_factory=list)
    handled: list[EventBatch] = field(default_factory=list)
    tried: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.failed is not None:
            ends = self.failed.first_sequence, self.failed.last_sequence
            self.tried = {**self.tried, ends: self.failed.attempts}

    def number_of(self, part: EventBatch) -> int:
        """The number of the next attempt at these events."""
        if self.is_half and self.failed is not None:
            return self.failed.attempts + 1
        return self.tried.get((part.first_sequence, part.last_sequence), 0) + 1

    def again(self, failed: HandlerFailed | None = None, *, split: Iterable[EventBatch] = ()) -> DeliveryAttempt:
        """The same batch once more: without the events that failed, and with the parts of those events in halves."""
        firsts = [events.first_sequence for events in split]  # a part may have begun with others, which had failed
        parts: list[EventBatch] = []
        for part in [*self.handled, *self.parts]:
            is_split = any(part.first_sequence <= first <= part.last_sequence for first in firsts)
            parts += halves(part) if is_split and len(part) > 1 else [part]
        return DeliveryAttempt(parts, failed, dead_letters=dict(self.dead_letters), tried=self.tried)

    def continued(self, stop: Stop) -> DeliveryAttempt:
        """Only what is left, and what came of the rest."""
        parts = [left for part in self.parts if len(left := part.slice(stop.count_before(part)))]
        return DeliveryAttempt(
            parts,
            stop.failed,
            dead_letters=self.dead_letters,
            outputs=self.outputs,
            handled=[*self.handled, *self._before(stop)],
            tried=self.tried,
        )

    def until(self, stop: Stop) -> DeliveryAttempt:
        """Only what is handled, and what came of it."""
        failed = {sequence: each for sequence, each in self.dead_letters.items() if sequence < stop.sequence}
        return DeliveryAttempt(self._before(stop), dead_letters=failed, outputs=self.outputs)

    def _before(self, stop: Stop) -> list[EventBatch]:
        return [done for part in self.parts if len(done := part.slice(0, stop.count_before(part)))]

    def in_order(self) -> list[DeadLetter]:
        return [self.dead_letters[sequence] for sequence in sorted(self.dead_letters)]
