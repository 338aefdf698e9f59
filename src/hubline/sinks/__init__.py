"""Sinks: where results go, exactly once, together with the checkpoint and the dead letters."""

from hubline.sinks.sql_sink.deduplication import Repeats
from hubline.sinks.sql_sink.rejected_rows import Refused
from hubline.sinks.sql_sink.sink import Move, Rows, SinkPartition, SqlSink, Transaction

__all__ = ["Move", "Refused", "Repeats", "Rows", "SinkPartition", "SqlSink", "Transaction"]
