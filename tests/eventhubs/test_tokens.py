"""Tokens: signed as the service wants them, renewed in time, and never shown."""

from __future__ import annotations

import asyncio
import sys

import pytest

from hubline.config import EventHubsAddress, Secret, parse_hub
from hubline.errors import AccessDenied, ConfigError
from hubline.hubs.eventhubs.tokens import (
    ENTRA_SCOPE,
    JWT_TYPE,
    RENEW_BEFORE_SECONDS,
    SAS_SECONDS,
    SAS_TYPE,
    Token,
    renewal_at,
    sas_token,
    token_source,
)

NOW = 1_700_000_000.0
KEY = "c2VjcmV0LWtleS1mb3ItdGVzdHM="
AUDIENCE = "sb://ns.servicebus.windows.net/orders"


def address(text: str) -> EventHubsAddress:
    parsed = parse_hub(text)
    assert isinstance(parsed, EventHubsAddress)
    return parsed


# The signatures were computed with: printf '%s\n%s' ENCODED EXPIRY | openssl dgst -sha256 -hmac KEY -binary | base64
@pytest.mark.parametrize(
    ("key", "audience", "expires_at", "expected"),
    [
        (
            KEY,
            AUDIENCE,
            1_700_003_600,
            "SharedAccessSignature sr=sb%3A%2F%2Fns.servicebus.windows.net%2Forders"
            "&sig=uVnkZLfSH6wwJlVtAn5CzT7GehaVZ8X2JPV9YX5xMqo%3D&se=1700003600&skn=policy",
        ),
        (
            "käy+/=",
            "sb://localhost/hüb 1",
            1,
            "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fh%C3%BCb+1"
            "&sig=t%2BheCskOT1vV892rUxzQQQjuu52vVGsBZykoTlqfWgY%3D&se=1&skn=policy",
        ),
    ],
)
def test_a_key_signs_as_openssl_does(key: str, audience: str, expires_at: int, expected: str) -> None:
    assert sas_token("policy", Secret(key), audience, expires_at=expires_at).reveal() == expected


def test_a_key_gives_tokens_of_an_hour_by_the_injected_clock() -> None:
    text = (
        f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=policy;SharedAccessKey={KEY};EntityPath=orders"
    )
    source = token_source(address(text), clock=lambda: NOW)

    token = asyncio.run(source.token(AUDIENCE))

    assert (token.type, token.expires_at) == (SAS_TYPE, NOW + SAS_SECONDS)
    assert f"&se={int(NOW) + SAS_SECONDS}&" in token.text.reveal()
    assert KEY not in repr(token)
    assert "sig=" not in repr(token)


SIGNED = "SharedAccessSignature sr=sb%3A%2F%2Fns%2Forders&sig=pLaNtEd%3D&se=1700000100&skn=policy"


def test_a_signature_is_shown_as_it_is_until_it_expires() -> None:
    text = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessSignature={SIGNED};EntityPath=orders"
    now = NOW
    source = token_source(address(text), clock=lambda: now)

    token = asyncio.run(source.token(AUDIENCE))
    assert (token.text.reveal(), token.expires_at) == (SIGNED, 1_700_000_100)

    now = 1_700_000_100
    with pytest.raises(AccessDenied, match="expired at 2023-11-14T22:15:00") as refused:
        asyncio.run(source.token(AUDIENCE))
    assert "pLaNtEd" not in str(refused.value)


@pytest.mark.parametrize("signature", ["SharedAccessSignature sr=a&sig=pLaNtEd", "se=soon&sig=pLaNtEd", "se=٣"])
def test_a_signature_without_an_expiry_is_refused(signature: str) -> None:
    wrong = EventHubsAddress("ns", 5671, "orders", signature=Secret(signature))
    with pytest.raises(ConfigError, match="when it expires") as refused:
        token_source(wrong)
    assert "pLaNtEd" not in str(refused.value)


def test_entra_tokens_come_from_the_provider() -> None:
    asked: list[str] = []

    async def provider(scope: str) -> tuple[Secret, float]:
        asked.append(scope)
        return Secret("eyJ"), NOW + 100

    source = token_source(address("eventhubs://ns/orders"), entra=provider)

    assert asyncio.run(source.token(AUDIENCE)) == Token(Secret("eyJ"), JWT_TYPE, NOW + 100)
    assert asked == [ENTRA_SCOPE]


def test_entra_without_azure_identity_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity.aio", None)
    with pytest.raises(ConfigError, match=r"hubline\[entra\]"):
        token_source(address("eventhubs://ns/orders"))


@pytest.mark.parametrize(
    ("life_seconds", "renewed_after_seconds"),
    [
        (SAS_SECONDS, SAS_SECONDS - RENEW_BEFORE_SECONDS),
        (2 * RENEW_BEFORE_SECONDS, RENEW_BEFORE_SECONDS),
        (60, 30),
        (0, 0),
    ],
)
def test_tokens_are_renewed_well_before_they_expire(life_seconds: float, renewed_after_seconds: float) -> None:
    token = Token(Secret("t"), SAS_TYPE, NOW + life_seconds)
    assert renewal_at(token, now=NOW) == NOW + renewed_after_seconds


def test_an_expired_token_is_renewed_at_once() -> None:
    assert renewal_at(Token(Secret("t"), SAS_TYPE, NOW - 5), now=NOW) == NOW - 5
