"""By this package's name Spark finds the data source `eventhubs` by itself: it looks for packages `pyspark_*`."""

from hubline.spark.source.data_source import EventHubs as DefaultSource

__all__ = ["DefaultSource"]
