"""What a running query reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark._jvm.query import progress_newest_first, require_streamable


def test_progress_is_given_newest_first(spark: SparkSession, tmp_path: Path) -> None:
    events = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writing = events.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "folder"))
    query = writing.trigger(processingTime="0 seconds").start()
    try:
        while len(found := [each["batchId"] for each in progress_newest_first(query)]) < 3:
            assert query.isActive
    finally:
        query.stop()
    assert found == sorted(found, reverse=True)


def test_what_spark_would_refuse_at_the_start_of_a_query_is_refused_before(spark: SparkSession) -> None:
    events = spark.readStream.format("rate").load()
    require_streamable(spark, events, "append")
    with pytest.raises(SPARK_ERRORS, match="watermark"):
        require_streamable(spark, events.groupBy("value").agg(F.count(F.lit(1))), "append")
