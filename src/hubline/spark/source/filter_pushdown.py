"""Batch reads that know the query's own filters. Spark has filters for Python sources since 4.1."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from hubline.spark.source.batch_reader import BatchReader, Wanted


class PushdownReader(BatchReader):
    """Reads no more than filters on time, partition and sequence number leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Called before ``partitions``. All filters go back: Spark applies them, and here they only save reading."""
        for condition in filters:
            self._wanted = narrowed(self._wanted, condition)
        return filters


def narrowed(wanted: Wanted, condition: Filter) -> Wanted:
    """What this filter leaves of it. One that is not understood leaves all: Spark applies it."""
    match condition:
        case EqualTo(("partition",), str(partition)):
            return wanted.only({partition})
        case In(("partition",), tuple(partitions)):
            return wanted.only({partition for partition in partitions if isinstance(partition, str)})
        case EqualTo(("enqueuedTime",), datetime() as time):
            return wanted.after(time).before(time)
        case GreaterThan(("enqueuedTime",), datetime() as time) | GreaterThanOrEqual(
            ("enqueuedTime",), datetime() as time
        ):
            return wanted.after(time)
        case LessThan(("enqueuedTime",), datetime() as time) | LessThanOrEqual(("enqueuedTime",), datetime() as time):
            return wanted.before(time)
        case EqualTo(("sequenceNumber",), int(number)):
            return wanted.from_sequence(number).to_sequence(number)
        case GreaterThan(("sequenceNumber",), int(number)) | GreaterThanOrEqual(("sequenceNumber",), int(number)):
            return wanted.from_sequence(number)
        case LessThan(("sequenceNumber",), int(number)) | LessThanOrEqual(("sequenceNumber",), int(number)):
            return wanted.to_sequence(number)
    return wanted
