"""The options of the source and of the sink, parsed in one place.

Their names are camelCase, as Spark's own are, and most of them are the names that the JVM connector has behind its
prefix `eventhubs.`, which is accepted as well. Names are compared without regard to case, as Spark does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.choices import choice_of
from hubline.addresses.credential_choice import CredentialChoice, parse_credential
from hubline.addresses.did_you_mean import nearest
from hubline.addresses.hub_address import EventHubsAddress, HubAddress, parse_hub
from hubline.addresses.names import DEFAULT_GROUP, validate_group_name, validate_owner_id
from hubline.addresses.store_address import MemoryAddress, StoreAddress, parse_store
from hubline.addresses.values import byte_count
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.strategies import All, Greedy, Strategy, parse_load_balancing
from hubline.errors import ConfigError
from hubline.model.positions import ON_DATA_LOSS, OnDataLoss, Position, StartPositions
from hubline.secrets import shown
from hubline.spark.connector_options import (
    CONNECTOR_NAMES,
    ENTRA_OPTIONS,
    IGNORED_CONNECTOR_OPTIONS,
    parse_ending_position,
    parse_ending_positions,
    parse_seconds,
    parse_starting_position,
    parse_starting_positions,
    plain_connection_string,
)
from hubline.spark.source.query_share import QueryShare
from hubline.text import sentences

T = TypeVar("T")
D = TypeVar("D")

SOURCE_OPTIONS: Final = (
    "hub",
    "credential",
    "consumerGroup",
    "startingPosition",
    "startingPositions",
    "endingPosition",
    "endingPositions",
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "maxTasks",
    "limitFirstBatch",
    "maxRecordsPerPartition",
    "prefetchBytes",
    "onDataLoss",
    "failOnDataLoss",
    "receiverTimeout",
    "operationTimeout",
    "store",
    "loadBalancing",
    "checkpoint",
    "lookback",
    "ownerId",
    "lease",
    "loadBalancingInterval",
)
"""The source's own names. The sink has no others."""

IGNORED_OPTIONS: Final = IGNORED_CONNECTOR_OPTIONS | {"checkpointLocation", "queryName"}
"""Spark's own, and those that the JVM connector needs and this source does not."""

PROVIDER: Final = "provider"
TABLE_PROPERTIES: Final = frozenset({PROVIDER, "owner", "location", "comment", "collation", "external"})
"""What Spark adds to the options of a table of its catalog (`CREATE TABLE ... USING eventhubs`)."""
TABLE_OPTION: Final = "option."
"""Spark gives each option of a table a second time, with this before its name."""

# As many tasks as the largest clusters have cores; more is a slip of the hand.
TASKS_MAX: Final = 100_000
EVENTS_MAX: Final = 2**53
"""Offsets are JSON: beyond this, some readers of it would round."""

DEFAULT_RECEIVER_TIMEOUT_SECONDS: Final = 60.0
"""How long a task waits for an event that is known to be there. As in the JVM connector."""
DEFAULT_OPERATION_TIMEOUT_SECONDS: Final = 300.0
"""How long a hub may be out of reach before its query fails. As in the JVM connector."""
DEFAULT_MAX_EVENTS: Final = 1_000_000
"""A first batch over a large backlog ends within seconds, and its rows fit into memory."""
DEFAULT_PREFETCH_BYTES: Final = 64 * 1024 * 1024
"""What a task reads ahead of Spark: enough for four ranges at full speed."""


StreamCheckpoint: TypeAlias = Literal["every_batch", "never"]
"""When a stream with a store writes its checkpoints there."""

STREAM_CHECKPOINTS: Final[tuple[StreamCheckpoint, ...]] = get_args(StreamCheckpoint)


@dataclass(frozen=True, slots=True)
class EndPositions:
    """Where a batch read ends: before the event at the position, or with it where the position is inclusive."""

    general: Position
    by_partition: Mapping[str, Position] = field(default_factory=dict)

    def for_partition(self, partition: str) -> Position:
        return self.by_partition.get(partition, self.general)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a source or a sink, parsed. Its repr shows no secret.

    ``starting_positions`` is None where no option gives one: a batch then starts at the beginning, and a stream refuses
    to start, or starts at the end if its options are the JVM connector's. ``load_balancing`` is how the instances
    that use the same store share the partitions, ``checkpoint`` whether it keeps their progress as well.
    ``lookback_seconds`` is how much of what was handled before a stream reads again when it starts. ``share`` and
    ``ends`` are not options. A pipeline gives them to the queries of a stage: those of a backfill end before these
    sequence numbers.
    """

    hub: HubAddress
    consumer_group: str = DEFAULT_GROUP
    starting_positions: StartPositions | None = None
    ending_positions: EndPositions = field(default_factory=lambda: EndPositions(Position.latest()))
    has_connector_names: bool = False
    max_events_per_trigger: int = DEFAULT_MAX_EVENTS
    max_bytes_per_trigger: int | None = None
    limit_first_batch: bool = False
    max_tasks: int | None = None
    max_records_per_partition: int | None = None
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    on_data_loss: OnDataLoss = "fail"
    receiver_timeout_seconds: float = DEFAULT_RECEIVER_TIMEOUT_SECONDS
    operation_timeout_seconds: float = DEFAULT_OPERATION_TIMEOUT_SECONDS
    store: StoreAddress | None = None
    load_balancing: Strategy = field(default_factory=Greedy)
    checkpoint: StreamCheckpoint = "every_batch"
    lookback_seconds: float | None = None
    owner_id: str | None = None
    lease: LeaseOptions = field(default_factory=LeaseOptions)
    share: QueryShare = field(default_factory=QueryShare)
    ends: Mapping[str, int] | None = None

    @property
    def stream_start(self) -> StartPositions:
        """Where a new stream starts. Raises ConfigError if no option gives it."""
        if self.starting_positions is not None:
            return self.starting_positions
        if self.has_connector_names:
            return StartPositions(Position.latest())
        raise ConfigError(
            'a stream needs the option "startingPosition". Write .option("startingPosition", "earliest") '
            'for all events that the hub holds, or "latest" for events that arrive from now on.'
        )

    @property
    def batch_start(self) -> StartPositions:
        return self.starting_positions or StartPositions(Position.earliest())

    def require_partitions(self, there: Sequence[str]) -> None:
        """Refuses positions of partitions that the hub does not have: one that was meant would start elsewhere."""
        starts = self.starting_positions.by_partition if self.starting_positions else {}
        named = {**starts, **self.ending_positions.by_partition}
        if unknown := [partition for partition in named if partition not in there]:
            raise ConfigError(
                f"a position is given for partition {unknown[0]!r}, which the hub does not have: it has "
                f"{len(there)}, from {there[0]} to {there[-1]}. Choose one of these."
            )


def parse_options(given: Mapping[str, str]) -> Options:
    """Parses what was given to ``.option(...)``. Raises ConfigError; it repeats no value that may hold a secret."""
    texts = _Given(given)
    hub, store = _with_credential(
        texts.required("hub", _hub),
        texts.get("store", _store, None),
        texts.get("credential", parse_credential, None),
    )
    load_balancing = texts.get("loadBalancing", parse_load_balancing, None)
    if store is None:
        _require_no_sharing(texts, load_balancing)
    return Options(
        hub=hub,
        consumer_group=texts.get("consumerGroup", validate_group_name, DEFAULT_GROUP),
        starting_positions=_starting_positions(texts),
        ending_positions=_ending_positions(texts),
        has_connector_names=texts.has(CONNECTOR_NAMES["hub"]),
        max_events_per_trigger=texts.get("maxEventsPerTrigger", _count, DEFAULT_MAX_EVENTS),
        max_bytes_per_trigger=texts.get("maxBytesPerTrigger", byte_count, None),
        limit_first_batch=texts.get("limitFirstBatch", _boolean, False),
        max_tasks=texts.get("maxTasks", _tasks, None),
        max_records_per_partition=texts.get("maxRecordsPerPartition", _count, None),
        prefetch_bytes=texts.get("prefetchBytes", byte_count, DEFAULT_PREFETCH_BYTES),
        on_data_loss=_on_data_loss(texts),
        receiver_timeout_seconds=texts.get("receiverTimeout", parse_seconds, DEFAULT_RECEIVER_TIMEOUT_SECONDS),
        operation_timeout_seconds=texts.get("operationTimeout", parse_seconds, DEFAULT_OPERATION_TIMEOUT_SECONDS),
        store=store,
        load_balancing=load_balancing or Greedy(),
        checkpoint=_checkpoint(texts),
        lookback_seconds=texts.get("lookback", parse_seconds, None),
        owner_id=texts.get("ownerId", validate_owner_id, None),
        lease=_lease(texts),
    )


def _require_no_sharing(texts: _Given, load_balancing: Strategy | None) -> None:
    """Refuses options that would have no effect: the author expects one."""
    if texts.has("lookback"):
        raise ConfigError(
            "the option lookback needs a store, which knows the events that were processed before. Add "
            '.option("store", "postgresql://...").'
        )
    sharing = [name for name in ("checkpoint", "ownerId", "lease", "loadBalancingInterval") if texts.has(name)]
    if not isinstance(load_balancing, All | None):
        sharing.insert(0, "loadBalancing")
    if sharing:
        raise ConfigError(
            f"the option {sharing[0]} needs a store, through which the instances of the group share "
            'partitions. Add .option("store", "postgresql://...").'
        )


class _Given:
    """The options as they came, by lower-case names. Refuses unknown names, and options given by two names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = _without_table_properties({name.lower(): value for name, value in given.items()})
        known = (*SOURCE_OPTIONS, *CONNECTOR_NAMES.values(), *IGNORED_OPTIONS)
        by_lower = {name.lower() for name in known}
        entra = {name.lower() for name in ENTRA_OPTIONS}
        for name, value in self._values.items():
            if name in entra and value.lower() != "false":
                raise ConfigError(
                    "hubline gets Entra tokens without a callback. Remove the aadAuth options, give the option "
                    "\"hub\" as eventhubs://NAMESPACE/NAME (pip install 'hubline[entra]'), and choose the identity "
                    'with the option "credential".'
                )
            if name not in by_lower and name not in entra:
                suggestion = nearest(name, known) or f". Use one of: {', '.join(sorted(SOURCE_OPTIONS))}"
                raise ConfigError(sentences(f"the option {shown(name)} is unknown{suggestion}"))

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def required(self, name: str, parse: Callable[[str], T]) -> T:
        value = self.get(name, parse, None)
        if value is None:
            raise ConfigError(f'the option "{name}" is missing. Add .option("{name}", "env:TELEMETRY").')
        return value

    def get(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """The value of an option, by either of its names."""
        names = [each for each in (name, CONNECTOR_NAMES.get(name)) if each and self.has(each)]
        if not names:
            return default
        self.require_one(names)
        return self._parsed(names[0], parse)

    @staticmethod
    def require_one(names: Sequence[str]) -> None:
        if len(names) > 1:
            raise ConfigError(f"the options {' and '.join(names)} mean the same. Keep one.")

    def _parsed(self, name: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(self._values[name.lower()])
        except ConfigError as error:
            # Its text shows no secret, whatever it was raised from: that goes no further.
            message = f"the option {name}: {error}"
        raise ConfigError(message)


def _without_table_properties(given: Mapping[str, str]) -> Mapping[str, str]:
    """The options alone, also where Spark's catalog gives them: those of a table, and what else it knows of it."""
    if PROVIDER not in given:
        return given
    return {
        name: value
        for name, value in given.items()
        if name not in TABLE_PROPERTIES and not name.startswith(TABLE_OPTION)
    }


# Single values -----------------------------------------------------------------------------------------------------


def _hub(text: str) -> HubAddress:
    """The hub. What env: and file: name is read here, on the driver: the nodes need not have it."""
    return parse_hub(plain_connection_string(text))


def _store(text: str) -> StoreAddress:
    store = parse_store(text)
    if isinstance(store, MemoryAddress):
        raise ConfigError(
            "memory: works in one process only, but Spark runs many. Use sqlite:///PATH or postgresql://..."
        )
    return store


def _with_credential(
    hub: HubAddress, store: StoreAddress | None, credential: CredentialChoice | None
) -> tuple[HubAddress, StoreAddress | None]:
    """The hub and the store, with the credential where an address takes one and names none itself."""
    if credential is None:
        return hub, store
    takes_credential = False
    if isinstance(hub, EventHubsAddress) and hub.takes_credential and hub.credential is None:
        hub, takes_credential = replace(hub, credential=credential), True
    if isinstance(store, BlobAddress) and store.takes_credential and store.credential is None:
        store, takes_credential = replace(store, credential=credential), True
    if not takes_credential:
        raise ConfigError(
            "the option credential has no effect: it is for a hub eventhubs://NAMESPACE/NAME, or a store in Blob "
            "Storage, whose address has no key, signature or credential. Remove it, or the other from the address."
        )
    return hub, store


def _on_data_loss(texts: _Given) -> OnDataLoss:
    """By hubline's option, or by the one that Spark's sources have: true is fail, false is earliest."""
    texts.require_one([name for name in ("onDataLoss", "failOnDataLoss") if texts.has(name)])
    if not texts.get("failOnDataLoss", _boolean, True):
        return "earliest"
    return texts.get("onDataLoss", partial(choice_of, choices=ON_DATA_LOSS), "fail")


def _checkpoint(texts: _Given) -> StreamCheckpoint:
    checkpoint: StreamCheckpoint = texts.get(
        "checkpoint", partial(choice_of, choices=STREAM_CHECKPOINTS), "every_batch"
    )
    if checkpoint == "never" and texts.has("lookback"):
        raise ConfigError(
            "the option lookback needs checkpoints, which say what was processed before. Remove the option "
            'checkpoint; or remove lookback, and start at that time: .option("startingPosition", '
            '"time:-24h").'
        )
    return checkpoint


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError("it must be true or false.")
    return text.lower() == "true"


def _count(text: str) -> int:
    return _whole(text, EVENTS_MAX)


def _tasks(text: str) -> int:
    return _whole(text, TASKS_MAX)


def _whole(text: str, largest: int) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 1 <= int(text) <= largest:
        raise ConfigError(f"it must be a whole number from 1 to {largest}, not {shown(text)}.")
    return int(text)


def _lease(texts: _Given) -> LeaseOptions:
    default = LeaseOptions()
    lease = texts.get("lease", parse_seconds, default.lease_seconds)
    interval = min(default.load_balancing_interval_seconds, lease / 3)
    interval = texts.get("loadBalancingInterval", parse_seconds, interval)
    # Members that start together are waited for as long as a cycle may take, and no longer.
    return LeaseOptions(
        lease_seconds=lease,
        load_balancing_interval_seconds=interval,
        startup_delay_seconds=min(default.startup_delay_seconds, interval),
    )


# Positions ---------------------------------------------------------------------------------------------------------


def _starting_positions(texts: _Given) -> StartPositions | None:
    general = texts.get("startingPosition", parse_starting_position, None)
    named = texts.get("startingPositions", parse_starting_positions, None)
    if general is None and named is None:
        return None
    by_partition = {} if named is None else dict(named)
    # As the JVM connector has it for partitions that are not named: the end.
    others = by_partition.pop("*", Position.latest())
    return StartPositions(general or others, by_partition)


def _ending_positions(texts: _Given) -> EndPositions:
    named = texts.get("endingPositions", parse_ending_positions, None)
    by_partition = {} if named is None else dict(named)
    others = by_partition.pop("*", Position.latest())
    return EndPositions(texts.get("endingPosition", parse_ending_position, None) or others, by_partition)
