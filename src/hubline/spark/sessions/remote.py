"""Sessions of Spark Connect: the client of a server, without a Java process of its own."""

from __future__ import annotations

from pyspark.sql import SparkSession


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is Spark Connect's. By its name: the class cannot be imported without gRPC."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
