"""The table of guarantees names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")


def test_every_cited_test_exists() -> None:
    cited = CITED.findall((ROOT / "docs/reference/guarantees.md").read_text())
    missing = [f"{path}::{name}" for path, name in cited if f"def {name}(" not in (ROOT / path).read_text()]

    assert cited
    assert missing == []


def test_every_row_cites_a_test() -> None:
    text = (ROOT / "docs/reference/guarantees.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| guarantee")]

    assert [row for row in rows if not CITED.search(row)] == []
