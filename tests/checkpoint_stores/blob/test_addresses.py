"""The addresses of blob containers, and where their secrets come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubline.adapters import open_store
from hubline.addresses.blob_address import EMULATOR_KEY, BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob import BlobStore
from hubline.errors import ConfigError
from hubline.secrets import Secret

KEY = "cGxhbnRlZCBzZWNyZXQ="
SIGNATURE = "sv=2021-12-02&sr=c&sp=racwdl&sig=planted%2Bsecret%3D"
AZURE = "https://acme.blob.core.windows.net"
EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (f"{AZURE}/state", BlobAddress(AZURE, "acme", "state")),
        (f"{AZURE}/state/", BlobAddress(AZURE, "acme", "state")),
        ("HTTPS://Acme.Blob.Core.Windows.Net/state", BlobAddress(AZURE, "acme", "state")),
        (f"{AZURE}/state?{SIGNATURE}", BlobAddress(AZURE, "acme", "state", signature=Secret(SIGNATURE))),
        (f"{EMULATOR}/state", BlobAddress(EMULATOR, "devstoreaccount1", "state", key=EMULATOR_KEY)),
        (
            "http://azurite:10000/devstoreaccount1/state",
            BlobAddress("http://azurite:10000/devstoreaccount1", "devstoreaccount1", "state", key=EMULATOR_KEY),
        ),
        (
            f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY};EndpointSuffix=core.windows.net;Container=state",
            BlobAddress(AZURE, "acme", "state", key=Secret(KEY)),
        ),
        (f"accountname=acme;accountkey={KEY};container=state", BlobAddress(AZURE, "acme", "state", key=Secret(KEY))),
        (
            f"BlobEndpoint={AZURE}/;SharedAccessSignature={SIGNATURE};QueueEndpoint=https://x/;Container=state",
            BlobAddress(AZURE, "acme", "state", signature=Secret(SIGNATURE)),
        ),
        (
            "AccountName=acme;EndpointSuffix=core.chinacloudapi.cn;Container=state",
            BlobAddress("https://acme.blob.core.chinacloudapi.cn", "acme", "state"),
        ),
        (
            "UseDevelopmentStorage=true;Container=state",
            BlobAddress(EMULATOR, "devstoreaccount1", "state", key=EMULATOR_KEY),
        ),
        (
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};"
            "BlobEndpoint=http://127.0.0.1:12345/devstoreaccount1;Container=state",
            BlobAddress("http://127.0.0.1:12345/devstoreaccount1", "devstoreaccount1", "state", key=Secret(KEY)),
        ),
    ],
)
def test_an_address_is_read(text: str, address: BlobAddress) -> None:
    assert parse_store(text) == address


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_KEY", KEY)
    (tmp_path / "sas").write_text(f"?{SIGNATURE}\n")
    monkeypatch.setenv("STORE", f"{AZURE}/state?{SIGNATURE}")

    assert parse_store(f"{AZURE}/state?key=env:STORAGE_KEY") == BlobAddress(AZURE, "acme", "state", key=Secret(KEY))
    signed = BlobAddress(AZURE, "acme", "state", signature=Secret(SIGNATURE))
    assert parse_store(f"{AZURE}/state?sas=file:{tmp_path}/sas") == signed
    assert parse_store("env:STORE") == signed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{AZURE}", "Write https://ACCOUNT"),
        (f"{AZURE}/", "Write https://ACCOUNT"),
        (f"{AZURE}/a/b/c", "Write https://ACCOUNT"),
        (f"{AZURE}/State", "lower-case letters"),
        (f"{AZURE}/st", "lower-case letters"),
        (f"{AZURE}/state#x", "Write https://ACCOUNT"),
        (f"https://me:{KEY}@acme.blob.core.windows.net/state", "before the host is not allowed"),
        ("http://acme.blob.core.windows.net/state", "http:// is not encrypted"),
        (f"{AZURE}/state?key={KEY}", "must not hold the secret itself"),
        (f"{AZURE}/state?sv=2020&color=green", "a whole signature"),
        (f"{AZURE}/state?keys=env:KEY", "did you mean key?"),
        (f"{AZURE}/state?key=env:NOT_SET_ANYWHERE", "is not set"),
        (f"AccountName=acme;AccountKey={KEY}", "Container is missing"),
        (f"AccountName=acme;AccountKey=planted secret {KEY};Container=state", "is not base64"),
        (f"AccountName=acme;AccountKey={KEY};SharedAccessSignature={SIGNATURE};Container=state", "Keep one"),
        ("AccountName=acme;SharedAccessSignature=sv=2020;Container=state", "has no sig="),
        (f"AccountKey={KEY};Container=state", "AccountName is missing"),
        ("UseDevelopmentStorage=yes;Container=state", "must be true"),
        (f"AccountName=acme;AcountKey={KEY};Container=state", "did you mean AccountKey"),
    ],
)
def test_a_mistake_is_explained_and_shows_no_secret(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_store(text)
    message = str(refused.value)
    assert words in message
    assert KEY not in message
    assert "planted" not in message


def test_the_store_shows_its_place_and_no_secret() -> None:
    store = open_store(f"{AZURE}/state?{SIGNATURE}")
    assert isinstance(store, BlobStore)
    assert repr(store) == f"BlobStore({AZURE}/state)"
