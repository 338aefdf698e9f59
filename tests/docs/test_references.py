"""References in docstrings lead somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"
REFERENCE = re.compile(r":(?:mod|class|meth|func|attr|data|exc):`~?(hubline(?:\.\w+)+)`")


def _references() -> list[str]:
    texts = (path.read_text() for path in SOURCE.rglob("*.py"))
    return sorted({name for text in texts for name in REFERENCE.findall(text)})


@pytest.mark.parametrize("name", _references())
def test_a_reference_names_what_is_there(name: str) -> None:
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for count, part in enumerate(parts[1:], 2):
        if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
            importlib.import_module(".".join(parts[:count]))
        found = getattr(found, part, None)
