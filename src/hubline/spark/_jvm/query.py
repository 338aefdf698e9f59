"""Queries: what they report, and whether Spark takes them. Only for classic sessions is there more than is public."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def progress_newest_first(query: Any) -> Iterator[dict[str, Any]]:
    """What a query reports of its batches, one at a time: in classic sessions, reading all that Spark keeps takes
    0.1 s."""
    if not isinstance(query, StreamingQuery):  # over Spark Connect, it is one answer of the server's
        for progress in reversed(query.recentProgress):
            yield json.loads(progress.json)
        return
    recent = query._jsq.recentProgress()  # PySpark reads all of them, field by field
    for number in reversed(range(len(recent))):
        yield json.loads(recent[number].json())


def require_streamable(spark: SparkSession, frame: DataFrame, output_mode: str) -> None:
    """What Spark itself asks of a query when it starts. Raises `SPARK_ERRORS`."""
    jvm: Any = spark.sparkContext._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    plan = frame._jdf.queryExecution().analyzed()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
