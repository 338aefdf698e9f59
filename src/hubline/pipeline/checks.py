"""Everything that can be known to be wrong before anything is started, told at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hubline.errors import ConfigError, PipelineInvalid, Problem
from hubline.pipeline.datasets import nearest, read_places
from hubline.pipeline.definition import Pipeline
from hubline.pipeline.environment_checks import look
from hubline.pipeline.loading import load
from hubline.pipeline.planning import Plan, planned

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan whose checks found nothing wrong. ``creations`` is what a run would make."""

    plan: Plan
    creations: tuple[str, ...]


def checked_file(
    file: Path,
    *,
    places: Path | str | None = None,
    settings: Mapping[str, str] | None = None,
    stages: Sequence[str] = (),
    tell: Tell = lambda _: None,
) -> Checked:
    """The plan of the pipeline in a file. Raises PipelineInvalid with all problems of it and of its places."""
    tell(f"reading {file}")
    try:
        pipeline = load(file)
    except PipelineInvalid as error:
        # The pipeline cannot be known; its places can, and their problems are told as well.
        path = Path(places) if places is not None else file.absolute().with_suffix(".toml")
        others = read_places(path, settings or {}, pipeline=file.stem)[1] if path.exists() else []
        problems = [*error.problems, *others]
    else:
        return checked(pipeline, places=places, settings=settings or {}, stages=stages, tell=tell)
    raise PipelineInvalid(problems)


def checked(
    pipeline: Pipeline,
    *,
    places: Path | str | None = None,
    settings: Mapping[str, str],
    stages: Sequence[str] = (),
    tell: Tell = lambda _: None,
) -> Checked:
    """The plan of a pipeline, with the chosen stages (all if none is named). Raises PipelineInvalid."""
    path = Path(places) if places is not None else pipeline.places or pipeline.file.with_suffix(".toml")
    read, problems = read_places(path, settings, pipeline=pipeline.name)
    plan, found = planned(pipeline, read)
    problems += found
    _require_known(stages, [stage.name for stage in pipeline.stages])
    plan = _chosen(plan, stages)
    seen = look(plan, plan.stages, tell)
    problems += seen.problems
    if problems:
        raise PipelineInvalid(_in_order(problems))
    return Checked(plan, tuple(seen.creations))


def _require_known(stages: Sequence[str], known: Sequence[str]) -> None:
    for name in stages:
        if name not in known:
            raise ConfigError(f"there is no stage {name!a}: {nearest(name, known)}")


def _chosen(plan: Plan, names: Sequence[str]) -> Plan:
    if not names:
        return plan
    stages = tuple(stage for stage in plan.stages if stage.name in names)
    levels = tuple(kept for level in plan.levels if (kept := tuple(name for name in level if name in names)))
    return replace(plan, stages=stages, levels=levels)


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Once each, by file and line, as people fix them."""
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.file, problem.line))
