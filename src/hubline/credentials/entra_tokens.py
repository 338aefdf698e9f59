"""Tokens of one scope: kept while they last, and renewed in time.

Credentials are synchronous, as azure-identity's, and called in a thread: they need no HTTP client of asyncio, and hold
nothing of an event loop. One token serves every request of its scope until shortly before it expires; while it does, a
failure to get the next one is logged, and retried with the next request. azure-identity does the same for most
credentials, but not for the developer's login in the Azure CLI, where each question starts a process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

from hubline.secrets import Secret, redact

log = logging.getLogger("hubline.credentials")

RENEW_BEFORE_SECONDS: Final = 240
"""A token that has less than this left is replaced. From 300 s on, azure-identity does not answer with the old one."""


class AccessToken(Protocol):
    """A token as azure-core has it; ``expires_on`` is in seconds since 1970."""

    @property
    def token(self) -> str: ...

    @property
    def expires_on(self) -> int: ...


class Credential(Protocol):
    """What azure-identity's credentials are, and all of azure-core's ``TokenCredential`` that hubline uses.

    azure-identity's can be closed as well, which ``TokenCredential`` does not ask for.
    """

    def get_token(self, *scopes: str) -> AccessToken: ...


class LentCredential:
    """A credential of the user's, who may use it elsewhere, and closes it: a factory may give one several times."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def get_token(self, *scopes: str) -> AccessToken:
        return self._credential.get_token(*scopes)


class EntraRefused(Exception):
    """Entra refuses a token: nobody is logged in, or it may not. Adapters raise errors of their own for it."""


class EntraUnreachable(Exception):
    """Entra cannot be asked now; trying again may help."""


@dataclass(frozen=True, slots=True)
class EntraToken:
    """What is shown to a service. ``expires_at`` is in seconds since 1970."""

    text: Secret
    expires_at: float


class EntraTokens:
    """The tokens of one scope. Thread-safe."""

    def __init__(self, scope: str, *, credential: Credential, clock: Callable[[], float] = time.time) -> None:
        self._scope = scope
        self._credential = credential
        self._clock = clock
        self._token: EntraToken | None = None
        self._lock = threading.Lock()

    async def token(self) -> EntraToken:
        """Raises EntraRefused or EntraUnreachable if there is none, and none that still lasts."""
        token = self._token
        return token if self._is_fresh(token) else await asyncio.to_thread(self._renewed)

    async def close(self) -> None:
        await asyncio.to_thread(close_credential, self._credential)

    def _renewed(self) -> EntraToken:
        with self._lock:  # many requests find it expired at once: one asks
            old = self._token
            if self._is_fresh(old):
                return old
            try:
                self._token = self._fetched()
            except (EntraRefused, EntraUnreachable) as error:
                left_seconds = old.expires_at - self._clock() if old else 0
                if old is None or left_seconds <= 0:
                    raise
                log.warning("entra_token_kept left_seconds=%.0f reason=%s", left_seconds, error)
                return old
            return self._token

    def _fetched(self) -> EntraToken:
        try:
            given = self._credential.get_token(self._scope)
        except Exception as error:  # noqa: BLE001 - a credential of the user's may raise anything
            kind = EntraRefused if _is_refusal(error) else EntraUnreachable
            # Without its cause: Spark prints those of a task in full, and it may hold a token.
            raise kind(redact(str(error)) or type(error).__name__) from None
        text, expires_at = getattr(given, "token", None), getattr(given, "expires_on", None)
        if not isinstance(text, str) or not text or not isinstance(expires_at, int | float):
            name = type(given).__name__
            raise EntraRefused(
                f"the credential's get_token gives an object of class {name} without token and expires_on"
            )
        return EntraToken(Secret(text), float(expires_at))

    def _is_fresh(self, token: EntraToken | None) -> TypeGuard[EntraToken]:
        return token is not None and token.expires_at - self._clock() > RENEW_BEFORE_SECONDS


def close_credential(credential: Credential) -> None:
    """Closes it, if it can be closed."""
    close = getattr(credential, "close", None)
    if close is not None:
        close()


def _is_refusal(error: Exception) -> bool:
    """Whether asking again does not help. Whatever else a credential raises may be of the network."""
    exceptions = sys.modules.get("azure.core.exceptions")
    if exceptions is None or not isinstance(error, exceptions.ClientAuthenticationError):
        return False
    # azure-identity makes one of any failure, also where the host of Entra has no address now.
    of_network = (exceptions.ServiceRequestError, exceptions.ServiceResponseError)
    return not any(isinstance(cause, of_network) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__
