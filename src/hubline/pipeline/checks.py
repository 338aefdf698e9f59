"""Everything that can be known to be wrong before anything is started, reported at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hubline.addresses.did_you_mean import nearest_or_all
from hubline.errors import ConfigError, PipelineInvalid, Problem
from hubline.pipeline.backfill import Backfill, for_backfill, require_other_group, with_end
from hubline.pipeline.config import read_config
from hubline.pipeline.definition import Pipeline
from hubline.pipeline.environment_checks import check_environment
from hubline.pipeline.loading import load
from hubline.pipeline.plan import Plan
from hubline.pipeline.planning import build_plan
from hubline.sinks.sql_sink.table_schema import Column

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan whose checks found nothing wrong. `creations` is what a run would create."""

    plan: Plan
    creations: tuple[str, ...]
    tables: Mapping[str, Sequence[Column]]
    """The columns of each table that exists, by dataset."""


def check_file(
    file: Path,
    *,
    config: Path | str | None = None,
    overrides: Mapping[str, str] | None = None,
    stages: Sequence[str] = (),
    backfill: Backfill | None = None,
    report: Report = lambda _: None,
) -> CheckedPlan:
    """The plan of the pipeline in a file. Raises PipelineInvalid with all problems of it and of its configuration."""
    report(f"reading {file}")
    try:
        pipeline = load(file)
    except PipelineInvalid as error:
        # The pipeline cannot be known; its configuration can, and its problems are reported as well.
        path = Path(config) if config is not None else file.absolute().with_suffix(".toml")
        others = read_config(path, overrides or {}, pipeline=file.stem)[1] if path.exists() else []
        problems = [*error.problems, *others]
    else:
        return check_pipeline(
            pipeline, config=config, overrides=overrides or {}, stages=stages, backfill=backfill, report=report
        )
    raise PipelineInvalid(problems)


def check_pipeline(
    pipeline: Pipeline,
    *,
    config: Path | str | None = None,
    overrides: Mapping[str, str],
    stages: Sequence[str] = (),
    backfill: Backfill | None = None,
    report: Report = lambda _: None,
) -> CheckedPlan:
    """The plan of a pipeline, with the chosen stages (all if none is named), or of a backfill of one of them. Raises
    PipelineInvalid."""
    path = Path(config) if config is not None else pipeline.config or pipeline.file.with_suffix(".toml")
    read, problems = read_config(path, overrides, pipeline=pipeline.name)
    stages = [backfill.stage] if backfill else stages
    _require_known(stages, [stage.name for stage in pipeline.stages])
    plan, found = build_plan(pipeline, read)
    if backfill:
        for stage in _chosen(plan, stages).stages:
            require_other_group(backfill, stage.options.consumer_group)
        plan, found = build_plan(pipeline, for_backfill(read, backfill))
    problems += found
    plan = _chosen(plan, stages)
    if backfill:
        plan = replace(plan, stages=tuple(with_end(stage, backfill) for stage in plan.stages))
    environment = check_environment(plan, report)
    problems += environment.problems
    if problems:
        raise PipelineInvalid(_in_order(problems))
    return CheckedPlan(plan, tuple(environment.creations), environment.tables)


def _require_known(stages: Sequence[str], known: Sequence[str]) -> None:
    for name in stages:
        if name not in known:
            raise ConfigError(f"there is no stage {name!a}. {nearest_or_all(name, known)}")


def _chosen(plan: Plan, names: Sequence[str]) -> Plan:
    if not names:
        return plan
    stages = tuple(stage for stage in plan.stages if stage.name in names)
    levels = tuple(kept for level in plan.levels if (kept := tuple(name for name in level if name in names)))
    return replace(plan, stages=stages, levels=levels)


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Once each, by file and line, as people fix them."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.file, problem.line))
