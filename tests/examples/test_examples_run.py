"""Each example does what its README says: its commands run in a copy of its folder, and their output is compared."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from hubline.addresses.blob_address import EMULATOR_KEY
from hubline.secrets import Secret
from tests.docs.player import POLL_SECONDS, ROOT, VARIABLES, Player, SparkShell
from tests.emulator.serving import serving

EXAMPLES = ROOT / "examples"
SPARK = ("telemetry", "windows", "enrichment", "notebook")
NOT_COPIED = shutil.ignore_patterns("data", "*.md", "__pycache__")
pytestmark = [pytest.mark.timeout(1_200), pytest.mark.xdist_group("spark-shell")]


class Runner:
    """Plays READMEs, and runs Python files with Spark."""

    def __init__(self, folder: Path, spark: Callable[[], SparkShell]) -> None:
        self._folder, self._spark = folder, spark

    def play(self, name: str, services: Mapping[str, str] = {}) -> Path:
        """The folder in which the commands were run."""
        folder = self._folder / name
        if name in SPARK:
            folder = self._spark().folder
            for each in folder.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        shutil.copytree(EXAMPLES / "telemetry", folder.parent / "telemetry", ignore=NOT_COPIED, dirs_exist_ok=True)
        shutil.copytree(EXAMPLES / name, folder, ignore=NOT_COPIED, dirs_exist_ok=True)
        (scratch := self._folder / "scratch").mkdir()
        Player(EXAMPLES / name / "README.md", folder, scratch, services=services, spark=self._spark).play()
        return folder

    def run(self, file: str) -> str:
        """What the file in the folder for Spark printed."""
        (output := self._folder / "output").touch()
        running = self._spark().start(["python", file], {**VARIABLES, "MPLBACKEND": "agg"}, output)
        while (code := running.exit_code()) is None:
            time.sleep(POLL_SECONDS)
        assert code == 0, output.read_text()
        return output.read_text()


@pytest.fixture
def runner(tmp_path: Path, spark_shell: Callable[[], SparkShell]) -> Runner:
    return Runner(tmp_path, spark_shell)


@pytest.mark.parametrize("name", ["exactly-once", "dead-letters", "telemetry", "windows", "enrichment"])
def test_the_example_does_what_its_readme_says(name: str, runner: Runner) -> None:
    runner.play(name)


@pytest.fixture
def in_place_of_azure(tmp_path: Path, postgres_database: Secret, container: str) -> Iterator[dict[str, str]]:
    """The variables of azure.toml, for hubline's own server, PostgreSQL and Azurite."""
    with serving(tmp_path / "served", "--create", "raw:2", "--create", "clean:2", "--create", "averages:2") as server:
        yield {
            **{name.upper(): server.connection_string(name) for name in ("raw", "clean", "averages")},
            "DATABASE": postgres_database.reveal(),
            "STORE": f"{container}?key=env:STORAGE_KEY",
            "STORAGE_KEY": EMULATOR_KEY.reveal(),
        }


def test_the_pipeline_is_planned_for_azure_and_postgresql(runner: Runner, in_place_of_azure: dict[str, str]) -> None:
    runner.play("azure", in_place_of_azure)


@pytest.mark.slow
def test_the_pipeline_runs_between_event_hubs_and_postgresql(runner: Runner, in_place_of_azure: dict[str, str]) -> None:
    folder = runner.play("azure", in_place_of_azure)
    command = ["hubline", "run", "../telemetry/telemetry.py", "--config", "azure.toml", "--once"]
    subprocess.run(command, cwd=folder, env={**os.environ, **VARIABLES, **in_place_of_azure}, check=True)

    with psycopg.connect(in_place_of_azure["DATABASE"]) as connection:
        counts = connection.execute("SELECT count(*), count(DISTINCT id) FROM readings").fetchone()
    assert counts == (991, 991)


def test_the_cells_of_the_notebook_run(runner: Runner) -> None:
    folder = runner.play("notebook")
    cells = json.loads((folder / "readings.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    if importlib.util.find_spec("matplotlib") is None:
        code = [cell for cell in code if "matplotlib" not in cell]
    (folder / "cells.py").write_text("\n".join(code))
    assert not [cell for cell in cells if cell.get("outputs")]

    printed = runner.run("cells.py")

    assert "2000 events, 18 of them malformed" in printed
