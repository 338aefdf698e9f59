"""Where a receiver wants to start, from the filter of its link's source."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from hubline.amqp.codec.performatives import Fields
from hubline.amqp.codec.types import Described
from hubline.amqp.service_names import SELECTOR
from hubline.errors import ConfigError
from hubline.model.positions import Position

# The same as a number, which some clients use.
SELECTOR_CODE: Final = 0x0000_468C_0000_0004

EARLIEST_OFFSET: Final = "-1"
LATEST_OFFSET: Final = "@latest"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = 2**63 - 1

_COMPARISON: Final = re.compile(
    r"\s*amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time|enqueuedtimeutc)\s*(>=|>)\s*'?([^']{1,128}?)'?\s*",
    re.IGNORECASE,
)


def parse_filter(filters: Fields | None) -> Position:
    """The position of the selector among the filters; the first event if there is none. Raises ConfigError."""
    for name, described in (filters or {}).items():
        if str(name) == SELECTOR or _is_selector(described):
            return parse_selector(described.value if isinstance(described, Described) else described)
    return Position.earliest()


def parse_selector(selector: object) -> Position:
    """``amqp.annotation.x-opt-offset > '100'`` and the like. Raises ConfigError."""
    match = _COMPARISON.fullmatch(selector) if isinstance(selector, str) else None
    if match is None:
        raise ConfigError(
            "the selector is unknown. Write amqp.annotation.x-opt-offset, x-opt-sequence-number or "
            "x-opt-enqueued-time, > or >=, and a value in quotes."
        )
    kind, inclusive, value = match[1].lower(), match[2] == ">=", match[3]
    if kind == "offset":
        return _offset(value, inclusive=inclusive)
    number = _number(value)
    if kind == "sequence-number":
        return Position.sequence(number, inclusive=inclusive)
    # Clients know times in whole milliseconds, the hub's are finer: after one is from the next one on.
    return Position.enqueued(_time(number if inclusive else number + 1))


def _is_selector(value: object) -> bool:
    return isinstance(value, Described) and value.descriptor in (SELECTOR, SELECTOR_CODE)


def _offset(value: str, *, inclusive: bool) -> Position:
    if value == EARLIEST_OFFSET:
        return Position.earliest()
    if value.lower() == LATEST_OFFSET:
        return Position.latest(inclusive=inclusive)
    return Position.offset(value, inclusive=inclusive)


def _number(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", value, re.ASCII) or abs(int(value)) > _INT64_MAX:
        raise ConfigError(f"the selector must compare with a number of 64 bits, not {value!r}.")
    return int(value)


def _time(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        # Beyond the calendar: nothing is as old, or everything is older.
        return datetime.min.replace(tzinfo=UTC) if milliseconds < 0 else datetime.max.replace(tzinfo=UTC)
