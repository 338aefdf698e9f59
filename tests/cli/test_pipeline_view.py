"""What people see of a run: a table that fits their terminal, and nothing of what Java prints in between."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from hubline.cli.pipeline_view import JsonView, LineView, LiveView, stderr_in
from hubline.pipeline.progress import StageReport

REPORTS = (
    StageReport(
        "ingest", "running", events=12_345_678, events_per_second=98_765, lag_events=1_234_567, batch_seconds=2
    ),
    StageReport("store", "restarting", events=1_000, batch_seconds=0.5, dead_letters=12),
)


def drawn(view: LiveView, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(view.renderable())
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_and_notes_fit_the_terminal_and_no_figure_is_cut(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=24)
    view = LiveView(console)
    view.show(REPORTS)
    for number in range(20):
        view.note(f"store: failed, starts again in 1.0 s: number {number} " + "of many words " * 12)
    lines = drawn(view, console)

    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert all(each in "".join(lines) for each in ("12,345,678", "98,765", "1,234,567", "restarting", "number 19"))


def test_duplicates_restarts_and_lost_events_have_columns_where_there_are_some() -> None:
    console = Console(file=io.StringIO(), width=100, height=24)
    view = LiveView(console)
    view.show(REPORTS)
    assert "restarts" not in drawn(view, console)[0]
    view.show([StageReport("store", "running", duplicates=1, restarts=2, lost_events=3)])
    assert drawn(view, console)[0].split()[-3:] == ["duplicates", "restarts", "lost"]


def test_each_query_of_a_stage_has_a_row_a_line_and_an_object_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [StageReport("store", "done", query=f"{number}/2", events=number) for number in (1, 2)]
    console = Console(file=io.StringIO(), width=60, height=24)
    view = LiveView(console)
    view.show(reports)
    LineView().show(reports)
    JsonView().show([*reports, *REPORTS])

    shown = capsys.readouterr()
    assert [line.split()[:4] for line in drawn(view, console)[2:4]] == [
        ["store", "1/2", "done", "1"],
        ["store", "2/2", "done", "2"],
    ]
    assert [line.partition(",")[0] for line in shown.err.splitlines()] == ["store 1/2: done", "store 2/2: done"]
    objects = [json.loads(line) for line in shown.out.splitlines()]
    assert [(each["stage"], each["query"]) for each in objects] == [
        ("store", "1/2"),
        ("store", "2/2"),
        ("ingest", None),
        ("store", None),
    ]


def test_lines_report_duplicates_and_lost_events(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView()
    for _ in range(2):  # once when the last stage is over, and once at the end of the run
        view.show([StageReport("store", "done", events=2, duplicates=7, lost_events=1_000)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("7 duplicates dropped, 0 restarts, 1,000 events lost")


def test_what_is_printed_below_a_live_table_is_in_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stderr_in(tmp_path / "spark.log"):
        os.write(2, b"of Java\n")
    os.write(2, b"afterwards\n")
    assert (tmp_path / "spark.log").read_bytes() == b"of Java\n"
    assert capfd.readouterr().err == "afterwards\n"
