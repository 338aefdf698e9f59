"""Tokens: signed as the service wants them, renewed in time, and never shown."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from hubline.addresses.hub_address import EventHubsAddress, parse_hub
from hubline.amqp.service_names import JWT_TYPE, SAS_TYPE
from hubline.credentials.entra_tokens import RENEW_BEFORE_SECONDS
from hubline.errors import AccessDenied, ConfigError, HubError, HubUnavailable
from hubline.hubs.eventhubs import EventHubsHub
from hubline.hubs.eventhubs.authorization import (
    ENTRA_SCOPE,
    SAS_SECONDS,
    Entra,
    Token,
    renewal_at,
    sas_token,
    token_source,
)
from hubline.hubs.eventhubs.sdk import SdkHub
from hubline.model.events import new_events
from hubline.model.positions import Position
from hubline.secrets import Secret
from tests.amqp.connections import until
from tests.hubs.eventhubs.support import ARRIVAL_SECONDS, GROUP, new_hub, serving
from tests.hubs.eventhubs.support import KEY as ENDPOINT_KEY
from tests.hubs.eventhubs.support import address as at
from tests.support.entra import FakeCredential

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


def use_as_default(monkeypatch: pytest.MonkeyPatch, credential: FakeCredential) -> None:
    """azure-identity with this as its DefaultAzureCredential."""
    identity = ModuleType("azure.identity")
    identity.DefaultAzureCredential = lambda: credential  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "azure.identity", identity)


def test_entra_tokens_come_from_the_default_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    credential = FakeCredential(AccessToken("eyJ", int(NOW) + 100))
    use_as_default(monkeypatch, credential)
    source = token_source(address("eventhubs://ns/orders"))

    token = asyncio.run(source.token(AUDIENCE))

    assert token == Token(Secret("eyJ"), JWT_TYPE, NOW + 100)
    assert "eyJ" not in repr(token)
    assert credential.asked == [(ENTRA_SCOPE,)]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ClientAuthenticationError("nobody is logged in"), AccessDenied),
        (ServiceRequestError("no route"), HubUnavailable),
        (OSError("no route"), HubUnavailable),
    ],
)
def test_what_a_credential_raises_is_typed(failure: Exception, kind: type[HubError]) -> None:
    source = token_source(address("eventhubs://ns/orders"), credential=FakeCredential(failure))
    with pytest.raises(kind, match=r"nobody is logged in|no route"):
        asyncio.run(source.token(AUDIENCE))


def test_the_sdk_transport_uses_the_same_credential_and_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    credential = FakeCredential(ClientAuthenticationError("nobody is logged in"))
    use_as_default(monkeypatch, credential)

    async def check() -> None:
        hub = SdkHub(EventHubsAddress("127.0.0.1", 1, "orders"))
        assert hub._producer() is hub._producer()
        with pytest.raises(ClientAuthenticationError):
            await hub._entra().get_token("scope")
        await hub.close()

    asyncio.run(check())
    assert credential.closed_count == 1


def test_entra_without_azure_identity_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigError, match=r"hubline\[entra\]"):
        token_source(address("eventhubs://ns/orders"))


class TestConnections:
    """Tokens on a connection that is in use."""

    def test_a_hub_is_read_with_an_entra_token_and_lets_its_credential_go(self, tmp_path: Path) -> None:
        credential = FakeCredential(AccessToken("eyJ", int(time.time()) + 3600))

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path, key=None) as port:
                hub = EventHubsHub(at(port, name), tokens=Entra(credential))
                assert (await hub.describe()).name == name
                await hub.close()

        asyncio.run(check())
        assert (len(credential.asked), credential.closed_count) == (1, 1)

    def test_a_credential_that_fails_for_a_while_is_asked_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hubline.hubs.eventhubs.service_connection.RENEW_AGAIN_SECONDS", 0.01)
        now = int(time.time())
        denied, unreachable = ClientAuthenticationError("no identity yet"), ServiceRequestError("no route")
        first, next_one = AccessToken("first", now), AccessToken("next", now + 3600)
        credential = FakeCredential(first, denied, unreachable, first, next_one)

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path, key=None) as port:
                hub = EventHubsHub(at(port, name), tokens=Entra(credential))
                await hub.describe()
                authorized = hub._service._authorized
                assert authorized is not None
                await until(lambda: authorized.token.text.reveal() == "next")
                assert hub._service._authorized is authorized
                await hub.close()

        asyncio.run(check())

    def test_a_reader_whose_signature_expires_is_denied(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port:
                expires_at = int(time.time()) + 2
                signature = sas_token(
                    ENDPOINT_KEY.name, ENDPOINT_KEY.secret, f"sb://localhost/{name}", expires_at=expires_at
                )
                hub = EventHubsHub(replace(at(port, name), key_name=None, key=None, signature=signature))
                receiver = await hub.open_receiver("0", group=GROUP, position=Position.earliest())
                with pytest.raises(AccessDenied, match="expired") as denied:
                    await receiver.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
                assert "sig=" not in str(denied.value)
                with pytest.raises(AccessDenied):
                    await (await hub.open_sender()).send(new_events([b"late"]))
                await hub.close()

        asyncio.run(check())


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
