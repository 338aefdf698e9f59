"""The columns that a stage is given beside its events' own, and those that its sink gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users have it

from hubline.event_ids import ID_PROPERTY
from hubline.spark.functions import derived_id
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.schema import REPLAYED as REPLAYED
from hubline.spark.schema import SOURCE_SCHEMA

EVENT_ID: Final = "eventId"
"""The identity of an event, which a hub's sink writes into the event that was made of it."""

ADDED: Final = (EVENT_ID, REPLAYED)
"""What a run adds to the columns of events."""

UNUSED: Final = ("publisher", "systemProperties")
"""Columns of events that say nothing."""

NOT_PUBLISHED: Final = tuple(set(SOURCE_SCHEMA.names) - {"body", "partitionKey", "properties"})
"""Where an event stood in the hub that it was read from says nothing in the next one."""


def output_id(index: Column) -> Column:
    """Make the `eventId` of each event, where a stage makes several of one.

    Args:
        index: A column that counts the events that come of one, from 0.

    Returns:
        The column. It needs the column `eventId` of the event that was read.

    Example:
        events.select("eventId", F.posexplode("parts").alias("index", "body")).withColumn(
            "eventId", hubline.pipeline.output_id(F.col("index"))
        )
    """
    return derived_id(F.col(EVENT_ID), index)


def published(frame: DataFrame, *, has_ids: bool) -> DataFrame:
    """What goes to a hub. Without identity, events also lose the ids that they came with: they mean nothing now."""
    frame = frame.drop(*NOT_PUBLISHED, REPLAYED, ERROR_COLUMN)
    if not has_ids:
        frame = frame.drop(EVENT_ID)
        if "properties" in frame.columns:
            frame = frame.withColumn("properties", F.map_filter("properties", lambda name, _: name != ID_PROPERTY))
    return frame


def stored(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """What goes to a table: what a run adds to events is written where the table has a column for it."""
    return frame.drop(*(name for name in (*ADDED, *UNUSED) if name not in columns))
