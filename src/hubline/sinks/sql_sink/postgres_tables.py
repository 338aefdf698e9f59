"""The tables of a PostgreSQL database, and what its columns take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa

from hubline.sinks.sql_sink.table_schema import Column, TableName, Target
from hubline.sinks.sql_sink.tables import Tables
from hubline.sql.dialect import Params, Statement
from hubline.sql.postgres import PostgresConnection

_INSTANT = pa.timestamp("us", "UTC")
_TEXT: Mapping[str, Target] = {"text": pa.string(), "binary": pa.string()}
_BY_TEXT: Mapping[str, Target] = dict.fromkeys(
    ("text", "integer", "float", "decimal", "boolean", "instant", "timestamp", "date", "time"), "text"
)
_TARGETS: Mapping[str, Mapping[str, Target]] = {
    "int2": {"integer": pa.int16()},
    "int4": {"integer": pa.int32()},
    "int8": {"integer": pa.int64()},
    "float4": {"float": pa.float32(), "integer": pa.float32(), "decimal": pa.float32()},
    "float8": {"float": pa.float64(), "integer": pa.float64(), "decimal": pa.float64()},
    "numeric": {"decimal": "as is", "integer": pa.decimal128(20, 0), "float": "text", "text": "text"},
    "bool": {"boolean": pa.bool_()},
    "text": _TEXT,
    "varchar": _TEXT,
    "bpchar": _TEXT,
    "json": _TEXT,
    "jsonb": _TEXT,
    "bytea": {"binary": pa.binary()},
    "timestamptz": {"instant": _INSTANT},
    "timestamp": {"timestamp": pa.timestamp("us")},
    "date": {"date": pa.date32()},
    "time": {"time": pa.time64("us")},
}
"""By the catalog's name of a type. Any other type is sent as text, and PostgreSQL makes its value of it."""

_READ_AS: Mapping[str, Target] = {
    "json": "text",
    "jsonb": "text",
    "interval": pa.duration("us"),
    "boolean[]": pa.list_(pa.bool_()),
    "smallint[]": pa.list_(pa.int16()),
    "integer[]": pa.list_(pa.int32()),
    "bigint[]": pa.list_(pa.int64()),
    "real[]": pa.list_(pa.float32()),
    "double precision[]": pa.list_(pa.float64()),
    "text[]": pa.list_(pa.string()),
    "character varying[]": pa.list_(pa.string()),
}
"""By the name of a type as people write it: what is read as another type than it is sent as."""

_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
_LENGTH = re.compile(r"\(\d+\)")
_DIGITS_MAX = 38
_DIGITS = (_DIGITS_MAX, 18)
"""What a number has that was declared with neither: as Spark has it."""

_CREATED_AS = {
    "boolean": "boolean",
    "integer": "bigint",
    "float": "double precision",
    "decimal": "numeric",
    "text": "text",
    "null": "text",
    "binary": "bytea",
    "instant": "timestamptz",
    "timestamp": "timestamp",
    "date": "date",
    "time": "time",
}

_CREATION_LOCK = int.from_bytes(b"sink")

# Defaults and NOT NULL may be a domain's. COPY, other than INSERT, would leave a column empty whose domain forbids it.
_IS_REQUIRED = (
    "(attnotnull OR typnotnull) AND NOT atthasdef AND attidentity = '' AND attgenerated = '' AND typdefault IS NULL"
)
_OF_TABLE = """
    FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_type ON pg_type.oid = atttypid
    WHERE attrelid = to_regclass(%(name)s) AND attnum > 0 AND NOT attisdropped
"""
_COLUMNS = f"""
    SELECT attname, typname, format_type(atttypid, atttypmod), {_IS_REQUIRED}
    {_OF_TABLE} AND (%(and_generated)s OR attgenerated = '') ORDER BY attnum
"""
# What rows are compared with, and nothing else: a CHECK is about values, and those are the events' own.
SHAPE = f"""
    SELECT string_agg(concat_ws(' ', attname, atttypid, atttypmod, {_IS_REQUIRED}), ',' ORDER BY attname)
    {_OF_TABLE} AND attgenerated = ''
"""

_HAS_DEFERRABLE = """
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_trigger WHERE tgdeferrable AND tgrelid IN (
            SELECT to_regclass(%(name)s) UNION ALL SELECT relid FROM pg_partition_tree(to_regclass(%(name)s))
        )
    )
"""
# A column that servers before 15 do not have: there is nothing under its name, then.
_ARE_NULLS_EQUAL = """
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_index CROSS JOIN LATERAL (
            SELECT array_agg(CAST(attname AS text)) AS names FROM pg_catalog.pg_attribute
            WHERE attrelid = indrelid AND attnum = ANY ((CAST(indkey AS int2[]))[0:indnkeyatts - 1])
        ) AS indexed
        WHERE indrelid = to_regclass(%(name)s) AND indisunique AND names @> %(key)s AND names <@ %(key)s
            AND to_jsonb(pg_index) ->> 'indnullsnotdistinct' = 'true'
    )
"""


class PostgresTables(Tables):
    def __init__(self, connection: PostgresConnection) -> None:
        super().__init__(connection)
        self._driver = connection.driver

    def columns(self, table: TableName, *, and_generated: bool = False) -> list[Column]:
        params: Params = {"name": table.quoted, "and_generated": and_generated}
        return [
            Column(
                str(name),
                str(type_name) if str(kind) not in ("json", "jsonb") else str(kind),
                _TARGETS.get(str(kind), _BY_TEXT),
                is_required=bool(is_required),
            )
            for name, kind, type_name, is_required in self._connection.read(Statement(_COLUMNS, params))
        ]

    def shape(self, table: TableName) -> str | None:
        ((shape,),) = self._connection.read(Statement(f"SELECT ({SHAPE})", {"name": table.quoted}))
        return None if shape is None else str(shape)

    def create(self, table: TableName, schema: pa.Schema, *, key: tuple[str, ...]) -> None:
        # Two that create a table at once disturb each other, also with IF NOT EXISTS: one after the other.
        self._connection.read(Statement("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _CREATION_LOCK}))
        super().create(table, schema, key=key)

    def has_deferrable_constraints(self, table: TableName) -> bool:
        """Whether constraints of the table may wait for the commit."""
        ((is_deferrable,),) = self._connection.read(Statement(_HAS_DEFERRABLE, {"name": table.quoted}))
        return bool(is_deferrable)

    def are_nulls_equal(self, table: TableName, key: Sequence[str]) -> bool:
        """Whether the unique index of a key takes but one null."""
        params = {"name": table.quoted, "key": list(key)}
        ((are_equal,),) = self._driver.execute(_ARE_NULLS_EQUAL, params).fetchall()
        return bool(are_equal)

    def _rows(self, query: str) -> list[Any]:
        cursor: psycopg.Cursor[Any] = self._driver.cursor(binary=True)
        cursor.execute(query.encode())
        return cursor.fetchall() if cursor.description else []

    def _read_as(self, column: Column) -> Target:
        if (number := _NUMERIC.fullmatch(column.type_name)) is not None:
            digits, decimals = map(int, number.groups()) if number[1] else _DIGITS
            digits, decimals = max(digits - min(decimals, 0), decimals), max(decimals, 0)
            return pa.decimal128(digits, decimals) if digits <= _DIGITS_MAX else "text"
        return _READ_AS.get(_LENGTH.sub("", column.type_name), next(iter(column.targets.values())))

    def _created_as(self, kind: str) -> str:
        return _CREATED_AS[kind]
