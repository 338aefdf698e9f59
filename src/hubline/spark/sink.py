"""The sink: writes DataFrames to a hub."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from hubline.spark.options import Options


def batch_writer(options: Options, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    raise NotImplementedError


def stream_writer(options: Options, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    raise NotImplementedError
