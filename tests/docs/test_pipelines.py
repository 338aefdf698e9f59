"""Pipelines in the reference can run as they stand there: they pass all checks that need no Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hubline.cli.app import main
from hubline.pipeline.checks import CheckedPlan, check_file

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DATASETS = """
datasets.raw = { hub = "local:./data/raw" }
datasets.clean = { hub = "local:./data/clean", create_if_missing = true }
datasets.readings = { url = "sqlite:///readings.db", table = "readings", create_if_missing = true }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader stands who has made a hub."""
    monkeypatch.chdir(tmp_path)
    assert main(["hub", "create", "local:./data/raw", "--partitions", "4"]) == 0
    return tmp_path


def planned(folder: Path, code: str, config: str) -> list[str]:
    (folder / "telemetry.py").write_text(code)
    (folder / "telemetry.toml").write_text(config)
    return names(check_file(Path("telemetry.py")))


def names(checked: CheckedPlan) -> list[str]:
    return [stage.name for stage in checked.plan.stages]


def test_references_pipeline_is_one(folder: Path) -> None:
    page = (ROOT / "docs/reference/pipeline.md").read_text()
    whole, joined = PYTHON.findall(page)
    assert planned(folder, whole, DATASETS) == ["ingest", "store"]
    devices = 'datasets.devices = { format = "parquet", path = "./devices" }\n'
    assert planned(folder, whole + joined, DATASETS + devices) == ["ingest", "store", "named"]
