"""Event Hubs for Spark 4, in pure Python: a source and a sink, with no jar.

    spark.dataSource.register(hubline.spark.EventHubs)
    events = spark.readStream.format("eventhubs").option("hub", "local:./data/telemetry").option("start", "earliest")

The package has to be installed on the driver and on every node: Spark's planning process finds it there, and nowhere
else.
"""

from hubline.spark.versions import require_pyspark

require_pyspark()

from hubline.spark.datasource import EventHubs  # noqa: E402 - its imports fail in less clear words without Spark
from hubline.spark.session import session  # noqa: E402

__all__ = ["EventHubs", "session"]
