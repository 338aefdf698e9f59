"""The nearest right spelling of a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from hubline.secrets import _SHOWN_LENGTH_MAX

_SIMILARITY_MIN: Final = 0.7
"""Above that of "oldest" and "latest", which are opposites."""


def nearest(word: str, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower()[:_SHOWN_LENGTH_MAX], by_lower, n=1, cutoff=_SIMILARITY_MIN)
    return f" (did you mean {by_lower[matches[0]]}?)" if matches else ""
