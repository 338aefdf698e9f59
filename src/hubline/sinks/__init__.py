"""Sinks: where results go, exactly once, together with the checkpoint and the dead letters."""

from hubline.model.duplicates import DropDuplicates
from hubline.sinks.sql_sink.opened_partition import OpenedPartition
from hubline.sinks.sql_sink.partition_transaction import Move
from hubline.sinks.sql_sink.rejected_rows import Rejected
from hubline.sinks.sql_sink.row_writer import Rows
from hubline.sinks.sql_sink.sink import SqlSink
from hubline.sinks.sql_sink.transaction import Transaction

__all__ = ["DropDuplicates", "Move", "OpenedPartition", "Rejected", "Rows", "SqlSink", "Transaction"]
