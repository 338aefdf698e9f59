"""``hubline plan`` and ``hubline run``: pipelines on Spark."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.cli.arguments import JsonOption, env_variable, option
from hubline.cli.exit_codes import ExitCode
from hubline.cli.output import (
    escaped,
    print_json,
    seconds_text,
    stderr_console,
    stdout_console,
)
from hubline.cli.pipeline_view import LiveView, run_view
from hubline.errors import ConfigError
from hubline.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hubline.pipeline.backfill import Backfill
    from hubline.pipeline.checks import CheckedPlan, Report
    from hubline.pipeline.plan import PlannedStage


PipelineArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PIPELINE",
        envvar=env_variable("pipeline"),
        help="The Python file that defines the pipeline.",
    ),
]
StagesOption = Annotated[
    list[str] | None, option("--stage", "Only this stage. You can give it several times. Default: all.", metavar="NAME")
]
ConfigOption = Annotated[
    Path | None,
    option("--config", "The TOML file with its datasets. Default: PIPELINE with the suffix .toml.", metavar="FILE"),
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
    """Check a pipeline, and show what a run would do.

    The command prints each stage with its guarantees, and everything that a run would create. It checks whether hubs,
    stores and tables exist, but starts and changes nothing. If there are problems, it reports them all, with file and
    line, and exits with 7. A run also checks whether columns and types fit, which only Spark can do.

    \b
    Examples:
      hubline plan telemetry.py
      hubline plan telemetry.py --config production.toml --json
      hubline plan telemetry.py --set datasets.readings.url=env:DATABASE
    """
    _require_spark()
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
        str | None,
        option("--master", "The Spark master: local[4] or spark://HOST:7077. Default: this machine.", metavar="URL"),
    ] = None,
    remote: Annotated[
        str | None,
        option("--remote", "A Spark Connect server to run on: sc://HOST:15002. Default: none.", metavar="URL"),
    ] = None,
    once: Annotated[bool, option("--once", "Process all waiting events, stage after stage, then exit.")] = False,
    backfill: Annotated[
        bool, option("--backfill", "Process a range of old events again with one --stage, into a new table, then exit.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            # HUBLINE_GROUP is the group of other commands, and must not make a run a backfill.
            envvar=env_variable("run-group"),
            help="The backfill's consumer group. Default: STAGE-backfill.",
            metavar="GROUP",
        ),
    ] = None,
    starting_position: Annotated[
        str | None,
        option("--starting-position", "Where the backfill starts. Default: earliest.", metavar="POSITION"),
    ] = None,
    ending_position: Annotated[
        str | None,
        option(
            "--ending-position",
            "The backfill ends before this position. Default: latest. Its first start fixes the end.",
            metavar="POSITION",
        ),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run a pipeline on Spark, until Ctrl-C or SIGTERM.

    A run first makes the same checks as `hubline plan`. If a stage fails, hubline restarts it after a pause, and the
    other stages continue. If a stage keeps failing, hubline stops all stages cleanly and exits with 8.

    On Ctrl-C or SIGTERM, hubline commits the batches in progress and releases its partitions. A second signal does not
    wait for the batches. With --json, hubline prints one object per stage about every second.

    A --backfill runs beside the pipeline, in a consumer group of its own. Run the same command again after a kill: it
    continues from its checkpoints, and ends where the first start said.

    \b
    Examples:
      hubline run telemetry.py
      hubline run telemetry.py --once
      hubline run telemetry.py --config production.toml --master spark://head:7077
      hubline run telemetry.py --remote sc://spark:15002
      hubline run telemetry.py --set stages.store.load_balancing=fixed:2
      hubline run telemetry.py --stage a --backfill --set datasets.rows.table=v2
    """
    _require_spark()
    from hubline.pipeline.runner import Request
    from hubline.pipeline.runner import run as run_pipeline
    from hubline.pipeline.shutdown import signals_to
    from hubline.spark.sessions.launch import require_java

    request = Request(master=master, remote=remote, once=once or backfill)
    if remote is None:
        require_java()  # before anything is created
    wanted = _backfill(stage or [], group, starting_position, ending_position) if backfill else None
    if wanted is None and (group or starting_position or ending_position):
        raise ConfigError("--group, --starting-position and --ending-position are for --backfill. Add it.")
    # As by Ctrl-C, until the run handles signals itself: the first process of a container would ignore SIGTERM.
    with signals_to(signal.default_int_handler, signal.SIGTERM):
        with _progress() as report:
            checked = _checked(pipeline, stage, config, set_, report, wanted)
        with run_view(checked.plan, json=json) as view:
            request = replace(request, keep_spark_log=isinstance(view, LiveView))
            is_done = run_pipeline(checked, request, view=view)
    if request.once and not is_done:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _backfill(stages: Sequence[str], group: str | None, start: str | None, end: str | None) -> Backfill:
    from hubline.pipeline.backfill import DEFAULT_END, DEFAULT_START, Backfill

    if len(stages) != 1:
        raise ConfigError(f"--backfill is for one stage, not {len(stages)}. Name it: --stage NAME.")
    return Backfill(stages[0], group or "", start or DEFAULT_START, end or DEFAULT_END)


def _require_spark() -> None:
    try:
        import hubline.spark  # noqa: F401 - raises an error that says what is missing, and how to get it
    except ImportError as error:
        raise ConfigError(str(error)) from None


def _checked(
    file: Path,
    stages: list[str] | None,
    config: Path | None,
    overrides: list[str] | None,
    report: Report,
    backfill: Backfill | None = None,
) -> CheckedPlan:
    from hubline.pipeline.checks import check_file

    return check_file(
        file, config=config, overrides=_overrides(overrides), stages=stages or [], backfill=backfill, report=report
    )


def _overrides(given: Sequence[str] | None) -> dict[str, str]:
    overrides = {}
    for each in given or ():
        key, separator, value = each.partition("=")
        if not separator or not key:
            raise ConfigError("--set must be KEY=VALUE. Write for example --set datasets.raw.hub=local:./data/raw.")
        overrides[key.strip()] = value.strip()
    return overrides


@contextmanager
def _progress() -> Iterator[Report]:
    """Shows on a terminal what is being checked, and removes it at the end; elsewhere nothing."""
    with stderr_console().status("checking ...") as status:
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
        "queries": stage.options.queries,
        "deadLetters": str(stage.dead_letters) if stage.dead_letters else None,
        "tables": {name: str(dataset) for name, dataset in stage.tables.items()},
        "guarantees": guarantees(stage),
    }
