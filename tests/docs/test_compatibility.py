"""The matrix of Spark's versions names a test for each feature, of those that run on each version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/compatibility.md").read_text()
CITED = re.compile(r"`(tests/(?:spark|pipeline)/\w+\.py)::(test_\w+)`")
ROWS = [line for line in PAGE.splitlines() if line.count("|") == 7 and not line.startswith(("| feature", "|--"))]


def test_matrix_has_a_column_for_each_version() -> None:
    matrix = re.search(r"^SPARKS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert matrix is not None
    assert f"| feature | {' | '.join(matrix[1].split())} | test |" in PAGE
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_row_cites_tests_that_exist(row: str) -> None:
    cited = CITED.findall(row)
    missing = [f"{path}::{name}" for path, name in cited if f"def {name}(" not in (ROOT / path).read_text()]

    assert cited
    assert missing == []
