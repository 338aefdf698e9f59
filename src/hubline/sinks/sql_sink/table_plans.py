"""How rows of a schema go into the sink's table, found out once for each schema."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from hubline.errors import SinkError
from hubline.sinks.sql_sink.connection import SinkConnection
from hubline.sinks.sql_sink.table_schema import Column, InsertPlan, TableName, creatable, plan_for

PLANS_MAX = 100
"""Handlers return rows of one schema or of a few; one that makes up columns must not fill the memory."""


class TablePlans:
    """The plans of a table. From any thread: each change replaces all of them at once."""

    def __init__(self, table: TableName | None, *, key: tuple[str, ...], creates: bool) -> None:
        self._table = table
        self._key = key
        self._creates = creates
        self._plans: Mapping[pa.Schema, InsertPlan] = {}

    @property
    def table(self) -> TableName:
        """The table's name. Raises SinkError where the sink has no table."""
        if self._table is None:
            raise SinkError("the sink has no table for rows. Pass table=... to SqlSink, or write by tx.execute.")
        return self._table

    def plan(self, connection: SinkConnection, schema: pa.Schema) -> InsertPlan:
        """How rows of a schema go into the table. Raises SinkError that shows both where they do not fit.

        A table that is missing is made, if that was asked for, in the transaction that the connection is in.
        """
        if (known := self._plans.get(schema)) is not None and connection.is_current(known):
            return known
        if (plan := self._planned(connection, schema)) is None:
            connection.tables.create(self.table, self._creatable(schema), key=self._key)
            plan = self._planned(connection, schema)
            assert plan is not None  # noqa: S101 (it was just made, in this transaction)
            return plan  # not kept: it may yet be undone
        others = self._plans if len(self._plans) < PLANS_MAX else {}
        self._plans = {**others, schema: plan}
        return plan

    def check(self, connection: SinkConnection, schema: pa.Schema) -> str | None:
        """None if rows of a schema fit into the table, or the statement that will make the table. Changes nothing."""
        plan = self._planned(connection, schema)
        if plan is None:
            return connection.tables.creation(self.table, self._creatable(schema), key=self._key)
        connection.explain_insert(plan)
        return None

    def columns(self, connection: SinkConnection) -> list[Column]:
        """The columns of the table; none while it is still to be made."""
        return connection.tables.columns(self.table)

    def forget(self) -> None:
        """The table may be another one by now."""
        self._plans = {}

    def _planned(self, connection: SinkConnection, schema: pa.Schema) -> InsertPlan | None:
        """How the rows go into the table; None if it is still to be made."""
        shape = connection.tables.shape(self.table)  # before the columns: a change in between shows at the commit
        columns = connection.tables.columns(self.table)
        if columns:
            return plan_for(self.table, columns, schema, key=self._key, shape=shape)
        if self._creates:
            return None
        raise SinkError(
            f"there is no table {self.table}. Create it, or open the sink with create_table=True. The rows have "
            f"{', '.join(f'{field.name} {field.type}' for field in schema)}.",
            table=str(self.table),
        )

    def _creatable(self, schema: pa.Schema) -> pa.Schema:
        return creatable(self.table, schema, key=self._key)
