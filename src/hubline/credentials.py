"""Tokens of Microsoft Entra ID, for hubs and for stores.

One token serves every request of its scope until shortly before it expires. While it does, a failure to get the next
one is no failure: what cannot be renewed yet is tried again with the next request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from hubline.errors import ConfigError
from hubline.secrets import Secret

log = logging.getLogger("hubline.credentials")

RENEW_BEFORE_SECONDS: Final = 600
"""A token that has less than this left is replaced. Tokens last an hour or more; so long Entra may be away."""


class AccessToken(Protocol):
    """A token as azure-core has it; ``expires_on`` is in seconds since 1970."""

    @property
    def token(self) -> str: ...

    @property
    def expires_on(self) -> int: ...


class Credential(Protocol):
    """What azure-identity's asynchronous credentials are, and all that azure-core calls ``AsyncTokenCredential``."""

    async def get_token(self, *scopes: str) -> AccessToken: ...

    async def close(self) -> None: ...


class EntraRefused(Exception):
    """Entra gives no token: nobody is logged in, or it may not. Adapters say so in errors of their own."""


class EntraUnreachable(Exception):
    """Entra cannot be asked now; trying again may help."""


@dataclass(frozen=True, slots=True)
class EntraToken:
    """What is shown to a service. ``expires_at`` is in seconds since 1970."""

    text: Secret
    expires_at: float


class EntraTokens:
    """The tokens of one scope. May be used from one event loop after another.

    Without a ``credential`` they come from azure-identity's default one, made anew for every token: tokens last, and a
    credential that is kept would keep connections of an event loop that has ended.
    """

    def __init__(
        self, scope: str, *, credential: Credential | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._default = None if credential is not None else _default_credential_type()
        self._scope = scope
        self._credential = credential
        self._clock = clock
        self._token: EntraToken | None = None
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def token(self) -> EntraToken:
        """Raises EntraRefused or EntraUnreachable if there is none, and none that still lasts."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._lock = loop, asyncio.Lock()
        async with self._lock:  # many requests find it expired at once: one asks
            if self._token is None or self._left_seconds(self._token) <= RENEW_BEFORE_SECONDS:
                self._token = await self._renewed(self._token)
            return self._token

    async def close(self) -> None:
        """Closes the credential that was given."""
        if self._credential is not None:
            await self._credential.close()

    async def _renewed(self, old: EntraToken | None) -> EntraToken:
        try:
            return await self._fetch()
        except (EntraRefused, EntraUnreachable) as error:
            if old is None or self._left_seconds(old) <= 0:
                raise
            log.warning("entra_token_kept left_seconds=%.0f why=%s", self._left_seconds(old), error)
            return old

    async def _fetch(self) -> EntraToken:
        from azure.core.exceptions import AzureError, ClientAuthenticationError

        try:
            given = await self._ask()
        except ClientAuthenticationError as error:
            raise EntraRefused(error.message) from error
        except (AzureError, OSError, TimeoutError) as error:
            raise EntraUnreachable(str(error) or type(error).__name__) from error
        return EntraToken(Secret(given.token), float(given.expires_on))

    async def _ask(self) -> AccessToken:
        if self._credential is not None:
            return await self._credential.get_token(self._scope)
        assert self._default is not None  # noqa: S101 - there is the one or the other
        credential = self._default()
        try:
            return await credential.get_token(self._scope)
        finally:
            await credential.close()

    def _left_seconds(self, token: EntraToken) -> float:
        return token.expires_at - self._clock()


def default_credential() -> Credential:
    """azure-identity's DefaultAzureCredential: environment, managed identity, the developer's own login."""
    return _default_credential_type()()


def _default_credential_type() -> Callable[[], Credential]:
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError:
        raise ConfigError(
            "an address without a key uses Entra credentials, which need azure-identity: pip install 'hubline[entra]'; "
            "or give a key: a connection string with SharedAccessKeyName and SharedAccessKey for a hub, ?key=env:NAME "
            "for a container"
        ) from None
    made: Callable[[], Credential] = DefaultAzureCredential
    return made
