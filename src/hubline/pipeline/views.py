"""Who watches a run: the log where nobody does, and a guard for a view whose reader may go away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from hubline.pipeline.progress import StageReport, View

log = logging.getLogger("hubline.pipeline")

T = TypeVar("T")

WARNINGS: Final = (": failed", ": data loss")
"""What people want to know of a run, also where they watch nothing."""


class LogView:
    """For runs that nobody watches: what happens is logged."""

    def show(self, reports: Sequence[StageReport]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        # Without any set-up of logging, Python shows warnings.
        log.log(logging.WARNING if any(each in text for each in WARNINGS) else logging.INFO, text)


class GuardedView:
    """A view, until its reader closes the output: then the run ends, as by a signal, and reports no more."""

    def __init__(self, view: View, stopping: threading.Event) -> None:
        self._view = view
        self._stopping = stopping
        self.closed_by: BrokenPipeError | None = None

    @property
    def is_closed(self) -> bool:
        return self.closed_by is not None

    def show(self, reports: Sequence[StageReport]) -> None:
        self._pass_on(self._view.show, reports)

    def note(self, text: str) -> None:
        self._pass_on(self._view.note, text)

    def _pass_on(self, call: Callable[[T], None], value: T) -> None:
        if self.closed_by is None:
            try:
                call(value)
            except BrokenPipeError as error:
                self.closed_by = error
                self._stopping.set()
