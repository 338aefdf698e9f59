"""Pipelines in the reference can run as they stand there: they pass all checks that need no Spark."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections import Counter
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


def test_tutorials_generator_sends_new_readings_each_time_as_many_as_the_page_says(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = ROOT / "examples/telemetry"
    for _ in range(2):
        command = [sys.executable, str(example / "readings.py"), "local:./data/raw", "--count", "2000"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == "sent 2,000 events: 1,976 readings, 18 that do not parse, 6 sent twice\n"
    capfd.readouterr()
    assert main(["tail", "local:./data/raw", "--no-follow", "--json"]) == 0
    sent = Counter(json.loads(line)["properties"]["hubline-id"] for line in capfd.readouterr().out.splitlines())
    assert (sent.total(), len(sent)) == (4000, 2 * (1976 + 18))

    monkeypatch.syspath_prepend(example)
    events = Counter((each.number, each.id) for each in importlib.import_module("readings").readings(100_000))
    once = Counter("rows" if name else "dead letters" for _, name in events)
    said = (
        f"{once['rows']:,} readings, {once['dead letters']:,} that do not parse, {100_000 - len(events):,} sent twice"
    )
    assert said in (ROOT / "docs/tutorials/three-stages.md").read_text()


def test_references_pipeline_is_one(folder: Path) -> None:
    page = (ROOT / "docs/reference/pipeline.md").read_text()
    whole, joined = PYTHON.findall(page)
    assert planned(folder, whole, DATASETS) == ["ingest", "store"]
    devices = 'datasets.devices = { format = "parquet", path = "./devices" }\n'
    assert planned(folder, whole + joined, DATASETS + devices) == ["ingest", "store", "named"]
