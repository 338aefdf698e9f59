"""Credentials by name: made where they are used, refused in one line that names the machine, and never pickled."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import pickle
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.credentials import AccessToken

from hubline.addresses.blob_address import EMULATOR_KEY, BlobAddress
from hubline.addresses.credential_choice import CredentialChoice, CredentialKind, parse_credential
from hubline.addresses.hub_address import EventHubsAddress, Transport, parse_hub
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob.auth import Entra as BlobEntra
from hubline.checkpoint_stores.blob.auth import credential_of
from hubline.credentials.entra_tokens import EntraTokens
from hubline.credentials.fabric import UNKNOWN_LIFE_SECONDS, FabricCredential
from hubline.credentials.token_credentials import token_credential
from hubline.errors import ConfigError, HubUnavailable
from hubline.hubs.eventhubs.authorization import ENTRA_SCOPE, token_source
from tests.support.certificates import self_signed
from tests.support.entra import PLANTED_TOKEN, CredentialWithoutClose, FakeCredential

CLIENT_ID = "0b1f3c9e-2d63-4b6c-9c5c-1d1f0f3c0a11"
INFINITE = f"a.{base64.b64encode(json.dumps({'exp': float('inf')}).encode()).decode()}.c"
WHERE = "eventhubs://ns/orders"


def made(text: str) -> Any:
    return token_credential(parse_credential(text), where=WHERE)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        made(text)
    message = str(refused.value)
    assert message.startswith(f"{WHERE}: the credential {text} cannot be made on {socket.gethostname()}")
    assert "\n" not in message
    assert "PLANTED" not in message + repr(refused.value.__cause__)
    assert PLANTED_TOKEN not in message
    return message


class TestNames:
    @pytest.mark.parametrize(
        "text",
        [
            "default",
            "managed-identity",
            f"managed-identity:{CLIENT_ID}",
            "workload-identity",
            "databricks:event-hubs_2",
            "fabric",
            "factory:acme.identity:for_hubs",
        ],
    )
    def test_a_credential_is_named_in_addresses(self, text: str) -> None:
        choice = parse_credential(text)
        assert str(choice) == text
        hub = parse_hub(f"eventhubs://ns/orders?credential={text}&transport=websocket")
        assert isinstance(hub, EventHubsAddress)
        assert (hub.credential, hub.transport) == (choice, Transport.WEBSOCKET)
        store = parse_store(f"https://acme.blob.core.windows.net/state?credential={text}")
        assert isinstance(store, BlobAddress)
        assert (store.credential, store.takes_credential) == (choice, True)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "'' is unknown. Use one of: default, managed-identity,"),
            ("managed_identity", "did you mean managed-identity?"),
            ("managed-identity:me", "'me' is not the name that managed-identity needs. Write managed-identity:CLIENT"),
            ("databricks", "'' is not the name that databricks needs. Write databricks:NAME"),
            ("databricks:a b", "'a b' is not the name"),
            ("fabric:x", "fabric takes no name"),
            ("default:", "default takes no name"),
            ("factory:acme", "'acme' is not the name that factory needs. Write factory:package.module:function"),
            ("factory:acme:f()", "Write factory:package.module:function"),
            ("factory:..acme:f", "Write factory:package.module:function"),
            ("factory:acme:Class.method", "Write factory:package.module:function"),
            ("factory:acme:f:g", "Write factory:package.module:function"),
        ],
    )
    def test_a_wrong_name_is_refused_where_it_is_given(self, text: str, says: str) -> None:
        with pytest.raises(ConfigError) as refused:
            parse_hub(f"eventhubs://ns/orders?credential={text}")
        assert str(refused.value).startswith("hub address: credential: ")
        assert says in str(refused.value)
        with pytest.raises(ConfigError, match=r"^store address: credential: "):
            parse_store(f"https://acme.blob.core.windows.net/state?credential={text}")

    def test_a_store_proves_itself_in_one_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEY", EMULATOR_KEY.reveal())
        with pytest.raises(ConfigError, match="both a key and a credential"):
            parse_store("https://acme.blob.core.windows.net/state?key=env:KEY&credential=default")

    def test_an_emulators_public_key_is_not_used_beside_a_credential(self) -> None:
        store = parse_store("https://127.0.0.1:10000/devstoreaccount1/state?credential=default")
        assert isinstance(store, BlobAddress)
        assert (store.key, store.credential) == (None, CredentialChoice(CredentialKind.DEFAULT))


class TestFactories:
    def test_its_credential_is_used_for_hubs_and_stores(self) -> None:
        hub = parse_hub("eventhubs://ns/orders?credential=factory:tests.support.entra:planted")
        assert isinstance(hub, EventHubsAddress)
        assert asyncio.run(token_source(hub).token("audience")).text.reveal() == PLANTED_TOKEN
        store = parse_store(
            "https://acme.blob.core.windows.net/state?credential=factory:tests.support.entra:CredentialWithoutClose"
        )
        assert isinstance(store, BlobAddress)
        headers: dict[str, str] = {}
        proof = credential_of(store)
        assert isinstance(proof, BlobEntra)
        asyncio.run(proof.authorize("GET", "/state", {}, headers))
        assert headers == {"Authorization": f"Bearer {PLANTED_TOKEN}"}

    def test_a_credential_need_not_be_closable(self) -> None:
        asyncio.run(EntraTokens("scope", credential=CredentialWithoutClose()).close())

    def test_a_credential_that_it_gives_several_times_is_not_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shared = FakeCredential(AccessToken(PLANTED_TOKEN, int(time.time()) + 3600))
        stand_in(monkeypatch, "acme_identity", shared=lambda: shared)
        address = parse_hub("eventhubs://ns/orders?credential=factory:acme_identity:shared")
        assert isinstance(address, EventHubsAddress)
        asyncio.run(token_source(address).close())
        assert shared.closed_count == 0

    @pytest.mark.parametrize(
        ("path", "says"),
        [
            ("no.such.module:f", "the module no.such.module cannot be imported (ModuleNotFoundError: No module named"),
            ("tests.support.entra:missing", "the module tests.support.entra has no function missing"),
            ("tests.support.entra:not_a_function", "has no function not_a_function"),
            (
                "tests.support.entra:text",
                "it is an object of class str, which has no get_token(scope). Return a TokenCredential",
            ),
            ("tests.support.entra:AsyncCredential", "it is asynchronous (an object of class AsyncCredential)"),
            ("tests.support.entra:failing", "it failed (RuntimeError: no ***). Correct the function, or"),
            ("sys:exit", "it failed (SystemExit). Correct the function"),
        ],
    )
    def test_what_is_not_a_factory_is_refused(self, path: str, says: str) -> None:
        assert says in refusal(f"factory:{path}")

    def test_a_module_that_cannot_be_loaded_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "broken_identity.py").write_text(f"raise KeyError({PLANTED_TOKEN!r})\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert "the module broken_identity cannot be imported (KeyError: '***')" in refusal("factory:broken_identity:f")

    def test_a_class_that_is_given_in_place_of_a_credential_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch, "acme_identity", f=lambda: FakeCredential)
        assert "it is the class FakeCredential" in refusal("factory:acme_identity:f")


class TestAzureIdentity:
    """What is asked of azure-identity, by a stand-in; the tests below ask the real one."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("default", ("DefaultAzureCredential", {})),
            ("managed-identity", ("ManagedIdentityCredential", {})),
            (f"managed-identity:{CLIENT_ID}", ("ManagedIdentityCredential", {"client_id": CLIENT_ID})),
            ("workload-identity", ("WorkloadIdentityCredential", {})),
        ],
    )
    def test_each_name_is_a_class_of_it(
        self, text: str, expected: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[tuple[str, dict[str, str]]] = []

        def class_of(name: str) -> object:
            def make(**options: str) -> FakeCredential:
                calls.append((name, options))
                return FakeCredential()

            return make

        names = ("DefaultAzureCredential", "ManagedIdentityCredential", "WorkloadIdentityCredential")
        stand_in(monkeypatch, "azure.identity", **{name: class_of(name) for name in names})
        for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
            monkeypatch.setenv(name, "x")
        assert made(text)
        assert calls == [expected]

    @pytest.mark.parametrize("text", ["default", "managed-identity", "workload-identity"])
    def test_without_it_the_extra_is_named(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setitem(sys.modules, "azure.identity", None)
        assert "pip install 'hubline[entra]'" in refusal(text)

    def test_a_missing_variable_of_workload_identity_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
        monkeypatch.delenv("AZURE_CLIENT_ID", raising=False)
        assert "the environment variable AZURE_CLIENT_ID is not set" in refusal("workload-identity")


class TokenServer:
    """Answers as Entra and the metadata service of a machine do, on loopback."""

    def __init__(self) -> None:
        requests: list[tuple[str, dict[str, str], dict[str, str]]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                split = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                fields = {name: values[0] for name, values in parse_qs(split.query or body).items()}
                requests.append((split.path, fields, dict(self.headers)))
                answer = {
                    "access_token": PLANTED_TOKEN,
                    "token_type": "Bearer",
                    "expires_in": 3600,
                    "expires_on": str(int(time.time()) + 3600),
                    "resource": fields.get("resource", ""),
                }
                text = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_arguments: object) -> None: ...

        self.requests = requests
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]

    @contextmanager
    def serving(self) -> Iterator[TokenServer]:
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


class TestRealAzureIdentity:
    @pytest.fixture(autouse=True)
    def _identity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("azure.identity", reason="needs the extra entra")
        for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")

    def test_a_managed_identity_asks_the_machines_metadata_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        address = parse_hub(f"eventhubs://ns/orders?credential=managed-identity:{CLIENT_ID}")
        assert isinstance(address, EventHubsAddress)
        with TokenServer().serving() as server:
            monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{server.port}")
            token = asyncio.run(token_source(address).token("audience"))
        assert token.text.reveal() == PLANTED_TOKEN
        assert token.expires_at > time.time() + 3000
        [(path, fields, headers)] = server.requests
        assert path == "/metadata/identity/oauth2/token"
        assert (fields["resource"], fields["client_id"]) == ("https://eventhubs.azure.net/", CLIENT_ID)
        assert headers["Metadata"] == "true"

    def test_a_host_of_entra_that_has_no_address_is_unavailable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from azure.identity import ClientSecretCredential

        credential = ClientSecretCredential(
            CLIENT_ID, CLIENT_ID, "x", authority="login.invalid", disable_instance_discovery=True, retry_total=0
        )
        stand_in(monkeypatch, "acme_identity", f=lambda: credential)
        address = parse_hub("eventhubs://ns/orders?credential=factory:acme_identity:f")
        assert isinstance(address, EventHubsAddress)
        with pytest.raises(HubUnavailable, match="Entra cannot be asked now"):
            asyncio.run(token_source(address).token("audience"))

    def test_a_workload_identity_shows_the_pods_token_to_entra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificate, key = self_signed(tmp_path)
        (tmp_path / "pod-token").write_text("the pod's own token")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        monkeypatch.setenv("AZURE_TENANT_ID", CLIENT_ID)
        monkeypatch.setenv("AZURE_CLIENT_ID", CLIENT_ID)
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "pod-token"))
        server = TokenServer()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
        with server.serving():
            monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"https://localhost:{server.port}")
            store = parse_store("https://acme.blob.core.windows.net/state?credential=workload-identity")
            assert isinstance(store, BlobAddress)
            headers: dict[str, str] = {}
            asyncio.run(credential_of(store).authorize("GET", "/state", {}, headers))
        assert headers == {"Authorization": f"Bearer {PLANTED_TOKEN}"}
        [(path, fields, _)] = server.requests
        assert path == f"/{CLIENT_ID}/oauth2/v2.0/token"
        assert fields["client_assertion"] == "the pod's own token"
        assert fields["scope"] == "https://storage.azure.com/.default"


class TestDatabricks:
    """With stand-ins for its modules: this has not run on Databricks."""

    def test_a_program_on_the_driver_asks_dbutils(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch, "databricks.sdk.runtime", dbutils=dbutils("runtime"))
        assert made("databricks:event-hubs").by == "runtime event-hubs"

    def test_a_notebooks_own_dbutils_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch, "databricks.sdk.runtime", dbutils=dbutils("runtime"))
        monkeypatch.setattr(sys.modules["__main__"], "dbutils", dbutils("notebook"), raising=False)
        assert made("databricks:event-hubs").by == "notebook event-hubs"

    def test_a_task_asks_the_function_of_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch, "databricks.sdk.runtime", dbutils=dbutils("runtime"))
        stand_in(monkeypatch, "databricks.service_credentials", getServiceCredentialsProvider=provider("worker"))
        assert made("databricks:event-hubs").by == "runtime event-hubs"
        in_a_task(monkeypatch)
        assert made("databricks:event-hubs").by == "worker event-hubs"

    def test_a_planning_process_without_dbutils_asks_as_workers_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand_in(monkeypatch, "databricks.service_credentials", getServiceCredentialsProvider=provider("worker"))
        assert made("databricks:event-hubs").by == "worker event-hubs"

    def test_elsewhere_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "there is no Databricks runtime" in refusal("databricks:event-hubs")
        in_a_task(monkeypatch)
        assert f"on {socket.gethostname()}, in a Spark task: " in refusal("databricks:event-hubs")

    def test_a_credential_that_the_user_may_not_use_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(name: str) -> object:
            raise PermissionError(f"no ACCESS on {name}")

        stand_in(monkeypatch, "databricks.service_credentials", getServiceCredentialsProvider=denied)
        message = refusal("databricks:event-hubs")
        assert "it failed (PermissionError: no ACCESS on event-hubs). Check its name, and that you may" in message


class TestFabric:
    """With stand-ins for its modules: this has not run on Fabric."""

    @pytest.mark.parametrize("module", ["notebookutils", "mssparkutils"])
    def test_the_notebooks_identity_is_asked(self, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def get_token(audience: str) -> str:
            asked.append(audience)
            return jwt(99)

        stand_in(monkeypatch, module, credentials=SimpleNamespace(getToken=get_token))
        credential = made("fabric")
        token = credential.get_token(ENTRA_SCOPE)
        credential.get_token("https://storage.azure.com/.default")
        assert asked == ["https://eventhubs.azure.net", "storage"]
        assert (token.token, token.expires_on) == (jwt(99), 99)
        assert jwt(99) not in repr(token)

    @pytest.mark.parametrize("text", ["opaque", "a.b.c", "a.!.c", INFINITE, f"a.{base64.b64encode(b'[]').decode()}.c"])
    def test_a_token_that_does_not_say_when_it_expires_is_renewed_soon(self, text: str) -> None:
        credential = FabricCredential(SimpleNamespace(getToken=lambda _name: text), clock=lambda: 1000.0)
        assert credential.get_token(ENTRA_SCOPE).expires_on == 1000 + UNKNOWN_LIFE_SECONDS

    def test_elsewhere_it_is_refused(self) -> None:
        assert "there is no notebookutils" in refusal("fabric")


class TestPickles:
    def test_an_address_that_is_in_use_carries_a_name_alone(self) -> None:
        hub = parse_hub("eventhubs://ns/orders?credential=factory:tests.support.entra:planted")
        assert isinstance(hub, EventHubsAddress)
        source = token_source(hub)
        token = asyncio.run(source.token("audience"))
        pickled = pickle.dumps(hub)
        assert pickle.loads(pickled) == hub  # noqa: S301 - our own
        assert b"tests.support.entra:planted" in pickled
        assert PLANTED_TOKEN.encode() not in pickled
        assert PLANTED_TOKEN not in f"{hub!r} {hub} {token!r} {source!r}"


# Stand-ins -----------------------------------------------------------------------------------------------------------


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> None:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    packages = name.split(".")[:-1]
    for end in range(1, len(packages) + 1):
        package = ".".join(packages[:end])
        if package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))


def provider(by: str) -> Any:
    def made_by(name: str) -> FakeCredential:
        credential = FakeCredential(AccessToken(PLANTED_TOKEN, 0))
        vars(credential)["by"] = f"{by} {name}"
        return credential

    return made_by


def dbutils(by: str) -> object:
    return SimpleNamespace(credentials=SimpleNamespace(getServiceCredentialsProvider=provider(by)))


def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "pyspark.taskcontext", TaskContext=SimpleNamespace(get=object))


def jwt(expires_on: int) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_on}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"
