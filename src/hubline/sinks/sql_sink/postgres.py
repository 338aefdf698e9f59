"""Rows into PostgreSQL: binary COPY from Arrow, or COPY of text for types that have no binary form here."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np
import pgpq
import pgpq.encoders
import pgpq.schema
import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg.pq import TransactionStatus

from hubline.model.keys import PartitionKey
from hubline.secrets import Secret
from hubline.sinks.sql_sink import postgres_reject_loop as sieve
from hubline.sinks.sql_sink.connection import (
    CommitPlan,
    FenceState,
    Parameters,
    SinkConnection,
    altered,
    checkpoint_gone,
    connected,
)
from hubline.sinks.sql_sink.rejected_rows import Rejected, RowEvents, insert_skipping_rejected
from hubline.sinks.sql_sink.table_schema import Column, Plan, Rejection, TableName, Target, family, insertion, quoted
from hubline.sql.checkpoint_rows import of_partition, read_checkpoint
from hubline.sql.dead_letter_table import COLUMNS, DeadLetterRow
from hubline.sql.dialect import Row, Statement
from hubline.sql.fence import NOBODY
from hubline.sql.postgres import DIALECT, QUERIES, PostgresConnection, PostgresDatabase

COPY_ROWS = 8_192
"""Rows encoded and sent at a time: the server works on one lot while the next is encoded, and a rejection costs one."""

_STAGE = "hubline_stage"
_STAGE_COLUMNS = f"CAST(0 AS bigint) AS {sieve.ROW}"

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

_BEGIN = Statement("BEGIN", {})
_ROLLBACK = Statement("ROLLBACK", {})
_COMMIT = Statement("COMMIT", {})

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
_SHAPE = f"""
    SELECT string_agg(concat_ws(' ', attname, atttypid, atttypmod, {_IS_REQUIRED}), ',' ORDER BY attname)
    {_OF_TABLE} AND attgenerated = ''
"""

# Claims that a COMMIT in the same message depends on: what is no number ends the message there, with these words.
_ALTERED = "hubline: the table was altered"
_CHECKPOINT_GONE = "hubline: the checkpoint is gone"
_AS_PLANNED = f"SELECT CAST(CASE WHEN ({_SHAPE}) = %(shape)s THEN '1' ELSE '{_ALTERED}' END AS integer)"
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

_LETTER_TYPES = ["text"] * 4 + ["int8", "text", "timestamptz", "text", "bytea"] + ["text"] * 5 + ["int8", "text"]
_COPY_LETTERS = f"COPY hubline_dead_letter ({', '.join(COLUMNS)}) FROM STDIN (FORMAT binary)"

# By SQLSTATE: a value out of range or malformed; a constraint; a trigger that raises; a view that does not show it;
# a value too deep or too large.
_REFUSALS = ("22", "23", "P0001", "44", "54")
_TABLE_TROUBLES = {
    "42P01": "there is no such table: create it, or open the sink with create=True",
    "3F000": "there is no such schema: create it",
    "42703": "a column is gone: somebody altered the table",
    "42804": "a column has another type: somebody altered the table",
    "22P03": "a column has another type: somebody altered the table",
    "2200H": "a sequence of its defaults has come to its end: make the column and the sequence bigint",
    "428C9": "PostgreSQL itself makes a column that the rows give: leave it out, or make it GENERATED BY DEFAULT",
    "42P10": "no unique index matches the key: create one on just these columns, which ON CONFLICT needs",
    "42501": "the user may not write to it: grant INSERT, and UPDATE and SELECT where rows have a key",
    "25006": "the user, or the database, is read-only",
    "53100": "the server's disk is full: free some space",
    "0A000": "it is of a kind that takes no rows",
    "42809": "it is of a kind that takes no rows",
}
_CREATION_LOCK = int.from_bytes(b"sink")
_LINE = re.compile(r"^COPY .*, line (\d+)", re.MULTILINE)


class PostgresSinkConnection(SinkConnection):
    """A :class:`~hubline.sinks.sql_sink.connection.SinkConnection` of PostgreSQL."""

    dialect = DIALECT
    queries = QUERIES

    def __init__(self, database: PostgresDatabase, connection: PostgresConnection) -> None:
        super().__init__(database, connection)
        self._driver = connection.driver
        self._are_deferrable: dict[TableName, bool] = {}
        self._has_refused_commit = False
        self._stages: Mapping[str, Plan] = {}  # temporary tables that are there
        self._lasting_stages: Mapping[str, Plan] = {}  # those that were there before the transaction
        self._staged_count = 0

    @classmethod
    def connect(cls, conninfo: Secret, *, seconds_max: int) -> Self:
        database = PostgresDatabase(conninfo, statement_seconds_max=seconds_max)
        return cls(database, connected(database))

    @property
    def is_commit_unknown(self) -> bool:
        return self._driver.closed  # broken, before the answer came

    def is_rejection(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and _refusal(error) is not None

    @property
    def is_in_transaction(self) -> bool:
        return self._driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def begin(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        self._lasting_stages = self._stages
        return self._begun(keys, _BEGIN)

    def begin_anew(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        self._stages = self._lasting_stages
        return self._begun(keys, _ROLLBACK, _BEGIN)

    def _begun(self, keys: Sequence[PartitionKey], *beginning: Statement) -> list[FenceState]:
        locks = [Statement(self.queries.lock_checkpoint, of_partition(key)) for key in keys]
        found = self._at_once(*beginning, *locks)[len(beginning) :]
        return [
            read_checkpoint(key, rows[0]) if rows else (NOBODY, None) for key, rows in zip(keys, found, strict=True)
        ]

    def commit(self, ending: CommitPlan) -> None:
        shapes = [Statement(_AS_PLANNED, {"name": plan.table.quoted, "shape": plan.shape}) for plan in ending.written]
        advances = [Statement(_ADVANCED.format(advance.query), advance.params) for advance in self._advances(ending)]
        try:
            self._at_once(*self._markings(ending), *shapes, *advances, _COMMIT)
        except psycopg.errors.InvalidTextRepresentation as error:
            message = error.diag.message_primary or ""
            if _ALTERED in message:
                raise altered(ending.written[0].table) from None
            if _CHECKPOINT_GONE in message:
                raise checkpoint_gone() from None
            raise
        except psycopg.IntegrityError:
            self._has_refused_commit = True
            raise

    def rollback(self) -> None:
        self._forget_undone()
        self._are_deferrable.clear()  # whatever went wrong, a constraint may be another one by now
        self._statement("ROLLBACK")

    def _undo_savepoint(self) -> None:
        self._statement("ROLLBACK TO SAVEPOINT hubline; RELEASE SAVEPOINT hubline")

    def _forget_undone(self) -> None:
        self._stages = {}

    def end_stalled(self, key: PartitionKey, *, seconds_max: float) -> None:
        self._driver.execute(_END_STALLED, {**of_partition(key), "seconds_max": seconds_max})

    def execute(self, query: str, params: Parameters) -> list[Row]:
        # In binary form the query has to be a single statement: a COMMIT cannot hide behind another.
        cursor = self._driver.cursor(binary=True)
        cursor.execute(query.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def columns_of(self, table: TableName, *, and_generated: bool = False) -> list[Column]:
        params = {"name": table.quoted, "and_generated": and_generated}
        rows = self._driver.execute(_COLUMNS.encode(), params).fetchall()
        return [
            Column(
                str(name),
                str(type_name) if str(kind) not in ("json", "jsonb") else str(kind),
                _TARGETS.get(str(kind), _BY_TEXT),
                is_required=bool(is_required),
            )
            for name, kind, type_name, is_required in rows
        ]

    def _read_as(self, column: Column) -> Target:
        if (number := _NUMERIC.fullmatch(column.type_name)) is not None:
            digits, decimals = map(int, number.groups()) if number[1] else _DIGITS
            digits, decimals = max(digits - min(decimals, 0), decimals), max(decimals, 0)
            return pa.decimal128(digits, decimals) if digits <= _DIGITS_MAX else "text"
        return _READ_AS.get(_LENGTH.sub("", column.type_name), next(iter(column.targets.values())))

    def explain_insert(self, plan: Plan) -> None:
        nothing = ", ".join("NULL" for _ in plan.names)
        self._statement(f"EXPLAIN {insertion(plan, f'{sieve.OVERRIDING} VALUES ({nothing})')}")

    def shape_of(self, table: TableName) -> str | None:
        ((shape,),) = self._connection.read(Statement(f"SELECT ({_SHAPE})", {"name": table.quoted}))
        return None if shape is None else str(shape)

    def create_table(self, table: TableName, schema: pa.Schema, *, key: tuple[str, ...]) -> None:
        # Two that create a table at once disturb each other, also with IF NOT EXISTS: one after the other.
        self._driver.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION_LOCK])
        super().create_table(table, schema, key=key)

    def _created_as(self, kind: str) -> str:
        return _CREATED_AS[kind]

    def write(self, plan: Plan, rows: pa.Table) -> None:
        rows = plan.fitted(rows)
        if plan.key:
            self._stage(_STAGE, plan, columns=_STAGE_COLUMNS)
        with _refusing():
            if plan.key:
                self._upsert(plan, rows)
            else:
                self._copy(plan.table.quoted, plan, rows)
            if self._is_deferrable(plan.table):
                self._statement(sieve.IMMEDIATE)

    def write_skipping_rejected(
        self, plan: Plan, rows: pa.Table, row_events: RowEvents, rejection: Rejection
    ) -> list[Rejected]:
        """By way of a temporary table without constraints, from which the server takes what it can.

        What is no value of its type is rejected there already, by name; the rest is tried by a loop of the server's.
        """
        try:
            with self.savepoint():
                self._stage(sieve.REJECT_LOOP, plan, columns=sieve.COLUMNS, beside=sieve.BESIDE)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.DuplicateColumn):
            return super().write_skipping_rejected(
                plan, rows, row_events, rejection
            )  # which takes more round trips, and nothing else
        distinct, numbers = np.unique(row_events, return_inverse=True)
        places = pa.table({sieve.ROW: np.arange(len(rows)), sieve.UNIT: numbers.astype(np.int64)})
        for name in places.column_names:
            rows = rows.append_column(name, places.column(name))

        def attempt(part: pa.Table) -> None:
            fitted = plan.fitted(part)
            for name in places.column_names:
                fitted = fitted.append_column(name, part.column(name))
            with self.savepoint(), _refusing():
                self._copy(sieve.REJECT_LOOP, plan, fitted)

        rejected = insert_skipping_rejected(rows, row_events, attempt)
        are_nulls_apart = self._are_nulls_apart(plan, rows)
        for number, state, message, detail in self._sieved(plan, len(distinct), are_nulls_apart=are_nulls_apart):
            unit = int(distinct[int(str(number))])
            rejected.append(Rejected(unit, _reason(str(message), str(detail)), _kind(str(state))))
        return sorted(rejected, key=lambda one: one.event)

    def write_dead_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        if self._driver.info.parameter_status("server_encoding") == "UTF8":
            return self._copy_letters(rows)
        try:
            with self.savepoint():
                return self._copy_letters(rows)
        except psycopg.errors.UntranslatableCharacter:
            return self._copy_letters([row.in_ascii() for row in rows])

    def _copy_letters(self, rows: Sequence[DeadLetterRow]) -> None:
        with self._driver.cursor().copy(_COPY_LETTERS.encode()) as copy:
            copy.set_types(_LETTER_TYPES)
            for row in rows:
                copy.write_row(row)

    def _copy(self, into: str, plan: Plan, rows: pa.Table) -> None:
        names = ", ".join(map(quoted, rows.column_names))
        is_binary = "text" not in plan.targets
        form = "binary" if is_binary else "csv"
        with self._driver.cursor().copy(f"COPY {into} ({names}) FROM STDIN (FORMAT {form})".encode()) as copy:
            for data in _encoded(rows, plan) if is_binary else _csv(rows):
                copy.write(memoryview(data))  # which is cut into pieces without copying them

    def _upsert(self, plan: Plan, rows: pa.Table) -> None:
        """By way of a temporary table. Of rows with the same key the last one counts, as if written one by one."""
        first, self._staged_count = self._staged_count, self._staged_count + len(rows)
        numbers = pa.array(range(first, self._staged_count), pa.int64())
        self._copy(_STAGE, plan, rows.append_column(sieve.ROW, numbers))
        are_nulls_apart = self._are_nulls_apart(plan, rows)
        self._statement(sieve.inserted(plan, _STAGE, which=f"{sieve.ROW} >= {first}", are_nulls_apart=are_nulls_apart))

    def _stage(self, name: str, plan: Plan, *, columns: str, beside: str = "") -> None:
        """Makes a temporary table with the columns of rows and some more; it stays, empty, for later transactions."""
        if self._stages.get(name) == plan:
            return
        names = ", ".join(map(quoted, plan.names))
        self._statement(
            f"DROP TABLE IF EXISTS pg_temp.{name}; CREATE TEMPORARY TABLE {name} ON COMMIT DELETE ROWS AS "  # noqa: S608 - names are quoted
            f"SELECT {names}, {columns} FROM {plan.table.quoted} WITH NO DATA; {beside}"
        )
        self._stages = {**self._stages, name: plan}

    def _sieved(self, plan: Plan, count: int, *, are_nulls_apart: bool) -> list[Row]:
        """Writes what is in the sieve; returns the number of each unit that the database refuses, and why."""
        is_deferrable = self._is_deferrable(plan.table)
        loop = sieve.loop(plan, count=count, is_deferrable=is_deferrable, are_nulls_apart=are_nulls_apart)
        _, rejected, _ = self._at_once(
            Statement("DO %(loop)s", {"loop": loop}), Statement(sieve.REFUSED, {}), Statement(sieve.EMPTY, {})
        )
        return rejected

    def _is_deferrable(self, table: TableName) -> bool:
        """Whether constraints may wait for the commit: there they would fail with no row to blame.

        They may be those of a table that a trigger writes to: then a commit tells, once.
        """
        if self._has_refused_commit:
            return True
        if table not in self._are_deferrable:
            ((is_deferrable,),) = self._driver.execute(_HAS_DEFERRABLE, {"name": table.quoted}).fetchall()
            self._are_deferrable[table] = bool(is_deferrable)
        return self._are_deferrable[table]

    def _are_nulls_apart(self, plan: Plan, rows: pa.Table) -> bool:
        """Whether rows have a null in their key, which is seldom, and the index takes any number of such."""
        if not any(rows.column(name).null_count for name in plan.key):
            return False
        params = {"name": plan.table.quoted, "key": list(plan.key)}
        ((are_equal,),) = self._driver.execute(_ARE_NULLS_EQUAL, params).fetchall()
        return not are_equal

    def _at_once(self, *statements: Statement) -> list[list[Row]]:
        """One message, of which the server begins nothing before all of it is there; one round trip."""
        cursor = psycopg.ClientCursor(self._driver)
        cursor.execute(";".join(cursor.mogrify(one.query.encode(), one.params) for one in statements).encode())
        found = [_rows(cursor)]
        while cursor.nextset():
            found.append(_rows(cursor))
        return found

    def _statement(self, text: str) -> None:
        self._driver.execute(text.encode())

    def _table_trouble(self, error: Exception) -> str | None:
        if not isinstance(error, psycopg.Error) or error.sqlstate not in _TABLE_TROUBLES:
            return None
        return f"{_TABLE_TROUBLES[error.sqlstate]} ({error.diag.message_primary})"


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


@contextmanager
def _refusing() -> Iterator[None]:
    """Turns what blames a row into a Rejection."""
    try:
        yield
    except psycopg.Error as error:
        if (rejection := _refusal(error)) is None:
            raise
        raise rejection from None


def _refusal(error: psycopg.Error) -> Rejection | None:
    state = error.sqlstate or ""
    if not state.startswith(_REFUSALS) or state in _TABLE_TROUBLES:
        return None
    line = _LINE.search(error.diag.context or "")
    return Rejection(
        _reason(error.diag.message_primary, error.diag.message_detail),
        kind=type(error).__name__,
        row=int(line[1]) - 1 if line else None,
    )


def _reason(message: str | None, detail: str | None) -> str:
    # The detail quotes the values of the row: they belong to the event that the letter holds anyway.
    return f"{message} ({detail})" if detail else f"{message}"


def _kind(state: str) -> str:
    try:
        return psycopg.errors.lookup(state).__name__
    except KeyError:  # a trigger's own code
        return psycopg.IntegrityError.__name__


def _encoded(rows: pa.Table, plan: Plan) -> Iterator[bytes]:
    encoder = _encoder(rows.schema, plan)
    yield encoder.write_header()
    for batch in rows.to_batches(max_chunksize=COPY_ROWS):
        try:
            data = encoder.write_batch(batch)
        except ValueError as error:
            raise Rejection(str(error), kind="ValueError") from None
        yield data
    yield encoder.finish()


def _encoder(schema: pa.Schema, plan: Plan) -> pgpq.ArrowToPostgresBinaryEncoder:
    documents = [column.name for column in plan.columns if column.type_name == "jsonb"]
    if not documents:
        return pgpq.ArrowToPostgresBinaryEncoder(schema)  # made at a fraction of the cost
    builders = {field.name: pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field) for field in schema}
    for name in documents:
        builders[name] = pgpq.encoders.StringEncoderBuilder.new_with_output(schema.field(name), pgpq.schema.Jsonb())
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)


def _csv(rows: pa.Table) -> Iterator[bytes]:
    """Every value in quotes, so that an empty text is none of the NULLs, which are nothing at all."""
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for batch in rows.to_batches(max_chunksize=COPY_ROWS):
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(_as_text(batch), buffer, options)
        yield buffer.getvalue()


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Binary columns as PostgreSQL writes them; the others as Arrow does."""
    arrays = [
        pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
        if family(column.type) == "binary"
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
