"""The options of the source and of the sink, parsed in one place.

Each has a short name, and takes the name that the JVM connector gave it too. Keys are compared without regard to case,
as Spark does. An unknown one is an error that suggests the nearest.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeVar

from hubline.addresses.choices import choice_of
from hubline.addresses.hub_address import HubAddress, parse_hub
from hubline.addresses.names import DEFAULT_GROUP, validate_group_name, validate_owner_id, validate_partition_id
from hubline.addresses.store_address import MemoryAddress, StoreAddress, parse_store
from hubline.addresses.values import parse_duration, parse_position, parse_size
from hubline.coordination.lease_options import LeaseOptions
from hubline.coordination.strategies import Balanced, Fixed, Greedy, Strategy
from hubline.errors import ConfigError
from hubline.model.positions import ON_DATA_LOSS, OnDataLoss, Position, StartPositions
from hubline.secrets import may_hold_secret

T = TypeVar("T")
D = TypeVar("D")

SOURCE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "hub": ("eventhubs.connectionString",),
    "group": ("eventhubs.consumerGroup",),
    "start": ("eventhubs.startingPosition",),
    "starts": ("eventhubs.startingPositions",),
    "end": ("eventhubs.endingPosition",),
    "ends": ("eventhubs.endingPositions",),
    "max_events": ("maxEventsPerTrigger", "eventhubs.maxEventsPerTrigger"),
    "max_bytes": (),
    "tasks": (),
    "split_events": (),
    "on_data_loss": (),
    "timeout": ("eventhubs.receiverTimeout",),
    "outage": ("eventhubs.operationTimeout",),
    "store": (),
    "ownership": (),
    "lookback": (),
    "owner": (),
    "lease": (),
    "interval": (),
}
"""The source's own names, each with those of the JVM connector that mean the same. The sink has none beside these."""

IGNORED_OPTIONS: Final = frozenset(
    {
        "checkpointLocation",
        "queryName",
        "eventhubs.dynamicPartitionDiscovery",
        "eventhubs.maxAcceptableBatchReceiveTime",
        "eventhubs.maxSilentTime",
        "eventhubs.partitionPreferredLocationStrategy",
        "eventhubs.prefetchCount",
        "eventhubs.slowPartitionAdjustment",
        "eventhubs.threadPoolSize",
        "eventhubs.useExclusiveReceiver",
    }
)
"""Spark's own, and what the JVM connector needs and this one does without."""

LOSS_OPTION: Final = "failOnDataLoss"
"""The JVM connector's word for ``on_data_loss``: true is fail, false is earliest."""

PLUGIN_OPTIONS: Final = frozenset({"eventhubs.metricPlugin", "eventhubs.throttlingStatusPlugin"})
"""Classes of the JVM that the connector calls: there is nobody here who could."""

ENTRA_OPTIONS: Final = frozenset(
    {"eventhubs.useAadAuth", "eventhubs.aadAuthCallback", "eventhubs.aadAuthCallbackParams"}
)

# Batches of events as JSON objects in an option: longer ones are no positions.
POSITIONS_LENGTH_MAX: Final = 1_000_000
# As many tasks as the largest clusters have cores; more is a slip of the hand.
TASKS_MAX: Final = 100_000
EVENTS_MAX: Final = 2**53
"""Offsets are JSON: beyond this, some readers of it would round."""

DEFAULT_TIMEOUT_SECONDS: Final = 60.0
"""How long a task waits for an event that is known to be there. As in the JVM connector."""
DEFAULT_OUTAGE_SECONDS: Final = 300.0
"""How long a hub may be out of reach before its query fails. As in the JVM connector."""
DEFAULT_EVENTS_MAX: Final = 1_000_000
"""A first batch over a large backlog ends within seconds, and its rows fit into memory."""


@dataclass(frozen=True, slots=True)
class EndPositions:
    """Where a batch read ends: before the event at the position, or with it where the position is inclusive."""

    general: Position
    by_partition: Mapping[str, Position] = field(default_factory=dict)

    def for_partition(self, partition: str) -> Position:
        return self.by_partition.get(partition, self.general)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that can be said about a source or a sink. Its repr shows no secret.

    ``start`` is None where nothing was said: a batch then starts at the beginning, and a stream refuses to start,
    or starts at the end if its options are the JVM connector's. ``strategy`` is how partitions are shared by those who
    use the same store; ``reads_all`` shares nothing. ``lookback_seconds`` is how much of what was handled before a
    stream reads again when it starts.
    """

    hub: HubAddress
    group: str = DEFAULT_GROUP
    start: StartPositions | None = None
    end: EndPositions = field(default_factory=lambda: EndPositions(Position.latest()))
    has_connector_names: bool = False
    events_max: int = DEFAULT_EVENTS_MAX
    bytes_max: int | None = None
    tasks: int | None = None
    split_events: int | None = None
    on_data_loss: OnDataLoss = "fail"
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    outage_seconds: float = DEFAULT_OUTAGE_SECONDS
    store: StoreAddress | None = None
    strategy: Strategy | None = None
    reads_all: bool = False
    lookback_seconds: float | None = None
    owner_id: str | None = None
    lease: LeaseOptions = field(default_factory=LeaseOptions)

    @property
    def stream_start(self) -> StartPositions:
        """Where a new stream starts. Raises ConfigError if nobody said it."""
        if self.start is not None:
            return self.start
        if self.has_connector_names:
            return StartPositions(Position.latest())
        raise ConfigError(
            'a stream needs the option "start": write for instance .option("start", "earliest") for all that the hub '
            'holds, or "latest" for what comes from now on'
        )

    @property
    def batch_start(self) -> StartPositions:
        return self.start or StartPositions(Position.earliest())

    def require_partitions(self, there: Sequence[str]) -> None:
        """Refuses positions of partitions that the hub does not have: one that was meant would start elsewhere."""
        named = {**(self.start.by_partition if self.start else {}), **self.end.by_partition}
        if unknown := [partition for partition in named if partition not in there]:
            raise ConfigError(
                f"a position is given for partition {unknown[0]!r}, which the hub does not have: it has "
                f"{len(there)}, from {there[0]} to {there[-1]}"
            )


def parse_options(given: Mapping[str, str]) -> Options:
    """What was given to ``.option(...)``, checked. Raises ConfigError; it repeats no value that may hold a secret."""
    taken = _Given(given)
    hub = taken.required("hub", _hub)
    store = taken.get("store", _store, None)
    ownership = taken.get("ownership", _ownership, None)
    strategy = ownership if ownership != "all" else None
    if store is None:
        _require_no_sharing(taken, strategy)
    return Options(
        hub=hub,
        group=taken.get("group", validate_group_name, DEFAULT_GROUP),
        start=_starts(taken),
        end=_ends(taken),
        has_connector_names=taken.has("eventhubs.connectionString"),
        events_max=taken.get("max_events", _count, DEFAULT_EVENTS_MAX),
        bytes_max=taken.get("max_bytes", _size, None),
        tasks=taken.get("tasks", _tasks, None),
        split_events=taken.get("split_events", _count, None),
        on_data_loss=_loss(taken),
        timeout_seconds=taken.get("timeout", _seconds, DEFAULT_TIMEOUT_SECONDS),
        outage_seconds=taken.get("outage", _seconds, DEFAULT_OUTAGE_SECONDS),
        store=store,
        strategy=strategy,
        reads_all=ownership == "all",
        lookback_seconds=taken.get("lookback", _seconds, None),
        owner_id=taken.get("owner", validate_owner_id, None),
        lease=_lease(taken),
    )


def _require_no_sharing(taken: _Given, strategy: Strategy | None) -> None:
    """Refuses what would have no effect, for whoever wrote it thinks that it has one."""
    if taken.has("lookback"):
        raise ConfigError(
            "the option lookback needs a store, which knows what was handled before: add for instance "
            '.option("store", "postgresql://...")'
        )
    sharing = [name for name in ("owner", "lease", "interval") if taken.has(name)]
    if strategy is not None:
        sharing.insert(0, "ownership")
    if sharing:
        raise ConfigError(
            f"the option {sharing[0]} needs a store, where the applications that share the group meet: add for "
            'instance .option("store", "postgresql://...")'
        )


class _Given:
    """The options as they came, by lower-case names. Refuses what is unknown, and what is said twice."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        known = [name for own, others in SOURCE_OPTIONS.items() for name in (own, *others)]
        by_lower = {name.lower(): name for name in (*known, *IGNORED_OPTIONS, LOSS_OPTION)}
        entra = {name.lower() for name in ENTRA_OPTIONS}
        plugins = {name.lower() for name in PLUGIN_OPTIONS}
        for name in self._values:
            if name in entra and self._values[name].lower() != "false":
                raise ConfigError(
                    'Entra credentials need no callback here: remove the aadAuth options, and give the option "hub" '
                    "as eventhubs://NAMESPACE/NAME (pip install 'hubline[entra]')"
                )
            if name in plugins:
                raise ConfigError(
                    f"the option {name} names a class of the JVM, which this source cannot call: remove it, and watch "
                    "the query by a StreamingQueryListener"
                )
            if name not in by_lower and name not in entra:
                raise ConfigError(f"the option {_shown(name)} is unknown{_nearest(name, by_lower)}")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def required(self, name: str, parse: Callable[[str], T]) -> T:
        value = self.get(name, parse, None)
        if value is None:
            raise ConfigError(f'the option "{name}" is missing: add for instance .option("{name}", "env:TELEMETRY")')
        return value

    def get(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """The value of an option, by whichever of its names it was given."""
        names = [known for known in (name, *SOURCE_OPTIONS[name]) if known.lower() in self._values]
        if not names:
            return default
        if len(names) > 1:
            raise ConfigError(f"the options {' and '.join(names)} mean the same: keep one")
        return self.parsed(names[0], parse)

    def parsed(self, name: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(self._values[name.lower()])
        except ConfigError as error:
            # Its text shows no secret, whatever it was raised from: that goes no further.
            message = f"the option {name}: {error}"
        raise ConfigError(message)


def _shown(text: str) -> str:
    return "(not shown, it may hold a secret)" if may_hold_secret(text) else ascii(text[:60])


def _nearest(name: str, by_lower: Mapping[str, str]) -> str:
    matches = difflib.get_close_matches(name[:60], by_lower, n=1)
    if not matches:
        # People leave out the connector's prefix.
        matches = [f"eventhubs.{name}"] if f"eventhubs.{name}" in by_lower else []
    if matches:
        return f": did you mean {by_lower[matches[0]]}?"
    return f": the options are {', '.join(sorted(SOURCE_OPTIONS))}"


# Single values -----------------------------------------------------------------------------------------------------


def _hub(text: str) -> HubAddress:
    """The hub. What env: and file: name is read here, on the driver: the nodes need not have it."""
    if re.fullmatch(r"[A-Za-z0-9+/]{32,}={0,2}", text.strip()):
        raise ConfigError(
            "it is encrypted, as EventHubsUtils.encrypt does for the JVM connector: give the connection string itself, "
            "or env:NAME or file:PATH that hold it"
        )
    return parse_hub(_ENDPOINT_PATH.sub(r"\1", text))


# The JVM connector's documentation shows endpoints with the hub's name at their end, and its users have those.
_ENDPOINT_PATH: Final = re.compile(r"(endpoint\s*=\s*sb://[^/;]+/)[^;]+", re.IGNORECASE)


def _store(text: str) -> StoreAddress:
    store = parse_store(text)
    if isinstance(store, MemoryAddress):
        raise ConfigError("memory: is one process's own, and Spark runs many: use sqlite:///PATH or postgresql://...")
    return store


def _ownership(text: str) -> Strategy | Literal["all"]:
    match = re.fullmatch(r"fixed:([1-9][0-9]{0,5})", text)
    if match:
        return Fixed(int(match[1]))
    match text:
        case "all":
            return "all"
        case "balanced":
            return Balanced()
        case "greedy":
            return Greedy()
    raise ConfigError(f"{_shown(text)} is unknown: write all, balanced, greedy or fixed:N, as in fixed:2")


def _loss(taken: _Given) -> OnDataLoss:
    choice = taken.get("on_data_loss", partial(choice_of, choices=ON_DATA_LOSS), None)
    if not taken.has(LOSS_OPTION):
        return choice or "fail"
    if choice is not None:
        raise ConfigError(f"the options on_data_loss and {LOSS_OPTION} mean the same: keep one")
    fails = taken.parsed(LOSS_OPTION, _boolean)
    return "fail" if fails else "earliest"


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError("write true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    return _whole(text, EVENTS_MAX)


def _tasks(text: str) -> int:
    return _whole(text, TASKS_MAX)


def _whole(text: str, largest: int) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 1 <= int(text) <= largest:
        raise ConfigError(f"{_shown(text)} is not a whole number from 1 to {largest}")
    return int(text)


def _size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ConfigError("it has to be at least 1 byte")
    return size


_ISO_DURATION: Final = re.compile(r"PT(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?", re.IGNORECASE)


def _seconds(text: str) -> float:
    """A duration as everywhere in hubline, or in ISO 8601 as the JVM connector has it: 60s, PT1M."""
    match = _ISO_DURATION.fullmatch(text)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        total = hours * 3600 + minutes * 60 + seconds
    else:
        total = parse_duration(text).total_seconds()
    if total <= 0:
        raise ConfigError("it has to be longer than 0 seconds")
    return total


def _lease(taken: _Given) -> LeaseOptions:
    default = LeaseOptions()
    lease = taken.get("lease", _seconds, default.lease_seconds)
    interval = taken.get("interval", _seconds, min(default.load_balancing_interval_seconds, lease / 3))
    # Members that start together are waited for as long as a cycle may take, and no longer.
    return LeaseOptions(
        lease_seconds=lease,
        load_balancing_interval_seconds=interval,
        startup_delay_seconds=min(default.startup_delay_seconds, interval),
    )


# Positions ---------------------------------------------------------------------------------------------------------


def _starts(taken: _Given) -> StartPositions | None:
    general = taken.get("start", _start, None)
    named = taken.get("starts", _start_map, None)
    if general is None and named is None:
        return None
    by_partition = {} if named is None else dict(named)
    # As the JVM connector has it for partitions that are not named: the end.
    others = by_partition.pop("*", Position.latest())
    return StartPositions(general or others, by_partition)


def _ends(taken: _Given) -> EndPositions:
    named = taken.get("ends", _end_map, None)
    by_partition = {} if named is None else dict(named)
    others = by_partition.pop("*", Position.latest())
    return EndPositions(taken.get("end", _end, None) or others, by_partition)


def _start(text: str) -> Position:
    return _position_of_connector(_json(text)) if _is_json(text) else parse_position(text)


def _end(text: str) -> Position:
    """As a start, but an event at the position itself is read only if the text says so: ranges then join up."""
    if _is_json(text):
        return _position_of_connector(_json(text))
    position = parse_position(text)
    return position if text.endswith(":inclusive") else Position(position.kind, position.value, inclusive=False)


def _start_map(text: str) -> dict[str, Position]:
    return _by_partition(text, _start)


def _end_map(text: str) -> dict[str, Position]:
    return _by_partition(text, _end)


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _json(text: str) -> dict[str, object]:
    if len(text) > POSITIONS_LENGTH_MAX:
        raise ConfigError(f"it has {len(text)} characters: at most {POSITIONS_LENGTH_MAX} are allowed")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError("it is not a JSON object")
    return value


def _by_partition(text: str, parse: Callable[[str], Position]) -> dict[str, Position]:
    """``{"0": "sequence:5", "*": "earliest"}``, or the JVM connector's JSON of partitions and positions."""
    positions: dict[str, Position] = {}
    for key, value in _json(text).items():
        partition = _partition_of(key)
        if partition in positions:
            raise ConfigError(f"partition {partition} stands there twice")
        if isinstance(value, dict):
            positions[partition] = _position_of_connector(value)
        elif isinstance(value, str):
            positions[partition] = parse(value)
        else:
            raise ConfigError(f"partition {partition} needs a position, as text or as a JSON object")
    return positions


def _partition_of(key: str) -> str:
    """A partition's id; the JVM connector writes it as JSON inside of JSON."""
    if key == "*":
        return key
    if not _is_json(key):
        return validate_partition_id(key)
    partition = _json(key).get("partitionId")
    if isinstance(partition, bool) or not isinstance(partition, int | str):
        raise ConfigError('a partition is named as {"ehName": NAME, "partitionId": 0}')
    return validate_partition_id(str(partition))


_CONNECTOR_FIELDS: Final = {"offset", "seqNo", "enqueuedTime", "isInclusive"}


def _position_of_connector(given: Mapping[str, object]) -> Position:
    """``{"offset": null, "seqNo": 100, "enqueuedTime": null, "isInclusive": true}``: one of the three is in use."""
    if unknown := given.keys() - _CONNECTOR_FIELDS:
        raise ConfigError(f"a position has {', '.join(sorted(_CONNECTOR_FIELDS))}, and no {_shown(min(unknown))}")
    inclusive = given.get("isInclusive", False)
    if not isinstance(inclusive, bool):
        raise ConfigError("isInclusive is true or false")
    offset, sequence, time = given.get("offset"), given.get("seqNo", -1), given.get("enqueuedTime")
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise ConfigError("seqNo is a whole number, or -1 where it is not in use")
    # The connector's own order, and its examples write an offset of -1 beside others.
    if isinstance(time, str) and time:
        return Position.enqueued(_connector_time(time), inclusive=inclusive)
    if sequence >= 0:
        return Position.sequence(sequence, inclusive=inclusive)
    match offset:
        case "-1" | -1:
            return Position.earliest()
        case "@latest":
            return Position.latest()
        case str() if offset:
            return Position.offset(offset, inclusive=inclusive)
        case int():
            return Position.offset(str(offset), inclusive=inclusive)
    raise ConfigError('a position needs one of offset ("-1" for the start, "@latest" for the end), seqNo, enqueuedTime')


def _connector_time(text: str) -> datetime:
    position = parse_position(f"time:{text}")
    assert isinstance(position.value, datetime)  # noqa: S101 - a time is all that it can be
    return position.value
