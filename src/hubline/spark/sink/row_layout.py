"""Rows of a DataFrame as events to send: which columns they need, what is wrong with them, and where each goes.

The columns are those of the JVM connector's sink, and one more. All work is on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from hubline.addresses.did_you_mean import nearest
from hubline.errors import ConfigError
from hubline.event_ids import is_id, with_ids
from hubline.model.events import OUTGOING_SCHEMA
from hubline.producer.routing import ANYWHERE, Indexes, targets_of
from hubline.spark.arrow_columns import plain
from hubline.spark.schema import SOURCE_SCHEMA


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the sink: what it may be, said in words and as a test."""

    words: str
    fits: Callable[[DataType], bool]


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | NullType)


def _is_properties(kind: DataType) -> bool:
    is_map = isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and _is_text(kind.valueType)
    return is_map or isinstance(kind, NullType)


def _is_partition(kind: DataType) -> bool:
    return _is_text(kind) or isinstance(kind, ByteType | ShortType | IntegerType | LongType)


COLUMNS: Final[Mapping[str, _Column]] = {
    "body": _Column("string or binary", lambda kind: isinstance(kind, StringType | BinaryType)),
    "partitionId": _Column("string or a whole number", _is_partition),
    # The name under which the JVM connector looks for the same.
    "partition": _Column("string or a whole number", _is_partition),
    "partitionKey": _Column("string", _is_text),
    "properties": _Column("map<string,string>", _is_properties),
    "eventId": _Column("string", _is_text),
}
"""The columns that the sink takes. Only the body has to be there."""

IGNORED: Final = frozenset(SOURCE_SCHEMA.names) - COLUMNS.keys()
"""What a hub gives an event when it takes it: a DataFrame that was read from one may keep them."""


SEQUENCE: Final = "sequenceNumber"
"""Not sent: errors name it."""

# Of what users gave, in errors: enough to know it again.
SHOWN_LENGTH_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Events to send, and for each the index of its partition, or ANYWHERE."""

    events: pa.RecordBatch
    targets: Indexes


class RowLayout:
    """Where the sink's columns stand in a DataFrame. Raises ConfigError, before anything is sent, if they are wrong."""

    def __init__(self, schema: StructType) -> None:
        _require_columns(schema)
        self._places = {name: place for place, name in enumerate(schema.names) if name in (*COLUMNS, SEQUENCE)}

    def outgoing(self, rows: pa.RecordBatch, partition_ids: Sequence[str], *, first_row: int) -> Outgoing:
        """The rows as events. ``first_row`` is the number of the first, for errors: they name the row."""
        columns = _Rows(plain(rows), self._places, first_row)
        body = columns.text_or_null("body").cast(pa.binary())
        columns.require_none(body.is_null(), "has a null body. Give it one, which may be empty, or drop the row.")
        key, ids = columns.text_or_null("partitionKey"), columns.text_or_null("eventId")
        columns.require_ids(ids)
        properties = with_ids(columns.properties(), ids)
        targets = columns.targets(partition_ids, key, properties)
        events = pa.RecordBatch.from_arrays([body, key, properties], schema=OUTGOING_SCHEMA)
        return Outgoing(events, targets)


def _require_columns(schema: StructType) -> None:
    names = schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"there are two columns {twice[0]}. Drop or rename one.")
    for name in names:
        if name not in COLUMNS and name not in IGNORED:
            suggestion = nearest(name, COLUMNS) or f" (the sink takes {', '.join(COLUMNS)})"
            raise ConfigError(f"the column {name!a} is unknown{suggestion}. Drop it, or put it into properties.")
    if "body" not in names:
        raise ConfigError(f"there is no column body, string or binary, among {', '.join(map(ascii, names))}. Add it.")
    if "partition" in names and "partitionId" in names:
        raise ConfigError("the columns partition and partitionId mean the same. Drop one.")
    for field in schema:
        if field.name in COLUMNS and not COLUMNS[field.name].fits(field.dataType):
            wanted, given = COLUMNS[field.name].words, field.dataType.simpleString()
            raise ConfigError(f"the column {field.name} must be {wanted}, not {given}. Cast it.")


class _Rows:
    """Some rows of a task, by the sink's columns."""

    def __init__(self, rows: pa.RecordBatch, places: Mapping[str, int], first_row: int) -> None:
        self._rows = rows
        self._places = places
        self._first_row = first_row

    def text_or_null(self, name: str) -> pa.StringArray:
        """The column as text (the body as it is); nulls if there is no such column."""
        place = self._places.get(name)
        if place is None:
            return pa.nulls(len(self._rows), pa.string())
        column = self._rows.column(place)
        if pa.types.is_binary(column.type):
            return column
        return column if name == "body" and pa.types.is_string(column.type) else _readable(column.cast(pa.string()))

    def properties(self) -> pa.MapArray:
        kind = OUTGOING_SCHEMA.field("properties").type
        place = self._places.get("properties")
        return pa.nulls(len(self._rows), kind) if place is None else _readable(self._rows.column(place).cast(kind))

    def targets(self, partition_ids: Sequence[str], key: pa.StringArray, properties: pa.MapArray) -> Indexes:
        """By the partition that a row names, or by its key, or by the event that it came from; or ANYWHERE."""
        named = self._named(partition_ids, key)
        return np.where(named == ANYWHERE, targets_of(key, properties, len(partition_ids)), named)

    def _named(self, partition_ids: Sequence[str], key: pa.StringArray) -> Indexes:
        """The partitions that rows name, and ANYWHERE for the others."""
        name = self.text_or_null("partition" if "partition" in self._places else "partitionId")
        self.require_none(
            pc.and_(name.is_valid(), key.is_valid()),
            (
                "has both a partition and a partitionKey, but the key chooses the partition. Drop one of the "
                "columns: a DataFrame that was read from a hub has its partition in the column partition."
            ),
        )
        index = pc.index_in(name, pa.array(partition_ids, pa.string()))
        self.require_none(
            pc.and_(name.is_valid(), index.is_null()),
            f"names a partition that the hub does not have: it has {partition_ids[0]} to "
            f"{partition_ids[-1]}. Choose one of these.",
        )
        targets: Indexes = index.fill_null(ANYWHERE).to_numpy().astype(np.int64)
        return targets

    def require_ids(self, ids: pa.StringArray) -> None:
        is_wrong = pc.invert(is_id(ids))
        for first in ids.filter(is_wrong)[:1].to_pylist():
            shown = ascii(first)[:SHOWN_LENGTH_MAX]
            self.require_none(
                is_wrong, f"has an eventId that is not valid, {shown}. Make it with hubline.spark.event_id."
            )

    def require_none(self, is_wrong: pa.BooleanArray, what: str) -> None:
        row = pc.index(is_wrong, True).as_py()
        if row >= 0:
            raise ConfigError(f"row {self._first_row + row} of the task{self._origin(row)} {what}")

    def _origin(self, row: int) -> str:
        """Where the row was read, if it tells."""
        partition, sequence = (self.text_or_null(name)[row].as_py() for name in ("partition", SEQUENCE))
        if partition is None or sequence is None:
            return ""
        return f" (sequence number {sequence} of partition {ascii(partition)[:SHOWN_LENGTH_MAX]})"


def _readable(texts: pa.Array) -> pa.Array:
    """Text, or maps of text, as UTF-8, which Spark does not look after: what is not has a sign in its place.

    No reader of the hub could get past such an event.
    """
    is_map = pa.types.is_map(texts.type)
    data = texts.cast(pa.map_(pa.binary(), pa.binary()) if is_map else pa.binary())
    try:
        data.cast(texts.type)  # which looks
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in data.to_pylist()], texts.type)
    return texts


def _decoded(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode(errors="replace")
        case list():
            return {str(_decoded(name)): _decoded(text) for name, text in value}
    return None
