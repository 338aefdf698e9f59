"""Sinks: where results go, exactly once, together with the checkpoint and the dead letters."""

from hubline.sinks.repeats import Repeats
from hubline.sinks.sql import Move, Rows, SinkPartition, SqlSink, Transaction
from hubline.sinks.tracing import Refused

__all__ = ["Move", "Refused", "Repeats", "Rows", "SinkPartition", "SqlSink", "Transaction"]
