"""Tokens of Entra: kept while they last, asked for once, and renewed in time."""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from hubline.credentials.entra_tokens import RENEW_BEFORE_SECONDS, EntraRefused, EntraTokens, EntraUnreachable
from tests.support.entra import PLANTED_TOKEN, FakeCredential

LIFE_SECONDS = 3600


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tokens(clock: Clock, *given: AccessToken | Exception) -> tuple[EntraTokens, FakeCredential]:
    credential = FakeCredential(*given)
    return EntraTokens("scope", credential=credential, clock=clock), credential


def shown(source: EntraTokens) -> str:
    """In an event loop of its own each time."""
    return asyncio.run(source.token()).text.reveal()


def test_a_token_is_used_until_shortly_before_it_expires() -> None:
    clock = Clock()
    source, credential = tokens(clock, AccessToken("first", LIFE_SECONDS), AccessToken("next", 2 * LIFE_SECONDS))

    assert shown(source) == shown(source) == "first"
    clock.now = LIFE_SECONDS - RENEW_BEFORE_SECONDS - 1
    assert shown(source) == "first"
    clock.now += 1
    assert shown(source) == "next"
    assert credential.asked == [("scope",)] * 2


def test_many_requests_at_once_ask_for_one_token() -> None:
    source, credential = tokens(Clock(), AccessToken("first", LIFE_SECONDS))

    async def ask() -> None:
        await asyncio.gather(*(source.token() for _ in range(20)))

    asyncio.run(ask())
    asyncio.run(ask())
    assert len(credential.asked) == 1


def test_a_token_that_cannot_be_renewed_is_used_while_it_lasts() -> None:
    clock = Clock()
    denied, unreachable = ClientAuthenticationError("nobody is logged in"), ServiceRequestError("no route")
    first, later = AccessToken("first", LIFE_SECONDS), AccessToken("later", 2 * LIFE_SECONDS)
    source, _ = tokens(clock, first, unreachable, denied, denied, unreachable, later)
    assert shown(source) == "first"

    clock.now = LIFE_SECONDS - 1
    assert shown(source) == shown(source) == "first"
    clock.now = LIFE_SECONDS
    with pytest.raises(EntraRefused, match="nobody is logged in"):
        shown(source)
    with pytest.raises(EntraUnreachable, match="no route"):
        shown(source)
    assert shown(source) == "later"


@pytest.mark.parametrize("given", ["text", None, AccessToken("", LIFE_SECONDS), AccessToken("first", None)])  # type: ignore[arg-type]
def test_what_is_not_a_token_is_refused(given: Any) -> None:
    source, _ = tokens(Clock(), given)
    with pytest.raises(EntraRefused, match=r"get_token gives an object of class \w+ without token"):
        shown(source)


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, ServiceRequestError, ClientAuthenticationError])
def test_what_a_credential_raises_is_shown_without_tokens_and_without_its_cause(kind: type[Exception]) -> None:
    source, _ = tokens(Clock(), kind(f"refused {PLANTED_TOKEN}"))
    with pytest.raises(EntraRefused if kind is ClientAuthenticationError else EntraUnreachable) as raised:
        shown(source)
    printed = "".join(traceback.format_exception(raised.value))
    assert "refused ***" in printed
    assert PLANTED_TOKEN not in printed


def test_closing_closes_the_credential() -> None:
    source, credential = tokens(Clock(), AccessToken("first", LIFE_SECONDS))
    asyncio.run(source.token())
    assert credential.closed_count == 0
    asyncio.run(source.close())
    assert credential.closed_count == 1


def test_a_credential_that_takes_long_does_not_block_the_event_loop() -> None:
    asked, answer = threading.Event(), threading.Event()

    class SlowCredential(FakeCredential):
        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            asked.set()
            assert answer.wait(10)
            return super().get_token(*scopes, **options)

    async def ask() -> str:
        source = EntraTokens("scope", credential=SlowCredential(AccessToken("late", LIFE_SECONDS)), clock=Clock())
        asking = asyncio.create_task(source.token())
        assert await asyncio.to_thread(asked.wait, 10)
        answer.set()
        return (await asking).text.reveal()

    assert asyncio.run(ask()) == "late"
