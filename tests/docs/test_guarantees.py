"""The tables of guarantees name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = "".join(page.read_text() for page in sorted((ROOT / "docs/reference").glob("guarantees*.md")))
CITED = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")


def test_every_cited_test_exists() -> None:
    cited = CITED.findall(TEXT)
    missing = [f"{path}::{name}" for path, name in cited if f"def {name}(" not in (ROOT / path).read_text()]

    assert cited
    assert missing == []


def test_every_row_cites_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| guarantee")]

    assert [row for row in rows if not CITED.search(row)] == []
