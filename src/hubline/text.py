"""Words for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 event``, ``2,000 events``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
