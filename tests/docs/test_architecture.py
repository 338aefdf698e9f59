"""The page that draws an event's ways through the code names files that are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/contributing/architecture.md").read_text()
FILE = re.compile(r"`([\w.-]*/[\w./-]*|\w+\.py)`")
WALKS = re.findall(r"^### [A-C]\. (.+?)\n(.*?)(?=^##)", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_each_file_that_the_page_names_is_there() -> None:
    named = set(FILE.findall(PAGE))
    assert len(named) > 100
    assert [
        name for name in sorted(named) if not any((top / name).exists() for top in (ROOT, ROOT / "src/hubline"))
    ] == []


@pytest.mark.parametrize(("title", "text"), WALKS, ids=[title for title, _ in WALKS])
def test_a_walk_enters_no_file_twice(title: str, text: str) -> None:
    steps = [line for line in text.splitlines() if re.match(r"\d+\.", line)]
    again = [file for file, count in Counter(FILE.findall("\n".join(steps))).items() if count > 1]
    assert len(steps) >= 8
    assert not again


def test_the_layers_are_those_of_the_contract() -> None:
    contract = (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0]
    rooms = set(re.findall(r"[a-z_]+", contract)) - {"__main__", "_version", "tracebacks"}
    drawn = set(re.findall(r"[a-z_]+", PAGE.partition("```text")[2].partition("```")[0]))
    assert rooms <= drawn
