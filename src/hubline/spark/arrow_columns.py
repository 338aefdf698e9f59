"""The columns of the source as Arrow has them, and rows of Spark's as events have them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from hubline.event_ids import filled
from hubline.model.events import EventBatch
from hubline.spark.compatibility import arrow_schema
from hubline.spark.schema import REPLAYED

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def plain(rows: Rows) -> Rows:
    """What Spark hands over, with text and bytes of the types that events have.

    By the setting spark.sql.execution.arrow.useLargeVarTypes they come with offsets of 64 bits. Nothing is copied
    where they do not.
    """
    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema])
    return rows if schema == rows.schema else rows.cast(schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), kind.item_field.with_type(_plain_type(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


class Layout:
    """Puts events into the columns that Spark was promised. Nothing is copied.

    Maps are never null: at each row that Spark hands to Python, it would go through all null maps of the batch again.
    """

    def __init__(self, schema: StructType) -> None:
        self.schema: pa.Schema = arrow_schema(schema)
        self._unknown: dict[str, pa.Array] = {}

    def arranged(self, batch: EventBatch, *, replayed_to: int = 0) -> pa.RecordBatch:
        """The events with the promised columns, in their order and with their very types.

        Those before ``replayed_to`` are marked as replayed, where that is among the columns.
        """
        events = batch.arrow
        known = dict(zip(events.schema.names, events.columns, strict=True))
        columns = [
            _filled(known[field.name]) if field.name in known else self._nothing(field, len(events))
            for field in self.schema
        ]
        if (place := self.schema.get_field_index(REPLAYED)) >= 0:
            columns[place] = _replayed(events, replayed_to)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _nothing(self, field: pa.Field, count: int) -> pa.Array:
        """A column that events do not have. One is kept, and cut to size."""
        kept = self._unknown.get(field.name)
        if kept is None or len(kept) < count:
            kept = self._unknown[field.name] = _filled(pa.nulls(count, field.type))
        return kept.slice(0, count)


def _filled(column: pa.Array) -> pa.Array:
    return filled(column) if pa.types.is_map(column.type) else column


def _replayed(events: pa.RecordBatch, replayed_to: int) -> pa.BooleanArray:
    sequences = events.column("sequenceNumber").to_numpy()
    return pa.array(np.less(sequences, replayed_to))
