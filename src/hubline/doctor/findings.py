"""The result of a check: its severity, the problem, where it is, and how to fix it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Severity(enum.StrEnum):
    """How bad a finding is, in ascending order."""

    OK = "ok"
    """No problem."""
    NOTE = "note"
    """Worth knowing, but you don't have to act. Also if a check could not find an answer."""
    WARNING = "warning"
    """It works, or recovers by itself, but not well: look at it."""
    ERROR = "error"
    """Something does not work, or events are lost: fix it."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    ``code`` is stable, for scripts and for the page that explains it. ``partitions`` has a message for each affected
    partition. ``fix`` is empty if there is nothing to do. No field holds a secret.
    """

    severity: Severity
    code: str
    message: str
    where: str = ""
    fix: str = ""
    partitions: Mapping[str, str] = field(default_factory=dict)


def ok(code: str, message: str, *, where: str = "") -> Finding:
    return Finding(Severity.OK, code, message, where)


def note(
    code: str, message: str, *, where: str = "", fix: str = "", partitions: Mapping[str, str] | None = None
) -> Finding:
    return Finding(Severity.NOTE, code, message, where, fix, partitions or {})


def warning(
    code: str, message: str, *, fix: str, where: str = "", partitions: Mapping[str, str] | None = None
) -> Finding:
    return Finding(Severity.WARNING, code, message, where, fix, partitions or {})


def error(
    code: str, message: str, *, fix: str, where: str = "", partitions: Mapping[str, str] | None = None
) -> Finding:
    return Finding(Severity.ERROR, code, message, where, fix, partitions or {})


def worst(findings: Iterable[Finding]) -> Severity:
    """The worst severity among the findings; ok if there are none."""
    return max((each.severity for each in findings), key=lambda severity: severity.rank, default=Severity.OK)
