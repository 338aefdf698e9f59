"""Secrets: a type that never shows one, and how text is shown that may hold one."""

from __future__ import annotations

import hmac
import re
from typing import Final


class Secret:
    """Text that must not be shown: ``repr``, ``str`` and formatting give ``***``, only :meth:`reveal` the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


_SHOWN_LENGTH_MAX: Final = 40


def may_hold_secret(text: str) -> bool:
    """Whether it looks like an address or connection string in the wrong place, which no message repeats."""
    return re.search(r"://|[=;@]|sharedaccess|password", text, re.IGNORECASE) is not None


def shown(text: str) -> str:
    """Text from a person, safe for terminal and log: escaped, cut, and left out where it may hold a secret."""
    if may_hold_secret(text):
        return "(not shown, it may hold a secret)"
    if len(text) > _SHOWN_LENGTH_MAX:
        return ascii(text[:_SHOWN_LENGTH_MAX]) + "..."
    return ascii(text)
