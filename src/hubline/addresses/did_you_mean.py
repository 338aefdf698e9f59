"""The nearest right spelling of a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from hubline.secrets import _SHOWN_LENGTH_MAX

_SIMILARITY_MIN: Final = 0.7
"""Above that of "oldest" and "latest", which are opposites."""


def nearest(word: str, known: Iterable[str]) -> str:
    match = nearest_name(word, known)
    return f" (did you mean {match}?)" if match else ""


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant; None where none is near."""
    return _match(word, {name: name for name in known})


def _match(word: str, known: Mapping[str, str]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower()[:_SHOWN_LENGTH_MAX], by_lower, n=1, cutoff=_SIMILARITY_MIN)
    return known[by_lower[matches[0]]] if matches else None


def nearest_or_all(word: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown name: the nearest one that is known, by its whole or by a part, or all."""
    names = sorted(known)
    by_part = {part: name for name in sorted(names, key=len, reverse=True) for part in name.split("_")}
    if match := _match(word, {name: name for name in names}) or _match(word, by_part):
        return f"Did you mean {match}?"
    return f"Use one of: {', '.join(names)}." if names else "There are none yet. Add one."
