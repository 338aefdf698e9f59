"""The JVM connector's option names, and its positions, which are JSON.

Its `eventhubs.*` names are the names that people who used it know: each stands for one of the source's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeVar

from hubline.addresses.names import validate_partition_id
from hubline.addresses.values import parse_duration, parse_position, parse_start
from hubline.errors import ConfigError
from hubline.model.positions import Position, StartPosition
from hubline.secrets import shown

P = TypeVar("P")

CONNECTOR_NAMES: Final[Mapping[str, str]] = {
    "hub": "eventhubs.connectionString",
    "consumerGroup": "eventhubs.consumerGroup",
    "startingPosition": "eventhubs.startingPosition",
    "startingPositions": "eventhubs.startingPositions",
    "endingPosition": "eventhubs.endingPosition",
    "endingPositions": "eventhubs.endingPositions",
    "maxEventsPerTrigger": "eventhubs.maxEventsPerTrigger",
    "receiverTimeout": "eventhubs.receiverTimeout",
    "operationTimeout": "eventhubs.operationTimeout",
}
"""The source's own names, and those that the connector has for the same options."""

IGNORED_CONNECTOR_OPTIONS: Final = frozenset(
    {
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
"""Options that the connector needs and this source does not."""

ENTRA_OPTIONS: Final = frozenset(
    {"eventhubs.useAadAuth", "eventhubs.aadAuthCallback", "eventhubs.aadAuthCallbackParams"}
)

# Batches of events as JSON objects in an option: longer ones are not positions.
POSITIONS_LENGTH_MAX: Final = 1_000_000

# Its documentation shows endpoints with the hub's name at their end, and its users have those.
_ENDPOINT_PATH: Final = re.compile(r"(endpoint\s*=\s*sb://[^/;]+/)[^;]+", re.IGNORECASE)
_ISO_DURATION: Final = re.compile(r"PT(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?", re.IGNORECASE)


def plain_connection_string(text: str) -> str:
    """A connection string without the path that the connector allows in its endpoint."""
    if re.fullmatch(r"[A-Za-z0-9+/]{32,}={0,2}", text.strip()):
        raise ConfigError(
            "it is encrypted, as EventHubsUtils.encrypt does for the JVM connector. Give the connection "
            "string itself, or the env:NAME or file:PATH that holds it."
        )
    return _ENDPOINT_PATH.sub(r"\1", text)


def parse_seconds(text: str) -> float:
    """A duration as everywhere in hubline, or in ISO 8601 as the connector has it: 60s, PT1M."""
    match = _ISO_DURATION.fullmatch(text)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        total = hours * 3600 + minutes * 60 + seconds
    else:
        total = parse_duration(text).total_seconds()
    if total <= 0:
        raise ConfigError("it must be longer than 0 seconds.")
    return total


# Positions ---------------------------------------------------------------------------------------------------------


def parse_starting_position(text: str) -> StartPosition:
    return _position_of_connector(_json(text)) if _is_json(text) else parse_start(text)


def parse_ending_position(text: str) -> Position:
    """Parses where a range ends, without the event at the position unless the text says so: ranges then join up."""
    if _is_json(text):
        return _position_of_connector(_json(text))
    position = parse_position(text)
    return position if text.endswith(":inclusive") else Position(position.kind, position.value, inclusive=False)


def parse_starting_positions(text: str) -> dict[str, StartPosition]:
    return _by_partition(text, parse_starting_position)


def parse_ending_positions(text: str) -> dict[str, Position]:
    return _by_partition(text, parse_ending_position)


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _json(text: str) -> dict[str, object]:
    if len(text) > POSITIONS_LENGTH_MAX:
        raise ConfigError(f"it has {len(text):,} characters. Use at most {POSITIONS_LENGTH_MAX:,}.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError('it is not a JSON object. Write {"0": "sequence:5", "*": "earliest"}, for example.')
    return value


def _by_partition(text: str, parse: Callable[[str], P]) -> dict[str, P | Position]:
    """``{"0": "sequence:5", "*": "earliest"}``, or the connector's JSON of partitions and positions."""
    positions: dict[str, P | Position] = {}
    for key, value in _json(text).items():
        partition = _partition_of(key)
        if partition in positions:
            raise ConfigError(f"partition {partition} is given twice. Remove one.")
        if isinstance(value, dict):
            positions[partition] = _position_of_connector(value)
        elif isinstance(value, str):
            positions[partition] = parse(value)
        else:
            raise ConfigError(f"the position of partition {partition} must be text or a JSON object.")
    return positions


def _partition_of(key: str) -> str:
    """A partition's id; the connector writes it as JSON inside of JSON."""
    if key == "*":
        return key
    if not _is_json(key):
        return validate_partition_id(key)
    partition = _json(key).get("partitionId")
    if isinstance(partition, bool) or not isinstance(partition, int | str):
        raise ConfigError(f'a partition has no valid "partitionId". Write {"ehName": NAME, "partitionId": 0}.')
    return validate_partition_id(str(partition))


_CONNECTOR_FIELDS: Final = {"offset", "seqNo", "enqueuedTime", "isInclusive"}


def _position_of_connector(given: Mapping[str, object]) -> Position:
    """``{"offset": null, "seqNo": 100, "enqueuedTime": null, "isInclusive": true}``: one of the three is in use."""
    if unknown := given.keys() - _CONNECTOR_FIELDS:
        raise ConfigError(f"a position has no field {shown(min(unknown))}. Use {', '.join(sorted(_CONNECTOR_FIELDS))}.")
    inclusive = given.get("isInclusive", False)
    if not isinstance(inclusive, bool):
        raise ConfigError("isInclusive must be true or false.")
    offset, sequence, time = given.get("offset"), given.get("seqNo", -1), given.get("enqueuedTime")
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise ConfigError("seqNo must be a whole number, or -1 if it is not used.")
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
    raise ConfigError(
        'a position is empty. Give one of offset ("-1" for the start, "@latest" for the end), seqNo or enqueuedTime.'
    )


def _connector_time(text: str) -> datetime:
    position = parse_position(f"time:{text}")
    assert isinstance(position.value, datetime)  # noqa: S101 - a time is all that it can be
    return position.value
