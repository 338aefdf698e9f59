"""Everything that a pipeline's TOML file says: its datasets, how it runs, and other options of its stages.

[datasets.raw]
hub = "env:RAW_HUB"

[run]
spark_checkpoints = "./state/telemetry"

[spark]
"spark.sql.shuffle.partitions" = 4

[stages.store]
load_balancing = "fixed:2"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hubline.addresses.did_you_mean import nearest_or_all
from hubline.addresses.store_address import parse_store
from hubline.errors import ConfigError, Problem
from hubline.pipeline.config_file import ConfigReader, TomlFile, read_toml
from hubline.pipeline.datasets import Dataset, read_datasets
from hubline.pipeline.stage_options import CONFIG_KEYS
from hubline.secrets import Secret

DEFAULT_MAX_RESTARTS: Final = 10
"""With pauses that grow from half a second to 30 seconds, a stage waits for some three minutes of an outage."""

_MASTERS: Final = ("local[*]", "local[4]", "spark://HOST:7077", "yarn", "k8s://https://HOST:443")
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|k8s://\S+"
    r"|spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*"
)
_TABLES: Final = ("datasets", "run", "spark", "stages")
_RUN_KEYS: Final = ("spark_checkpoints", "store", "master", "max_restarts")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The tables [run] and [spark]. `spark_checkpoints` is a folder; `store` keeps the checkpoints of all instances."""

    spark_checkpoints: str
    store: str | None = None
    master: str | None = None
    max_restarts: int = DEFAULT_MAX_RESTARTS
    spark: Mapping[str, str | Secret] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Everything that the file says. `stages` has, by stage, the options that replace those of the pipeline."""

    file: TomlFile
    datasets: Mapping[str, Dataset]
    run: RunSettings
    stages: Mapping[str, Mapping[str, Any]]
    broken: frozenset[str] = frozenset()
    """Datasets with problems of their own: stages that name them are not blamed as well."""


def read_config(path: Path, overrides: Mapping[str, str], *, pipeline: str) -> tuple[PipelineConfig, list[Problem]]:
    """The file with the overrides of --set in it, and all that is wrong with it."""
    file, problems = read_toml(path, overrides)
    reader = ConfigReader(file, problems)
    reader.check_keys((), file.data, _TABLES)
    datasets = read_datasets(reader)
    run = _run_settings(reader, pipeline)
    stages = _stages(reader)
    broken = frozenset(reader.table("datasets")) - datasets.keys()
    return PipelineConfig(file, datasets, run, stages, broken), reader.problems


def validate_master(text: str) -> str:
    """Where Spark runs. What it does not know would end its Java at the start, in a stack trace."""
    if _MASTER.fullmatch(text):
        return text
    raise ConfigError(f"Spark knows no master {text[:80]!a}. {nearest_or_all(text, _MASTERS)}")


def _run_settings(reader: ConfigReader, pipeline: str) -> RunSettings:
    table = reader.table("run")
    reader.check_keys(("run",), table, _RUN_KEYS)
    restarts = reader.value(("run", "max_restarts"), table.get("max_restarts", DEFAULT_MAX_RESTARTS), int)
    if restarts is not None and restarts < 0:
        reader.add_problem(("run", "max_restarts"), "max_restarts must be 0 or more", "0 lets a stage fail once only")
    store = reader.text(("run", "store"), table)
    if store is not None:
        reader.parsed(("run", "store"), lambda: parse_store(store))
    master = reader.text(("run", "master"), table)
    if master is not None:
        reader.parsed(("run", "master"), lambda: validate_master(master))
    folder = reader.text(("run", "spark_checkpoints"), table)
    if folder and "://" not in folder and reader.path(("run", "spark_checkpoints"), folder) is None:
        folder = None
    return RunSettings(
        spark_checkpoints=folder or f"./state/{pipeline}",
        store=store,
        master=master,
        max_restarts=restarts or 0,
        spark=_spark_settings(reader),
    )


def _spark_settings(reader: ConfigReader) -> dict[str, str | Secret]:
    settings = reader.settings(("spark",))
    for name in [name for name in settings if not name.startswith("spark.")]:
        reader.add_problem(("spark", name), f"Spark has no setting {name}", f"write its whole name, spark.{name}")
    return settings


def _stages(reader: ConfigReader) -> dict[str, Mapping[str, Any]]:
    stages = reader.table("stages")
    for name, table in stages.items():
        if not isinstance(table, dict):
            fix = f"write [stages.{name}] and its keys below"
            reader.add_problem(("stages", name), "a stage must be a table", fix)
        else:
            reader.check_keys(("stages", name), table, CONFIG_KEYS)
    return {name: table for name, table in stages.items() if isinstance(table, dict)}
