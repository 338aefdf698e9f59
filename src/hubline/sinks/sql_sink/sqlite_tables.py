"""The tables of an SQLite file, and what its columns take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hubline.sinks.sql_sink.table_schema import Column, TableName, Target
from hubline.sinks.sql_sink.tables import Tables
from hubline.sql.dialect import Params, Statement

# SQLite has neither times nor decimals: they are kept as text, which sorts, and which its functions read.
_TIMES: Mapping[str, Target] = dict.fromkeys(("instant", "timestamp", "date", "time"), "text")
_NUMBERS: Mapping[str, Target] = {"integer": "as is", "boolean": "as is", "float": "as is", "decimal": "text"}
_AFFINITIES: Mapping[str, Mapping[str, Target]] = {
    "INTEGER": {"integer": "as is", "boolean": "as is"},
    "TEXT": {"text": "as is", "binary": pa.string(), "decimal": "text", **_TIMES},
    "BLOB": {"binary": "as is", "text": "as is", **_NUMBERS, **_TIMES},
    "REAL": {"float": "as is", "integer": "as is", "decimal": pa.float64()},
    "NUMERIC": {**_NUMBERS, **_TIMES},
}
_READ_AS: Mapping[str, Target] = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64()}
_CREATED_AS = {
    "boolean": "INTEGER",
    "integer": "INTEGER",
    "float": "REAL",
    "decimal": "TEXT",
    "binary": "BLOB",
}  # the others are TEXT

_COLUMNS = """
    SELECT name, upper(type), "notnull" AND dflt_value IS NULL, pk FROM pragma_table_xinfo(:table, :schema)
    WHERE hidden = 0 OR (:and_generated AND hidden > 1) ORDER BY cid
"""


class SqliteTables(Tables):
    def columns(self, table: TableName, *, and_generated: bool = False) -> list[Column]:
        params: Params = {"table": table.table, "schema": table.schema or "main", "and_generated": and_generated}
        rows: list[Any] = self._connection.read(Statement(_COLUMNS, params))
        # An INTEGER PRIMARY KEY that is not given gets a number of its own.
        keys_count = sum(1 for *_, is_key in rows if is_key)
        return [
            Column(
                name,
                kind,
                _AFFINITIES[_affinity(kind)],
                is_required=bool(is_required) and not is_key,
                is_numbered=kind == "INTEGER" and bool(is_key) and keys_count == 1,
            )
            for name, kind, is_required, is_key in rows
        ]

    def shape(self, table: TableName) -> str | None:
        return ", ".join(map(str, self.columns(table))) or None

    def _rows(self, query: str) -> list[Any]:
        return self._connection.read(Statement(query, {}))

    def _read_as(self, column: Column) -> Target:
        """What is declared as a date, a UUID or JSON is text mostly, though SQLite would have numbers there."""
        kind = column.type_name
        match _affinity(kind):
            case "NUMERIC":
                is_number = any(part in kind for part in ("NUM", "DEC"))
                return pa.float64() if is_number else pa.int64() if "BOOL" in kind else "text"
            case "BLOB":
                return pa.binary() if kind else "as is"
            case affinity:
                return _READ_AS[affinity]

    def _created_as(self, kind: str) -> str:
        return _CREATED_AS.get(kind, "TEXT")


def _affinity(kind: str) -> str:
    """What SQLite makes of a declared type, by its own rules."""
    if "INT" in kind:
        return "INTEGER"
    if any(part in kind for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in kind or not kind:
        return "BLOB"
    if any(part in kind for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"
