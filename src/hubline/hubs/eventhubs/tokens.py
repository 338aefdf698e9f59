"""Tokens that prove to Event Hubs who asks: made of a key, given as a signature, or fetched from Entra.

A token names the resource that it is good for (its audience) and when it expires. A connection shows one before it does
anything else, and the next one in good time before the first expires: :func:`renewal_at` says when.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol
from urllib.parse import parse_qs, quote_plus

from hubline.config import EventHubsAddress, Secret
from hubline.errors import AccessDenied, ConfigError

SAS_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TYPE: Final = "jwt"

# What an Entra token has to be issued for. The double slash is the service's own spelling.
ENTRA_SCOPE: Final = "https://eventhubs.azure.net//.default"

# As the SDKs have it: long enough to be made rarely, short enough that a stolen one is soon worthless.
SAS_SECONDS: Final = 3600

# A renewal has this long to be tried again before the old token expires.
RENEW_BEFORE_SECONDS: Final = 600
# A token that lives shorter than that is renewed after this part of its life.
RENEW_AFTER_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class Token:
    """What is shown to the service. ``expires_at`` is in seconds since 1970."""

    text: Secret
    type: str
    expires_at: float


class TokenSource(Protocol):
    """Gives tokens: one when a connection opens, and one each time it is to be renewed."""

    async def token(self, audience: str) -> Token:
        """A token for the resource. Raises AccessDenied if there is none to be had, HubUnavailable to try again."""
        ...


# What an Entra credential is asked for: the scope goes in, the token and when it expires come out.
EntraProvider = Callable[[str], Awaitable[tuple[Secret, float]]]


def renewal_at(token: Token, *, now: float) -> float:
    """When to show the next token, in seconds since 1970."""
    left_seconds = max(token.expires_at - now, 0.0)
    return token.expires_at - min(RENEW_BEFORE_SECONDS, left_seconds * RENEW_AFTER_PART)


def token_source(
    address: EventHubsAddress, *, clock: Callable[[], float] = time.time, entra: EntraProvider | None = None
) -> TokenSource:
    """How this address proves who asks. ``entra`` replaces azure-identity's default credential."""
    if address.key_name is not None and address.key is not None:
        return SharedKey(address.key_name, address.key, clock=clock)
    if address.signature is not None:
        return SharedSignature(address.signature, clock=clock)
    return Entra(entra or default_entra_provider())


class SharedKey:
    """Signs tokens with the key of an access policy."""

    def __init__(self, key_name: str, key: Secret, *, clock: Callable[[], float]) -> None:
        self._key_name = key_name
        self._key = key
        self._clock = clock

    async def token(self, audience: str) -> Token:
        expires_at = int(self._clock()) + SAS_SECONDS
        return Token(sas_token(self._key_name, self._key, audience, expires_at=expires_at), SAS_TYPE, expires_at)


class SharedSignature:
    """A token that somebody else has signed. It cannot be renewed: when it expires, reading and writing end."""

    def __init__(self, signature: Secret, *, clock: Callable[[], float]) -> None:
        self._signature = signature
        self._clock = clock
        self._expires_at = _signature_expiry(signature)

    async def token(self, audience: str) -> Token:
        if self._clock() >= self._expires_at:
            expired = datetime.fromtimestamp(self._expires_at, UTC).isoformat()
            raise AccessDenied(
                f"the shared access signature for {audience} expired at {expired}: have a new one made, "
                "or use SharedAccessKeyName and SharedAccessKey, of which hubline makes its own"
            )
        return Token(self._signature, SAS_TYPE, self._expires_at)


class Entra:
    """Tokens of Microsoft Entra ID. The provider keeps and refreshes them."""

    def __init__(self, provider: EntraProvider) -> None:
        self._provider = provider

    async def token(self, audience: str) -> Token:  # noqa: ARG002  (an Entra token is good for all of Event Hubs)
        text, expires_at = await self._provider(ENTRA_SCOPE)
        return Token(text, JWT_TYPE, expires_at)


def sas_token(key_name: str, key: Secret, audience: str, *, expires_at: int) -> Secret:
    """A shared access signature: the resource and the time of expiry, signed with the key."""
    resource = quote_plus(audience)
    to_sign = f"{resource}\n{expires_at}".encode()
    digest = hmac.new(key.reveal().encode(), to_sign, hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return Secret(f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_at}&skn={quote_plus(key_name)}")


def _signature_expiry(signature: Secret) -> float:
    fields = parse_qs(signature.reveal().removeprefix("SharedAccessSignature").strip())
    expiry = fields.get("se", [""])[0]
    if not (expiry.isascii() and expiry.isdigit()):
        raise ConfigError(
            "the SharedAccessSignature of the hub address does not say when it expires (se=...): copy all of it, "
            "from 'SharedAccessSignature sr=' to its end"
        )
    return float(expiry)


def default_entra_provider() -> EntraProvider:
    """azure-identity's DefaultAzureCredential: environment, managed identity, the developer's own login."""
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError:
        raise ConfigError(
            "eventhubs:// addresses use Entra credentials, which need azure-identity: pip install 'hubline[entra]', "
            "or give a connection string with SharedAccessKeyName and SharedAccessKey"
        ) from None
    credential = DefaultAzureCredential()

    async def provide(scope: str) -> tuple[Secret, float]:
        from azure.core.exceptions import ClientAuthenticationError

        try:
            token = await credential.get_token(scope)
        except ClientAuthenticationError as error:
            raise AccessDenied(f"no Entra credential was found for {scope}: {error.message}") from error
        return Secret(token.token), float(token.expires_on)

    return provide
