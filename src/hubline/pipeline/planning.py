"""Puts a pipeline together with its datasets, and checks on paper what will run. Opens and connects to nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError
from typing import Final

from hubline.addresses.did_you_mean import nearest_or_all
from hubline.addresses.store_address import MemoryAddress, SqliteAddress, parse_store
from hubline.errors import ConfigError, Problem
from hubline.pipeline.config import PipelineConfig
from hubline.pipeline.datasets import (
    Dataset,
    HubDataset,
    TableDataset,
    anywhere,
)
from hubline.pipeline.definition import Pipeline, Stage, Where
from hubline.pipeline.graph import StageGraph
from hubline.pipeline.plan import Plan, PlannedStage, graph_of, local_folder
from hubline.pipeline.stage_checks import contradictions, function_problem, shared_groups, shared_ids
from hubline.pipeline.stage_options import CONFIG_KEYS, CheckedOptions, check_option
from hubline.secrets import NOT_SHOWN, may_hold_secret, redact

_STAGE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


def build_plan(pipeline: Pipeline, config: PipelineConfig) -> tuple[Plan, list[Problem]]:
    """The pipeline with its datasets, and all that is wrong with it on paper. Opens and connects to nothing."""
    planning = _Planning(pipeline, config)
    planning.check_names()
    stages = [found for stage in pipeline.stages if (found := planning.stage(stage)) is not None]
    rows = graph_of(stages, with_dead_letters=False)
    stages = _with_neighbors(stages, rows)
    planning.check_together(stages, rows)
    levels = planning.levels(stages)
    store, folder = (config.file.where("run", key) for key in ("store", "spark_checkpoints"))
    plan = Plan(pipeline.name, pipeline.file, tuple(stages), levels, config.run, planning.default_store, store, folder)
    return plan, planning.problems


def _with_neighbors(stages: Sequence[PlannedStage], rows: StageGraph) -> list[PlannedStage]:
    """The stages with what depends on those before and after them."""
    decided = {each.name: each for each in (_with_duplicate_policy(stage, stages) for stage in stages)}
    return [replace(each, is_read_in_order=_is_read_in_order(each, decided, rows)) for each in decided.values()]


def _with_duplicate_policy(stage: PlannedStage, stages: Sequence[PlannedStage]) -> PlannedStage:
    """Decides what `auto` is: only ids that a stage of ours gave are sure to be there, and to be ids."""
    if stage.options.drop_duplicates != "auto":
        return stage
    read = {source.identity for source in stage.sources}
    is_fed = any(each.sink.identity in read and each.options.event_ids for each in stages)
    return replace(stage, drop_duplicates="any_order" if is_fed else "off")


def _is_read_in_order(stage: PlannedStage, stages: Mapping[str, PlannedStage], rows: StageGraph) -> bool:
    """Whether a stage after it counts on the order of ids, which stages in between hand on."""
    reached: set[str] = set()
    waiting = [stage.name]
    while waiting:
        after = rows.fed_by(waiting.pop())
        waiting += [name for name in after if name not in reached and stages[name].options.event_ids]
        reached.update(after)
    return any(stages[name].drop_duplicates == "ordered" for name in reached)


class _Planning:
    """Puts stages and datasets together, and collects what does not fit."""

    def __init__(self, pipeline: Pipeline, config: PipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self.problems: list[Problem] = []
        folder = local_folder(config.run.spark_checkpoints)
        self.default_store = folder / "checkpoints.db" if config.run.store is None and folder else None
        self.store = config.run.store or (f"sqlite:///{self.default_store}" if self.default_store else None)

    def check_names(self) -> None:
        pipeline = self._pipeline
        if not pipeline.stages:
            self.add_problem(pipeline.where, "the pipeline has no stages", "write functions under @pipeline.stage(...)")
        names = [stage.name for stage in pipeline.stages]
        for stage in pipeline.stages:
            if not _STAGE_NAME.fullmatch(stage.name):
                rule = "use letters, digits, '-' and '_', 63 at most"
                self.add_problem(stage.where, f"a stage cannot be named {stage.name[:80]!a}", rule)
        for stage in {stage.name: stage for stage in pipeline.stages if names.count(stage.name) > 1}.values():
            self.add_problem(stage.where, f"there are two stages {stage.name}", "give one another name=...")
        for name in self._config.stages.keys() - set(names):
            where = self._config.file.where("stages", name)
            self.add_problem(where, f"there is no stage {name}", nearest_or_all(name, names))
        self._check_overridden_datasets()

    def _check_overridden_datasets(self) -> None:
        used = {name for stage in self._pipeline.stages for name in self._named_datasets(stage)}
        for path in self._config.file.overridden:
            if path[0] == "datasets" and path[1] not in used:
                known = [each for each in used if not may_hold_secret(each)]
                where = self._config.file.where(*path)
                self.add_problem(where, f"no stage uses a dataset {path[1]}", nearest_or_all(path[1], known))

    def _named_datasets(self, stage: Stage) -> Iterator[str]:
        yield from (*stage.sources, stage.sink, *stage.tables)
        if isinstance(name := self._given(stage).get("dead_letters"), str):
            yield name

    def stage(self, stage: Stage) -> PlannedStage | None:
        """None if a dataset is missing or an option is wrong: then there is nothing more to say about it."""
        options = self._options(stage)
        sources = [self._hub(stage, name, "source", stage.where) for name in stage.sources]
        sink = self._dataset(stage, stage.sink, "sink", stage.where)
        tables = {
            name: self._dataset(stage, name, "a parameter of the function", stage.where) for name in self._tables(stage)
        }
        dead_letters = self._dead_letters(stage, sink)
        if options is None or sink is None:
            return None
        store = self._store_of(stage, sink, options)
        for names, message, fix in contradictions(stage, sink, options):
            self.add_problem(self._where(stage, *names), f"stage {stage.name}: {message}", fix)
        hubs = tuple(hub for hub in sources if hub is not None)
        if not hubs or len(hubs) != len(sources):
            return None
        self._check_sources(stage, hubs, sink)
        found = {name: dataset for name, dataset in tables.items() if dataset is not None}
        folder = self._folder(stage)
        return PlannedStage(
            stage,
            options,
            hubs,
            sink,
            found,
            dead_letters,
            store,
            folder,
            options.drop_duplicates,
            is_shared_by_default=self._is_shared_by_default(stage, options, store),
        )

    def check_together(self, stages: Sequence[PlannedStage], rows: StageGraph) -> None:
        for stage, message in shared_groups(stages):
            fix = "give one of them another consumer_group=..."
            self.add_problem(self._where(stage.stage, "consumer_group"), message, fix)
        for stage, message in shared_ids(stages, rows):
            self.add_problem(stage.where, message, "let one write another hub, or write event_ids=False")

    def levels(self, stages: Sequence[PlannedStage]) -> tuple[tuple[str, ...], ...]:
        """By the hubs themselves: two names may stand for one hub."""
        graph = graph_of(stages)
        try:
            return graph.levels()
        except CycleError:
            cycle = graph.cycle()
        fix = "let one of them write somewhere else, because its events (or dead letters) come back to it forever"
        first = next(stage for stage in stages if stage.name == cycle[0])
        self.add_problem(first.where, f"the stages form a cycle ({' -> '.join(cycle)})", fix)
        return ()

    # Datasets

    def _dataset(self, stage: Stage, name: str, role: str, where: Where) -> Dataset | None:
        dataset = self._config.datasets.get(name)
        if dataset is None and self._config.file.is_toml and name not in self._config.broken:
            file = self._config.file.file
            fix = f"{nearest_or_all(name, self._config.datasets)} To add it, write a table [datasets.{name}] in {file}."
            if may_hold_secret(name):
                name = NOT_SHOWN
                fix = f"give it a name, and write its address under [datasets.NAME] in {file}, as env:VARIABLE"
            self.add_problem(where, f"stage {stage.name}: there is no dataset {name} ({role})", fix)
        return dataset

    def _hub(self, stage: Stage, name: str, role: str, where: Where) -> HubDataset | None:
        dataset = self._dataset(stage, name, role, where)
        if dataset is not None and not isinstance(dataset, HubDataset):
            fix = "name a hub as the source; to join a table or a file, add a parameter with its name to the function"
            self.add_problem(where, f"stage {stage.name}: {name} is {dataset}, not a hub", fix)
            return None
        return dataset

    def _dead_letters(self, stage: Stage, sink: Dataset | None) -> HubDataset | None:
        name = self._given(stage).get("dead_letters")
        if not isinstance(name, str):
            return None
        where = self._where(stage, "dead_letters")
        if isinstance(sink, TableDataset):
            if name != stage.sink:
                fix = "leave dead_letters out: they are kept beside the rows, in one transaction with them"
                self.add_problem(where, f"stage {stage.name}: dead letters of a table go into its database", fix)
            return None
        return self._hub(stage, name, "dead_letters", where)

    def _tables(self, stage: Stage) -> tuple[str, ...]:
        message, fix = function_problem(stage)
        if message:
            self.add_problem(stage.where, f"stage {stage.name}: its function {message}", fix)
            return ()
        return stage.tables

    def _check_sources(self, stage: Stage, sources: Sequence[HubDataset], sink: Dataset) -> None:
        if len(sources) > 1 and isinstance(sink, TableDataset):
            fix = "write to a hub, and store from there in a second stage: a table's checkpoint is of one hub"
            self.add_problem(stage.where, f"stage {stage.name}: a table takes the rows of one source", fix)
        if len({source.identity for source in sources}) < len(sources):
            fix = "name each hub once, and use its events twice"
            self.add_problem(stage.where, f"stage {stage.name}: it reads one hub twice", fix)

    def _folder(self, stage: Stage) -> str:
        parent = self._config.run.spark_checkpoints
        folder = local_folder(parent)
        return f"{parent.rstrip('/')}/{stage.name}" if folder is None else str(folder / stage.name)

    # Options

    def _given(self, stage: Stage) -> Mapping[str, object]:
        """The options of the decorator, and in their place those of [stages.NAME]."""
        given = self._config.stages.get(stage.name, {})
        return {**stage.options, **{name: given[name] for name in CONFIG_KEYS if name in given}}

    def _where(self, stage: Stage, *options: str) -> Where:
        """Where the options were given: in the configuration or by --set, or else in the decorator."""
        for name in options:
            if name in self._config.stages.get(stage.name, {}):
                return self._config.file.where("stages", stage.name, name)
        return stage.where

    def _options(self, stage: Stage) -> CheckedOptions | None:
        """None if one of them is wrong."""
        checked = {}
        before = len(self.problems)
        for name, value in self._given(stage).items():
            try:
                checked[name] = check_option(name, value)
            except (ConfigError, TypeError, ValueError) as error:
                problem = f"stage {stage.name}: {name}: {redact(str(error))}"
                self.add_problem(self._where(stage, name), problem)
        return CheckedOptions(**checked) if len(self.problems) == before else None

    def _store_of(self, stage: Stage, sink: Dataset, options: CheckedOptions) -> str | None:
        if options.checkpoint == "never" and not options.has_owners:
            return None
        if isinstance(sink, TableDataset):
            return sink.text  # one truth: the rows and their checkpoint commit together
        if self.store is None:
            where = self._config.file.where("run", "spark_checkpoints")
            fix = 'add store = "postgresql://..." to [run]: owners and progress are kept there'
            message = f"stage {stage.name} needs a store, as Spark's checkpoints are not on this machine"
            self.add_problem(where, message, fix)
            return None
        try:
            address = parse_store(self.store)
        except ConfigError:
            return None  # reported where the file was read
        if isinstance(address, MemoryAddress):
            where = self._config.file.where("run", "store")
            self.add_problem(where, "memory: is for one process, and Spark runs many", "use sqlite:///PATH")
        return anywhere(self.store)

    def _is_shared_by_default(self, stage: Stage, options: CheckedOptions, store: str | None) -> bool:
        if store is None or not options.has_owners or "load_balancing" in self._given(stage):
            return False
        return not isinstance(parse_store(store), SqliteAddress)  # which is for the instances of one machine

    def add_problem(self, where: Where, message: str, fix: str = "") -> None:
        self.problems.append(Problem(where.file, where.line, message, fix))
