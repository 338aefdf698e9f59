"""Benchmarks can be named, listed, and read by people and by programs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import harness, last_day, local_hub
from benchmarks.compare import changes, measured
from benchmarks.harness import Result, benchmark, main


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One benchmark that costs nothing, and no others."""
    monkeypatch.setattr(harness, "_benchmarks", {})

    @benchmark("tiny")
    def measure() -> Iterator[Result]:
        yield Result("tiny", 1234.5, "things/s", 0.25, "the limit")
        yield Result("tiny-single", 0.5, "s", 2.0, "a peer")


@pytest.mark.usefixtures("tiny")
def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "--json"]) == 0

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"name": "tiny", "value": 1234.5, "unit": "things/s", "ratio": 0.25, "against": "the limit"}
    assert second["name"] == "tiny-single"


@pytest.mark.usefixtures("tiny")
def test_a_person_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    shown = capsys.readouterr().out
    assert all(word in shown for word in ("tiny", "1,234", "things/s", "0.25", "the limit", "tiny-single", "0.50"))


@pytest.mark.usefixtures("tiny")
def test_an_unknown_name_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "tyni"]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tyni" in captured.err
    assert "tiny" in captured.err


@pytest.mark.usefixtures("tiny")
def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="two benchmarks named tiny"):
        benchmark("tiny")(list)


def test_the_program_lists_its_benchmarks() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    assert {"local-append", "local-read"} <= set(listed.stdout.split())


def test_the_embedded_hub_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_hub, "FOLDER", tmp_path)
    monkeypatch.setattr(local_hub, "EVENT_COUNT", 8_000)
    monkeypatch.setattr(local_hub, "ROUNDS", 1)

    results = [*local_hub.local_append(), *local_hub.local_read()]

    assert [result.name for result in results] == [
        "local-append",
        "local-append-single",
        "local-read",
        "local-read-single",
    ]
    assert all(result.value > 0 and result.ratio > 0 for result in results)
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_takes_the_medians_of_what_both_commits_have() -> None:
    before = {("read", 1): [1.0, 5.0, 2.0], ("gone", 1): [1.0]}
    (change,) = changes(before, {("read", 1): [1.0], ("new", 1): [9.0]})
    assert (change.key, change.before, change.now, change.factor) == (("read", 1), 2.0, 1.0, 0.5)


def test_a_comparison_measures_the_code_of_another_commit(tmp_path: Path) -> None:
    """As far as it can be seen without git: the code that runs is that of the folder."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    result = '{"name": "read", "ratio": %s}'
    (package / "__main__.py").write_text(f"print('{result % 0.5}'); print('{result % 3}')")
    assert list(measured(tmp_path, "read")) == [(("read", 1), 0.5), (("read", 2), 3)]


def test_the_last_day_is_read_and_nothing_before_it(tmp_path: Path) -> None:
    day = last_day.Day(tmp_path, count=16_000, partitions=1)
    asyncio.run(last_day.fill(day))
    assert last_day.bare(day) > 0
    assert last_day.kept(day) > 0  # it counts the events, and looks at their times
