"""One examination: the findings so far, and checks with a time limit. A check that fails does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from hubline import errors
from hubline.doctor.findings import Finding, error, note

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ExaminationRequest:
    """What to examine. ``seconds_max`` limits each check. Without ``lease_seconds``, the default of the processors
    counts."""

    hub: str
    store: str
    group: str
    lease_seconds: float | None
    renew_interval_seconds: float
    handover_timeout_seconds: float
    sdk_lease_seconds: float
    seconds_max: float


class Examination:
    """The findings so far. ``report`` is called with the name of each step."""

    def __init__(self, request: ExaminationRequest, report: Callable[[str], None]) -> None:
        self.request = request
        self.report = report
        self.places: dict[str, str] = {}
        self.findings: list[Finding] = []

    async def ask(self, whom: str, question: Awaitable[Result], *, code: str = "") -> Result | None:
        """The answer, or None and a finding that says why, with this code if the question was refused."""
        answer = await attempt(question, self.request.seconds_max)
        if not isinstance(answer, _Failure):
            return answer
        found = code if code and answer.kind == "refused" else f"{whom}.{answer.kind}"
        if answer.kind == "bug":
            found = "doctor.failed"
        self.findings.append(error(found, answer.message, where=self.places[whom], fix=_FIXES[answer.kind]))
        return None

    async def probe_optional(self, code: str, message: str, question: Awaitable[Result]) -> Result | None:
        """The answer, or None and a note: the examination can do without it."""
        answer = await attempt(question, self.request.seconds_max)
        if not isinstance(answer, _Failure):
            return answer
        self.findings.append(note(code, f"could not find out {message}: {answer.message}"))
        return None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why there is no answer: its kind, which ends the code of a finding, and a message without secrets."""

    kind: str
    message: str


async def attempt(question: Awaitable[Result], seconds_max: float) -> Result | _Failure:
    """The answer, or why there is none: a check must not stop the others."""
    try:
        async with asyncio.timeout(seconds_max):
            return await question
    except TimeoutError:
        return _Failure("unreachable", f"no answer within {seconds_max:g} s")
    except errors.HublineError as problem:
        return _Failure(_kind(problem), str(problem))
    except OSError as problem:
        return _Failure("failed", problem.strerror or type(problem).__name__)
    except Exception as problem:  # noqa: BLE001 (its text may hold a secret, and is not shown)
        return _Failure("bug", f"a check failed unexpectedly ({type(problem).__name__})")


_FIXES: Final = {
    "address": "correct the address",
    "missing": "create it, or correct the address",
    "refused": "check the credentials and their rights",
    "unreachable": "check the address, the network, and that it runs, then try again",
    "incompatible": "upgrade hubline here to the version that the other consumers use",
    "damaged": "restore it from a backup, or recreate it",
    "failed": "follow the message, then run `hubline doctor` again",
    "bug": "this is a bug of hubline; please report it",
}


def _kind(problem: errors.HublineError) -> str:
    match problem:
        case errors.ConfigError():
            return "address"
        case errors.HubNotFound() | errors.StoreNotFound():
            return "missing"
        case errors.HubUnavailable() | errors.StoreUnavailable():
            return "unreachable"
        case errors.StoreIncompatible():
            return "incompatible"
        case errors.HubDamaged():
            return "damaged"
        case errors.AccessDenied() | errors.StoreError():
            return "refused"
        case _:
            return "failed"
