"""One examination: what was found so far, and questions with a time limit. One that fails stops no other."""

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
    """What to examine. ``seconds_max`` bounds each question. Without a ``lease_seconds`` it is the processors'
    default."""

    hub: str
    store: str
    group: str
    lease_seconds: float | None
    renew_interval_seconds: float
    handover_timeout_seconds: float
    sdk_lease_seconds: float
    seconds_max: float


class Examination:
    """What was found so far, and how questions are asked. ``report`` gets the name of each step."""

    def __init__(self, request: ExaminationRequest, report: Callable[[str], None]) -> None:
        self.request = request
        self.report = report
        self.places: dict[str, str] = {}
        self.findings: list[Finding] = []

    async def ask(self, whom: str, question: Awaitable[Result], *, code: str = "") -> Result | None:
        """The answer; None if there is none, and a finding that says why, under this code if it was refused."""
        answer = await attempt(question, self.request.seconds_max)
        if not isinstance(answer, _Failure):
            return answer
        found = code if code and answer.kind == "refused" else f"{whom}.{answer.kind}"
        if answer.kind == "bug":
            found = "doctor.failed"
        self.findings.append(error(found, answer.message, where=self.places[whom], fix=_FIXES[answer.kind]))
        return None

    async def probe_optional(self, code: str, message: str, question: Awaitable[Result]) -> Result | None:
        """An answer that is good to have; None, and a note, if it does not come."""
        answer = await attempt(question, self.request.seconds_max)
        if not isinstance(answer, _Failure):
            return answer
        self.findings.append(note(code, f"could not find out {message}: {answer.message}"))
        return None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why there is no answer: its kind, which is the end of a finding's code, and in words, without a secret."""

    kind: str
    message: str


async def attempt(question: Awaitable[Result], seconds_max: float) -> Result | _Failure:
    """The answer, or why there is none: one check must not stop the others."""
    try:
        async with asyncio.timeout(seconds_max):
            return await question
    except TimeoutError:
        return _Failure("unreachable", f"no answer for {seconds_max:g} s")
    except errors.HublineError as problem:
        return _Failure(_kind(problem), str(problem))
    except OSError as problem:
        return _Failure("failed", problem.strerror or type(problem).__name__)
    except Exception as problem:  # noqa: BLE001 (its text may hold a secret, and is not shown)
        return _Failure("bug", f"a check failed in an unforeseen way: {type(problem).__name__}")


_FIXES: Final = {
    "address": "correct the address",
    "missing": "create it, or correct the address",
    "refused": "check the credentials, and what they allow; see what it says",
    "unreachable": "check the network, the address, and that it runs; trying again may help",
    "incompatible": "upgrade hubline here, to the version that the others have",
    "damaged": "restore it from a backup, or create it again",
    "failed": "see what it says",
    "bug": "this is a bug of hubline: please report it",
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
