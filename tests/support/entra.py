"""A credential of Entra that gives what a test wants."""

from __future__ import annotations

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
