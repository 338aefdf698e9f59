"""The options: every name, and what becomes of wrong ones."""

from __future__ import annotations

import asyncio
import json
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructType

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.credential_choice import CredentialChoice, CredentialKind
from hubline.addresses.hub_address import EventHubsAddress, LocalHubAddress
from hubline.coordination.strategies import All, Balanced, Fixed, Greedy
from hubline.errors import ConfigError
from hubline.hubs.eventhubs.authorization import token_source
from hubline.model.positions import Position
from hubline.spark import EventHubs
from hubline.spark.connector_options import CONNECTOR_NAMES
from hubline.spark.options import IGNORED_OPTIONS, SOURCE_OPTIONS, Options, parse_options
from hubline.spark.schema import SOURCE_SCHEMA
from tests.support.entra import PLANTED_TOKEN

KEY = "c2VjcmV0LXBsYW50ZWQta2V5"
CONNECTION_STRING = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
HUB = f"{CONNECTION_STRING};EntityPath=telemetry"
BODY = StructType().add("body", StringType())


def options(**given: str) -> Options:
    return parse_options({"hub": "local:/data/telemetry", **given})


def connector(**given: object) -> str:
    return json.dumps({"offset": None, "seqNo": -1, "enqueuedTime": None, "isInclusive": True, **given})


class TestTheHub:
    def test_it_is_an_address(self) -> None:
        assert options().hub == LocalHubAddress(Path("/data"), "telemetry")

    def test_a_relative_path_is_of_the_driver(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)

        parsed = parse_options({"hub": "local:./telemetry"})

        assert parsed.hub == LocalHubAddress(tmp_path.resolve(), "telemetry")

    def test_the_connectors_name_for_it_is_taken_in_any_case(self) -> None:
        parsed = parse_options({"EVENTHUBS.ConnectionString": HUB})

        assert isinstance(parsed.hub, EventHubsAddress)
        assert parsed.has_connector_names

    def test_the_connectors_endpoint_with_the_hubs_name_is_taken(self) -> None:
        endpoint = HUB.replace("windows.net/;", "windows.net/telemetry;")

        assert parse_options({"eventhubs.connectionString": endpoint}).hub == parse_options({"hub": HUB}).hub

    def test_it_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TELEMETRY", HUB)

        assert parse_options({"hub": "env:TELEMETRY"}).hub == parse_options({"hub": HUB}).hub

    def test_an_encrypted_connection_string_is_explained(self) -> None:
        with pytest.raises(ConfigError, match=r"EventHubsUtils\.encrypt"):
            parse_options({"eventhubs.connectionString": "A" * 64 + "=="})

    def test_it_is_required(self) -> None:
        with pytest.raises(ConfigError, match='option "hub" is missing'):
            parse_options({"startingPosition": "earliest"})

    def test_no_repr_or_error_shows_its_key(self) -> None:
        parsed = parse_options({"hub": HUB})
        wrong = [
            {"hub": HUB + ";Nonsense=1"},
            {"hub": HUB, "grup": "x"},
            {"hub": HUB, HUB: "x"},
            {"hub": HUB, "startingPosition": HUB},
            {"hub": HUB, "eventhubs.startingPositions": json.dumps({HUB: HUB})},
            {"hub": HUB, "store": "postgresql://u:" + KEY + "@h:port/db"},
            {"hub": HUB, "loadBalancing": HUB},
            {"hub": HUB, "ownerId": HUB + " "},
            {"hub": HUB, "maxEventsPerTrigger": HUB},
            {"hub": HUB, "receiverTimeout": HUB},
        ]

        assert KEY not in repr(parsed) + str(parsed.hub)
        for given in wrong:
            with pytest.raises(ConfigError) as caught:
                parse_options(given)
            assert KEY not in str(caught.value)
            assert caught.value.__context__ is None

    def test_the_options_pickle_small(self) -> None:
        pickled = pickle.dumps(parse_options({"hub": HUB, "startingPosition": "earliest"}))

        assert pickle.loads(pickled) == parse_options({"hub": HUB, "startingPosition": "earliest"})  # noqa: S301 - our own
        assert len(pickled) < 4096


class TestUnknownOptions:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("consumerGrup", "consumerGroup"),
            ("consumer_group", "consumerGroup"),
            ("maxEventPerTrigger", "maxEventsPerTrigger"),
            ("startingPositon", "startingPosition"),
            ("eventhubs.startingPositon", "eventhubs.startingPosition"),
            ("max_records_per_partition", "maxRecordsPerPartition"),
            ("load_balancing", "loadBalancing"),
        ],
    )
    def test_the_nearest_is_suggested(self, given: str, meant: str) -> None:
        with pytest.raises(ConfigError, match=f"did you mean {meant}"):
            options(**{given: "1"})

    def test_without_a_near_one_all_are_listed(self) -> None:
        with pytest.raises(ConfigError, match="Use one of: checkpoint, consumerGroup, credential, endingPosition"):
            options(zzzzzzzz="1")

    def test_two_names_for_one_thing_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"consumerGroup and eventhubs\.consumerGroup mean the same"):
            options(consumerGroup="a", **{"eventhubs.consumerGroup": "b"})

    def test_what_the_connector_needed_and_this_one_does_not_is_let_by(self) -> None:
        assert options(**dict.fromkeys(IGNORED_OPTIONS, "1")) == options()

    def test_what_sparks_catalog_adds_to_the_options_of_a_table_is_let_by(self) -> None:
        added = {"provider": "eventhubs", "owner": "root", "option.hub": HUB, "option.lease": "none"}
        assert options(**added) == options()

    def test_the_same_names_are_unknown_elsewhere(self) -> None:
        with pytest.raises(ConfigError, match=r"'owner' is unknown \(did you mean ownerId"):
            options(owner="me")

    def test_the_connectors_entra_callback_is_explained(self) -> None:
        with pytest.raises(ConfigError, match="eventhubs://NAMESPACE/NAME"):
            options(**{"eventhubs.useAadAuth": "true"})

    def test_the_connectors_plugins_are_unknown(self) -> None:
        with pytest.raises(ConfigError, match=r"'eventhubs\.metricplugin' is unknown"):
            options(**{"eventhubs.metricPlugin": "com.acme.Metrics"})


class TestCredential:
    CONTAINER = "https://acme.blob.core.windows.net/state"

    def test_it_is_for_the_hub_and_for_a_store_in_blob_storage(self) -> None:
        parsed = options(hub="eventhubs://ns/orders", store=self.CONTAINER, credential="databricks:hubs")
        expected = CredentialChoice(CredentialKind.DATABRICKS, "hubs")
        assert isinstance(parsed.hub, EventHubsAddress)
        assert isinstance(parsed.store, BlobAddress)
        assert parsed.hub.credential == parsed.store.credential == expected

    def test_what_an_address_says_itself_stays(self) -> None:
        parsed = options(
            hub="eventhubs://ns/orders", store=f"{self.CONTAINER}?credential=default", credential="workload-identity"
        )
        assert isinstance(parsed.hub, EventHubsAddress)
        assert isinstance(parsed.store, BlobAddress)
        assert str(parsed.hub.credential) == "workload-identity"
        assert str(parsed.store.credential) == "default"

    @pytest.mark.parametrize("hub", ["local:/data/orders", "eventhubs://ns/orders?credential=default", HUB])
    def test_where_it_has_no_effect_it_is_refused(self, hub: str) -> None:
        with pytest.raises(ConfigError, match="the option credential has no effect"):
            options(hub=hub, credential="default")

    def test_a_wrong_one_is_refused_by_the_name_of_the_option(self) -> None:
        with pytest.raises(ConfigError, match=r"^the option credential: 'managed' is unknown"):
            options(hub="eventhubs://ns/orders", credential="managed")

    def test_nothing_that_spark_pickles_holds_a_token(self) -> None:
        given = {"hub": "eventhubs://ns/orders", "credential": "factory:tests.support.entra:planted"}
        source = EventHubs({**given, "startingPosition": "earliest"})
        assert isinstance(source.parsed.hub, EventHubsAddress)
        token = asyncio.run(token_source(source.parsed.hub).token("audience"))
        assert token.text.reveal() == PLANTED_TOKEN
        made = [source, source.reader(SOURCE_SCHEMA), source.streamReader(SOURCE_SCHEMA)]
        made += [source.writer(BODY, overwrite=False), EventHubs(given).streamWriter(BODY, overwrite=False)]
        for each in made:
            pickled = cloudpickle.dumps(each)  # type: ignore[no-untyped-call]
            assert b"tests.support.entra:planted" in pickled
            assert PLANTED_TOKEN.encode() not in pickled
            assert PLANTED_TOKEN not in repr(each)


class TestPositions:
    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", Position.earliest()),
            ("latest", Position.latest()),
            ("sequence:5:inclusive", Position.sequence(5, inclusive=True)),
            (connector(offset="-1"), Position.earliest()),
            (connector(offset=-1), Position.earliest()),
            (connector(offset="@latest"), Position.latest()),
            (connector(seqNo=100), Position.sequence(100, inclusive=True)),
            (connector(offset="123", isInclusive=False), Position.offset("123")),
            (
                connector(enqueuedTime="2026-01-31T12:00:00.000000Z"),
                Position.enqueued(datetime(2026, 1, 31, 12, tzinfo=UTC)),
            ),
        ],
    )
    def test_a_start_is_hublines_or_the_connectors(self, text: str, position: Position) -> None:
        start = options(startingPosition=text).starting_positions

        assert start is not None
        assert start.for_partition("0") == position

    def test_the_connectors_positions_by_partition(self) -> None:
        key = json.dumps({"ehName": "telemetry", "partitionId": 2})
        start = options(
            **{
                "eventhubs.startingPositions": json.dumps({key: json.loads(connector(seqNo=7))}),
                "startingPosition": "earliest",
            }
        ).starting_positions

        assert start is not None
        assert start.for_partition("2") == Position.sequence(7, inclusive=True)
        assert start.for_partition("0") == Position.earliest()

    def test_an_end_is_before_its_event_unless_said_otherwise(self) -> None:
        assert options(endingPosition="time:2026-01-31T12:00:00Z").ending_positions.general.inclusive is False
        assert options(endingPosition="sequence:5:inclusive").ending_positions.general.inclusive is True

    def test_a_stream_has_no_silent_start(self) -> None:
        with pytest.raises(ConfigError, match='a stream needs the option "startingPosition"'):
            _ = options().stream_start

    def test_with_the_connectors_names_a_stream_starts_where_it_did(self) -> None:
        assert parse_options({"eventhubs.connectionString": HUB}).stream_start.general == Position.latest()

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            "{}",
            '{"offset": null, "seqNo": -1}',
            '{"seqNo": "5"}',
            '{"seqNo": true}',
            '{"offset": "", "isInclusive": 1}',
            '{"sequence": 5}',
            "yesterday",
            '{"a":' * 10_000,
        ],
    )
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="the option startingPosition"):
            options(startingPosition=text)


class TestTheRest:
    def test_load_balancing(self) -> None:
        store = {"store": "sqlite:////tmp/state.db"}

        assert isinstance(options(loadBalancing="all").load_balancing, All)
        assert isinstance(options(loadBalancing="balanced", **store).load_balancing, Balanced)
        assert isinstance(options(loadBalancing="greedy", **store).load_balancing, Greedy)
        assert isinstance(options(loadBalancing="fixed:3", **store).load_balancing, Fixed)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("loadBalancing", "greedy"),
            ("ownerId", "a"),
            ("lease", "9s"),
            ("loadBalancingInterval", "3s"),
            ("lookback", "24h"),
            ("checkpoint", "never"),
        ],
    )
    def test_sharing_needs_a_store(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError, match=f"the option {name} needs a store"):
            options(**{name: value})

    def test_a_store_may_keep_no_checkpoints_and_then_there_is_nothing_to_look_back_from(self) -> None:
        assert options(store="sqlite:///state.db", checkpoint="never").checkpoint == "never"
        with pytest.raises(ConfigError, match="checkpoint: it must be every_batch or never, not 'nevr'"):
            options(store="sqlite:///state.db", checkpoint="nevr")
        with pytest.raises(ConfigError, match="the option lookback needs checkpoints"):
            options(store="sqlite:///state.db", checkpoint="never", lookback="24h")

    def test_a_start_so_long_ago_counts_from_the_opening_of_a_partition(self) -> None:
        start = options(startingPosition="time:-24h", startingPositions='{"1": "time:-1h:exclusive"}').stream_start
        for now in (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)):
            assert start.for_partition("0", now=now) == Position.enqueued(now - timedelta(hours=24))
            expected = Position.enqueued(now - timedelta(hours=1), inclusive=False)
            assert start.for_partition("1", now=now) == expected

    def test_a_store_of_one_process_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="memory:"):
            options(store="memory:")

    def test_sparks_option_for_lost_data(self) -> None:
        assert options(failOnDataLoss="false").on_data_loss == "earliest"
        assert options(failOnDataLoss="true").on_data_loss == "fail"

    def test_lost_data_is_chosen_by_one_option(self) -> None:
        with pytest.raises(ConfigError, match="onDataLoss and failOnDataLoss mean the same"):
            options(onDataLoss="fail", failOnDataLoss="true")

    def test_durations_may_be_the_connectors(self) -> None:
        assert options(**{"eventhubs.receiverTimeout": "PT00H03M20S"}).receiver_timeout_seconds == 200
        assert options(receiverTimeout="30s").receiver_timeout_seconds == 30

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("maxEventsPerTrigger", "0"),
            ("maxEventsPerTrigger", "-1"),
            ("maxEventsPerTrigger", "1e9"),
            ("maxEventsPerTrigger", "9" * 30),
            ("maxBytesPerTrigger", "0"),
            ("maxTasks", "0"),
            ("maxTasks", "1000000"),
            ("limitFirstBatch", "yes"),
            ("maxRecordsPerPartition", "x"),
            ("receiverTimeout", "0s"),
            ("receiverTimeout", "PT"),
            ("operationTimeout", "forever"),
            ("lookback", "0s"),
            ("lookback", "a day"),
            ("consumerGroup", "../etc"),
            ("ownerId", "a b"),
            ("lease", "0s"),
            ("onDataLoss", "skip"),
            ("loadBalancing", "fixed:0"),
            ("hub", "\x00"),
        ],
    )
    def test_hostile_values_are_refused(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError, match=rf"option {name}"):
            options(**{name: value})


class TestTheDocumentation:
    PAGES = Path(__file__).parents[2] / "docs"

    def test_every_option_of_the_source_is_in_the_reference(self) -> None:
        page = (self.PAGES / "reference/spark-source.md").read_text()

        assert [name for name in SOURCE_OPTIONS if f"`{name}`" not in page] == []

    def test_every_name_of_the_jvm_connector_is_on_the_page_for_those_who_move(self) -> None:
        page = (self.PAGES / "how-to/connect/from-the-jvm-connector.md").read_text()
        without_effect = [name for name in IGNORED_OPTIONS if name.startswith("eventhubs.")]
        names = [*without_effect, "failOnDataLoss", *CONNECTOR_NAMES.values()]

        assert [name for name in names if f"`{name}`" not in page] == []
