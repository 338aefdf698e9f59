"""Tokens that prove to Event Hubs who asks: made of a key, given as a signature, or fetched from Entra.

A token names the resource that it is good for (its audience) and when it expires. A connection shows one before it does
anything else, and the next one in good time before the first expires: :func:`renewal_at` says when.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol
from urllib.parse import parse_qs, quote_plus

from hubline.addresses.hub_address import EventHubsAddress
from hubline.amqp.service_names import JWT_TYPE, SAS_TYPE
from hubline.credentials.entra_tokens import (
    RENEW_BEFORE_SECONDS,
    Credential,
    EntraRefused,
    EntraTokens,
    EntraUnreachable,
)
from hubline.credentials.token_credentials import token_credential
from hubline.errors import AccessDenied, ConfigError, HubUnavailable
from hubline.secrets import Secret
from hubline.text import sentences

# What an Entra token has to be issued for. The double slash is the service's own spelling.
ENTRA_SCOPE: Final = "https://eventhubs.azure.net//.default"

# As the SDKs have it: long enough to be made rarely, short enough that a stolen one is soon worthless.
SAS_SECONDS: Final = 3600

# A token that lives shorter than RENEW_BEFORE_SECONDS is renewed after this part of its life.
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

    async def close(self) -> None:
        """Called once, when no more tokens are needed."""
        ...


def renewal_at(token: Token, *, now: float) -> float:
    """When to show the next token, in seconds since 1970."""
    left_seconds = max(token.expires_at - now, 0.0)
    return token.expires_at - min(RENEW_BEFORE_SECONDS, left_seconds * RENEW_AFTER_PART)


def token_source(
    address: EventHubsAddress, *, clock: Callable[[], float] = time.time, credential: Credential | None = None
) -> TokenSource:
    """How this address proves who asks. ``credential`` replaces the one that it names."""
    if address.key_name is not None and address.key is not None:
        return SharedKey(address.key_name, address.key, clock=clock)
    if address.signature is not None:
        return SharedSignature(address.signature, clock=clock)
    return Entra(credential or token_credential(address.credential, where=str(address)), clock=clock)


class SharedKey:
    """Signs tokens with the key of an access policy."""

    def __init__(self, key_name: str, key: Secret, *, clock: Callable[[], float]) -> None:
        self._key_name = key_name
        self._key = key
        self._clock = clock

    async def token(self, audience: str) -> Token:
        expires_at = int(self._clock()) + SAS_SECONDS
        return Token(sas_token(self._key_name, self._key, audience, expires_at=expires_at), SAS_TYPE, expires_at)

    async def close(self) -> None:
        pass  # a key holds nothing open


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
                f"the shared access signature for {audience} expired at {expired}. Create another one, or use "
                "SharedAccessKeyName and SharedAccessKey, from which hubline creates its own."
            )
        return Token(self._signature, SAS_TYPE, self._expires_at)

    async def close(self) -> None:
        pass  # nor does a signature


class Entra:
    """Tokens of Microsoft Entra ID."""

    def __init__(self, credential: Credential, *, clock: Callable[[], float] = time.time) -> None:
        # Good for all of Event Hubs, whatever the audience.
        self._tokens = EntraTokens(ENTRA_SCOPE, credential=credential, clock=clock)

    async def token(self, audience: str) -> Token:
        try:
            given = await self._tokens.token()
        except EntraRefused as error:
            fix = "check the identity, and that it may use this namespace"
            raise AccessDenied(sentences(f"Entra gives no token for {audience}: {error}", fix)) from error
        except EntraUnreachable as error:
            fix = "try again later"
            raise HubUnavailable(
                sentences(f"Entra cannot be asked now for a token for {audience}: {error}", fix)
            ) from error
        return Token(given.text, JWT_TYPE, given.expires_at)

    async def close(self) -> None:
        await self._tokens.close()


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
            "the SharedAccessSignature of the hub address does not say when it expires (se=...). Copy all of it, "
            "from the word SharedAccessSignature to its end."
        )
    return float(expiry)
