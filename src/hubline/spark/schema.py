"""The columns of the source: those of the JVM connector, in its order.

Nothing here imports Arrow: the process in which Spark makes a source needs none, and starts in half the time.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hubline.errors import ConfigError

SOURCE_SCHEMA: Final = StructType(
    [
        StructField("body", BinaryType()),
        StructField("partition", StringType()),
        StructField("offset", StringType()),
        StructField("sequenceNumber", LongType()),
        StructField("enqueuedTime", TimestampType()),
        StructField("publisher", StringType()),
        StructField("partitionKey", StringType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("systemProperties", MapType(StringType(), StringType())),
    ]
)
"""``publisher`` is always null, ``systemProperties`` empty: they are there so that existing jobs find their columns."""

REPLAYED: Final = "replayed"
"""The column that a stream with a lookback has as well: whether the event was handled before the query started."""

LOOKBACK_SCHEMA: Final = StructType([*SOURCE_SCHEMA, StructField(REPLAYED, BooleanType())])


def require_schema(schema: StructType, columns: StructType = SOURCE_SCHEMA) -> None:
    """Refuses a schema of the user's own that is not a choice of the source's columns."""
    known = {field.name: field.dataType for field in columns}
    for field in schema:
        if field.name == REPLAYED and REPLAYED not in known:
            raise ConfigError(
                f'the column {REPLAYED} exists only in streams with a lookback. Add .option("lookback", "24h").'
            )
        if field.name not in known:
            raise ConfigError(f"there is no column {field.name!r}. Use one of: {', '.join(known)}.")
        if field.dataType != known[field.name]:
            wanted, given = known[field.name].simpleString(), field.dataType.simpleString()
            raise ConfigError(f"the column {field.name} must be {wanted}, not {given}.")
