"""How a stage is doing: what its query's progress says, added up."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, Protocol

from hubline.spark.source.offsets import ENDS_KEY, HUB_KEY, gaps_in
from hubline.spark.sql_sink.batch_target import Written
from hubline.text import counted

RATE_SECONDS: Final = 10.0
"""Rates are over this long: shorter ones change with every batch."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """How a stage is doing, or one of its queries: ``query`` is 2/4 then. ``state`` is waiting, running, restarting,
    failed, stopped or done.

    ``rows`` and ``duplicates`` (events that were left out, since they had come before) are known of tables.
    ``lost_events`` were gone before the stage could read them, and were skipped, as ``on_data_loss`` says.
    """

    name: str
    state: str
    query: str = ""
    events: int = 0
    events_per_second: float = 0.0
    lag_events: int | None = None
    batch_seconds: float | None = None
    batches: int = 0
    rows: int = 0
    dead_letters: int = 0
    duplicates: int = 0
    lost_events: int = 0
    restarts: int = 0
    error: str = ""

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.name} {self.query}".rstrip()


class View(Protocol):
    """Who watches a run. Called from the run's own thread."""

    def show(self, reports: Sequence[StageReport]) -> None:
        """About once a second, and at the end."""
        ...

    def note(self, text: str) -> None:
        """Something happened: one line. Shows no secret."""
        ...


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Events that were gone before a batch could read them: where it would have continued, and where it did."""

    hub: str
    partition: str
    reason: str
    next_sequence: int
    first_sequence: int

    @property
    def events(self) -> int:
        """How many are lost to the stage; 0 where the hub is another one, and it went back."""
        return max(self.first_sequence - self.next_sequence, 0)

    def __str__(self) -> str:
        gone = f"{counted(self.events, 'event')} {'is' if self.events == 1 else 'are'} gone"
        what = gone if self.events else "the checkpoint is not this hub's"
        return (
            f"partition {self.partition} of {self.hub}: {what} ({self.reason}), from sequence number "
            f"{self.next_sequence} on; it continues at {self.first_sequence}"
        )


@dataclass(slots=True)
class Tally:
    """What the batches of a stage came to, over all its restarts."""

    events: int = 0
    batches: int = 0
    lost_events: int = 0
    unreported_losses: list[DataLoss] = field(default_factory=list)
    """Those that nobody has taken yet to report them."""
    written: Written = field(default_factory=Written)
    lag_events: int | None = None
    batch_seconds: float | None = None
    _further: int = 0
    _last: tuple[str, ...] = ()
    _history: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, newest_first: Iterable[Mapping[str, Any]], now: float) -> bool:
        """Takes the progress of a query up to what it knows; whether a batch among it got further.

        One that replays what was handled before does not: a stage that looks back does so at each start.
        """
        new = list(takewhile(lambda each: _identity(each) != self._last, newest_first))
        before = self._further
        for each in reversed(new):
            # Without this entry nothing was run: Spark reports from time to time that it is idle.
            if "addBatch" in each["durationMs"]:
                self._add(each)
            self.lag_events = _lag(each["sources"])
        self._last = _identity(new[0]) if new else self._last
        self._remember(now)
        return self._further > before

    def add_written(self, written: Written) -> None:
        """What a batch came to. Called by a thread of its query's, one batch after the other."""
        self.written += written

    def take_unreported_losses(self) -> list[DataLoss]:
        unreported_losses, self.unreported_losses = self.unreported_losses, []
        return unreported_losses

    def rate(self, now: float) -> float:
        if not self._history:
            return 0.0
        since, events = self._history[0]
        return (self.events - events) / max(now - since, 1.0)

    def _add(self, batch: Mapping[str, Any]) -> None:
        self.batches += 1
        # A batch without events, which Spark runs for state when a watermark moves, ends where the one before it did.
        moved = [
            each for each in _hubs(batch["sources"]) if _parsed(each.get("startOffset")) != _parsed(each["endOffset"])
        ]
        ends = [_parsed(source["endOffset"]) for source in moved]
        self.events += sum(map(_read, ends))
        self._further += any(map(_is_new, ends))
        losses = [loss for end in ends for loss in _losses(end)]
        self.lost_events += sum(loss.events for loss in losses)
        self.unreported_losses += losses
        self.batch_seconds = batch["durationMs"].get("triggerExecution", 0) / 1000

    def _remember(self, now: float) -> None:
        self._history.append((now, self.events))
        while len(self._history) > 1 and self._history[1][0] <= now - RATE_SECONDS:
            self._history.popleft()


def _identity(progress: Mapping[str, Any]) -> tuple[str, ...]:
    return progress["runId"], str(progress["batchId"]), progress["timestamp"]


def _hubs(sources: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [source for source in sources if HUB_KEY in _parsed(source.get("endOffset"))]


def _entries(offset: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    return {partition: entry for partition, entry in offset.items() if not partition.startswith("@")}


def _read(offset: Mapping[str, Any]) -> int:
    return sum(entry["to"] - entry["from"] for entry in _entries(offset).values())


def _is_new(offset: Mapping[str, Any]) -> bool:
    """Whether the batch read an event that was not handled before."""
    return any(entry["to"] > max(entry["from"], entry.get("replayed_to", 0)) for entry in _entries(offset).values())


def _losses(offset: Mapping[str, Any]) -> Iterator[DataLoss]:
    for partition, gap in gaps_in(offset).items():
        hub, first_sequence = offset[HUB_KEY].get("name", ""), offset[partition]["from"]
        yield DataLoss(hub, partition, gap.reason, gap.next_sequence, first_sequence)


def _lag(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """Events of the stage's own partitions that are still to be read."""
    lags = []
    for source in _hubs(sources):
        end = _parsed(source.get("endOffset"))
        latest = end[HUB_KEY].get(ENDS_KEY) or {
            key: entry["to"] for key, entry in _entries(_parsed(source.get("latestOffset"))).items()
        }
        own = {key: entry["to"] for key, entry in _entries(end).items() if key in latest and entry.get("held", True)}
        lags.append(sum(max(latest[key] - to, 0) for key, to in own.items()))
    return sum(lags) if lags else None


def _parsed(offset: object) -> Mapping[str, Any]:
    """Spark writes offsets as JSON, or as text that holds JSON."""
    value = json.loads(offset) if isinstance(offset, str) else offset
    return value if isinstance(value, dict) else {}
