"""``hubline plan`` and ``hubline run``: pipelines on Spark."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.cli.arguments import JsonOption, env_twin, option
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import (
    escaped,
    print_json,
    seconds_text,
    stderr_console,
    stdout_console,
    table,
)
from hubline.errors import ConfigError, PipelineInvalid
from hubline.text import counted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hubline.errors import Problem
    from hubline.pipeline.checks import CheckedPlan, Report
    from hubline.pipeline.planning import Plan, PlannedStage
    from hubline.pipeline.progress import StageReport, View

# Where nobody sees a view that lives, a line now and then shows that it does.
LINE_SECONDS: Final = 10.0
# What is shown below the live table: enough to see what led to the last.
NOTES_SHOWN_MAX: Final = 12
# Below that, the time that a batch takes is left out: figures in millions take their room.
WIDTH_OF_ALL: Final = 72
# However low a terminal is, what happened last can be read.
NOTE_LINES_MIN: Final = 3
# The head of the table (a heading may take two lines), the line below it, an empty one, and the one of the cursor.
_LINES_AROUND: Final = 5
# What Spark prints while a live table is shown, in the folder of its checkpoints.
LOG_NAME: Final = "spark.log"
# A run of weeks whose database is away may print a lot; what is older than that is in the way.
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
_STANDARD_ERROR: Final = 2

PipelineArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PIPELINE", envvar=env_twin("pipeline"), help="The Python file that defines it: hubline.Pipeline(...)."
    ),
]
StagesOption = Annotated[
    list[str] | None, option("--stage", "Only this stage; may be given several times. Default: all.", metavar="NAME")
]
ConfigOption = Annotated[
    Path | None,
    option("--config", "The TOML file of its datasets. Default: beside it, with the same name.", metavar="FILE"),
]
SetOption = Annotated[
    list[str] | None,
    option("--set", "Override a value of the TOML file, such as datasets.raw.hub=ADDRESS.", metavar="KEY=VALUE"),
]


def plan(
    pipeline: PipelineArgument,
    stage: StagesOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Check a pipeline, and print its stages, what each guarantees, and what a run would create.

    Starts nothing and changes nothing. Looks whether hubs, stores and tables exist. It reports all problems at once,
    with file and line, and exits with 7. A run also checks what only Spark can know: whether columns and types fit.

    \b
    Examples:
      hubline plan telemetry.py
      hubline plan telemetry.py --config production.toml --json
      hubline plan telemetry.py --stage store --set datasets.readings.url=env:DATABASE
    """
    with _progress() as report:
        checked = _checked(pipeline, stage, config, set_, report)
    if json:
        for each in checked.plan.stages:
            print_json(_stage_data(each))
        print_json({"creates": list(checked.creations)})
    else:
        stdout_console().print(_plan_view(checked))


def run(
    pipeline: PipelineArgument,
    stage: StagesOption = None,
    master: Annotated[
        str | None, option("--master", "Where Spark runs: local[4], spark://HOST:7077. Default: here.", metavar="URL")
    ] = None,
    once: Annotated[bool, option("--once", "Do all that is there, stage after stage, and end.")] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run a pipeline on Spark, until Ctrl-C or SIGTERM; with --once, until all that is there is done.

    Everything is checked first. A stage that fails is started again, after a pause that grows, while the others go on;
    when it keeps failing, all stages stop cleanly, and the exit code is 8. At a signal, batches in progress commit and
    partitions are released; a second signal does not wait for batches. With --json, it prints one object a second for
    each stage.

    \b
    Examples:
      hubline run telemetry.py
      hubline run telemetry.py --once
      hubline run telemetry.py --stage store --master 'local[2]' --set stages.store.load_balancing=fixed:2
      hubline run telemetry.py --config production.toml --master spark://head:7077
    """
    _require_spark()
    from hubline.pipeline.runner import Request, signals_to
    from hubline.pipeline.runner import run as run_pipeline

    request = Request(master=master, once=once)
    # As by Ctrl-C, while the run has no way of its own to end: a container's first process would not hear it.
    with signals_to(signal.default_int_handler, signal.SIGTERM):
        with _progress() as report:
            checked = _checked(pipeline, stage, config, set_, report)
        with _view(checked.plan, json=json) as view:
            try:
                is_done = run_pipeline(checked, request, view=view)
            except PipelineInvalid as error:
                problems = error.problems
            else:
                problems = ()
    if problems:
        _report_problems(problems)
    if once and not is_done:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _require_spark() -> None:
    try:
        import hubline.spark  # noqa: F401 - says what is missing, and how to get it
    except ImportError as error:
        raise ConfigError(str(error)) from None


def _checked(
    file: Path, stages: list[str] | None, config: Path | None, overrides: list[str] | None, report: Report
) -> CheckedPlan:
    from hubline.pipeline.checks import check_file

    try:
        return check_file(file, config=config, overrides=_overrides(overrides), stages=stages or [], report=report)
    except PipelineInvalid as error:
        problems = error.problems
    return _report_problems(problems)


def _overrides(given: Sequence[str] | None) -> dict[str, str]:
    overrides = {}
    for each in given or ():
        key, separator, value = each.partition("=")
        if not separator or not key:
            raise ConfigError("--set takes KEY=VALUE, for instance --set datasets.raw.hub=local:./data/raw")
        overrides[key.strip()] = value.strip()
    return overrides


def _report_problems(problems: Sequence[Problem]) -> CheckedPlan:
    for problem in problems:
        say(escaped(str(problem)))
    say(f"hubline: {counted(len(problems), 'problem')}: nothing was started")
    raise typer.Exit(ExitCode.CHECKS_FAILED)


@contextmanager
def _progress() -> Iterator[Report]:
    """Shows on a terminal what is being checked, and removes it at the end; elsewhere nothing."""
    with stderr_console().status("looking ...") as status:
        yield lambda what: status.update(f"{escaped(what)} ...")


# The plan ----------------------------------------------------------------------------------------------------------


def _plan_view(checked: CheckedPlan) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from hubline.pipeline.guarantees import guarantees

    lines = [f"pipeline {checked.plan.name}: {counted(len(checked.plan.stages), 'stage')}"]
    for stage in checked.plan.stages:
        sources = ", ".join(map(str, stage.sources))
        lines += ["", f"{stage.name}: {sources} -> {stage.sink}", f"  {_reading(stage)}"]
        lines += [f"  {each}" for each in guarantees(stage)]
        lines += [f"  joins {name}: {dataset}" for name, dataset in stage.tables.items()]
    lines += ["", "creates:" if checked.creations else "creates nothing"]
    lines += [f"  {each}" for each in checked.creations]
    return Group(*(Text(escaped(line)) for line in lines))


def _reading(stage: PlannedStage) -> str:
    options = stage.options
    every = seconds_text(options.trigger_interval / 1000)
    return (
        f"consumer group {options.consumer_group}, a batch every {every}, of "
        f"{counted(options.max_batch_size, 'event')} at most, from {options.starting_position}"
    )


def _stage_data(stage: PlannedStage) -> dict[str, object]:
    from hubline.pipeline.guarantees import guarantees

    return {
        "stage": stage.name,
        "sources": [str(source) for source in stage.sources],
        "sink": str(stage.sink),
        "consumerGroup": stage.options.consumer_group,
        "loadBalancing": stage.options.load_balancing,
        "startingPosition": stage.options.starting_position,
        "checkpoint": stage.options.checkpoint,
        "lookback": stage.options.lookback,
        "onDataLoss": stage.options.on_data_loss,
        "maxBatchSize": stage.options.max_batch_size,
        "triggerIntervalSeconds": stage.options.trigger_interval / 1000,
        "deadLetters": str(stage.dead_letters) if stage.dead_letters else None,
        "tables": {name: str(dataset) for name, dataset in stage.tables.items()},
        "guarantees": guarantees(stage),
    }


# The run -----------------------------------------------------------------------------------------------------------


@contextmanager
def _view(plan: Plan, *, json: bool) -> Iterator[View]:
    """A table that lives on a terminal; elsewhere a line now and then; for programs JSON."""
    console = stdout_console()
    if json:
        yield _JsonView()
    elif not sys.stdout.isatty() or console.is_dumb_terminal or _prints_rows(plan):
        yield _LineView()
    else:
        from rich.live import Live

        with _errors_in(_log_file(plan)) as log, Live(console=console, auto_refresh=False) as live:
            view = _LiveView(console)
            view.refresh = lambda: live.update(view.renderable(), refresh=True)
            view.note(f"what Spark prints goes to {log}")
            yield view


def _prints_rows(plan: Plan) -> bool:
    """Whether Java itself prints to the terminal: rows and a live table do not go together."""
    from hubline.pipeline.datasets import FormatDataset

    return any(isinstance(stage.sink, FormatDataset) and stage.sink.format == "console" for stage in plan.stages)


def _log_file(plan: Plan) -> Path:
    """Beside the state of the run; among temporary files where that is not on this machine, or not writable."""
    from hubline.pipeline.planning import is_remote

    if not is_remote(plan.run.spark_checkpoints):
        folder = Path(plan.run.spark_checkpoints).expanduser()
        with suppress(OSError):  # the run itself tells what is wrong with the folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LOG_NAME).touch()
            return folder / LOG_NAME
    return Path(tempfile.gettempdir()) / f"hubline-{plan.name}-{os.getpid()}.log"


@contextmanager
def _errors_in(file: Path) -> Iterator[Path]:
    """What Java and the processes below it print goes to the file: it would tear a live table apart."""
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


class _JsonView:
    """One object for each stage, about once a second."""

    def show(self, reports: Sequence[StageReport]) -> None:
        for report in reports:
            print_json(_report_data(report))
        sys.stdout.flush()

    def note(self, text: str) -> None:
        say(escaped(text))


class _LineView:
    """What happens, and now and then how it goes."""

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


class _LiveView:
    """A table of the stages, with what happened below it: as much of that as the terminal has room for."""

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
        """The newest last, folded as the terminal is wide."""
        width = max(self._console.width - 1, 20)
        lines = [line for note in self._notes for line in textwrap.wrap(note, width, subsequent_indent=" " * 10)]
        return lines[-max(room, NOTE_LINES_MIN) :]

    def renderable(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        is_narrow = self._console.width < WIDTH_OF_ALL
        # What is seldom more than nothing has a column only then: a table that does not fit is cut.
        dead = ">dead" if is_narrow else ">dead letters"
        columns = (
            "stage", "state", ">events", ">events/s", ">lag", "?>batch", dead, "?>duplicates", "?>restarts", "?>lost",
        )  # fmt: skip
        rows = [
            (
                each.name,
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
    duplicates = f"{counted(report.duplicates, 'duplicate')} left out, " if report.duplicates else ""
    lost = f", {counted(report.lost_events, 'event')} lost" if report.lost_events else ""
    return (
        f"{report.name}: {report.state}, {counted(report.events, 'event')}, {report.events_per_second:,.0f}/s, "
        f"lag {lag}, batch {seconds_text(report.batch_seconds)}, {counted(report.dead_letters, 'dead letter')}, "
        f"{duplicates}{counted(report.restarts, 'restart')}{lost}"
    )


def _report_data(report: StageReport) -> Mapping[str, object]:
    return {
        "stage": report.name,
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
