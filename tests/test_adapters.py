"""Addresses become adapters in one place, and only the adapter that is asked for is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hubline.adapters import open_hub, open_store
from hubline.addresses.hub_address import parse_hub
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.errors import ConfigError
from hubline.hubs.eventhubs import EventHubsHub
from hubline.hubs.eventhubs.sdk import SdkHub
from hubline.hubs.local import LocalHub

CONNECTION_STRING = (
    "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=pLaNtEd;EntityPath=h"
)


def test_local_address_opens_the_hub_of_that_folder(tmp_path: Path) -> None:
    hub = open_hub(f"local:{tmp_path}/orders")
    assert isinstance(hub, LocalHub)
    assert (hub.namespace, hub.name) == (f"local:{tmp_path.resolve()}", "orders")


def test_memory_stores_of_one_name_are_one() -> None:
    assert open_store("memory:tests.a") is open_store("memory:tests.a")
    assert open_store("memory:tests.a") is not open_store("memory:tests.b")
    assert open_store("memory:") is open_store("memory:")


def test_sqlite_and_postgres_addresses_open_their_stores(tmp_path: Path) -> None:
    assert type(open_store(f"sqlite:///{tmp_path}/state.db")).__name__ == "SqliteStore"
    assert type(open_store("postgresql://me@localhost/state")).__name__ == "PostgresStore"


def test_addresses_may_be_parsed_already(tmp_path: Path) -> None:
    hub = open_hub(parse_hub(f"local:{tmp_path}/orders"))

    assert (type(hub), hub.name) == (LocalHub, "orders")
    assert open_store(parse_store("memory:tests.a")) is open_store("memory:tests.a")


def test_opening_touches_nothing(tmp_path: Path) -> None:
    open_hub(f"local:{tmp_path}/not-there/orders")
    open_store(f"sqlite:///{tmp_path}/not-there/state.db")
    assert list(tmp_path.iterdir()) == []


def test_objects_are_given_back_as_they_are(tmp_path: Path) -> None:
    hub, store = LocalHub(tmp_path, "orders"), MemoryStore()
    assert open_hub(hub) is hub
    assert open_store(store) is store


def test_event_hubs_are_spoken_to_by_hublines_own_client() -> None:
    hub = open_hub(CONNECTION_STRING)
    assert isinstance(hub, EventHubsHub)
    assert (hub.namespace, hub.name) == ("ns.servicebus.windows.net", "h")


def test_an_address_or_the_environment_chooses_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_hub(f"{CONNECTION_STRING};Transport=sdk"), SdkHub)
    monkeypatch.setenv("HUBLINE_TRANSPORT", "sdk")
    assert isinstance(open_hub(CONNECTION_STRING), SdkHub)
    assert isinstance(open_hub(f"{CONNECTION_STRING};Transport=websocket"), EventHubsHub)


def test_an_unknown_transport_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean websocket"):
        open_hub(f"{CONNECTION_STRING};Transport=websockets")
    monkeypatch.setenv("HUBLINE_TRANSPORT", "carrier-pigeon")
    with pytest.raises(ConfigError, match="the environment variable HUBLINE_TRANSPORT"):
        open_hub(CONNECTION_STRING)


def test_the_sdk_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.eventhub.aio", None)
    with pytest.raises(ConfigError, match=r"hubline\[sdk\]"):
        open_hub(f"{CONNECTION_STRING};Transport=sdk")


def test_wrong_address_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="did you mean local"):
        open_hub("lokal:./x/y")
    with pytest.raises(ConfigError, match="did you mean sqlite"):
        open_store("sqlit:///x")


def test_local_hub_and_sqlite_load_no_database_driver() -> None:
    program = (
        "import sys; from hubline.adapters import open_hub, open_store; "
        "open_hub('local:/x/y'); open_store('sqlite:////x/y.db'); sys.exit('psycopg' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
