"""The data source ``eventhubs``: what Spark constructs, pickles and asks for readers and writers.

Spark makes it in one Python process, pickles it, and unpickles it in others: it holds parsed options and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from hubline.errors import ConfigError
from hubline.spark.arrival import Travelling
from hubline.spark.compatibility import for_this_spark
from hubline.spark.options import Options, parse_options
from hubline.spark.schema import LOOKBACK_SCHEMA, SOURCE_SCHEMA, require_schema
from hubline.spark.tasks.gc_tuning import freeze_loaded_modules

# Spark plans a batch read in a worker of this module if filters may be pushed down, and only then.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class EventHubs(Travelling, DataSource):
    """Spark's data source `eventhubs`: read and write hubs, in batches and streams.

    Spark finds it by itself where hubline is installed, in any session.

    Args:
        options: The options of the reader or writer. They are checked when the DataFrame is made.

    Raises:
        ConfigError: An option is unknown or not valid. The message says what to write instead.

    Example:
        events = spark.readStream.format("eventhubs").options(hub="env:TELEMETRY", startingPosition="earliest").load()
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        # Not kept as they came: the parsed ones show no secret.
        self.parsed: Options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "eventhubs"

    def schema(self) -> StructType:
        return SOURCE_SCHEMA if self.parsed.lookback_seconds is None else LOOKBACK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Spark calls it.

        Args:
            schema: The columns.
        """
        if self.parsed.lookback_seconds is not None:
            raise ConfigError(
                "the option lookback is for streams only. To read the last 24 hours, write "
                '.option("startingPosition", "time:-24h").'
            )
        require_schema(schema)
        # A reader that takes filters fails where Spark may not push them down, and that is Spark's default.
        if _PUSHDOWN_WORKER in sys.modules:
            from hubline.spark.source.filter_pushdown import PushdownReader

            return PushdownReader(self.parsed, schema)
        from hubline.spark.source.batch_reader import BatchReader

        return BatchReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. Spark calls it.

        Args:
            schema: The columns.
        """
        from hubline.spark.source.stream_reader import StreamReader

        freeze_loaded_modules()  # Spark asks at every batch, in workers: for writers, too
        reader = StreamReader(self.parsed, schema)
        return for_this_spark(reader, limits_first_batch=self.parsed.limit_first_batch)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Spark calls it.

        Args:
            schema: The columns.
            overwrite: Whether to replace what is there. A hub only appends.
        """
        from hubline.spark.sink.writer import batch_writer

        freeze_loaded_modules()
        return batch_writer(self.parsed, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream. Spark calls it.

        Args:
            schema: The columns.
            overwrite: Whether to replace what is there. A hub only appends.
        """
        from hubline.spark.sink.writer import stream_writer

        freeze_loaded_modules()
        return stream_writer(self.parsed, schema, overwrite=overwrite)

    def __repr__(self) -> str:
        return f"EventHubs({self.parsed.hub})"
