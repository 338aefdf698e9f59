"""How far the events of a partition are handled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hubline.model.events import Event, EventBatch
from hubline.processor.handlers.event_run import EventRun

Place = tuple[str, int]
"""An offset and a sequence number."""


class HandledProgress:
    """The last event that is handled since the session began, and how many were since the last checkpoint.

    While a run of events is on its way through its handler, they count one by one as the handler returns, without a
    call for each.
    """

    def __init__(self) -> None:
        self._events = 0
        self._events_checkpointed = 0
        self._place: Place | None = None
        self._run: EventRun | None = None
        self._counted = 0  # of the run's events

    @property
    def place(self) -> Place | None:
        """The last event that is handled. Any thread may ask."""
        run = self._run
        return (None if run is None else _place_in(run, run.done)) or self._place

    @property
    def events(self) -> int:
        """Events that are handled."""
        run = self._run
        return self._events + (0 if run is None else run.done - self._counted)

    @property
    def events_since(self) -> int:
        """Events handled after the last checkpoint. While there is a run, as of `catch_up`."""
        return self._events - self._events_checkpointed

    def mark(self, given: EventBatch | Event) -> bool:
        """What was given to a handler is done, or is a dead letter. Returns whether there was anything."""
        if (place := place_after(given)) is None:
            return False
        self._place = place
        self._events += len(given) if isinstance(given, EventBatch) else 1
        return True

    @contextmanager
    def following(self, run: EventRun) -> Iterator[None]:
        """Within, the run's events count as they are done."""
        self._run, self._counted = run, run.done
        try:
            yield
        finally:
            self.catch_up()
            self._run = None

    def catch_up(self) -> None:
        """Counts what the run has done by now."""
        if self._run is not None:
            done = self._run.done  # once: its thread may be counting on
            self._events += done - self._counted
            self._counted = done
            self._place = _place_in(self._run, done) or self._place

    def checkpoint_written(self) -> None:
        """Counts from here."""
        self.catch_up()
        self._events_checkpointed = self._events


def place_after(given: EventBatch | Event) -> Place | None:
    """Where the checkpoint stands once these events are done. None for a heartbeat."""
    if isinstance(given, Event):
        return given.offset, given.sequence_number
    return (given.last_offset, given.last_sequence) if len(given) else None


def _place_in(run: EventRun, done: int) -> Place | None:
    return place_after(run.events[done - 1]) if done else None
