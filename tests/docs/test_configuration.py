"""Every option, TOML key and environment variable is in the reference, with the default that it has in the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hubline
from hubline.addresses.values import byte_count
from hubline.pipeline import config, datasets
from hubline.pipeline.stage_options import CONFIG_KEYS, CheckedOptions, FrameStageOptions, check_option
from hubline.spark import SqlBatchWriter
from hubline.spark.connector_options import CONNECTOR_NAMES
from hubline.spark.options import SOURCE_OPTIONS, parse_options
from hubline.spark.sessions.java_options import _OPTIONS_VARIABLES

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
NAMES = {name: getattr(hubline, name) for name in hubline.__all__} | {"true": True, "false": False}


def section(page: str, title: str) -> str:
    return (REFERENCE / page).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(page: str, title: str) -> dict[str, str]:
    """The name and the default of each row of the section's first table."""
    lines = section(page, title).partition("|---|")[2].partition("\n\n")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {re.findall(r"`([^`]+)`", row[0])[0]: row[2] for row in rows}


def is_literal(cell: str) -> bool:
    return cell.startswith("`")


def value(cell: str) -> Any:
    """The default as Python has it: of a cell without code, None."""
    return eval(cell.strip("`"), NAMES) if is_literal(cell) else None  # noqa: S307


@pytest.mark.parametrize("options", [hubline.ProcessorOptions, hubline.LeaseOptions, hubline.RetryPolicy])
def test_options_have_their_names_and_defaults(options: Any) -> None:
    rows = table("configuration.md", options.__name__)
    assert list(rows) == [field.name for field in dataclasses.fields(options)]
    for name, cell in rows.items():
        assert options(**{name: value(cell)}) == options(), name


@pytest.mark.parametrize("made", [hubline.Processor, hubline.SqlSink, hubline.Producer, hubline.BufferedProducer])
def test_arguments_have_their_names_and_defaults(made: Callable[..., object]) -> None:
    rows = table("configuration.md", made.__name__)
    parameters = inspect.signature(made).parameters
    assert list(rows) == list(parameters)
    for name, cell in rows.items():
        default = parameters[name].default
        if cell == "required":
            assert default is inspect.Parameter.empty, name
        else:
            given = value(cell)
            assert (byte_count(given) if name.endswith("_bytes") and given else given) == default, name


def test_arguments_of_the_batch_writer_are_its_own_or_the_sinks() -> None:
    rows = table("configuration.md", "SqlSink") | table("configuration.md", "SqlBatchWriter")
    for name, parameter in inspect.signature(SqlBatchWriter).parameters.items():
        expected = inspect.Parameter.empty if rows[name] == "required" else value(rows[name])
        assert parameter.default == expected, name


def test_every_checkpoint_policy_is_there() -> None:
    text = section("configuration.md", "CheckpointPolicy")
    made = {name for name, kind in inspect.getmembers(hubline.CheckpointPolicy, inspect.ismethod)}
    assert set(re.findall(r"CheckpointPolicy\.(\w+)\(", text)) == made


def test_options_of_a_stage_have_their_names_and_defaults() -> None:
    rows = table("pipeline.md", "Stages")
    assert set(rows) == {*FrameStageOptions.__annotations__, "source", "sink", "schema"}
    for name, cell in rows.items():
        if cell != "required":
            assert check_option(name, value(cell)) == getattr(CheckedOptions(), name), name
    excepted = section("pipeline.md", "Stages").partition("can set all but")[2].partition(".")[0]
    assert set(rows) - set(re.findall(r"`(\w+)`", excepted)) == set(CONFIG_KEYS)


def test_keys_of_the_toml_file_are_there() -> None:
    rows = table("datasets.md", "Keys")
    keys = {tuple(name.split(".", 2)) for name in rows}
    of_datasets = {key for group in datasets._KEYS.values() for key in group}
    assert {key[0] for key in keys} == set(config._TABLES)
    assert {key[2] for key in keys if key[0] == "datasets"} == of_datasets
    assert {key[1] for key in keys if key[0] == "run"} == set(config._RUN_KEYS)
    assert value(rows["datasets.NAME.partitions"]) == datasets.DEFAULT_PARTITIONS
    assert value(rows["run.max_restarts"]) == config.DEFAULT_MAX_RESTARTS


@pytest.mark.parametrize(
    ("page", "options"), [("spark-source.md", SOURCE_OPTIONS), ("spark-sink.md", ("hub", "operationTimeout"))]
)
def test_options_of_spark_have_their_names_and_defaults(page: str, options: tuple[str, ...]) -> None:
    rows = table(page, "Options")
    assert list(rows) == list(options)
    required = {"hub": "local:./data/raw", "store": "sqlite:///state.db"}
    for name, cell in rows.items():
        if is_literal(cell):
            assert parse_options({**required, name: value(cell)}) == parse_options(required), name
    brackets = re.findall(r"^\| `(\w+)` \(`([\w.]+)`\)", section(page, "Options"), re.MULTILINE)
    assert dict(brackets) == {name: theirs for name, theirs in CONNECTOR_NAMES.items() if name in rows}


def test_every_environment_variable_is_there() -> None:
    text = section("configuration.md", "Environment variables")
    sources = "\n".join(file.read_text() for file in (ROOT / "src/hubline").rglob("*.py"))
    read = set(re.findall(r"\"(HUBLINE_[A-Z_]+[A-Z])\"", sources))
    read |= set(re.findall(r"environ(?:ment)?\.get\(\"([A-Z_]+)\"", sources))
    assert len(read) > 8
    assert [name for name in sorted({*read, *_OPTIONS_VARIABLES}) if f"`{name}`" not in text] == []
