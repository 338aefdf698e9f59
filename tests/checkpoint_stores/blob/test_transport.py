"""Requests whose answers are lost, refused, late or strange, and what they show of secrets."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from hubline.addresses.blob_address import EMULATOR_ACCOUNT, EMULATOR_KEY, BlobAddress
from hubline.checkpoint_stores.blob import BlobStore, Container
from hubline.checkpoint_stores.blob import http as transport_module
from hubline.checkpoint_stores.blob.auth import Entra, string_to_sign
from hubline.checkpoint_stores.blob.client import parse_listing
from hubline.checkpoint_stores.blob.http import Answer, Transport
from hubline.errors import ConfigError, StoreError, StoreUnavailable
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.secrets import Secret
from hubline.testing.contracts.store import GROUP, KEY
from tests.checkpoint_stores.blob.support import blob_address, blob_store, locking_blob_store, play, transport_of
from tests.support.entra import FakeCredential

azurite_only = pytest.mark.xdist_group("azurite")


@azurite_only
class TestLostAnswers:
    """Every request takes effect, and the first answer to it never arrives."""

    @pytest.fixture(autouse=True)
    def _lossy(self, monkeypatch: pytest.MonkeyPatch, container: str) -> None:  # which is made before
        monkeypatch.setattr(transport_module, "RETRY", replace(transport_module.RETRY, initial_backoff_seconds=0.001))
        attempt = Transport._attempt
        lost: set[tuple[str, str, str]] = set()

        async def lossy(
            self: Transport, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]
        ) -> Answer:
            what = headers.get("x-ms-meta-hublinewrite") or headers.get("x-ms-lease-action", "")
            request = (method, path, what)
            answer = await attempt(self, method, path, query, headers)
            if method == "PUT" and request not in lost:
                lost.add(request)
                raise transport_module._NoAnswer("the answer was lost")
            return answer

        monkeypatch.setattr(Transport, "_attempt", lossy)

    def test_a_claim_finds_its_own_write(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            (first,) = await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
            (second,) = await store.claim_ownership([Ownership(KEY, "b", 2, first.version)])
            assert await store.claim_ownership([Ownership(KEY, "c", 2, first.version)]) == []

            (listed,) = (await store.list_ownership(GROUP)).ownerships
            assert (listed.owner_id, listed.version) == ("b", second.version)

        play(container, scenario)

    def test_locks_are_acquired_renewed_and_released_all_the_same(self, container: str) -> None:
        async def scenario(_: BlobStore) -> None:
            store = locking_blob_store(container)
            (first,) = await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
            (own,) = await store.claim_ownership([Ownership(KEY, "a", 2, first.version)])
            assert len((await store.renew_ownership(GROUP, Member("a"), [own])).renewed) == 1
            (given_up,) = await store.claim_ownership([Ownership(KEY, "", 2, own.version)])

            (next_one,) = await store.claim_ownership([Ownership(KEY, "b", 3, given_up.version)])

            await store.reset_checkpoint(KEY, Checkpoint(KEY, "1", 1))
            assert (await store.renew_ownership(GROUP, Member("b"), [next_one])).renewed == []
            await store.close()

        play(container, scenario)

    def test_a_checkpoint_finds_its_own_write(self, container: str) -> None:
        async def scenario(store: BlobStore) -> None:
            assert await store.fence(KEY, 1) is None
            for number in range(3):
                await store.update_checkpoint(Checkpoint(KEY, str(number), number), epoch=1)
            assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "2", 2)]
            assert await store.fence(KEY, 2) == Checkpoint(KEY, "2", 2)

        play(container, scenario)


class ScriptedTransport(Transport):
    """Gives the answers that it was given, one after the other."""

    def __init__(self, *answers: Answer | Exception) -> None:
        address = BlobAddress("http://127.0.0.1:1/devstoreaccount1", EMULATOR_ACCOUNT, "test", key=EMULATOR_KEY)
        super().__init__(address, Entra(_NoToken()))
        self._answers = list(answers)
        self.sent: list[tuple[str, dict[str, str], dict[str, str]]] = []

    async def _attempt(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> Answer:
        self.sent.append((path, dict(query), headers))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class _NoToken:
    def get_token(self, *scopes: str) -> Any:
        raise AssertionError(scopes)

    def close(self) -> None: ...


def answer(status: int, code: str = "", body: bytes = b"") -> Answer:
    return Answer(status, {"x-ms-error-code": code} if code else {}, body, now=1_800_000_000.0)


def listing(*names: str, marker: str = "") -> bytes:
    blobs = "".join(
        f"<Blob><Name>{name}</Name><Properties><Last-Modified>Fri, 15 Jan 2027 08:00:00 GMT</Last-Modified>"
        f"<Etag>0x1</Etag></Properties><Metadata><OwnerId>x</OwnerId></Metadata></Blob>"
        for name in names
    )
    text = f"<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>{blobs}</Blobs>"
    return f"{text}<NextMarker>{marker}</NextMarker></EnumerationResults>".encode()


class TestRetries:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport_module, "RETRY", replace(transport_module.RETRY, initial_backoff_seconds=0.0))

    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_what_may_help_is_tried_again(self, status: int) -> None:
        transport = ScriptedTransport(answer(status), answer(status), answer(200, body=listing()))
        assert asyncio.run(Container(transport).list("p/"))[0] == []
        assert len(transport.sent) == 3

    def test_but_not_for_ever(self) -> None:
        transport = ScriptedTransport(*[answer(503, "ServerBusy")] * 10)
        with pytest.raises(StoreUnavailable, match="503 ServerBusy"):
            asyncio.run(Container(transport).list("p/"))
        assert len(transport.sent) == transport_module.RETRY.max_attempts == 4

    @pytest.mark.parametrize(
        ("refusal", "words"),
        [
            (answer(403, "AuthenticationFailed"), "Check the account's key"),
            (answer(404, "ContainerNotFound"), "does not exist. Create it"),
            (answer(401, "InvalidAuthenticationInfo"), "Check the tenant"),
        ],
    )
    def test_what_cannot_help_is_not(self, refusal: Answer, words: str) -> None:
        transport = ScriptedTransport(refusal)
        with pytest.raises(StoreError, match=words) as refused:
            asyncio.run(Container(transport).list("p/"))
        assert not isinstance(refused.value, StoreUnavailable)

    def test_a_missing_container_is_no_missing_blob(self) -> None:
        with pytest.raises(StoreError, match="does not exist"):
            asyncio.run(Container(ScriptedTransport(answer(404, "ContainerNotFound"))).look("x"))
        assert asyncio.run(Container(ScriptedTransport(answer(404, "BlobNotFound"))).look("x")) is None


class TestListing:
    def test_pages_are_followed_to_the_end(self) -> None:
        pages = (listing("p/1", "p/2", marker="after 2"), listing("p/3", marker="after 3"), listing("p/4"))
        transport = ScriptedTransport(*(answer(200, body=page) for page in pages))

        blobs, _ = asyncio.run(Container(transport).list("p/"))

        assert [blob.name for blob in blobs] == ["p/1", "p/2", "p/3", "p/4"]
        assert [query.get("marker") for _, query, _ in transport.sent] == [None, "after 2", "after 3"]
        assert blobs[0].metadata == {"ownerid": "x"}

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html>hello</html>",
            b"\xff\xfe<",
            b"<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><EnumerationResults><Blobs/></EnumerationResults>",
            listing("x").replace(b"Fri, 15 Jan 2027 08:00:00 GMT", b"yesterday"),
            listing("x").replace(b"<Name>x</Name>", b""),
        ],
    )
    def test_what_is_no_listing_is_refused(self, body: bytes) -> None:
        with pytest.raises(StoreError, match="Check that the address is of Azure Blob Storage"):
            parse_listing(body, now=0.0)

    def test_names_that_xml_cannot_hold_come_encoded(self) -> None:
        body = listing("p/%01").replace(b"<Name>", b'<Name Encoded="true">')
        ((blob,), _) = parse_listing(body, now=0.0)
        assert blob.name == "p/\x01"


class TestWrites:
    def test_what_a_header_cannot_carry_is_refused_before_it_is_sent(self) -> None:
        transport = ScriptedTransport()
        for value in ("a\r\nx-ms-version: 1", " a", "a ", "\N{OCTOPUS}"):
            with pytest.raises(ConfigError, match="visible ASCII"):
                asyncio.run(Container(transport).put("x", {"ownerid": value}))
        assert transport.sent == []


class TestCredentials:
    def test_the_string_to_sign_is_the_services(self) -> None:
        """The example of the service's documentation for a container's list."""
        headers = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2015-02-21"}
        query = {"restype": "container", "comp": "metadata"}
        assert string_to_sign("myaccount", "GET", "/mycontainer", query, headers) == (
            "GET\n\n\n\n\n\n\n\n\n\n\n\n"
            "x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"
            "/myaccount/mycontainer\ncomp:metadata\nrestype:container"
        )

    @azurite_only
    def test_a_signature_is_enough(self, container: str) -> None:
        name = container.rpartition("/")[2]
        signature = generate_container_sas(
            EMULATOR_ACCOUNT,
            name,
            account_key=EMULATOR_KEY.reveal(),
            permission=ContainerSasPermissions(read=True, write=True, create=True, delete=True, list=True),
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )

        async def scenario(store: BlobStore) -> None:
            await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
            assert len((await store.list_ownership(GROUP)).ownerships) == 1

        play(f"{container}?{signature}", scenario)

    @azurite_only
    def test_a_wrong_key_is_refused_and_not_shown(self, container: str, caplog: pytest.LogCaptureFixture) -> None:
        planted = base64.b64encode(b"planted secret").decode()
        wrong = BlobAddress(
            container.rpartition("/")[0], EMULATOR_ACCOUNT, container.rpartition("/")[2], key=Secret(planted)
        )
        caplog.set_level(logging.DEBUG)

        async def scenario() -> None:
            store = BlobStore(wrong)
            try:
                with pytest.raises(StoreError, match="Check the account's key") as refused:
                    await store.list_ownership(GROUP)
                shown = f"{refused.value!r} {refused.value} {store!r} {wrong!r} {wrong}"
                assert planted not in shown + caplog.text
            finally:
                await store.close()

        asyncio.run(scenario())

    def test_a_signature_is_in_no_error(self) -> None:
        address = "http://127.0.0.1:1/devstoreaccount1/test?sv=2020&sig=planted%3D"

        async def scenario(store: BlobStore) -> None:
            with pytest.raises(StoreUnavailable) as failed:
                await store.list_ownership(GROUP)
            assert (
                "planted" not in f"{failed.value!r} {failed.value.__cause__!r} {failed.value.__context__!r} {store!r}"
            )

        play(address, scenario)

    def test_requests_carry_an_entra_token_for_storage(self) -> None:
        credential = FakeCredential(AccessToken("eyJ", 10_000))
        headers: dict[str, str] = {}

        assert asyncio.run(Entra(credential, clock=lambda: 0.0).authorize("GET", "/c", {}, headers)) == {}

        assert headers == {"Authorization": "Bearer eyJ"}
        assert credential.asked == [("https://storage.azure.com/.default",)]

    @pytest.mark.parametrize(
        ("failure", "kind"),
        [(ClientAuthenticationError("nobody"), StoreError), (ServiceRequestError("no route"), StoreUnavailable)],
    )
    def test_what_a_credential_raises_is_typed(self, failure: Exception, kind: type[StoreError]) -> None:
        with pytest.raises(kind, match="for Blob Storage: no") as raised:
            asyncio.run(Entra(FakeCredential(failure)).authorize("GET", "/c", {}, {}))
        assert type(raised.value) is kind

    def test_a_host_whose_clock_is_far_off_dates_its_requests_by_the_services(self) -> None:
        """The service refuses what is dated more than a quarter of an hour off, and tells its own time with that."""
        transport = _MisdatedTransport(blob_address("http://127.0.0.1:1/devstoreaccount1/test"))
        assert asyncio.run(transport.send("GET")).status == 200
        assert transport.dates[1] - transport.dates[0] == pytest.approx(3600, abs=2)


class _MisdatedTransport(Transport):
    """Refuses what is dated more than 15 minutes off its own time, which is an hour ahead."""

    def __init__(self, address: BlobAddress) -> None:
        super().__init__(address, Entra(_NoToken()))
        self.dates: list[float] = []

    async def _attempt(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> Answer:
        now = time.time() + 3600
        dated = time.time() + self._date_correction()
        self.dates.append(dated)
        self._skew_seconds = now - time.time()
        return answer(403 if abs(dated - now) > 900 else 200)


@azurite_only
def test_a_container_that_is_not_there_is_named(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        with pytest.raises(StoreError, match="does not exist"):
            await store.list_ownership(GROUP)
        with pytest.raises(StoreError, match="does not exist"):
            await store.claim_ownership([Ownership(KEY, "a", epoch=1)])

    play(f"{container}-missing", scenario)


@azurite_only
def test_a_blob_that_somebody_leased_is_a_lost_claim(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        (held,) = await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
        transport = transport_of(container)
        headers = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "15"}
        name = "namespace.example/orders/$default/ownership/0"
        assert (await transport.send("PUT", blob=name, query={"comp": "lease"}, headers=headers)).status == 201
        await transport.close()

        assert await store.claim_ownership([Ownership(KEY, "b", 2, held.version)]) == []

    play(container, scenario)


@azurite_only
def test_two_stores_of_one_container_see_each_other(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        other = blob_store(container)
        await other.claim_ownership([Ownership(KEY, "a", epoch=1)])
        await other.close()
        assert len((await store.list_ownership(GROUP)).ownerships) == 1

    play(container, scenario)
