"""When a partition stops, rather than to turn every event into a dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from hubline.errors import DeadLetterLimit
from hubline.text import counted

RATIO_EVENTS = 1_000
"""The ratio is of this many last events: enough that chance does not matter, few enough to notice soon."""

RATIO_EVENTS_MIN = 100
"""Of fewer, a ratio says nothing: the first event may be a bad one."""

TOGETHER_EVENTS = 100
TOGETHER_SECONDS = 1.0
"""Small batches that follow each other closely are counted together: finer steps than these decide nothing."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FailureLimits:
    """How many events may fail: one after the other, and of the last thousand as a ratio."""

    max_consecutive: int
    max_ratio: float


@dataclass(frozen=True, slots=True)
class FailureTally:
    """What failed so far in a partition. A value: what a batch would add counts only once the batch does."""

    limits: FailureLimits
    partition: str
    in_row: int = 0
    recent: tuple[tuple[float, int, int], ...] = ()  # when, how many events, and how many of them failed
    recent_count: int = 0  # the events of all entries

    @property
    def is_full_of_successes(self) -> bool:
        """Whether one more event that does not fail changes nothing."""
        if self.in_row or self.recent_count < RATIO_EVENTS:
            return False
        return not any(failed for _, _, failed in self.recent)

    def after(self, failed: Flags, now: float) -> FailureTally:
        """The tally after these events, in order. Raises DeadLetterLimit where that is too much."""
        failed_count = int(failed.sum())
        if not failed_count:
            return self.after_handled(len(failed), now)
        in_row = self._in_row(failed)
        tally = self._with((now, len(failed), failed_count), in_row)
        tally.check_ratio()
        return tally

    def after_handled(self, count: int, now: float) -> FailureTally:
        """The tally after so many events that did not fail."""
        return self._with((now, count, 0), 0 if count else self.in_row)

    def _in_row(self, failed: Flags) -> int:
        in_row = self.in_row
        for is_failed, run in groupby(failed.tolist()):
            in_row = in_row + sum(1 for _ in run) if is_failed else 0
            if in_row > self.limits.max_consecutive:
                raise self._exceeded(
                    "in a row", f"more than {counted(self.limits.max_consecutive, 'event')} in a row failed"
                )
        return in_row

    def _with(self, added: tuple[float, int, int], in_row: int) -> FailureTally:
        """With one more entry, and without those that the ratio no longer needs."""
        recent, count = self.recent, self.recent_count + added[1]
        if recent and added[0] - recent[-1][0] < TOGETHER_SECONDS and recent[-1][1] + added[1] <= TOGETHER_EVENTS:
            at, events, failed = recent[-1]
            recent, added = recent[:-1], (at, events + added[1], failed + added[2])
        first = 0
        while first < len(recent) and count - recent[first][1] >= RATIO_EVENTS:
            count -= recent[first][1]
            first += 1
        return FailureTally(self.limits, self.partition, in_row, (*recent[first:], added), count)

    def check_ratio(self) -> None:
        """Raises DeadLetterLimit where too large a part failed."""
        events_count, failed_count = self.recent_count, sum(failed for _, _, failed in self.recent)
        if events_count >= RATIO_EVENTS_MIN and failed_count > self.limits.max_ratio * events_count:
            raise self._exceeded(
                "ratio",
                f"{failed_count} of the last {events_count} events failed, more than {self.limits.max_ratio:.0%}",
            )

    def _exceeded(self, limit: str, what: str) -> DeadLetterLimit:
        return DeadLetterLimit(
            f"partition {self.partition}: {what}. hubline stopped the partition before a checkpoint, since "
            "the handler or something that it needs seems to be broken. Fix it; hubline then processes "
            "these events again.",
            partition=self.partition,
            limit=limit,
        )


class FailureCount:
    """The tally of a partition, for as long as its lease lasts.

    Attributes:
        tally: What counts. Replace it once a batch is committed.
    """

    def __init__(self, limits: FailureLimits, partition: str) -> None:
        self.tally = FailureTally(limits, partition)

    def add(self, failed: Flags, now: float) -> None:
        """Counts events, in order. Raises DeadLetterLimit where too many failed."""
        self.tally = self.tally.after(failed, now)

    def add_handled(self, count: int, now: float) -> None:
        """Counts events that did not fail, in steps: of a long run, those before the last thousand count no more."""
        if self.tally.is_full_of_successes:
            return
        count = min(count, RATIO_EVENTS)
        while count > 0:
            self.tally = self.tally.after_handled(min(count, TOGETHER_EVENTS), now)
            count -= TOGETHER_EVENTS
