"""Shows the progress of a run: as a live table, as lines every few seconds, or as JSON."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hubline.cli.exit_codes import say
from hubline.cli.output import escaped, print_json, seconds_text, stdout_console, table
from hubline.text import counted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hubline.pipeline.plan import Plan
    from hubline.pipeline.progress import StageReport, View

# Without a live table, a line for each stage shows this often that the run continues.
LINE_SECONDS: Final = 10.0
# Messages below the live table: enough to see what led to the last one.
NOTES_SHOWN_MAX: Final = 12
# A narrower table has no column for the time of a batch: figures in millions need the room.
WIDTH_OF_ALL: Final = 72
# Even on a low terminal, the last messages can be read.
NOTE_LINES_MIN: Final = 3
# The head of the table (a heading may take two lines), the line below it, an empty line, and the line of the cursor.
_LINES_AROUND: Final = 5
# The output of Spark while a live table is shown, in the folder of its checkpoints.
LOG_NAME: Final = "spark.log"
# A run of weeks whose database is down may print much more. A larger file is emptied.
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
_STANDARD_ERROR: Final = 2


@contextmanager
def run_view(plan: Plan, *, json: bool) -> Iterator[View]:
    """A live table on a terminal, lines elsewhere, and JSON for programs."""
    console = stdout_console()
    if json:
        yield JsonView()
    elif not sys.stdout.isatty() or console.is_dumb_terminal or _prints_rows(plan):
        yield LineView()
    else:
        from rich.live import Live

        with stderr_in(_log_file(plan)) as log, Live(console=console, auto_refresh=False) as live:
            view = LiveView(console)
            view.refresh = lambda: live.update(view.renderable(), refresh=True)
            view.note(f"the output of Spark is in {log}")
            yield view


def _prints_rows(plan: Plan) -> bool:
    """Whether Java itself prints rows to the terminal: they would tear a live table apart."""
    from hubline.pipeline.datasets import FormatDataset

    return any(isinstance(stage.sink, FormatDataset) and stage.sink.format == "console" for stage in plan.stages)


def _log_file(plan: Plan) -> Path:
    """In the folder of the run's checkpoints, or a temporary file if that is not on this machine or not writable."""
    from hubline.pipeline.plan import is_remote

    if not is_remote(plan.run.spark_checkpoints):
        folder = Path(plan.run.spark_checkpoints).expanduser()
        with suppress(OSError):  # the run itself reports what is wrong with the folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LOG_NAME).touch()
            return folder / LOG_NAME
    return Path(tempfile.gettempdir()) / f"hubline-{plan.name}-{os.getpid()}.log"


@contextmanager
def stderr_in(file: Path) -> Iterator[Path]:
    """Redirects the output of Java and its child processes to the file: it would tear a live table apart."""
    sys.stderr.flush()
    kept = os.dup(_STANDARD_ERROR)
    with file.open("ab") as opened:
        if opened.tell() > LOG_BYTES_MAX:
            opened.truncate(0)
        os.dup2(opened.fileno(), _STANDARD_ERROR)
        try:
            yield file
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STANDARD_ERROR)
            os.close(kept)


class JsonView:
    """One object for each query, about once a second."""

    def show(self, reports: Sequence[StageReport]) -> None:
        for report in reports:
            print_json(_report_data(report))
        sys.stdout.flush()

    def note(self, text: str) -> None:
        say(escaped(text))


class LineView:
    """Messages as they come, and the progress of each stage at an interval."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._has_ended = False

    def show(self, reports: Sequence[StageReport]) -> None:
        is_end = all(report.state in ("done", "stopped", "failed") for report in reports)
        is_due = is_end or time.monotonic() - self._shown_at >= LINE_SECONDS
        if is_due and not self._has_ended:
            self._has_ended = is_end
            self._shown_at = time.monotonic()
            for report in reports:
                say(_report_line(report))

    def note(self, text: str) -> None:
        say(escaped(text))


class LiveView:
    """A table of the stages, with the last messages below it: as many as the terminal has room for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reports: Sequence[StageReport] = ()
        self._notes: list[str] = []
        self.refresh: Callable[[], None] = lambda: None

    def show(self, reports: Sequence[StageReport]) -> None:
        self._reports = reports
        self.refresh()

    def note(self, text: str) -> None:
        self._notes = [*self._notes, f"{time.strftime('%H:%M:%S')}  {escaped(text)}"][-NOTES_SHOWN_MAX:]
        self.refresh()

    def _note_lines(self, room: int) -> list[str]:
        """The newest last, folded to the width of the terminal."""
        width = max(self._console.width - 1, 20)
        lines = [line for note in self._notes for line in textwrap.wrap(note, width, subsequent_indent=" " * 10)]
        return lines[-max(room, NOTE_LINES_MIN) :]

    def renderable(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        is_narrow = self._console.width < WIDTH_OF_ALL
        # Figures that are seldom more than 0 have a column only if they are: a table that does not fit is cut.
        dead = ">dead" if is_narrow else ">dead letters"
        columns = (
            "stage", "state", ">events", ">events/s", ">lag", "?>batch", dead, "?>duplicates", "?>restarts", "?>lost",
        )  # fmt: skip
        rows = [
            (
                each.label,
                each.state,
                each.events,
                round(each.events_per_second),
                each.lag_events,
                None if is_narrow else seconds_text(each.batch_seconds),
                each.dead_letters,
                each.duplicates or None,
                each.restarts or None,
                each.lost_events or None,
            )
            for each in self._reports
        ]
        notes = Text("\n".join(self._note_lines(self._console.height - len(rows) - _LINES_AROUND)))
        if not rows:  # nothing has been started yet
            return notes
        stages = table(columns, rows)
        stages.padding, stages.pad_edge = (0, 1, 0, 0), False
        return Group(stages, Text(""), notes)


def _report_line(report: StageReport) -> str:
    lag = "unknown" if report.lag_events is None else f"{report.lag_events:,}"
    duplicates = f"{counted(report.duplicates, 'duplicate')} dropped, " if report.duplicates else ""
    lost = f", {counted(report.lost_events, 'event')} lost" if report.lost_events else ""
    return (
        f"{report.label}: {report.state}, {counted(report.events, 'event')}, {report.events_per_second:,.0f}/s, "
        f"lag {lag}, batch {seconds_text(report.batch_seconds)}, {counted(report.dead_letters, 'dead letter')}, "
        f"{duplicates}{counted(report.restarts, 'restart')}{lost}"
    )


def _report_data(report: StageReport) -> Mapping[str, object]:
    return {
        "stage": report.name,
        "query": report.query or None,
        "state": report.state,
        "events": report.events,
        "eventsPerSecond": round(report.events_per_second, 1),
        "lagEvents": report.lag_events,
        "batchSeconds": report.batch_seconds,
        "batches": report.batches,
        "rows": report.rows,
        "deadLetters": report.dead_letters,
        "duplicates": report.duplicates,
        "lostEvents": report.lost_events,
        "restarts": report.restarts,
        "error": report.error or None,
    }
