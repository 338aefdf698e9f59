"""Shared access signatures: who may use which part of the namespace, and until when.

    SharedAccessSignature sr=URL&sig=SIGNATURE&se=EXPIRY&skn=KEYNAME

The signature is the HMAC-SHA256, by the key, of the URL as it stands in the token, a line feed, and the expiry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_plus

from hubline.amqp.service_names import SAS_TYPE
from hubline.emulator.link_addresses import path_segments
from hubline.secrets import Secret

# Real ones have a few hundred characters.
TOKEN_LENGTH_MAX: Final = 8192

# What a connection has put tokens for: as many as it may have links, roughly.
GRANTS_MAX: Final = 4096

_PREFIX: Final = "SharedAccessSignature "


class TokenRefused(Exception):
    """A token does not hold. The text says why, and shows nothing of it."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A key and its name, as in a connection string."""

    name: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows: everything below a path."""

    path: tuple[str, ...]
    expires_at: float

    def covers(self, segments: Sequence[str]) -> bool:
        return self.path == _lowered(segments)[: len(self.path)]


class Grants:
    """The rights of one connection. Without a key, all rights, forever.

    ``clock`` gives the time of day in seconds.
    """

    def __init__(self, key: SharedKey | None, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._clock = clock
        self._by_path: dict[tuple[str, ...], Grant] = {}
        self._has_password = False

    def is_password_right(self, name: str, password: str) -> bool:
        """Whether name and key are right as a whole; then everything is allowed."""
        is_right = self._key is None or _is_key(self._key, name, password)
        self._has_password = self._has_password or is_right
        return is_right

    def put(self, audience: str, token: str, token_type: str) -> None:
        """Takes a token. Raises TokenRefused."""
        if self._key is None:
            return
        if token_type != SAS_TYPE:
            raise TokenRefused(f"tokens of type {token_type[:64]!r} are not supported here. Use a shared access key.")
        grant = checked(token, self._key, now=self._clock())
        segments = path_segments(audience)
        if not grant.covers(segments):
            raise TokenRefused("the token is for another entity. Make one for this entity.")
        path = _lowered(segments)
        if len(self._by_path) >= GRANTS_MAX and path not in self._by_path:
            raise TokenRefused(f"a connection holds at most {GRANTS_MAX} tokens. Open another connection.")
        self._by_path[path] = Grant(path, grant.expires_at)

    def allows(self, segments: Sequence[str]) -> bool:
        """Whether a token that has not expired covers the path."""
        if self._key is None or self._has_password:
            return True
        now = self._clock()
        return any(grant.expires_at > now and grant.covers(segments) for grant in self._by_path.values())

    def allows_with(self, token: str, segments: Sequence[str]) -> bool:
        """Whether a token that comes with a request covers the path, or one that was put."""
        if self.allows(segments):
            return True
        try:
            return self._key is not None and checked(token, self._key, now=self._clock()).covers(segments)
        except TokenRefused:
            return False

    def seconds_to_next_expiry(self) -> float | None:
        """How long until a token expires that has not yet."""
        now = self._clock()
        left = [grant.expires_at - now for grant in self._by_path.values() if grant.expires_at > now]
        return min(left, default=None)


def checked(token: str, key: SharedKey, *, now: float) -> Grant:
    """What the token grants. Raises TokenRefused if it is malformed, expired, or signed by another key."""
    fields = _fields(token)
    resource, expiry, signature = fields["sr"], fields["se"], unquote_plus(fields["sig"])
    expected = sign(resource, expiry, key)
    # Both are compared in full, whether the name is right or not: what takes how long tells nothing.
    is_signed = hmac.compare_digest(signature.encode(), expected.encode())
    is_named = hmac.compare_digest(unquote_plus(fields["skn"]).encode(), key.name.encode())
    if not (is_signed and is_named):
        raise TokenRefused("the signature does not match. Check the shared access key and its name.")
    if not expiry.isascii() or not expiry.isdigit() or int(expiry) <= now:
        raise TokenRefused("the token has expired. Put a new one.")
    return Grant(_lowered(path_segments(unquote_plus(resource))), float(expiry))


def sign(encoded_resource: str, expiry: str, key: SharedKey) -> str:
    """The signature over a URL, as encoded in the token, and an expiry."""
    text = f"{encoded_resource}\n{expiry}".encode()
    return base64.b64encode(hmac.digest(key.secret.reveal().encode(), text, hashlib.sha256)).decode("ascii")


def _fields(token: str) -> dict[str, str]:
    if len(token) > TOKEN_LENGTH_MAX or not token.startswith(_PREFIX):
        raise TokenRefused("the token is not a shared access signature. Use a shared access key.")
    pairs = (part.partition("=") for part in token.removeprefix(_PREFIX).split("&"))
    fields = {name: value for name, _, value in pairs}
    missing = {"sr", "sig", "se", "skn"} - fields.keys()
    if missing:
        raise TokenRefused(f"the token lacks {', '.join(sorted(missing))}. Put a whole shared access signature.")
    return fields


def _is_key(key: SharedKey, name: str, password: str) -> bool:
    is_secret = hmac.compare_digest(password.encode(), key.secret.reveal().encode())
    return hmac.compare_digest(name.encode(), key.name.encode()) and is_secret


def _lowered(segments: Sequence[str]) -> tuple[str, ...]:
    return tuple(segment.lower() for segment in segments)
