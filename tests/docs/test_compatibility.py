"""The matrix of Spark's versions names a test for each feature, of those that run on each version."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/compatibility.md").read_text()
CITED = re.compile(r"`(tests/(?:spark|pipeline)/\w+\.py)::(test_\w+)`")
ROWS = [line for line in PAGE.splitlines() if line.count("|") == 7 and not line.startswith(("| feature", "|--"))]


def test_matrix_has_a_column_for_each_version() -> None:
    matrix = re.search(r"^SPARKS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert matrix is not None
    assert f"| feature | {' | '.join(matrix[1].split())} | test |" in PAGE
    assert len(ROWS) > 15


def test_each_row_cites_tests_that_exist() -> None:
    cited = {row: CITED.findall(row) for row in ROWS}
    missing = [
        f"{path}::{name}"
        for found in cited.values()
        for path, name in found
        if f"def {name}(" not in (ROOT / path).read_text()
    ]

    assert [row for row, found in cited.items() if not found] == []
    assert missing == []
