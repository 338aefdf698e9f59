"""Positions, times, durations and sizes, as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from hubline.errors import ConfigError
from hubline.secrets import shown, shown_value

if TYPE_CHECKING:
    from hubline.model.positions import Position, StartPosition, StartPositions


# Positions, durations, sizes ---------------------------------------------------------------------------------------

POSITION_FORMS: Final = "earliest, latest, offset:VALUE, sequence:N, time:2026-01-31T12:00:00Z or time:-24h"
_INT64_MAX: Final = 2**63 - 1


def parse_position(text: str, *, now: datetime | None = None) -> Position:
    """Where to start reading, with the defaults of :class:`~hubline.model.positions.Position`.

    ``earliest``; ``latest``; ``offset:VALUE`` and ``sequence:N`` (after that event); ``time:ISO8601`` with a time
    zone, or ``time:-24h`` (that long ago), at or after it. A last ``:inclusive`` or ``:exclusive`` says
    whether the event at the position itself is read.
    """
    from hubline.model.positions import Position  # brings pyarrow along, which the command line's help can do without

    bare, inclusive = _split_inclusive(text)
    given = {} if inclusive is None else {"inclusive": inclusive}
    kind, _, value = bare.partition(":")
    match kind:
        case "earliest" if bare == text == kind:
            return Position.earliest()
        case "latest" if bare == kind:
            return Position.latest(**given)
        case "offset" if value and value.isprintable():
            return Position.offset(value, **given)
        case "sequence" if re.fullmatch(r"[0-9]{1,19}", value) and int(value) <= _INT64_MAX:
            return Position.sequence(int(value), **given)
        case "time":
            return Position.enqueued(parse_time(value, now=now), **given)
    raise ConfigError(f"the position {shown(text)} is unknown. Write {POSITION_FORMS}; :inclusive may follow.")


STARTING_POSITIONS: Final = "a Position, text such as 'earliest', or a mapping of partition ids to either"
"""What a `starting_position` takes."""


def parse_starting_position(value: str | Position | Mapping[str, str | Position]) -> StartPositions:
    """Where partitions without a checkpoint start.

    Args:
        value: A position, its text, or a mapping of partition ids to either, with ``"*"`` for all other partitions.

    Raises:
        ConfigError: If it is none of these, or the mapping has no ``"*"``.
    """
    from hubline.model.positions import StartPositions

    if not isinstance(value, Mapping):
        return StartPositions(_start_of(value))
    by_partition = {partition: _start_of(position) for partition, position in value.items()}
    if "*" not in by_partition:
        raise ConfigError(
            'starting_position by partition has no "*". Add "*", where all other partitions start: '
            "partitions can be added to a hub."
        )
    return StartPositions(by_partition.pop("*"), by_partition)


def parse_start(text: str) -> StartPosition:
    """As `parse_position`, but `time:-24h` counts back from when a partition is opened."""
    from hubline.model.positions import TimeAgo

    bare, inclusive = _split_inclusive(text)
    if not bare.startswith("time:-"):
        return parse_position(text)
    return TimeAgo(parse_duration(bare.removeprefix("time:-")), inclusive=inclusive is not False)


def _start_of(value: object) -> StartPosition:
    return parse_start(value) if isinstance(value, str) else position_of(value)


def position_of(value: object, *, option: str = "starting_position") -> Position:
    """A position, or what its text says."""
    from hubline.model.positions import Position

    if isinstance(value, str):
        return parse_position(value)
    if not isinstance(value, Position):
        raise ConfigError(
            f"{option} must be a Position or text such as 'earliest', not {shown_value(value)}. Write "
            "'earliest', for example."
        )
    return value


def _split_inclusive(text: str) -> tuple[str, bool | None]:
    for suffix, inclusive in ((":inclusive", True), (":exclusive", False)):
        if text.endswith(suffix):
            return text.removesuffix(suffix), inclusive
    return text, None


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """``2026-01-31T12:00:00Z``, with a time zone; or ``-24h``, that long ago."""
    if text.startswith("-"):
        return _ago(parse_duration(text[1:]), now or datetime.now(UTC))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None:
        raise ConfigError(f"the time {shown(text)} is unknown. Write 2026-01-31T12:00:00Z, or -24h for 24 hours ago.")
    if time.tzinfo is None:
        raise ConfigError(f"the time {shown(text)} has no time zone. Add Z for UTC, or an offset such as +02:00.")
    return time


def _ago(duration: timedelta, now: datetime) -> datetime:
    try:
        return now - duration
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)  # longer ago than calendars go: all there is


_DURATION_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
# A thousand years: longer than anything kept, short enough for any clock arithmetic.
_DURATION_DAYS_MAX: Final = 365_000
DURATION_SECONDS_MAX: Final = _DURATION_DAYS_MAX * 86_400


def parse_duration(text: str) -> timedelta:
    """``250ms``, ``30s``, ``5m``, ``1.5h``, ``7d``."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", text)
    if not match:
        raise ConfigError(f"the duration {shown(text)} is unknown. Write a number and ms, s, m, h or d, as in 30s.")
    seconds = float(match[1]) * _DURATION_SECONDS[match[2]]
    if seconds > DURATION_SECONDS_MAX:
        raise ConfigError(f"the duration {shown(text)} is too long. Use at most {_DURATION_DAYS_MAX}d.")
    return timedelta(seconds=seconds)


_SIZE_BYTES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}


def parse_size(text: str) -> int:
    """Bytes, from ``200``, ``64KiB`` (powers of 1,024) or ``10GB`` (powers of 1,000)."""
    match = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,6})?) ?([A-Za-z]{0,3})", text)
    unit = _SIZE_BYTES.get(match[2].lower()) if match else None
    if not match or unit is None:
        raise ConfigError(f"the size {shown(text)} is unknown. Write bytes as in 200, or 64KiB, 10MB, 1.5GB, 2TB.")
    size = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if size > _INT64_MAX:
        raise ConfigError(f"the size {shown(text)} is too large. Use at most {_INT64_MAX} bytes.")
    return size


def byte_count(size: int | str) -> int:
    """A size as a number of bytes: a number is taken as it is. Raises ConfigError where it is less than one byte."""
    count = parse_size(size) if isinstance(size, str) else size
    if count < 1:
        raise ConfigError("it must be at least 1 byte.")
    return count
