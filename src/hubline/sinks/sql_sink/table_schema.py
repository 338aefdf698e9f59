"""The sink's table: its name, its columns, and whether rows fit into it before the first one is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from hubline.arrow_helpers import exact
from hubline.errors import ConfigError, SinkError
from hubline.text import sentences

NAME_BYTES_MAX = 63
"""PostgreSQL cuts longer names off without a word, and the cut name may be another table's."""

OWN_PREFIX = "hubline_"
"""The tables in which hubline keeps its books."""

SEQUENCE_COLUMN = "sequenceNumber"
"""A column of rows that tells of which event each came. It is written if the table has it."""


class Rejection(Exception):
    """Rows that cannot be written as they are. ``row`` is the first one to blame, where that is known.

    Does not leave this package: it becomes a dead letter, or a RowsRejected.
    """

    def __init__(self, reason: str, *, kind: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.row = row


@dataclass(frozen=True, slots=True)
class TableName:
    """``table`` or ``schema.table``, as a person wrote it."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        schema, dot, table = text.rpartition(".")
        name = cls(checked_name("schema", schema) if dot else None, checked_name("table", table))
        if name.table.lower().startswith(OWN_PREFIX):
            raise ConfigError(
                f"table {text!r} cannot be a sink, because tables {OWN_PREFIX}* are hubline's own. Choose another name."
            )
        return name

    @property
    def quoted(self) -> str:
        return quoted(self.table) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.table)}"

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def checked_name(what: str, name: str) -> str:
    """The name itself, if a database can have it."""
    if not name or name != name.strip():
        raise ConfigError(f"a {what} must have a name without spaces around it, not {name!r}.")
    if "\x00" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ConfigError(f"the {what} name {name!a} has characters that no database takes. Remove them.")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(
            f"the {what} name {name[:20]!r}... is longer than {NAME_BYTES_MAX} bytes. Choose a shorter one."
        )
    return name


def quoted(name: str) -> str:
    """A name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


Target: TypeAlias = pa.DataType | Literal["as is", "text"]
"""What a column is sent as: an Arrow type; the one that it has; or text, of which the database makes its value."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. ``targets`` has the families of Arrow types that it takes, and what each is sent as."""

    name: str
    type_name: str
    targets: Mapping[str, Target]
    is_required: bool = False
    is_numbered: bool = False
    """Whether the database makes up a number for a null."""

    @property
    def is_json(self) -> bool:
        return self.type_name in ("json", "jsonb")

    def target_for(self, kind: pa.DataType) -> Target:
        return next(iter(self.targets.values())) if family(kind) == "null" else self.targets[family(kind)]

    def __str__(self) -> str:
        return f"{self.name} {self.type_name}{' not null' if self.is_required else ''}"


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """How rows of one schema go into the table: columns in the order of the rows. ``shape`` is the table's own."""

    table: TableName
    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    key: tuple[str, ...]
    shape: str | None

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def values(self) -> list[str]:
        """The columns beside the key."""
        return [name for name in self.names if name not in self.key]

    def fitted(self, rows: pa.Table) -> pa.Table:
        """The rows with the types that are sent. Raises Rejection where a value does not fit."""
        arrays = [
            _cast(rows.column(column.name), column, target)
            for column, target in zip(self.columns, self.targets, strict=True)
        ]
        return pa.Table.from_arrays(arrays, names=self.names)


def plan_for(
    table: TableName, columns: Sequence[Column], schema: pa.Schema, *, key: tuple[str, ...], shape: str | None = None
) -> InsertPlan:
    """Compares rows with the table. Raises SinkError that shows both where they do not fit together."""
    by_name = {column.name: column for column in columns}
    sent = [field for field in schema if field.name in by_name or field.name != SEQUENCE_COLUMN]
    names = [field.name for field in sent]
    problems = [f"the rows have two columns {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    problems += [f"the table has no column {name!r}" for name in names if name not in by_name]
    problems += [
        f"column {column.name!r} of the table must be given"
        for column in columns
        if column.is_required and column.name not in names
    ]
    problems += [f"the key {name!r} is not among the rows' columns" for name in key if name not in names]
    problems += [
        f"{field.name!r} is {field.type} in the rows and {by_name[field.name].type_name} in the table"
        for field in sent
        if field.name in by_name and not _fits(field.type, by_name[field.name])
    ]
    if not names:
        problems.append("the rows have no column")
    if problems:
        raise SinkError(
            f"the rows do not fit into table {table}: {'; '.join(problems)}.\n"
            f"  rows:  {', '.join(f'{field.name} {field.type}' for field in schema)}\n"
            f"  table: {', '.join(map(str, columns))}\n"
            "Change the rows, or alter the table.",
            table=str(table),
        )
    return InsertPlan(
        table,
        columns=tuple(by_name[name] for name in names),
        targets=tuple(by_name[field.name].target_for(field.type) for field in sent),
        key=key,
        shape=shape,
    )


def insertion(plan: InsertPlan, source: str) -> str:
    """The statement that inserts what ``source`` gives, VALUES or a SELECT; with a key, it updates what is there."""
    insert = f"INSERT INTO {plan.table.quoted} ({', '.join(map(quoted, plan.names))}) {source}"
    if not plan.key:
        return insert
    updates = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in plan.values)
    key = ", ".join(map(quoted, plan.key))
    return f"{insert} ON CONFLICT ({key}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"


def creatable(table: TableName, schema: pa.Schema, *, key: tuple[str, ...] = ()) -> pa.Schema:
    """What a table is made of: the columns of rows, without the one that tells their events. Raises SinkError."""
    if missing := [name for name in key if name not in schema.names]:
        raise SinkError(
            f"table {table} cannot be created with the key {missing[0]!r}, which is not a column of the "
            f"rows. Use one of: {', '.join(schema.names)}.",
            table=str(table),
        )
    schema = pa.schema([field for field in schema if field.name != SEQUENCE_COLUMN])
    known = {name for name, _ in _FAMILIES}
    if unknown := [f"{field.name} {field.type}" for field in schema if family(field.type) not in known]:
        raise SinkError(
            f"table {table} cannot be created with these columns: {', '.join(unknown)}. Change them to "
            "text, for example JSON.",
            table=str(table),
        )
    for field in schema:
        checked_name("column", field.name)
    return schema


def names_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns that dictionaries have together."""
    return list(dict.fromkeys(name for record in records for name in record))


def tabled(
    records: Sequence[Mapping[str, Any]], columns: Sequence[Column], names: Sequence[str] | None = None
) -> pa.Table:
    """Dictionaries as columns, with the table's types where it has them. Raises Rejection where a value is no such."""
    by_name = {column.name: column for column in columns}
    names = names_in(records) if names is None else names
    arrays = [_array(name, [record.get(name) for record in records], by_name.get(name)) for name in names]
    return pa.Table.from_arrays(arrays, names=names)


def require_fit(rows: pa.Table, columns: Sequence[Column]) -> None:
    """Raises Rejection where the rows of an event, among others that have other types, are those that do not fit."""
    for column in columns:
        if column.name in rows.column_names and not _fits(kind := rows.schema.field(column.name).type, column):
            raise Rejection(f"column {column.name!r}: {kind} does not fit into {column.type_name}", kind="TypeError")


def _array(name: str, values: list[Any], column: Column | None) -> pa.Array:
    kind = None
    if column is not None:
        if column.is_json:
            values = [json.dumps(value) if isinstance(value, (dict, list)) else value for value in values]
        kind = next(iter(column.targets.values()))
    try:
        return exact(values, kind) if isinstance(kind, pa.DataType) else pa.array(values)
    except (pa.ArrowException, UnicodeError, TypeError, ValueError, OverflowError) as error:
        raise Rejection(f"column {name!r}: {error}", kind=type(error).__name__) from None


def read_array(column: Column, target: Target, values: Sequence[Any], *, table: TableName) -> pa.Array:
    """What was read of a column. Raises SinkError where a value is none of the column's type."""
    try:
        if target == "as is":
            array = pa.array(values)
            return array.cast(pa.string()) if pa.types.is_null(array.type) else array
        return exact(values, pa.string() if target == "text" else target)
    except (pa.ArrowException, UnicodeError, TypeError, ValueError, OverflowError) as error:
        reason = f"column {column.name!r}, {column.type_name or 'without a type'}: {error}"
    raise SinkError(sentences(f"table {table} cannot be read: {reason}", "correct the values"), table=str(table))


def family(kind: pa.DataType) -> str:
    """What a type is about, whatever its width."""
    if pa.types.is_dictionary(kind):
        return family(kind.value_type)
    for name, is_member in _FAMILIES:
        if is_member(kind):
            return name
    return str(kind)


_FAMILIES = (
    ("null", pa.types.is_null),
    ("boolean", pa.types.is_boolean),
    ("integer", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("text", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)),
    (
        "binary",
        lambda kind: (
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_binary_view(kind)
            or pa.types.is_fixed_size_binary(kind)
        ),
    ),
    ("instant", lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None),
    ("timestamp", pa.types.is_timestamp),
    ("date", pa.types.is_date),
    ("time", pa.types.is_time),
)


def _fits(kind: pa.DataType, column: Column) -> bool:
    return family(kind) == "null" or family(kind) in column.targets


def _cast(values: pa.ChunkedArray, column: Column, target: Target) -> pa.ChunkedArray:
    if target in ("as is", values.type):
        return values
    try:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if target == "text":
            values, target = _legible(values, column), pa.string()
        # Databases keep microseconds: what is finer is cut off, as they do themselves. Numbers must fit.
        cast = pc.cast(values, options=pc.CastOptions(target, allow_time_truncate=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeError) as error:
        raise Rejection(f"column {column.name!r}, {column.type_name}: {error}", kind=type(error).__name__) from None
    if pa.types.is_float32(target) and (row := _out_of_range(values, cast)) >= 0:
        reason = f"column {column.name!r}, {column.type_name}: {values[row]} is out of range"
        raise Rejection(reason, kind="NumericValueOutOfRange", row=row)
    return cast


def _legible(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Times as text that sorts, and that databases read: in UTC, and with years of four digits.

    Beyond them Arrow writes years that it makes up, in silence.
    """
    if family(values.type) not in ("instant", "timestamp", "date"):
        return values
    seconds = pc.cast(values, options=pc.CastOptions(pa.timestamp("s", "UTC"), allow_time_truncate=True))
    first, last = _YEARS
    is_other = pc.or_(pc.less(seconds.cast(pa.int64()), first), pc.greater(seconds.cast(pa.int64()), last))
    if (row := pc.index(is_other, value=True).as_py()) >= 0:
        reason = f"column {column.name!r}, {column.type_name}: as text a time is of the years 1 to 9999"
        raise Rejection(reason, kind="ValueError", row=row)
    if family(values.type) != "instant":
        return values
    return values.cast(pa.timestamp(values.type.unit, "UTC"))


_YEARS = (-62_135_596_800, 253_402_300_799)
"""The seconds from 1970 to the first of year 1, and to the last of year 9999."""


def _out_of_range(values: pa.ChunkedArray, cast: pa.ChunkedArray) -> int:
    """The first number that was made infinite, or zero, which Arrow does in silence; -1 if there is none."""
    is_suspect = pc.or_(pc.is_inf(cast), pc.equal(cast, 0))
    is_other = pc.not_equal(values.cast(pa.float64()), cast.cast(pa.float64()))
    row: int = pc.index(pc.and_(is_suspect, is_other), value=True).as_py()
    return row
