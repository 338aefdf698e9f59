"""A sink's connection to PostgreSQL: its transactions, dead letters, and what its errors mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import psycopg
import pyarrow as pa
from psycopg.pq import TransactionStatus

from hubline.model.keys import PartitionKey
from hubline.secrets import Secret
from hubline.sinks.sql_sink import postgres_reject_loop as reject_loop
from hubline.sinks.sql_sink.connection import (
    CommitPlan,
    FenceState,
    Parameters,
    SinkConnection,
    altered,
    checkpoint_gone,
)
from hubline.sinks.sql_sink.postgres_errors import rejection_in, table_trouble
from hubline.sinks.sql_sink.postgres_row_writer import PostgresRowWriter
from hubline.sinks.sql_sink.postgres_tables import SHAPE, PostgresTables
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents
from hubline.sinks.sql_sink.table_schema import InsertPlan, Rejection, insertion
from hubline.sql.checkpoint_rows import of_partition, read_checkpoint
from hubline.sql.dead_letter_table import COLUMNS, DeadLetterRow
from hubline.sql.dialect import Row, Statement
from hubline.sql.driver_errors import call_explained
from hubline.sql.fence import NOBODY
from hubline.sql.postgres import DIALECT, QUERIES, PostgresConnection, PostgresDatabase

_BEGIN = Statement("BEGIN", {})
_ROLLBACK = Statement("ROLLBACK", {})
_COMMIT = Statement("COMMIT", {})

# Claims that a COMMIT in the same message depends on: what is not a number ends the message there, with these words.
_ALTERED = "hubline: the table was altered"
_CHECKPOINT_GONE = "hubline: the checkpoint is gone"
_AS_PLANNED = f"SELECT CAST(CASE WHEN ({SHAPE}) = %(shape)s THEN '1' ELSE '{_ALTERED}' END AS integer)"
_ADVANCED = (
    "WITH moved AS ({}) "  # noqa: S608 - constants
    f"SELECT CAST(CASE WHEN count(*) = 1 THEN '1' ELSE '{_CHECKPOINT_GONE}' END AS integer) FROM moved"
)
# A client that is frozen in the middle of a COPY is waited for without end: none of the server's time limits applies.
# The row's last locker is in its xmax, and its process holds the lock of that transaction.
_END_STALLED = """
    SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity USING (pid)
    WHERE locktype = 'transactionid' AND granted AND usename = current_user
        AND clock_timestamp() - xact_start > make_interval(secs => %(seconds_max)s)
        AND transactionid = (
            SELECT xmax FROM hubline_checkpoint WHERE namespace = %(namespace)s AND hub = %(hub)s
                AND consumer_group = %(consumer_group)s AND partition_id = %(partition_id)s
        )
"""
_DEAD_LETTER_TYPES = ["text"] * 4 + ["int8", "text", "timestamptz", "text", "bytea"] + ["text"] * 5 + ["int8", "text"]
_COPY_DEAD_LETTERS = f"COPY hubline_dead_letter ({', '.join(COLUMNS)}) FROM STDIN (FORMAT binary)"


class PostgresSinkConnection(SinkConnection):
    """A :class:`~hubline.sinks.sql_sink.connection.SinkConnection` of PostgreSQL."""

    dialect = DIALECT
    queries = QUERIES
    tables: PostgresTables

    def __init__(self, database: PostgresDatabase, connection: PostgresConnection) -> None:
        self.tables = PostgresTables(connection)
        super().__init__(database, connection)
        self._driver = connection.driver
        self._rows = PostgresRowWriter(connection, self.tables, self.savepoint)

    @classmethod
    def connect(cls, conninfo: Secret, *, seconds_max: int) -> Self:
        database = PostgresDatabase(conninfo, statement_seconds_max=seconds_max)
        return cls(database, call_explained(database.connect, database.explain))

    @property
    def is_commit_unknown(self) -> bool:
        return self._driver.closed  # broken, before the answer came

    def is_rejection(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and rejection_in(error) is not None

    @property
    def is_in_transaction(self) -> bool:
        return self._driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def begin(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        self._rows.begin()
        return self._begun(keys, _BEGIN)

    def begin_again(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        self._rows.begin_again()
        return self._begun(keys, _ROLLBACK, _BEGIN)

    def _begun(self, keys: Sequence[PartitionKey], *beginning: Statement) -> list[FenceState]:
        locks = [Statement(self.queries.lock_checkpoint, of_partition(key)) for key in keys]
        found = self._connection.write(*beginning, *locks)[len(beginning) :]
        return [
            read_checkpoint(key, rows[0]) if rows else (NOBODY, None) for key, rows in zip(keys, found, strict=True)
        ]

    def commit(self, plan: CommitPlan) -> None:
        shapes = [Statement(_AS_PLANNED, {"name": each.table.quoted, "shape": each.shape}) for each in plan.written]
        advances = [Statement(_ADVANCED.format(advance.query), advance.params) for advance in self._advances(plan)]
        try:
            self._connection.write(*self._markings(plan), *shapes, *advances, _COMMIT)
        except psycopg.errors.InvalidTextRepresentation as error:
            message = error.diag.message_primary or ""
            if _ALTERED in message:
                raise altered(plan.written[0].table) from None
            if _CHECKPOINT_GONE in message:
                raise checkpoint_gone() from None
            raise
        except psycopg.IntegrityError:
            self._rows.note_refused_commit()
            raise

    def rollback(self) -> None:
        self._rows.forget()
        self._statement("ROLLBACK")

    def _undo_savepoint(self) -> None:
        self._statement("ROLLBACK TO SAVEPOINT hubline; RELEASE SAVEPOINT hubline")

    def _forget_undone(self) -> None:
        self._rows.forget_temporary_tables()

    def end_stalled(self, key: PartitionKey, *, seconds_max: float) -> None:
        self._driver.execute(_END_STALLED, {**of_partition(key), "seconds_max": seconds_max})

    def execute(self, query: str, params: Parameters) -> list[Row]:
        # In binary form the query has to be a single statement: a COMMIT cannot hide behind another.
        cursor = self._driver.cursor(binary=True)
        cursor.execute(query.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def explain_insert(self, plan: InsertPlan) -> None:
        nothing = ", ".join("NULL" for _ in plan.names)
        self._statement(f"EXPLAIN {insertion(plan, f'{reject_loop.OVERRIDING} VALUES ({nothing})')}")

    def write(self, plan: InsertPlan, rows: pa.Table) -> None:
        self._rows.write(plan, rows)

    def write_skipping_rejected(
        self, plan: InsertPlan, rows: pa.Table, row_events: RowEvents, rejection: Rejection
    ) -> list[Rejected]:
        rejected = self._rows.write_skipping_rejected(plan, rows, row_events)
        if rejected is None:  # the other way takes more round trips, and nothing else
            return super().write_skipping_rejected(plan, rows, row_events, rejection)
        return rejected

    def write_dead_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        if self._driver.info.parameter_status("server_encoding") == "UTF8":
            return self._copy_dead_letters(rows)
        try:
            with self.savepoint():
                return self._copy_dead_letters(rows)
        except psycopg.errors.UntranslatableCharacter:
            return self._copy_dead_letters([row.in_ascii() for row in rows])

    def _copy_dead_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        with self._driver.cursor().copy(_COPY_DEAD_LETTERS.encode()) as copy:
            copy.set_types(_DEAD_LETTER_TYPES)
            for row in rows:
                copy.write_row(row)

    def _statement(self, text: str) -> None:
        self._driver.execute(text.encode())

    def _table_trouble(self, error: Exception) -> str | None:
        return table_trouble(error)
