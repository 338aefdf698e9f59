"""Rows into PostgreSQL: COPY, upserts by way of a temporary table, and the search for the rows that it rejects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import psycopg
import pyarrow as pa

from hubline.sinks.sql_sink import postgres_copy
from hubline.sinks.sql_sink import postgres_reject_loop as reject_loop
from hubline.sinks.sql_sink.postgres_errors import error_name, raising_rejections, rejection_reason
from hubline.sinks.sql_sink.postgres_tables import PostgresTables
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents, insert_skipping_rejected
from hubline.sinks.sql_sink.table_schema import InsertPlan, TableName, quoted
from hubline.sql.dialect import Row, Statement
from hubline.sql.postgres import PostgresConnection

_UPSERTED = "hubline_stage"
_UPSERTED_COLUMNS = f"CAST(0 AS bigint) AS {reject_loop.ROW}"


class PostgresRowWriter:
    """Writes rows on one connection, within the transactions that its owner begins and ends.

    Args:
        connection: The connection.
        tables: Its tables.
        savepoint: Makes a savepoint of the transaction, and undoes what is done within if that raises.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        tables: PostgresTables,
        savepoint: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._driver = connection.driver
        self._tables = tables
        self._savepoint = savepoint
        self._are_deferrable: dict[TableName, bool] = {}
        self._has_refused_commit = False
        self._temporary_tables: Mapping[str, InsertPlan] = {}
        self._temporary_tables_before: Mapping[str, InsertPlan] = {}  # those that were there before the transaction
        self._upserted_count = 0

    # What the owner says of its transaction

    def begin(self) -> None:
        """A transaction begins."""
        self._temporary_tables_before = self._temporary_tables

    def begin_again(self) -> None:
        """The transaction, in which nothing but a row was wrong, is undone and begins again."""
        self._temporary_tables = self._temporary_tables_before

    def forget_temporary_tables(self) -> None:
        """Something is undone: temporary tables that were made in it may be gone."""
        self._temporary_tables = {}

    def forget(self) -> None:
        """Everything is undone. Whatever went wrong, a constraint may be another one by now."""
        self.forget_temporary_tables()
        self._are_deferrable.clear()

    def note_refused_commit(self) -> None:
        """A constraint refused a commit, with no row to blame: from now on, constraints are checked before it."""
        self._has_refused_commit = True

    # Writing

    def write(self, plan: InsertPlan, rows: pa.Table) -> None:
        """Writes rows, all of them. Raises Rejection where one is to blame."""
        rows = plan.fitted(rows)
        if plan.key:
            self._make_temporary_table(_UPSERTED, plan, columns=_UPSERTED_COLUMNS)
        with raising_rejections():
            if plan.key:
                self._upsert(plan, rows)
            else:
                self._copy(plan.table.quoted, plan, rows)
            if self._is_deferrable(plan.table):
                self._statement(reject_loop.IMMEDIATE)

    def write_skipping_rejected(self, plan: InsertPlan, rows: pa.Table, row_events: RowEvents) -> list[Rejected] | None:
        """Writes the rows of every event that the server takes, and returns the other events.

        They go by way of a temporary table without constraints. What is not a value of its type is rejected there
        already, by name; the rest is tried by a loop in the server. None, with nothing written, where that table cannot
        be made.
        """
        try:
            with self._savepoint():
                self._make_temporary_table(
                    reject_loop.TABLE, plan, columns=reject_loop.COLUMNS, beside=reject_loop.BESIDE
                )
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.DuplicateColumn):
            return None
        distinct, numbers = np.unique(row_events, return_inverse=True)
        places = pa.table({reject_loop.ROW: np.arange(len(rows)), reject_loop.EVENT: numbers.astype(np.int64)})
        for name in places.column_names:
            rows = rows.append_column(name, places.column(name))

        def attempt(part: pa.Table) -> None:
            fitted = plan.fitted(part)
            for name in places.column_names:
                fitted = fitted.append_column(name, part.column(name))
            with self._savepoint(), raising_rejections():
                self._copy(reject_loop.TABLE, plan, fitted)

        rejected = insert_skipping_rejected(rows, row_events, attempt)
        are_nulls_apart = self._are_nulls_apart(plan, rows)
        for number, state, message, detail in self._run_reject_loop(
            plan, len(distinct), are_nulls_apart=are_nulls_apart
        ):
            event = int(distinct[int(str(number))])
            rejected.append(Rejected(event, rejection_reason(str(message), str(detail)), error_name(str(state))))
        return sorted(rejected, key=lambda one: one.event)

    def _copy(self, into: str, plan: InsertPlan, rows: pa.Table) -> None:
        names = ", ".join(map(quoted, rows.column_names))
        is_binary = "text" not in plan.targets
        form = "binary" if is_binary else "csv"
        with self._driver.cursor().copy(f"COPY {into} ({names}) FROM STDIN (FORMAT {form})".encode()) as copy:
            for data in postgres_copy.encode_binary(rows, plan) if is_binary else postgres_copy.encode_csv(rows):
                copy.write(memoryview(data))  # which is cut into pieces without copying them

    def _upsert(self, plan: InsertPlan, rows: pa.Table) -> None:
        """By way of a temporary table. Of rows with the same key the last one counts, as if written one by one."""
        first, self._upserted_count = self._upserted_count, self._upserted_count + len(rows)
        numbers = pa.array(range(first, self._upserted_count), pa.int64())
        self._copy(_UPSERTED, plan, rows.append_column(reject_loop.ROW, numbers))
        are_nulls_apart = self._are_nulls_apart(plan, rows)
        which = f"{reject_loop.ROW} >= {first}"
        self._statement(reject_loop.inserted(plan, _UPSERTED, which=which, are_nulls_apart=are_nulls_apart))

    def _make_temporary_table(self, name: str, plan: InsertPlan, *, columns: str, beside: str = "") -> None:
        """Makes a temporary table with the columns of rows and some more; it stays, empty, for later transactions."""
        if self._temporary_tables.get(name) == plan:
            return
        names = ", ".join(map(quoted, plan.names))
        self._statement(
            f"DROP TABLE IF EXISTS pg_temp.{name}; CREATE TEMPORARY TABLE {name} ON COMMIT DELETE ROWS AS "  # noqa: S608 - names are quoted
            f"SELECT {names}, {columns} FROM {plan.table.quoted} WITH NO DATA; {beside}"
        )
        self._temporary_tables = {**self._temporary_tables, name: plan}

    def _run_reject_loop(self, plan: InsertPlan, count: int, *, are_nulls_apart: bool) -> list[Row]:
        """Writes the rows of the temporary table; returns the number of each event that the server rejects, and why."""
        is_deferrable = self._is_deferrable(plan.table)
        loop = reject_loop.loop(plan, count=count, is_deferrable=is_deferrable, are_nulls_apart=are_nulls_apart)
        _, rejected, _ = self._connection.write(
            Statement("DO %(loop)s", {"loop": loop}),
            Statement(reject_loop.REJECTED, {}),
            Statement(reject_loop.EMPTY, {}),
        )
        return rejected

    def _is_deferrable(self, table: TableName) -> bool:
        """Whether constraints may wait for the commit: there they would fail with no row to blame.

        They may be those of a table that a trigger writes to: then a commit tells, once.
        """
        if self._has_refused_commit:
            return True
        if table not in self._are_deferrable:
            self._are_deferrable[table] = self._tables.has_deferrable_constraints(table)
        return self._are_deferrable[table]

    def _are_nulls_apart(self, plan: InsertPlan, rows: pa.Table) -> bool:
        """Whether rows have a null in their key, which is seldom, and the index takes any number of such."""
        if not any(rows.column(name).null_count for name in plan.key):
            return False
        return not self._tables.are_nulls_equal(plan.table, plan.key)

    def _statement(self, text: str) -> None:
        self._driver.execute(text.encode())
