"""A pipeline as it will run: each stage with its datasets and checked options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hubline.pipeline.config import RunSettings
from hubline.pipeline.datasets import FLEETING_FORMATS, Dataset, FormatDataset, HubDataset
from hubline.pipeline.definition import Stage, Where
from hubline.pipeline.graph import StageGraph
from hubline.pipeline.stage_options import CheckedOptions, DuplicatePolicy
from hubline.spark.source.query_share import QueryShare


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage with its datasets. `store` keeps its owners and its progress; None where nothing is kept."""

    stage: Stage
    options: CheckedOptions
    sources: tuple[HubDataset, ...]
    sink: Dataset
    tables: Mapping[str, Dataset]
    dead_letters: HubDataset | None
    store: str | None
    folder: str
    """Spark's own checkpoints of this stage: each of several queries has a folder of its own in it."""
    drop_duplicates: DuplicatePolicy
    """As the options have it, with `auto` decided."""
    is_read_in_order: bool = False
    """Whether a stage that reads what this one writes counts on the order of ids."""
    is_shared_by_default: bool = False
    """Whether instances on several machines may share its partitions, though nobody wrote load_balancing."""
    ending_position: str | None = None
    """Of a backfill: where the range ends that it reads. Otherwise None: a stage reads on."""

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def where(self) -> Where:
        return self.stage.where

    @property
    def queries(self) -> tuple[PlannedQuery, ...]:
        return tuple(PlannedQuery(self, share) for share in QueryShare.of_all(self.options.queries))

    @property
    def outputs(self) -> frozenset[str]:
        """The datasets that it writes, by identity: dead letters are events of a hub like others."""
        return frozenset(dataset.identity for dataset in (self.sink, self.dead_letters) if dataset is not None)

    @property
    def is_new_each_run(self) -> bool:
        """Whether the checkpoint folder of the last run is of no use."""
        return self.is_new_each_start or self.options.checkpoint != "every_batch"

    @property
    def is_new_each_start(self) -> bool:
        """Whether the checkpoint folder is of no use even where a run starts the stage again, after a failure.

        What is on a screen or in memory Spark does not continue with: it refuses a folder that was used.
        """
        is_fleeting = isinstance(self.sink, FormatDataset) and self.sink.format in FLEETING_FORMATS
        return self.options.lookback is not None or is_fleeting


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """One of Spark's queries that a stage runs as: one alone, unless its options say otherwise."""

    stage: PlannedStage
    share: QueryShare

    @property
    def id(self) -> str:
        """Its name for Spark, and in names of files. No stage has a dot in its name."""
        return self.stage.name if self.share.is_alone else f"{self.stage.name}.{self.share.number}"

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.stage.name if self.share.is_alone else f"{self.stage.name} {self.share}"

    @property
    def folder(self) -> str:
        """Spark's own checkpoints of this query."""
        return self.stage.folder if self.share.is_alone else f"{self.stage.folder}/{self.share.number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run. `levels` are the names of stages, those that feed others first."""

    name: str
    file: Path
    stages: tuple[PlannedStage, ...]
    levels: tuple[tuple[str, ...], ...]
    run: RunSettings
    default_store: Path | None
    """The file of the store that a run creates where the configuration names none."""
    store_where: Where
    folder_where: Where


def graph_of(stages: Sequence[PlannedStage], *, with_dead_letters: bool = True) -> StageGraph:
    """How these stages feed each other, by their rows alone or by dead letters, too."""
    return StageGraph(
        {stage.name: frozenset(source.identity for source in stage.sources) for stage in stages},
        {stage.name: stage.outputs if with_dead_letters else frozenset({stage.sink.identity}) for stage in stages},
    )


def is_remote(folder: str) -> bool:
    """Whether a folder is one of a cluster's file system (`abfss://...`), and not of this machine."""
    return "://" in folder


def local_folder(folder: str) -> Path | None:
    """The whole path of a folder; None where it is not of this machine."""
    return None if is_remote(folder) else Path(folder).expanduser().resolve()
