"""Each example does what its README says: its commands run in a copy of its folder, and their output is compared."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from hubline.addresses.blob_address import EMULATOR_KEY
from hubline.secrets import Secret
from tests.docs.player import POLL_SECONDS, ROOT, VARIABLES, Player, SparkShell
from tests.emulator.serving import serving

EXAMPLES = ROOT / "examples"
SPARK = ("telemetry", "windows", "enrichment", "azure", "notebook")
NOT_COPIED = shutil.ignore_patterns("data", "*.md", "__pycache__")
pytestmark = [pytest.mark.timeout(1_200), pytest.mark.xdist_group("examples")]


class Runner:
    """Plays READMEs one after the other. Those with Spark share a folder and a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shell: SparkShell | None = None
        shutil.copytree(EXAMPLES / "telemetry", folder / "telemetry", ignore=NOT_COPIED)

    def play(self, name: str, services: Mapping[str, str] = {}) -> Path:
        """The folder in which the commands were run."""
        folder = self._folder / name
        if name in SPARK:
            folder = self.spark().folder
            for each in folder.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        shutil.copytree(EXAMPLES / name, folder, ignore=NOT_COPIED, dirs_exist_ok=True)
        (scratch := self._folder / f"scratch-{name}").mkdir()
        Player(EXAMPLES / name / "README.md", folder, scratch, services=services, spark=self.spark).play()
        return folder

    def run(self, words: list[str]) -> str:
        """What a command with Spark printed."""
        (output := self._folder / "output").touch()
        running = self.spark().start(words, {**VARIABLES, "MPLBACKEND": "agg"}, output)
        while (code := running.exit_code()) is None:
            time.sleep(POLL_SECONDS)
        assert code == 0, output.read_text()
        return output.read_text()

    def spark(self) -> SparkShell:
        if self._shell is None:
            self._shell = SparkShell(self._folder / "spark")
        return self._shell

    def close(self) -> None:
        if self._shell is not None:
            self._shell.close()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("examples"))
    yield runner
    runner.close()


@pytest.mark.parametrize("name", ["exactly-once", "dead-letters", "telemetry", "windows", "enrichment"])
def test_the_example_does_what_its_readme_says(name: str, runner: Runner) -> None:
    runner.play(name)


def test_the_pipeline_runs_between_event_hubs_and_postgresql(
    runner: Runner, tmp_path: Path, postgres_database: Secret, container: str
) -> None:
    with serving(tmp_path, "--create", "raw:4", "--create", "clean:4", "--create", "averages:4") as server:
        services = {
            **{name.upper(): server.connection_string(name) for name in ("raw", "clean", "averages")},
            "DATABASE": postgres_database.reveal(),
            "STORE": f"{container}?key=env:STORAGE_KEY",
            "STORAGE_KEY": EMULATOR_KEY.reveal(),
        }
        runner.play("azure", services)

    with psycopg.connect(postgres_database.reveal()) as connection:
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

    printed = runner.run(["python", "cells.py"])

    assert "2000 events," in printed
