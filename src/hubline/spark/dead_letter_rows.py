"""Dead letters of a query's rows: of each event what the query kept of it, under its own name and as its own kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from hubline.errors import ConfigError
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.events import Event
from hubline.model.keys import GroupKey
from hubline.spark.json_parsing import ERROR_COLUMN

_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)

_BYTES: Final = pa.map_(pa.binary(), pa.binary())
_INSTANT: Final = pa.timestamp("us", "UTC")


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_properties(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and pa.types.is_string(kind.item_type))


# By column: what is of another kind is not the event's any more, but something that the query made of it.
_KINDS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "body": pa.types.is_binary,
    "partition": pa.types.is_string,
    "offset": pa.types.is_string,
    "sequenceNumber": pa.types.is_integer,
    "enqueuedTime": _is_instant,
    "partitionKey": pa.types.is_string,
    "properties": _is_properties,
    ERROR_COLUMN: lambda _: True,
}

DEAD_LETTER_COLUMNS: Final = tuple(_KINDS)
"""The columns that dead letters are made of."""


def dead_letter_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """What dead letters are made of, and nothing else of the rows: a query's own columns may not even be readable."""
    kept = {
        field.name: _values(rows.column(field.name))
        for field in rows.schema
        if field.name in _KINDS and _KINDS[field.name](field.type)
    }
    if len(rows) and any(None in kept.get(name, [None]) for name in ("partition", "sequenceNumber")):
        raise ConfigError(
            f"rows with an {ERROR_COLUMN}, and those that the database refuses, need the columns partition and "
            "sequenceNumber of their events. Keep them as they are."
        )
    return [dict(zip(kept, values, strict=True)) for values in zip(*kept.values(), strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The column as Python has it, whatever is in it: nothing of a dead letter is worth losing the dead letter."""
    kind = column.type
    if pa.types.is_string(kind):
        return [None if text is None else _readable(text) for text in column.cast(pa.binary()).to_pylist()]
    if _is_properties(kind):
        return [_properties(entries or ()) for entries in column.cast(_BYTES).to_pylist()]
    if _is_instant(kind):
        column = column.cast(_INSTANT)
    return [_value(scalar) for scalar in column]


def _readable(text: bytes) -> str:
    """Spark does not look whether text that it makes of bytes is UTF-8: what is not has a sign in its place."""
    return text.decode(errors="replace")


def _properties(entries: Iterable[tuple[bytes, bytes | None]]) -> dict[str, str]:
    """An event's properties all have a value; a query may have made some without."""
    return {_readable(name): _readable(value) for name, value in entries if value is not None}


def _value(scalar: pa.Scalar) -> Any:
    """None where Python has no such value: Spark's years go further than its own, and an error may be of any type."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return None


def dead_letter_of(group: GroupKey, row: Mapping[str, Any], *, kind: str, reason: str, stage: Stage) -> DeadLetter:
    key = group.partition(row["partition"])
    body = row.get("body")
    event = Event(
        body or b"",
        key.partition,
        row.get("offset") or "",
        row["sequenceNumber"],
        row.get("enqueuedTime") or _NO_TIME,
        row.get("partitionKey"),
        row.get("properties") or {},
    )
    return DeadLetter(key, event, kind, reason, traceback="", attempts=1, stage=stage, is_body_kept=body is not None)
