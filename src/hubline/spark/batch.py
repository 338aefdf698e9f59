"""Batch reads: a range of each partition, by position or time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hubline.spark.options import Options


class BatchReader(DataSourceReader):
    """Reads what the hub holds between two positions."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class PushdownReader(BatchReader):
    """The same, and takes filters by time and partition."""
