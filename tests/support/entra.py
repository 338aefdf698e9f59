"""Credentials of Entra that give what a test wants, and the factories by which addresses name them."""

from __future__ import annotations

import time
from typing import Any

from azure.core.credentials import AccessToken


class FakeCredential:
    """What azure-core calls a TokenCredential. Gives the tokens and errors that a test lists."""

    def __init__(self, *given: AccessToken | Exception) -> None:
        self._given = list(given)
        self.asked: list[tuple[str, ...]] = []
        self.closed_count = 0

    def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        self.asked.append(scopes)
        given = self._given.pop(0) if len(self._given) > 1 else self._given[0]
        if isinstance(given, Exception):
            raise given
        return given

    def close(self) -> None:
        self.closed_count += 1


PLANTED_TOKEN = "eyJhbGciOiJub25lIn0.eyJwbGFudGVkIjoiUExBTlRFRC1UT0tFTiJ9.UExBTlRFRC1UT0tFTi1TSUdOQVRVUkU"  # noqa: S105
"""Stands where a token may stand, and must be seen nowhere."""


def planted() -> FakeCredential:
    """For `factory:tests.support.entra:planted`."""
    return FakeCredential(AccessToken(PLANTED_TOKEN, int(time.time()) + 3600))


def planted_refusal() -> FakeCredential:
    return FakeCredential(ValueError(f"the service answered {PLANTED_TOKEN}"))


class AsyncCredential:
    async def get_token(self, *_scopes: str) -> AccessToken:
        return AccessToken(PLANTED_TOKEN, 0)


class CredentialWithoutClose:
    """All that azure-core asks of a TokenCredential."""

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(PLANTED_TOKEN, int(time.time()) + 3600)


def text() -> str:
    return PLANTED_TOKEN


def failing() -> object:
    raise RuntimeError(f"no\n{PLANTED_TOKEN}")


not_a_function = PLANTED_TOKEN
