"""The formats that a session can write or read."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

_UNKNOWN: Final = ("DATA_SOURCE_NOT_FOUND", "Failed to find")


def has_format(spark: SparkSession, name: str) -> bool:
    """Whether Spark knows the format. One that it knows fails for other reasons: nobody named what to read."""
    if name == "memory":  # which is for writing alone
        return True
    try:
        spark.read.format(name).load().schema  # noqa: B018 - over Spark Connect, nothing is looked up before
    except Exception as error:  # noqa: BLE001 - whatever a format says of its missing options
        return not any(text in str(error) for text in _UNKNOWN)
    return True
