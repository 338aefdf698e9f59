"""What a session knows."""

from __future__ import annotations

from pyspark.sql import SparkSession

from hubline.spark._jvm.session import is_java_running, is_session_running
from hubline.spark.formats import has_format


def test_formats_that_spark_can_write_are_known(spark: SparkSession) -> None:
    names = ("parquet", "json", "memory", "eventhubs", "nosuch", "org.acme.Missing")
    assert {name: has_format(spark, name) for name in names} == {
        **dict.fromkeys(("parquet", "json", "memory", "eventhubs"), True),
        **dict.fromkeys(("nosuch", "org.acme.Missing"), False),
    }


def test_what_runs_is_known(spark: SparkSession) -> None:
    assert is_java_running()
    assert is_session_running()
