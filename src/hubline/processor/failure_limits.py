"""When to stop rather than to turn everything into dead letters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from hubline.errors import DeadLetterLimit

RATIO_EVENTS = 1_000
"""The ratio is of the last so many events: enough that chance does not matter, few enough to notice soon."""

RATIO_EVENTS_MIN = 100
"""Of fewer, a ratio says nothing: the first event may be a bad one."""

MINUTE_SECONDS = 60.0

TOGETHER_EVENTS = 100
TOGETHER_SECONDS = 1.0
"""Small batches that follow each other closely are counted together: finer steps than these decide nothing."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """How many events may fail: in a row, of the last thousand as a ratio, and in a minute."""

    in_row_max: int
    ratio_max: float
    per_minute_max: int | None


@dataclass(frozen=True, slots=True)
class LetterTally:
    """What failed so far in a partition. A value: what a batch would add counts only once the batch does."""

    limits: LetterLimits
    partition: str
    in_row: int = 0
    recent: tuple[tuple[float, int, int], ...] = ()  # when, how many events, and how many of them failed

    def after(self, failed: Flags, now: float) -> LetterTally:
        """The tally after these events, in order. Raises DeadLetterLimit where that is too much."""
        in_row = self._in_row(failed)
        recent = self._recent((now, len(failed), int(failed.sum())))
        if failed.any():
            self._check_ratio(recent)
            self._check_minute(recent, now)
        return replace(self, in_row=in_row, recent=recent)

    def _in_row(self, failed: Flags) -> int:
        if not failed.any():
            return 0 if len(failed) else self.in_row
        in_row = self.in_row
        for is_failed, run in groupby(failed.tolist()):
            in_row = in_row + sum(1 for _ in run) if is_failed else 0
            if in_row > self.limits.in_row_max:
                raise self._exceeded("in a row", f"more than {self.limits.in_row_max} events in a row failed")
        return in_row

    def _recent(self, added: tuple[float, int, int]) -> tuple[tuple[float, int, int], ...]:
        """What the ratio and the minute are counted from: no more entries than either needs."""
        recent = self.recent
        if recent and added[0] - recent[-1][0] < TOGETHER_SECONDS and recent[-1][1] + added[1] <= TOGETHER_EVENTS:
            at, events, failed = recent[-1]
            recent, added = recent[:-1], (at, events + added[1], failed + added[2])
        kept = [added]
        events_count = added[1]
        for entry in reversed(recent):
            if events_count >= RATIO_EVENTS and added[0] - entry[0] >= MINUTE_SECONDS:
                break
            if events_count >= RATIO_EVENTS and not entry[2]:
                continue  # neither in the ratio, nor a failure of the minute
            kept.append(entry)
            events_count += entry[1]
        return tuple(reversed(kept))

    def _check_ratio(self, recent: tuple[tuple[float, int, int], ...]) -> None:
        events_count = failed_count = 0
        for _, events, failed in reversed(recent):
            if events_count >= RATIO_EVENTS:
                break
            events_count += events
            failed_count += failed
        if events_count >= RATIO_EVENTS_MIN and failed_count > self.limits.ratio_max * events_count:
            raise self._exceeded(
                "ratio",
                f"{failed_count} of the last {events_count} events failed, more than {self.limits.ratio_max:.0%}",
            )

    def _check_minute(self, recent: tuple[tuple[float, int, int], ...], now: float) -> None:
        most = self.limits.per_minute_max
        count = sum(failed for at, _, failed in recent if now - at < MINUTE_SECONDS)
        if most is not None and count > most:
            raise self._exceeded("per minute", f"{count} events failed within a minute, more than {most}")

    def _exceeded(self, limit: str, what: str) -> DeadLetterLimit:
        return DeadLetterLimit(
            f"{what} of partition {self.partition}: the handler, or what it needs, is broken",
            partition=self.partition,
            limit=limit,
        )
