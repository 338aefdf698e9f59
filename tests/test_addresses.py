"""What people type: every good form is read, every bad one gets a clear error that shows no secret."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.addresses.hub_address import (
    HUB_FORMS,
    EventHubsAddress,
    LocalHubAddress,
    Transport,
    parse_hub,
    parse_local_root,
)
from hubline.addresses.names import validate_group_name, validate_hub_name, validate_owner_id, validate_partition_id
from hubline.addresses.store_address import STORE_FORMS, MemoryAddress, PostgresAddress, SqliteAddress, parse_store
from hubline.addresses.values import parse_duration, parse_position, parse_size
from hubline.errors import ConfigError, HublineError
from hubline.model.positions import Position
from hubline.secrets import Secret

PLANTED = "hUnTeR2pLaNtEd"
"""Stands wherever a secret may stand; no message may contain it."""

KEY = f"{PLANTED}+abc/def=="
ENDPOINT = "Endpoint=sb://orders.servicebus.windows.net/"
POLICY = "SharedAccessKeyName=reader"
CONNECTION_STRING = f"{ENDPOINT};{POLICY};SharedAccessKey={KEY};EntityPath=orders"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def refusal(parse: Callable[[str], object], text: str) -> str:
    """What the error says, after making sure that all Python would print of it shows no secret."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    printed = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.args)
    assert PLANTED.lower() not in printed.lower()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    return str(caught.value)


def outcome(parse: Callable[[str], object], text: str) -> str:
    """The address or the refusal, as it is shown."""
    try:
        return str(parse(text))
    except ConfigError as error:
        return str(error)


class TestSecret:
    def test_is_shown_by_reveal_alone(self) -> None:
        secret = Secret(PLANTED)
        assert secret.reveal() == PLANTED
        shown = [repr(secret), str(secret), f"{secret}", f"{secret:>10}", "%s" % secret, f"{secret!r}", f"{[secret]}"]  # noqa: UP031
        assert not any(PLANTED in text for text in shown)

    def test_is_masked_in_a_log_line(self, caplog: pytest.LogCaptureFixture) -> None:
        logging.getLogger("test").warning("key=%s %r", Secret(PLANTED), {"key": Secret(PLANTED)})
        assert PLANTED not in caplog.text

    def test_is_refused_by_json_without_showing_it(self) -> None:
        with pytest.raises(TypeError) as caught:
            json.dumps({"key": Secret(PLANTED)})
        assert PLANTED not in str(caught.value)

    def test_equals_by_content_and_only_another_secret(self) -> None:
        assert Secret("ä") == Secret("ä")
        assert Secret("a") != Secret("b")
        assert Secret("a") != "a"
        assert len({Secret("a"), Secret("a"), Secret("b")}) == 2

    def test_is_masked_in_addresses(self) -> None:
        signed = f"{ENDPOINT};EntityPath=orders;SharedAccessSignature=SharedAccessSignature sr=x&sig={PLANTED}&se=1"
        addresses = [
            parse_hub(CONNECTION_STRING),
            parse_hub(signed),
            parse_store(f"postgresql://u:{PLANTED}@h/db?sslpassword={PLANTED}"),
        ]
        assert all(PLANTED not in f"{address!r} {address}" for address in addresses)


class TestNames:
    @pytest.mark.parametrize("name", ["a", "7", "orders", "Orders-2.eu_west", "x" * 256])
    def test_hub_name_is_taken_as_it_is(self, name: str) -> None:
        assert validate_hub_name(name) == name

    HOSTILE = (
        "", " ", ".", "..", "../etc", "a/b", "a\\b", "/abs", "a\0b", "a\nb", "a\n", "\x1b[31mred", "-a", "a-", "_",
        "a b", "ä", "a\u202eb", "a" * 257, "a" * 100_000, "a;b", "%2e%2e", "$Default ", "a:b",
    )  # fmt: skip

    @pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
    @pytest.mark.parametrize("validate", [validate_hub_name, validate_group_name, validate_partition_id])
    def test_hostile_name_is_refused_in_a_short_printable_message(
        self, validate: Callable[[str], str], name: str
    ) -> None:
        assert refusal(validate, name)

    def test_default_group_has_one_spelling(self) -> None:
        assert validate_group_name("$default") == "$Default"
        assert validate_group_name("$DEFAULT") == "$Default"
        assert "$Default" in refusal(validate_group_name, "$Other")

    def test_group_name_has_at_most_50_characters(self) -> None:
        assert validate_group_name("g" * 50)
        assert "51 characters. Use at most 50" in refusal(validate_group_name, "g" * 51)

    @pytest.mark.parametrize("owner_id", ["a", "host.example.org:4711/2", "0b1f3c9e-2d63-4b6c-9c5c-1d1f0f3c0a11"])
    def test_owner_id_may_be_any_visible_ascii(self, owner_id: str) -> None:
        assert validate_owner_id(owner_id) == owner_id

    @pytest.mark.parametrize("owner_id", ["", "a b", "a\n", "ä", "x" * 257, "\x7f"])
    def test_owner_id_that_breaks_logs_or_headers_is_refused(self, owner_id: str) -> None:
        assert refusal(validate_owner_id, owner_id)

    def test_connection_string_in_place_of_a_name_is_not_repeated(self) -> None:
        assert "not shown" in refusal(validate_hub_name, CONNECTION_STRING)
        assert "not shown" in refusal(validate_hub_name, f"postgresql://u:{PLANTED}@h/db")

    def test_config_error_is_a_value_error_too(self) -> None:
        assert issubclass(ConfigError, ValueError)
        assert issubclass(ConfigError, HublineError)


class TestLocalHubAddress:
    def test_relative_path_is_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert parse_hub("local:./data/orders") == LocalHubAddress(tmp_path.resolve() / "data", "orders")
        assert parse_hub("local:data/orders") == parse_hub("local:./data/x/../orders")

    def test_home_is_expanded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert parse_hub("local:~/hubs/orders") == LocalHubAddress(tmp_path.resolve() / "hubs", "orders")

    def test_slash_left_by_completion_is_ignored(self) -> None:
        assert parse_hub("local:/data/orders/") == LocalHubAddress(Path("/data"), "orders")

    def test_text_of_an_address_reads_back(self) -> None:
        address = parse_hub("local:/data/my hubs/orders")
        assert parse_hub(str(address)) == address

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("local:", "needs a folder and a name"),
            ("local:orders", "local:./telemetry"),
            ("local:/", "needs a folder and a name"),
            ("local:./data//", "hub name in the hub address is empty"),
            ("local:./data/..", "is not allowed"),
            ("local:./data/or ders", "is not allowed"),
            ("local://data/orders", "without the //"),
            ("local:./data/" + "x" * 256, "at most 255"),
            ("local:~nobody-of-that-name/data/orders", "Check '~'"),
            ("local:./da\0ta/orders", "control character ('\\x00') at place 11"),
            ("lokal:./data/orders", "did you mean local?"),
            ("./data/orders", "has no known form. Write local:PATH/NAME"),
            ("", "is empty"),
            ("  ", "is empty"),
            ("x" * 9000, "at most 8,192"),
            ("C:\\data\\orders", "begins with c:, which is unknown"),
        ],
    )
    def test_mistake_is_explained(self, text: str, says: str) -> None:
        assert says in refusal(parse_hub, text)

    def test_root_alone_names_a_folder_of_hubs(self) -> None:
        assert parse_local_root("local:/data") == Path("/data")
        assert "Write local:PATH" in refusal(parse_local_root, "eventhubs://ns")


class TestEventHubsAddress:
    def test_connection_string_with_a_key(self) -> None:
        assert parse_hub(CONNECTION_STRING) == EventHubsAddress(
            namespace="orders.servicebus.windows.net",
            port=5671,
            name="orders",
            key_name="reader",
            key=Secret(KEY),
        )

    def test_connection_string_of_an_emulator(self) -> None:
        text = f"Endpoint=sb://localhost:9000;{POLICY};SharedAccessKey={KEY};EntityPath=h;UseDevelopmentEmulator=true;"
        address = parse_hub(text)
        assert isinstance(address, EventHubsAddress)
        assert (address.namespace, address.port, address.emulator) == ("localhost", 9000, True)
        without_port = parse_hub(text.replace(":9000", ""))
        assert isinstance(without_port, EventHubsAddress)
        assert without_port.port == 5672

    def test_connection_string_with_a_signature(self) -> None:
        signature = f"SharedAccessSignature sr=sb%3a%2f%2fx&sig={PLANTED}%3d&se=1&skn=reader"
        address = parse_hub(f"{ENDPOINT};EntityPath=orders;SharedAccessSignature={signature}")
        assert isinstance(address, EventHubsAddress)
        assert address.signature == Secret(signature)
        assert (address.key_name, address.key) == (None, None)

    def test_part_names_are_taken_in_any_case(self) -> None:
        shouted = CONNECTION_STRING.replace("Endpoint", "ENDPOINT").replace("EntityPath", "entitypath")
        assert parse_hub(shouted) == parse_hub(CONNECTION_STRING)

    def test_parts_may_stand_in_any_order(self) -> None:
        assert parse_hub(";".join(reversed(CONNECTION_STRING.split(";")))) == parse_hub(CONNECTION_STRING)

    def test_the_transport_may_be_named_in_either_form(self) -> None:
        for text in ("eventhubs://ns/orders?transport=websocket", f"{CONNECTION_STRING};transport=websocket"):
            address = parse_hub(text)
            assert isinstance(address, EventHubsAddress)
            assert (address.name, address.transport) == ("orders", Transport.WEBSOCKET)

    def test_short_namespace_gets_the_service_domain(self) -> None:
        address = parse_hub("eventhubs://Orders-NS/orders")
        assert address == EventHubsAddress("orders-ns.servicebus.windows.net", 5671, "orders")
        assert parse_hub(str(address)) == address
        assert parse_hub("eventhubs://localhost:5/h") == EventHubsAddress("localhost", 5, "h")

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ((f";{POLICY}", ""), "SharedAccessKeyName is missing"),
            ((f";SharedAccessKey={KEY}", ""), "SharedAccessKey is missing"),
            ((";EntityPath=orders", ""), "EntityPath is missing"),
            ((f"{ENDPOINT};", ""), "Endpoint is missing"),
            ((";EntityPath=orders", ";EntityPath="), "EntityPath (part 4) is empty"),
            ((f"={KEY}", "="), "SharedAccessKey (part 3) is empty"),
            ((";EntityPath=orders", ";EntityPath=a;entitypath=b"), "EntityPath is given twice (again in part 5)"),
            ((";EntityPath=orders", ";EntityPath=../x"), "EntityPath of the hub address '../x' is not allowed"),
            ((";EntityPath=orders", f";EntityPath=orders;{PLANTED}=1"), "part 5 is not NAME=VALUE"),
            ((";EntityPath=orders", f";{PLANTED};EntityPath=orders"), "part 4 is not NAME=VALUE"),
            ((";EntityPath=orders", ";;EntityPath=orders"), "part 4 is not NAME=VALUE"),
            (("SharedAccessKey=", "SharedAccesKey="), "did you mean SharedAccessKey?"),
            ((KEY, f"{PLANTED};{PLANTED}=="), "part 4 is not NAME=VALUE"),
            ((";EntityPath", f";SharedAccessSignature={PLANTED};EntityPath"), "both a key and a signature"),
            (("sb://orders", f"sb://user:{PLANTED}@orders"), "user or password before the host"),
            (("sb://", "https://"), "Write sb://HOST/"),
            (("sb://", ""), "Write sb://HOST/"),
            ((".net/", ".net/path"), "without a path"),
            ((".net/", ".net:0/"), "port must be a number from 1 to 65535"),
            ((".net/", ".net:65536/"), "port must be a number"),
            ((".net/", f".net:{PLANTED}/"), "port must be a number"),
            ((".net/", ".net:٣/"), "port must be a number"),
            (("orders.servicebus", "or ders"), "not a host name"),
            (("orders.servicebus.windows.net", ""), "host is missing"),
            (("orders.servicebus.windows.net", "a" * 254), "not a host name"),
            (("orders.servicebus.windows.net", "a..b"), "not a host name"),
            ((";EntityPath", ";UseDevelopmentEmulator=True;EntityPath"), "true or false, in lower case"),
            ((KEY, f"{PLANTED}\n"), "control character ('\\n')"),
            ((KEY, f"{PLANTED}\x00"), "control character ('\\x00')"),
            ((KEY, PLANTED * 1000), "at most 8,192"),
        ],
    )
    def test_mistake_is_explained_and_shows_no_secret(self, change: tuple[str, str], says: str) -> None:
        assert change[0] in CONNECTION_STRING
        assert says in refusal(parse_hub, CONNECTION_STRING.replace(*change))

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("eventhubs://ns", "Write eventhubs://NAMESPACE/NAME"),
            ("eventhubs:ns/hub", "Write eventhubs://NAMESPACE/NAME"),
            ("eventhubs://ns/hub/more", "only ?credential=... and ?transport=... may follow"),
            (f"eventhubs://me:{PLANTED}@ns/hub", "user or password before the host"),
            ("eventhubs:///hub", "host is missing"),
            ("eventhubs://ns/", "hub name in the hub address is empty"),
            ("eventhubs://ns/a?b", "is not allowed"),
            ("eventhubs://ns/a?transport=amqps", "did you mean amqp?"),
            ("eventhubs://ns/a?transprot=amqp", "did you mean transport?"),
            (f"eventhubs://ns/a?transport=sdk&key={PLANTED}", "parameter 2 after the '?' is not allowed"),
            ("eventhubs://ns/a?transport=sdk&transport=amqp", "transport= is given twice"),
            ("eventhubs://ns/a?transport=x", "Use one of: amqp, websocket, sdk"),
            (f"eventhubs://ns/a?transport=x&key={PLANTED}", "parameter 2 after the '?' is not allowed"),
            (f"sb://u:{PLANTED}@ns/hub", "begins with sb:, which is unknown"),
            (f"{PLANTED}", "has no known form"),
        ],
    )
    def test_wrong_url_is_explained(self, text: str, says: str) -> None:
        assert says in refusal(parse_hub, text)

    @given(st.text(max_size=200))
    def test_any_tail_gives_an_address_or_a_config_error(self, tail: str) -> None:
        for head in ("", "local:", "eventhubs://", "Endpoint=", CONNECTION_STRING + ";"):
            assert PLANTED not in outcome(parse_hub, head + tail)


class TestStoreAddress:
    def test_memory(self) -> None:
        assert parse_store("memory:") == MemoryAddress("")
        assert parse_store("memory:tests") == MemoryAddress("tests")

    def test_sqlite_has_three_slashes_before_a_relative_and_four_before_an_absolute_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert parse_store("sqlite:///state/a.db") == SqliteAddress(tmp_path.resolve() / "state/a.db")
        address = parse_store("sqlite:////var/lib/a.db")
        assert address == SqliteAddress(Path("/var/lib/a.db"))
        assert parse_store(str(address)) == address

    def test_postgres_keeps_the_password_for_the_driver_alone(self) -> None:
        text = f"postgresql://me:{PLANTED}@db.example.org:6432/state?sslmode=require&connect_timeout=5"
        address = parse_store(text)
        assert address == PostgresAddress(Secret(text), "postgresql://me@db.example.org:6432/state")

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("postgresql:///state", "postgresql:///state"),
            ("postgres://h/state", "postgresql://h/state"),
            ("POSTGRESQL://h", "postgresql://h/"),
            ("postgresql://a:1,b:2/state?target_session_attrs=any", "postgresql://a:1,b:2/state"),
            ("postgresql://me@%2Ftmp%2Fsocket/state", "postgresql://me@/tmp/socket/state"),
            (f"postgresql://h/state?password={PLANTED}&user=me", "postgresql://me@h/state"),
            ("postgresql://[::1]:5432/state", "postgresql://%3A%3A1:5432/state"),
            ("postgresql://h/state?passfile=/run/pgpass", "postgresql://h/state"),
        ],
    )
    def test_forms_that_libpq_takes(self, text: str, shown: str) -> None:
        address = parse_store(text)
        assert isinstance(address, PostgresAddress)
        assert str(address) == shown
        assert address.conninfo.reveal().startswith("postgresql://")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "is empty"),
            ("memory", "has no known form. Write memory:"),
            ("memory:../x", "is not allowed"),
            ("sqlite:a.db", "Write sqlite:///relative/file.db"),
            ("sqlite://a.db", "Write sqlite:///relative/file.db"),
            ("sqlite:///", "Write sqlite:///relative/file.db"),
            ("sqlite:///folder/", "Write sqlite:///relative/file.db"),
            ("sqlite:///a.db?mode=ro", "has options, but sqlite:/// takes only a path"),
            ("sqlite:///a\0.db", "control character"),
            ("sqllite:///a.db", "did you mean sqlite?"),
            ("postgress://h/db", "did you mean postgresql?"),
            ("redis://h", "begins with redis:, which is unknown. Write memory:"),
            (f"host=h password={PLANTED}", "has no known form"),
            (f"postgresql:u:{PLANTED}@h", "Write postgresql://USER@HOST:PORT/DATABASE"),
            (f"postgresql://u:%zz{PLANTED}@h/db", "percent-encode"),
            (f"postgresql://u:x@{PLANTED}@h/db", "write it as %40"),
            (f"postgresql://u:12/{PLANTED}@h/db", "write it as %2F"),
            (f"postgresql://u:{PLANTED}/x@h/db", "write it as %2F"),
            (f"postgresql://h:{PLANTED}/db", "port must be a number"),
            (f"postgresql://h/db?{PLANTED}=1", "libpq's parameter names"),
            (f"postgresql://h/db?password={PLANTED}&ssl_mode=require", "did you mean sslmode?"),
            ("postgresql://h:99999/db", "port must be a number from 1 to 65535"),
        ],
    )
    def test_mistake_is_explained_and_shows_no_secret(self, text: str, says: str) -> None:
        assert says in refusal(parse_store, text)

    @given(st.text(max_size=100))
    def test_any_text_gives_an_address_or_a_config_error(self, tail: str) -> None:
        for head in ("", "memory:", "sqlite:///", f"postgresql://u:{PLANTED}"):
            assert PLANTED not in outcome(parse_store, head + tail)


class TestIndirectAddresses:
    def test_environment_variable_holds_the_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ORDERS_HUB", f"{CONNECTION_STRING}\n")
        assert parse_hub("env:ORDERS_HUB") == parse_hub(CONNECTION_STRING)

    def test_file_holds_the_address(self, tmp_path: Path) -> None:
        file = tmp_path / "store.txt"
        file.write_text(f"  postgresql://u:{PLANTED}@h/db\n")
        assert parse_store(f"file:{file}") == parse_store(f"postgresql://u:{PLANTED}@h/db")

    def test_mistake_names_where_the_address_came_from(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ORDERS_HUB", f"{PLANTED}")
        assert "environment variable 'ORDERS_HUB'" in refusal(parse_hub, "env:ORDERS_HUB")
        monkeypatch.setenv("ORDERS_HUB", f"Endpoint=sb://h;{PLANTED}")
        assert "environment variable 'ORDERS_HUB'" in refusal(parse_hub, "env:ORDERS_HUB")
        monkeypatch.setenv("ORDERS_HUB", "local:/data/..")
        assert "environment variable 'ORDERS_HUB'" in refusal(parse_hub, "env:ORDERS_HUB")
        monkeypatch.chdir(tmp_path)
        Path("hub.txt").write_text(f"{PLANTED}\n{PLANTED}")
        assert "control character ('\\n')" in refusal(parse_hub, "file:hub.txt")

    def test_one_step_is_followed_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A", "env:A")
        assert "begins with env:, which is unknown" in refusal(parse_hub, "env:A")

    def test_missing_variable_or_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NOT_THERE", raising=False)
        monkeypatch.chdir(tmp_path)
        assert "'NOT_THERE' is not set" in refusal(parse_hub, "env:NOT_THERE")
        assert "No such file" in refusal(parse_store, "file:not-there.txt")
        assert "Is a directory" in refusal(parse_store, "file:.")
        assert "has no path" in refusal(parse_store, "file:")
        assert "is not the name" in refusal(parse_store, "env:")
        assert "is not the name" in refusal(parse_store, f"env:postgresql://u:{PLANTED}@h/db")

    def test_file_that_is_no_address_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("empty").write_text(" \n")
        assert "is empty" in refusal(parse_store, "file:empty")
        Path("binary").write_bytes(b"\xff\xfe" + PLANTED.encode())
        assert "not UTF-8 text" in refusal(parse_store, "file:binary")
        Path("large").write_text("x" * 1_000_000)
        assert "at most 8,192" in refusal(parse_store, "file:large")


class TestPosition:
    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", Position.earliest()),
            ("latest", Position.latest()),
            ("latest:inclusive", Position.latest(inclusive=True)),
            ("offset:4294967296", Position.offset("4294967296")),
            ("offset:2:-1:-1", Position.offset("2:-1:-1")),
            ("offset:2:-1:-1:inclusive", Position.offset("2:-1:-1", inclusive=True)),
            ("sequence:0", Position.sequence(0)),
            ("sequence:5:inclusive", Position.sequence(5, inclusive=True)),
            ("sequence:5:exclusive", Position.sequence(5)),
            ("time:2026-01-31T12:00:00Z", Position.enqueued(datetime(2026, 1, 31, 12, tzinfo=UTC))),
            ("time:2026-01-31T14:00+02:00", Position.enqueued(datetime(2026, 1, 31, 12, tzinfo=UTC))),
            ("time:-24h", Position.enqueued(NOW - timedelta(days=1))),
            ("time:-15m:exclusive", Position.enqueued(NOW - timedelta(minutes=15), inclusive=False)),
        ],
    )
    def test_forms(self, text: str, position: Position) -> None:
        assert parse_position(text, now=NOW) == position

    @given(
        st.one_of(
            st.just(Position.earliest()),
            st.builds(Position.latest, inclusive=st.booleans()),
            st.builds(Position.sequence, st.integers(0, 2**63 - 1), inclusive=st.booleans()),
            st.builds(
                Position.enqueued,
                st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))])),
                inclusive=st.booleans(),
            ),
            st.builds(
                Position.offset,
                st.text(min_size=1).filter(str.isprintable) | st.sampled_from(["a:inclusive", ":exclusive"]),
                inclusive=st.booleans(),
            ),
        )
    )
    def test_a_position_as_text_is_read_back(self, position: Position) -> None:
        assert parse_position(str(position)) == position

    def test_time_before_all_calendars_is_the_oldest_one(self) -> None:
        assert parse_position("time:-365000d", now=NOW).value is not None

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "is unknown. Write earliest"),
            ("newest", "is unknown"),
            ("earliest:inclusive", "is unknown"),
            ("earliest:5", "is unknown"),
            ("offset:", "is unknown"),
            ("offset:\x1b", "is unknown"),
            ("sequence:-1", "is unknown"),
            ("sequence:x", "is unknown"),
            ("sequence:9223372036854775808", "is unknown"),
            ("time:", "Write 2026-01-31T12:00:00Z"),
            ("time:yesterday", "Write 2026-01-31T12:00:00Z"),
            ("time:2026-01-31T12:00:00", "has no time zone"),
            ("time:-24", "the duration '24' is unknown"),
        ],
    )
    def test_mistake_is_explained(self, text: str, says: str) -> None:
        assert says in refusal(parse_position, text)


class TestDurationsAndSizes:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("250ms", 0.25), ("30s", 30), ("5m", 300), ("1.5h", 5400), ("24h", 86400), ("7d", 604800), ("0s", 0)],
    )
    def test_durations(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == timedelta(seconds=seconds)

    @pytest.mark.parametrize(
        "text", ["", "5", "m", "-5m", "5 m", "5w", "1h30m", "1e9s", "٣s", "999999999999999d", "5m\n"]
    )
    def test_other_durations_are_refused(self, text: str) -> None:
        assert "the duration" in refusal(parse_duration, text)

    @pytest.mark.parametrize(
        ("text", "size"),
        [("200", 200), ("1B", 1), ("64KiB", 65536), ("10GB", 10**10), ("1.5mb", 1_500_000), ("2 TiB", 2 * 1024**4)],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert parse_size(text) == size

    @pytest.mark.parametrize("text", ["", "-1", "1XB", "GB", "1e3", "1 000", "9999999999TB", "10G"])
    def test_other_sizes_are_refused(self, text: str) -> None:
        assert "the size" in refusal(parse_size, text)


def test_documented_forms_are_those_that_work() -> None:
    assert "local:PATH/NAME" in HUB_FORMS
    for form in ("memory:", "sqlite:///PATH", "postgresql://USER@HOST/DATABASE"):
        assert form in STORE_FORMS
        assert str(parse_store(form)).startswith(form.partition(":")[0])
