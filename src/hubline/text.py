"""Words for people."""

from __future__ import annotations

from typing import Final

_VALUE_LENGTH_MAX: Final = 40
"""Enough to recognize a value by; it may be anything, and of any length."""


def counted(count: int, noun: str) -> str:
    """``1 event``, ``2,000 events``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def abbreviated(value: object) -> str:
    """A value that does not read, for an error: escaped and cut."""
    text = ascii(value)
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}..."


def sentences(problem: str, fix: str = "") -> str:
    """What is wrong, and what to do about it, as sentences."""
    parts = (problem, fix if fix.startswith("hubline ") else fix[:1].upper() + fix[1:])
    return " ".join(text if text.endswith((".", "?")) else f"{text}." for text in parts if text)
