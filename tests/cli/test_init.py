"""``hubline init``: the project that it writes runs as its README says, and nothing is overwritten."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.cli.exit_codes import ExitCode
from hubline.cli.init import Template
from hubline.pipeline.checks import check_file
from hubline.pipeline.runner import Request, run
from tests.cli.conftest import Cli
from tests.pipeline.files import Notes

SECONDS_MAX = 240.0  # Spark takes ten to start, and a busy machine many more
ROWS = [
    "cellar 12.0 53.6",
    "cellar 12.5 54.5",
    "kitchen 20.5 68.9",
    "kitchen 21.0 69.8",
    "kitchen 21.5 70.7",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def commands_of(readme: str) -> list[str]:
    """Those of its first block."""
    return re.findall(r"^\$ (.+)$", readme.partition("```console\n")[2].partition("```")[0], re.MULTILINE)


def prepare(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs the commands before the one that starts the project, and gives the others."""
    create, send, *others = commands_of((folder / "README.md").read_text())
    monkeypatch.chdir(folder)
    for command in (create, send):
        assert cli(*command.split()[1:]).code == ExitCode.OK, command
    return others


def assert_result(cli: Cli, folder: Path, show: str, dead_letters: str) -> None:
    shown = subprocess.run([sys.executable, *show.split()[1:]], cwd=folder, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == ROWS
    listed = cli(*dead_letters.split()[1:])
    assert listed.code == ExitCode.OK
    assert "celsius" in listed.out  # the field that the event lacks


def wait_until_done(cli: Cli, process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    status = ("status", "local:./data/events", "--store", "sqlite:///data/readings.db", "--group", "orders", "--json")
    while (result := cli(*status)).code != ExitCode.OK or result.json["lagEvents"]:
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()  # noqa: PT018
        time.sleep(0.2)


def pytest_of(folder: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_what_it_prints_leads_to_the_result(cli: Cli, folder: Path) -> None:
    result = cli("init", "orders")
    assert result.code == ExitCode.OK
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["README.md", "events.jsonl", "orders.py", "orders.toml", "show_rows.py", "test_orders.py"]
    assert [f"wrote orders/{name}" in result.out for name in written] == [True] * len(written)
    readme = (folder / "README.md").read_text()
    assert result.out.endswith("".join(f"  {each}\n" for each in ["cd orders", *commands_of(readme)]))
    assert "project_name" not in "".join(path.read_text() for path in folder.iterdir())


@pytest.mark.timeout(600)
def test_the_pipeline_runs_at_once_and_so_does_its_test(
    cli: Cli, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a pipeline adds its directory
    cli("init", "orders")
    run_command, show, dead_letters = prepare(cli, folder, monkeypatch)
    assert run_command == "hubline run orders.py --once"
    # As this command does it, but in a session that runs already: another one takes longer than all of this.
    view = Notes()
    assert run(check_file(Path("orders.py")), Request(once=True), spark=spark, view=view)
    report = view.reports["store"]
    assert (report.events, report.dead_letters) == (6, 1)
    assert_result(cli, folder, show, dead_letters)

    monkeypatch.syspath_prepend(folder)
    try:
        importlib.import_module("test_orders").test_readings_become_rows_and_other_events_dead_letters()
    finally:
        sys.modules.pop("test_orders", None)
        sys.modules.pop("orders", None)


@pytest.mark.timeout(600)
def test_the_processor_runs_at_once_and_so_does_its_test(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("init", "orders", "--template", "processor").err == ""  # it lacks nothing
    assert not (folder / "orders.toml").exists()
    run, show, dead_letters = prepare(cli, folder, monkeypatch)
    assert run == "python orders.py"
    said = folder / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen([sys.executable, "orders.py"], cwd=folder, stdout=output, stderr=output)
        try:
            wait_until_done(cli, process, said)
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()
    assert said.read_text().count("fahrenheit") == len(ROWS)
    assert_result(cli, folder, show, dead_letters)
    assert "1 passed" in pytest_of(folder)


@pytest.mark.parametrize("template", Template)
def test_no_file_is_overwritten(cli: Cli, folder: Path, template: Template) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")  # in nobody's way
    (folder / "events.jsonl").write_text("mine")
    result = cli("init", "orders", "--template", template)
    assert result.code == ExitCode.USAGE
    assert "orders/events.jsonl exists already" in result.err
    assert sorted(path.name for path in folder.iterdir()) == ["events.jsonl", "notes.txt"]
    assert (folder / "events.jsonl").read_text() == "mine"

    (folder / "events.jsonl").unlink()
    (folder / "orders.py").symlink_to("nowhere")
    assert "orders/orders.py exists already" in cli("init", "orders", "--template", template).err
    (folder / "orders.py").unlink()
    assert cli("init", "orders", "--template", template).code == ExitCode.OK
    assert "orders/README.md exists already" in cli("init", "orders", "--template", template).err


def test_a_file_in_place_of_the_directory_is_named(cli: Cli, folder: Path) -> None:
    folder.write_text("mine")
    result = cli("init", "orders")
    assert (result.code, folder.read_text()) == (ExitCode.USAGE, "mine")
    assert "orders exists already" in result.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my-pipeline", "Use the characters a-z, 0-9 and '_'"),
        ("../orders", "Use the characters a-z, 0-9 and '_'"),
        ("Orders", "Use the characters a-z, 0-9 and '_'"),
        ("", "is empty"),
        ("a" * 41, "at most 40"),
        ("json", "Choose another NAME"),
        ("hubline", "Choose another NAME"),
        ("pyspark", "Choose another NAME"),
        ("class", "Choose another NAME"),
        ("show_rows", "Choose another NAME"),
    ],
)
def test_a_name_that_would_not_work_is_refused(cli: Cli, tmp_path: Path, name: str, says: str) -> None:
    result = cli("init", name)
    assert result.code == ExitCode.USAGE
    assert says in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["stdin"]


def test_without_a_name_it_is_telemetry(cli: Cli, tmp_path: Path) -> None:
    assert cli("init").code == ExitCode.OK
    assert (tmp_path / "telemetry/telemetry.py").exists()


def test_a_pipeline_without_java_says_what_is_missing_and_what_needs_none(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("hubline.spark.sessions.java._package_folder", lambda: None)
    result = cli("init", "orders")
    assert result.code == ExitCode.OK
    assert "Spark needs Java 17 or later" in result.err
    assert "pip install 'hubline[java]'" in result.err
    assert "hubline init NAME --template processor" in result.err

    monkeypatch.chdir(folder)
    stopped = cli("run", "orders.py", "--once")
    assert stopped.code == ExitCode.USAGE
    assert stopped.err.startswith("hubline: Spark needs Java 17 or later")
    assert not (folder / "data").exists()  # nothing was begun
