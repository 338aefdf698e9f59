"""What an examination finds: how bad it is, what it is, where, and how to fix it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Severity(enum.StrEnum):
    """How bad a finding is, in rising order."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Worth knowing; nothing has to be done. Also an answer that could not be found."""
    WARNING = "warning"
    """It works, or will again, but not as it should: look at it."""
    ERROR = "error"
    """Something does not work, or events are lost: fix it."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    ``code`` is stable, for scripts and for the page that explains it. ``partitions`` says of each partition concerned
    what is so there. ``fix`` is empty where nothing has to be done. No field holds a secret.
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
