"""Sinks: where results go, exactly once, together with the checkpoint and the dead letters."""

from hubline.sinks.sql_sink.deduplication import Repeats
from hubline.sinks.sql_sink.rejected_rows import Rejected
from hubline.sinks.sql_sink.sink import Move, OpenedPartition, Rows, SqlSink, Transaction

__all__ = ["Move", "OpenedPartition", "Rejected", "Repeats", "Rows", "SqlSink", "Transaction"]
