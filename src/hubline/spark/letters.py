"""Dead letters of a query's rows: of each event what the query kept of it, under its own name and as its own kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from hubline.errors import ConfigError
from hubline.model import DeadLetter, Event, GroupKey, Stage
from hubline.spark.parsing import ERROR_COLUMN

_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)

# By column: what is of another kind is not the event's any more, but something that the query made of it.
_KINDS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "body": pa.types.is_binary,
    "partition": pa.types.is_string,
    "offset": pa.types.is_string,
    "sequenceNumber": pa.types.is_integer,
    "enqueuedTime": pa.types.is_timestamp,
    "partitionKey": pa.types.is_string,
    "properties": pa.types.is_map,
    ERROR_COLUMN: lambda _: True,
}


def letter_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """What letters are made of, and nothing else of the rows: a query's own columns may not even be readable."""
    kept = {
        field.name: _values(rows.column(field.name))
        for field in rows.schema
        if field.name in _KINDS and _KINDS[field.name](field.type)
    }
    if len(rows) and not {"partition", "sequenceNumber"} <= kept.keys():
        raise ConfigError(
            f"rows with an {ERROR_COLUMN}, and those that the database refuses, need the columns partition and "
            "sequenceNumber of their events: keep them as they are"
        )
    return [dict(zip(kept, values, strict=True)) for values in zip(*kept.values(), strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Spark does not look whether text that it makes of bytes is UTF-8: what is not has a sign in its place."""
    if not pa.types.is_string(column.type):
        return list(column.to_pylist())
    return [None if text is None else text.decode(errors="replace") for text in column.cast(pa.binary()).to_pylist()]


def letter_of(group: GroupKey, row: Mapping[str, Any], *, kind: str, why: str, stage: Stage) -> DeadLetter:
    key = group.partition(row["partition"])
    body = row.get("body")
    event = Event(
        body or b"",
        key.partition,
        row.get("offset") or "",
        row["sequenceNumber"],
        row.get("enqueuedTime") or _NO_TIME,
        row.get("partitionKey"),
        dict(row.get("properties") or ()),
    )
    return DeadLetter(key, event, kind, why, traceback="", attempts=1, stage=stage, is_body_kept=body is not None)
