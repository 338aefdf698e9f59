"""Tokens of a Microsoft Fabric notebook, as a credential of azure-core."""

from __future__ import annotations

import base64
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

_AUDIENCES: Final = {"https://storage.azure.com": "storage"}
"""Resources that ``getToken`` has short names for. It takes others by their URL."""

UNKNOWN_LIFE_SECONDS: Final = 600
"""How long a token is used that does not say when it expires. Fabric keeps and renews them itself."""


@dataclass(frozen=True, slots=True)
class FabricToken:
    token: str = field(repr=False)
    expires_on: int


class FabricCredential:
    """Asks `notebookutils.credentials` for tokens of the identity that the notebook runs as."""

    def __init__(self, notebook_credentials: Any, *, clock: Callable[[], float] = time.time) -> None:
        self._credentials = notebook_credentials
        self._clock = clock

    def get_token(self, *scopes: str) -> FabricToken:
        resource = scopes[0].removesuffix("/.default").rstrip("/")
        token = str(self._credentials.getToken(_AUDIENCES.get(resource, resource)) or "")
        return FabricToken(token, _expiry(token) or int(self._clock()) + UNKNOWN_LIFE_SECONDS)


def notebook_credentials() -> Any | None:
    """The object with ``getToken``, by its name in Fabric, and by the older one of Synapse."""
    for name in ("notebookutils", "mssparkutils"):
        try:
            return importlib.import_module(name).credentials
        except (ImportError, AttributeError):
            continue
    return None


def _expiry(token: str) -> int | None:
    """Seconds since 1970, from the token itself: ``getToken`` gives the text alone."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return int(claims["exp"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None  # the exception holds a part of the token
