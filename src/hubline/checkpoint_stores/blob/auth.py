"""How a request to Blob Storage proves who asks: the account's key, a signature, or an Entra token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from hubline.addresses.blob_address import BlobAddress
from hubline.credentials.entra_tokens import Credential as EntraCredential
from hubline.credentials.entra_tokens import EntraRefused, EntraTokens, EntraUnreachable
from hubline.credentials.token_credentials import token_credential
from hubline.errors import StoreError, StoreUnavailable
from hubline.secrets import Secret
from hubline.text import sentences

ENTRA_SCOPE: Final = "https://storage.azure.com/.default"

# What is signed beside the x-ms- headers, in the order that the service puts it together.
_SIGNED_HEADERS: Final = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


class Credential(Protocol):
    """Proves who asks. Called for every attempt of every request."""

    async def authorize(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]
    ) -> Mapping[str, str]:
        """Adds what is needed to the headers, and returns what is to be added to the query, encoded.

        ``path`` is encoded, as it is sent; the query's values are not.
        """
        ...


def credential_of(
    address: BlobAddress, *, entra: EntraCredential | None = None, clock: Callable[[], float] = time.time
) -> Credential:
    """How this address proves who asks. ``entra`` replaces the Entra credential that it names."""
    if address.key:
        return AccountKey(address.account, address.key)
    if address.signature:
        return Signature(address.signature)
    return Entra(entra or token_credential(address.credential, where=str(address)), clock=clock)


class AccountKey:
    """Signs every request with the account's key."""

    def __init__(self, account: str, key: Secret) -> None:
        self._account = account
        # One that has digested the key already: copying it is cheaper than making one for every request.
        self._hmac = hmac.new(base64.b64decode(key.reveal()), digestmod=hashlib.sha256)

    async def authorize(
        self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]
    ) -> Mapping[str, str]:
        signature = self._hmac.copy()
        signature.update(string_to_sign(self._account, method, path, query, headers).encode())
        headers["Authorization"] = f"SharedKey {self._account}:{base64.b64encode(signature.digest()).decode()}"
        return {}


class Signature:
    """A signature that somebody else has made: it goes into the query of every request."""

    def __init__(self, signature: Secret) -> None:
        pairs = (part.partition("=") for part in signature.reveal().split("&") if part)
        self._query = {name: value for name, _, value in pairs}

    async def authorize(
        self,
        method: str,  # noqa: ARG002
        path: str,  # noqa: ARG002
        query: Mapping[str, str],  # noqa: ARG002
        headers: dict[str, str],  # noqa: ARG002
    ) -> Mapping[str, str]:
        return self._query


class Entra:
    """Tokens of Microsoft Entra ID."""

    def __init__(self, credential: EntraCredential, *, clock: Callable[[], float] = time.time) -> None:
        self._tokens = EntraTokens(ENTRA_SCOPE, credential=credential, clock=clock)

    async def authorize(
        self,
        method: str,  # noqa: ARG002
        path: str,  # noqa: ARG002
        query: Mapping[str, str],  # noqa: ARG002
        headers: dict[str, str],
    ) -> Mapping[str, str]:
        try:
            token = await self._tokens.token()
        except EntraRefused as error:
            fix = "check the identity, and that it may use this account"
            raise StoreError(sentences(f"Entra gives no token for Blob Storage: {error}", fix)) from error
        except EntraUnreachable as error:
            problem = f"Entra cannot be asked now for a token for Blob Storage: {error}"
            raise StoreUnavailable(sentences(problem, "try again later")) from error
        headers["Authorization"] = f"Bearer {token.text.reveal()}"
        return {}


def string_to_sign(account: str, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """What the service expects to be signed. A path that starts with the account has its name twice, and rightly so."""
    standard = [headers.get(name, "") for name in _SIGNED_HEADERS]
    if headers.get("Content-Length") == "0":
        standard[_SIGNED_HEADERS.index("Content-Length")] = ""
    own = sorted((name.lower(), value) for name, value in headers.items() if name.lower().startswith("x-ms-"))
    return "\n".join(
        [
            method,
            *standard,
            *(f"{name}:{value.strip()}" for name, value in own),
            f"/{account}{path}",
            *(f"{name.lower()}:{value}" for name, value in sorted(query.items())),
        ]
    )
