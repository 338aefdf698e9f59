"""The sink's table: compared before the first row, made if asked, and never a reason for a stuck partition."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hubline.errors import RowsRejected, SinkError, StoreError, StoreUnavailable
from hubline.sinks import SqlSink
from tests.sinks.conftest import PostgresSinkDatabase, SinkDatabase, SqliteSinkDatabase
from tests.sinks.test_commit import KEY, at

INSTANT = datetime(2026, 11, 15, 1, 2, 3, 456_789, tzinfo=UTC)
HOSTILE_NAMES = [
    'drop"; DROP TABLE readings; --',
    "select",
    "Ünï ☃",
    "per cent %s %",
    "a'b",
    "a\\",
    "{x}",
    ":y?",
    "$$",
    "first",
]


def sequenced(**columns: Any) -> pa.Table:
    count = len(next(iter(columns.values())))
    return pa.table({**columns, "sequenceNumber": list(range(count))})


class TestComparing:
    def test_the_error_shows_both(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE readings (id bigint, name text NOT NULL, at timestamp)")
        partition = database.sink(table="readings").open(KEY, 1)

        with pytest.raises(SinkError) as caught:
            partition.commit(at(1), pa.table({"id": ["x"], "nam": ["y"]}))

        message = str(caught.value).lower()
        assert "the table has no column 'nam'" in message
        assert "'name' of the table must be given" in message
        assert "'id' is string in the rows and bigint in the table" in message
        assert "rows:  id string, nam string" in message
        assert "table: id bigint, name text not null" in message
        assert database.checkpoint() is None

    def test_a_missing_table_is_said(self, database: SinkDatabase) -> None:
        with pytest.raises(SinkError, match=r"there is no table readings.*create_table=True"):
            database.sink(table="readings").open(KEY, 1).commit(at(1), pa.table({"id": [1]}))

    def test_columns_with_a_default_may_be_left_out(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE readings (id bigint, kind text NOT NULL DEFAULT 'plain')")

        database.sink(table="readings").open(KEY, 1).commit(at(1), pa.table({"id": [1]}))

        assert database.execute("SELECT id, kind FROM readings") == [(1, "plain")]

    def test_a_domain_may_have_the_default_or_want_to_be_given(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE DOMAIN of_seven AS bigint NOT NULL DEFAULT 7")
        postgres.execute("CREATE DOMAIN of_some AS bigint NOT NULL")
        postgres.execute("CREATE TABLE t (v bigint, w of_seven NOT NULL)")
        partition = postgres.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        postgres.execute("CREATE TABLE u (v bigint, w of_some)")

        with pytest.raises(SinkError, match="'w' of the table must be given"):
            postgres.sink(table="u").open(KEY, 1).commit(at(1), sequenced(v=[1]))

        assert postgres.execute("SELECT * FROM t") == [(0, 7)]

    def test_the_sequence_number_is_written_where_the_table_has_it(self, database: SinkDatabase) -> None:
        database.execute('CREATE TABLE readings (id bigint, "sequenceNumber" bigint)')

        database.sink(table="readings").open(KEY, 1).commit(at(1), sequenced(id=[7]))

        assert database.execute('SELECT id, "sequenceNumber" FROM readings') == [(7, 0)]

    def test_a_check_beforehand_reports_what_the_first_rows_would(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE readings (id bigint PRIMARY KEY, name varchar(40) NOT NULL)")
        fitting = pa.schema([("id", pa.int64()), ("name", pa.string())])

        assert database.sink(table="readings").check(fitting) is None
        assert database.sink(table="readings", upsert_key="id").check(fitting) is None
        with pytest.raises(SinkError, match="'celsius'"):
            database.sink(table="readings").check(pa.schema([*fitting, ("celsius", pa.float64())]))
        with pytest.raises(SinkError, match="no unique index"):
            database.sink(table="readings", upsert_key="name").check(fitting)
        with pytest.raises(SinkError, match="create_table=True"):
            database.sink(table="missing").check(fitting)
        assert database.execute("SELECT count(*) FROM readings") == [(0,)]

    def test_a_check_beforehand_tells_the_table_that_will_be_made(self, database: SinkDatabase) -> None:
        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("sequenceNumber", pa.int64())])
        sink = database.sink(table="made", create_table=True, upsert_key="id")

        statement = sink.check(schema)

        assert statement is not None
        assert statement.startswith('CREATE TABLE IF NOT EXISTS "made" ("id" ')
        assert statement.endswith(', PRIMARY KEY ("id"))')
        assert sink.check(schema) == statement  # it is not there yet
        database.execute(statement)
        assert sink.check(schema) is None
        with pytest.raises(SinkError, match="key 'x'"):
            database.sink(table="other", create_table=True, upsert_key="x").check(schema)

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_any_name_is_a_name_and_nothing_else(self, database: SinkDatabase, name: str) -> None:
        database.execute("CREATE TABLE readings (id bigint)")
        sink = database.sink(table=name, create_table=True, upsert_key=name)

        partition = sink.open(KEY, 1)
        partition.commit(at(1), pa.table({name: [1, 2, 1]}))
        rejected = partition.commit(
            at(3), pa.table({name: pa.array([1, 1 << 63], pa.uint64()), "sequenceNumber": [0, 1]})
        )

        quoted = '"' + name.replace('"', '""') + '"'
        assert [one.event for one in rejected] == [1]
        assert database.execute(f"SELECT {quoted} FROM {quoted} ORDER BY 1") == [(1,), (2,)]
        assert database.execute("SELECT count(*) FROM readings") == [(0,)]

    def test_a_schema_may_be_named(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE SCHEMA facts")
        postgres.execute("CREATE TABLE facts.readings (id bigint)")

        postgres.sink(table="facts.readings").open(KEY, 1).commit(at(1), pa.table({"id": [1]}))

        assert postgres.execute("SELECT id FROM facts.readings") == [(1,)]


class TestTypes:
    def test_postgres_takes_its_types(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute(
            "CREATE TABLE t (a smallint, b integer, c bigint, d real, e double precision, f numeric(12, 2), g boolean, "
            "h text, i varchar(9), j jsonb, k json, l bytea, m timestamptz, n timestamp, o date, p time)"
        )
        row: dict[str, Any] = {
            "a": -5, "b": 2**31 - 1, "c": 2**62, "d": 0.5, "e": 0.1, "f": Decimal("-12.34"), "g": True, "h": "☃",
            "i": "x", "j": '{"a": [1]}', "k": '{"b": 2}', "l": b"\x00\xff", "m": INSTANT,
            "n": INSTANT.replace(tzinfo=None), "o": date(1969, 7, 20), "p": time(23, 59, 59, 5),
        }  # fmt: skip

        empty = dict.fromkeys(row)
        postgres.sink(table="t").open(KEY, 1).commit(at(1), pa.Table.from_pylist([row, empty]))

        found, nothing = postgres.execute("SELECT * FROM t")
        assert found == tuple({**row, "j": {"a": [1]}, "k": {"b": 2}}.values())
        assert set(nothing) == {None}

    def test_numbers_without_a_sign_fit_into_a_numeric_column(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v numeric)")

        rejected = (
            postgres.sink(table="t").open(KEY, 1).commit(at(1), sequenced(v=pa.array([0, 2**64 - 1], pa.uint64())))
        )

        assert rejected == []
        assert postgres.execute("SELECT v FROM t ORDER BY v") == [(0,), (2**64 - 1,)]

    def test_types_without_a_binary_form_go_as_text(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        postgres.execute(
            "CREATE TABLE t (a uuid, b inet, c integer[], d mood, e numeric, f bytea, g text, h timestamptz)"
        )
        uuid = "11111111-2222-3333-4444-555555555555"
        row = {
            "a": uuid,
            "b": "10.0.0.1",
            "c": "{1,2}",
            "d": "ok",
            "e": 1.5,
            "f": b"\x00\xff",
            "g": 'a"b\n\\N',
            "h": INSTANT,
        }
        other = {**dict.fromkeys(row), "g": ""}

        postgres.sink(table="t").open(KEY, 1).commit(at(1), pa.Table.from_pylist([row, other]))

        found, rest = postgres.execute("SELECT a::text, host(b), c, d::text, e, f, g, h FROM t")
        assert found == (uuid, "10.0.0.1", [1, 2], "ok", Decimal("1.5"), b"\x00\xff", 'a"b\n\\N', INSTANT)
        assert rest == (None, None, None, None, None, None, "", None)

    def test_sqlite_takes_every_family(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute("CREATE TABLE t (a INTEGER, b REAL, c NUMERIC, d BOOLEAN, e TEXT, f BLOB, g DATETIME, h DATE)")
        row = {
            "a": 1, "b": 0.5, "c": Decimal("1.50"), "d": True, "e": "☃", "f": b"\x00", "g": INSTANT,
            "h": date(2026, 1, 2),
        }  # fmt: skip

        sqlite.sink(table="t").open(KEY, 1).commit(at(1), pa.Table.from_pylist([row, dict.fromkeys(row)]))

        found = sqlite.execute("SELECT * FROM t")
        assert found[0] == (1, 0.5, 1.5, 1, "☃", b"\x00", "2026-11-15 01:02:03.456789Z", "2026-01-02")
        assert set(found[1]) == {None}

    def test_instants_are_text_in_utc_whatever_their_zone(self, sqlite: SqliteSinkDatabase) -> None:
        """Of other zones the text would not sort, and SQLite's own functions would not read it."""
        sqlite.execute("CREATE TABLE t (v TEXT)")
        values = pa.array([INSTANT, None]).cast(pa.timestamp("us", "America/New_York"))

        sqlite.sink(table="t").open(KEY, 1).commit(at(1), pa.table({"v": values}))

        assert sqlite.execute("SELECT v, unixepoch(v) FROM t") == [
            ("2026-11-15 01:02:03.456789Z", int(INSTANT.timestamp())),
            (None, None),
        ]

    def test_a_table_is_made_of_the_rows(self, database: SinkDatabase) -> None:
        sink = database.sink(table="made", create_table=True, upsert_key="a")
        rows = pa.table({"a": [1], "b": ["x"], "c": [1.5], "d": [b"y"], "e": [True], "f": pa.array([INSTANT])})

        sink.open(KEY, 1).commit(at(1), rows)
        sink.open(KEY, 1).commit(at(2), rows)

        assert database.execute("SELECT a, b, c, d FROM made") == [(1, "x", 1.5, b"y")]

    @pytest.mark.parametrize("keys", [[1, None, 2], ["a", None, "b"]])
    def test_a_row_without_its_key_is_refused_by_a_table_that_was_made(
        self, database: SinkDatabase, keys: list[Any]
    ) -> None:
        """SQLite makes up a number, or takes any count of nulls."""
        opened = database.sink(table="made", create_table=True, upsert_key="k").open(KEY, 1)

        assert [one.event for one in opened.commit(at(2), sequenced(k=keys))] == [1]
        assert database.execute("SELECT k FROM made ORDER BY k") == [(keys[0],), (keys[2],)]

    def test_a_null_key_for_which_no_number_is_made_up_is_taken(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute("CREATE TABLE t (k INTEGER UNIQUE)")

        assert not sqlite.sink(table="t", upsert_key="k").open(KEY, 1).commit(at(2), sequenced(k=[None, None, 1]))
        assert sqlite.execute("SELECT k FROM t ORDER BY k") == [(None,), (None,), (1,)]

    def test_what_tells_the_events_is_no_column_of_a_table_that_is_made(self, database: SinkDatabase) -> None:
        database.sink(table="made", create_table=True).open(KEY, 1).commit(at(1), sequenced(a=[1, 2]))

        assert database.execute("SELECT * FROM made") == [(1,), (2,)]

    def test_no_table_is_made_of_nested_columns(self, database: SinkDatabase) -> None:
        with pytest.raises(SinkError, match="for example JSON"):
            database.sink(table="made", create_table=True).open(KEY, 1).commit(at(1), pa.table({"a": [[1, 2]]}))

    def test_dictionaries_take_the_tables_types(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE t (a integer, b text)")

        database.sink(table="t").open(KEY, 1).commit(at(1), [{"a": None, "b": "x"}, {"b": None, "a": 3}])

        assert database.execute("SELECT a, b FROM t") == [(None, "x"), (3, None)]

    @pytest.mark.parametrize("other", [2, "s"], ids=["the same type", "another type"])
    def test_a_field_that_is_missing_is_null_whatever_types_others_have(
        self, sqlite: SqliteSinkDatabase, other: Any
    ) -> None:
        """Rows of several types go in several chunks, and each would have the columns of its own rows alone."""
        sqlite.execute("CREATE TABLE t (a, b TEXT NOT NULL, c TEXT DEFAULT 'none')")
        opened = sqlite.sink(table="t").open(KEY, 1)
        records = [{"a": 1, "b": "x", "c": "y"}, {"a": other}, {"a": other, "b": "z"}]

        with opened.transaction(at(2)) as transaction:
            transaction.insert(records, row_events=np.arange(3))
            assert [one.event for one in transaction.rejected] == [1]

        assert sqlite.execute("SELECT * FROM t") == [(1, "x", "y"), (other, "z", None)]


def read(database: SinkDatabase) -> pa.Table:
    return database.sink(table="t").database.read_table(max_rows=10)


class TestReading:
    def test_types_are_those_of_postgres_whatever_is_in_the_columns(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute(
            "CREATE TABLE t (a smallint, b bigint, c real, d numeric(6, 2), e numeric, f boolean, g varchar(9), "
            "h bytea, i timestamptz, j timestamp, k date, l time, m interval, n integer[], o varchar(9)[], "
            "p numeric(50, 2), q bigint GENERATED ALWAYS AS (b + 1) STORED)"
        )
        row = {
            "a": 1, "b": 2**40, "c": 0.5, "d": Decimal("1.50"), "e": Decimal("2.5"), "f": True, "g": "☃", "h": b"\x00",
            "i": INSTANT, "j": INSTANT.replace(tzinfo=None), "k": date(1969, 7, 20), "l": time(23, 59, 59, 5),
            "m": timedelta(days=1), "n": [1, None], "o": ["x"], "p": "3.00", "q": 2**40 + 1,
        }  # fmt: skip
        empty = read(postgres)
        postgres.execute("INSERT INTO t DEFAULT VALUES")
        nothing = read(postgres)
        postgres.execute(
            "UPDATE t SET a = 1, b = 1099511627776, c = 0.5, d = 1.5, e = 2.5, f = true, g = '☃', h = '\\x00', "
            "i = '2026-11-15 01:02:03.456789Z', j = '2026-11-15 01:02:03.456789', k = '1969-07-20', "
            "l = '23:59:59.000005', m = '1 day', n = '{1,NULL}', o = '{x}', p = 3"
        )
        full = read(postgres)

        assert empty.schema == nothing.schema == full.schema
        assert full.to_pylist() == [row]
        assert nothing.to_pylist() == [dict.fromkeys(row)]
        assert full.schema.field("d").type == pa.decimal128(6, 2)
        assert full.schema.field("e").type == pa.decimal128(38, 18)

    def test_what_arrow_has_no_type_for_is_text(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        postgres.execute("CREATE TABLE t (a uuid, b inet, c jsonb, d json, e mood, f uuid[])")
        uuid = "11111111-2222-3333-4444-555555555555"
        postgres.execute(f"INSERT INTO t VALUES ('{uuid}', '10.0.0.1', '[1]', '1', 'ok', '{{{uuid}}}')")
        postgres.execute("INSERT INTO t (c) VALUES ('{\"a\": [1]}')")

        rows = read(postgres)

        assert rows.schema == pa.schema([(name, pa.string()) for name in "abcdef"])
        assert [*rows.to_pylist()[0].values()] == [uuid, "10.0.0.1/32", "[1]", "1", "ok", f"{{{uuid}}}"]
        assert rows.to_pylist()[1]["c"] == '{"a": [1]}'

    def test_types_are_those_that_sqlite_columns_were_declared_with(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute(
            "CREATE TABLE t (a INTEGER, b REAL, c DECIMAL(9, 2), d BOOLEAN, e TEXT, f BLOB, g DATETIME, h UUID, i, "
            "j INTEGER GENERATED ALWAYS AS (a + 1))"
        )
        empty = read(sqlite)
        sqlite.execute("INSERT INTO t (a) VALUES (NULL)")
        nothing = read(sqlite)
        sqlite.execute(
            "UPDATE t SET a = 1, b = 2, c = 3, d = 1, e = '☃', f = x'00', g = '2026-01-02', h = 'x', i = 'y'"
        )
        full = read(sqlite)

        assert empty.schema == nothing.schema == full.schema
        assert [*full.to_pylist()[0].values()] == [1, 2.0, 3.0, 1, "☃", b"\x00", "2026-01-02", "x", "y", 2]

    def test_a_value_that_is_not_of_its_columns_type_is_reported_with_the_column(
        self, sqlite: SqliteSinkDatabase
    ) -> None:
        sqlite.execute("CREATE TABLE t (a TEXT, b INTEGER)")
        sqlite.execute("INSERT INTO t VALUES ('x', 1.5)")

        with pytest.raises(SinkError, match=r"column 'b', INTEGER: 1\.5 would become 1"):
            read(sqlite)


def damaged_text() -> pa.Array:
    """A column of text whose second value is none, as code that copies bytes may make it."""
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00")
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xff")])


class TestBadValues:
    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("integer", [1, 2**31]),
            ("smallint", [1, -(2**15) - 1]),
            ("real", [1.5, 1e300]),
            ("real", [0.0, 1e-300]),
            ("real", [Decimal(0), Decimal("1e40")]),
            ("text", ["a", "zero \x00"]),
            ("text", [b"a", b"\xff"]),
            ("text", damaged_text()),
            ("varchar(3)", ["abc", "abcd"]),
            ("numeric(4, 2)", [Decimal("1.50"), Decimal("123.50")]),
            ("jsonb", ['{"a": 1}', "{a"]),
            ("jsonb", [b"{}", b"[" * 1_000_000]),
            ("jsonb", ["{}", '"\\u0000"']),
            ("uuid", ["11111111-2222-3333-4444-555555555555", "no"]),
            ("timestamptz", pa.array([0, -(2**63) + 1], pa.timestamp("us", "UTC"))),
            ("date", pa.array([0, -(2**31)], pa.date32())),
            ("bigint CHECK (v > 0)", [1, 0]),
        ],
    )
    def test_a_value_that_postgres_does_not_take_is_traced(
        self, postgres: PostgresSinkDatabase, kind: str, values: Any
    ) -> None:
        postgres.execute(f"CREATE TABLE t (v {kind})")

        rejected = postgres.sink(table="t").open(KEY, 1).commit(at(1), sequenced(v=values))

        assert [one.event for one in rejected] == [1]
        assert rejected[0].reason
        assert postgres.execute("SELECT count(*) FROM t") == [(1,)]

    @pytest.mark.parametrize(
        ("kind", "values"),
        [("integer", [1, 1.5]), ("bigint", [1.0, Decimal("1.5")]), ("real", [0.1, 1e300]), ("date", [None, INSTANT])],
    )
    def test_a_value_of_a_dictionary_that_arrow_would_change_is_traced(
        self, postgres: PostgresSinkDatabase, kind: str, values: list[Any]
    ) -> None:
        postgres.execute(f"CREATE TABLE t (v {kind})")

        with postgres.sink(table="t").open(KEY, 1).transaction(at(1)) as tx:
            tx.insert([{"v": value} for value in values], row_events=np.arange(2))

        assert [one.event for one in tx.rejected] == [1]
        assert "would become" in tx.rejected[0].reason
        assert postgres.execute("SELECT count(*) FROM t") == [(1,)]

    @pytest.mark.parametrize(
        ("kind", "values", "rejected"),
        [
            ("numeric", [1, "no", 2.5, Decimal("3.5"), True], [1, 4]),
            ("uuid", ["11111111-2222-3333-4444-555555555555", 5, {"a": 1}, None], [1, 2]),
        ],
    )
    def test_values_of_dictionaries_that_make_no_column_together_are_traced_by_postgres(
        self, postgres: PostgresSinkDatabase, kind: str, values: list[Any], rejected: list[int]
    ) -> None:
        self._require_traced(postgres, kind, values, rejected)

    @pytest.mark.parametrize(
        ("kind", "values", "rejected"),
        [
            ("bigint", [1, "no", True, None, 2.5], [1, 4]),
            ("text", ["a", 1, date(2026, 1, 1)], [1]),
            ("", [1, "a", 2.5, b"c", {"a": 1}, None], [4]),
        ],
    )
    def test_values_of_dictionaries_that_make_no_column_together_are_traced_by_sqlite(
        self, sqlite: SqliteSinkDatabase, kind: str, values: list[Any], rejected: list[int]
    ) -> None:
        self._require_traced(sqlite, kind, values, rejected)

    def _require_traced(self, database: SinkDatabase, kind: str, values: list[Any], rejected: list[int]) -> None:
        database.execute(f"CREATE TABLE t (v {kind}, n bigint)")

        with database.sink(table="t").open(KEY, 1).transaction(at(9)) as tx:
            tx.insert([{"v": value, "n": n} for n, value in enumerate(values)], row_events=np.arange(len(values)))

        assert sorted(one.event for one in tx.rejected) == rejected
        kept = [(n,) for n in range(len(values)) if n not in rejected]
        assert database.execute("SELECT n FROM t ORDER BY n") == kept

    def test_numbers_that_postgres_takes_stay_what_they_are(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v real)")
        values = [0.0, -0.5, float("inf"), float("-inf"), 2.0**-149, None]

        assert postgres.sink(table="t").open(KEY, 1).commit(at(1), sequenced(v=[*values, float("nan")])) == []

        *found, (nan,) = postgres.execute("SELECT v::float8 FROM t")
        assert found == [(value,) for value in values]
        assert nan != nan

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("INTEGER", pa.array([1, 2**63], pa.uint64())),
            ("TEXT", [b"a", b"\xff"]),
            ("TEXT", damaged_text()),
            ("INTEGER CHECK (v > 0)", [1, 0]),
            ("INTEGER UNIQUE", [1, 1]),
            ("TEXT", pa.array([253_402_300_799_999_999, 253_402_300_800_000_000], pa.timestamp("us", "UTC"))),
            ("DATETIME", pa.array([-62_135_596_800, -62_135_596_801], pa.timestamp("s"))),
            ("DATE", pa.array([0, 2**31 - 1], pa.date32())),
        ],
    )
    def test_a_value_that_sqlite_does_not_take_is_traced(
        self, sqlite: SqliteSinkDatabase, kind: str, values: Any
    ) -> None:
        sqlite.execute(f"CREATE TABLE t (v {kind})")

        rejected = sqlite.sink(table="t").open(KEY, 1).commit(at(1), sequenced(v=values))

        assert [one.event for one in rejected] == [1]
        assert sqlite.execute("SELECT count(*) FROM t") == [(1,)]

    def test_a_trigger_that_raises_blames_its_row(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v bigint)")
        postgres.execute(
            "CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF new.v = 3 THEN RAISE EXCEPTION 'not three'; END IF; RETURN new; END $$"
        )
        postgres.execute("CREATE TRIGGER judge AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION judge()")

        rejected = postgres.sink(table="t").open(KEY, 1).commit(at(9), sequenced(v=list(range(10))))

        assert [(one.event, one.reason) for one in rejected] == [(3, "not three")]


class TestTrouble:
    def test_a_table_that_is_dropped_stops_and_loses_nothing(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE t (v bigint)")
        partition = database.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        database.execute("DROP TABLE t")

        with pytest.raises(SinkError, match="no such table"):
            partition.commit(at(1), sequenced(v=[1]))
        assert database.checkpoint() == 0
        database.execute("CREATE TABLE t (v bigint)")
        partition.commit(at(1), sequenced(v=[1]))

        assert database.execute("SELECT v FROM t") == [(1,)]

    @pytest.mark.parametrize("kind", ["timestamptz USING to_timestamp(v)", "double precision", "text", "integer"])
    def test_a_column_whose_type_was_changed_takes_no_bytes_of_the_old_one(
        self, postgres: PostgresSinkDatabase, kind: str
    ) -> None:
        postgres.execute("CREATE TABLE t (v bigint)")
        sink = postgres.sink(table="t")
        partition = sink.open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        postgres.execute(f"ALTER TABLE t ALTER COLUMN v TYPE {kind}")

        with pytest.raises(SinkError, match="altered"):
            partition.commit(at(1), sequenced(v=[1]))

        assert postgres.execute("SELECT count(*) FROM t") == [(1,)]
        assert postgres.checkpoint() == 0

    @pytest.mark.parametrize(
        ("column", "change"),
        [
            ("bigint", "ALTER TABLE t ALTER COLUMN w SET NOT NULL"),
            ("bigint NOT NULL DEFAULT 7", "ALTER TABLE t ALTER COLUMN w DROP DEFAULT"),
            ("bigserial", "DROP SEQUENCE t_w_seq CASCADE"),
            ("bigint GENERATED ALWAYS AS IDENTITY", "ALTER TABLE t ALTER COLUMN w DROP IDENTITY"),
            ("bigint NOT NULL GENERATED ALWAYS AS (v) STORED", "ALTER TABLE t ALTER COLUMN w DROP EXPRESSION"),
            ("of_any", "ALTER DOMAIN of_any SET NOT NULL"),
            ("of_seven NOT NULL", "ALTER DOMAIN of_seven DROP DEFAULT"),
        ],
    )
    @pytest.mark.parametrize("key", [(), "v"])
    def test_a_column_that_has_to_be_given_all_of_a_sudden_makes_no_dead_letters(
        self, postgres: PostgresSinkDatabase, column: str, change: str, key: str
    ) -> None:
        postgres.execute("CREATE DOMAIN of_any AS bigint")
        postgres.execute("CREATE DOMAIN of_seven AS bigint DEFAULT 7")
        postgres.execute(f"CREATE TABLE t (v bigint PRIMARY KEY, w {column})")
        partition = postgres.sink(table="t", upsert_key=key).open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        if column in ("bigint", "of_any"):
            postgres.execute("UPDATE t SET w = 0")
        postgres.execute(change)

        for message in ("altered", "'w' of the table must be given"):
            with pytest.raises(SinkError, match=message):
                partition.commit(at(1), sequenced(v=[1]))

        assert postgres.checkpoint() == 0

    def test_rows_that_do_not_tell_their_events_are_not_blamed_for_it_either(
        self, postgres: PostgresSinkDatabase
    ) -> None:
        postgres.execute("CREATE TABLE t (v bigint, w bigint NOT NULL DEFAULT 7)")
        partition = postgres.sink(table="t").open(KEY, 1)
        partition.commit(at(0), pa.table({"v": [0]}))
        postgres.execute("ALTER TABLE t ALTER COLUMN w DROP DEFAULT")

        transaction = partition.transaction(at(1))
        transaction.execute("SELECT 1")
        with pytest.raises(SinkError, match="altered") as caught, transaction.savepoint():
            transaction.insert(pa.table({"v": [1]}))
        transaction.rollback()

        assert not isinstance(caught.value, RowsRejected)  # which would make dead letters

    @pytest.mark.parametrize("check", ["v >= 0", "v <> 2"], ids=["all good", "one to be rejected"])
    @pytest.mark.parametrize("key", [(), "v"])
    def test_a_sequence_that_has_come_to_its_end_makes_no_dead_letters(
        self, postgres: PostgresSinkDatabase, key: str, check: str
    ) -> None:
        postgres.execute(f"CREATE TABLE t (v bigint PRIMARY KEY CHECK ({check}), id smallserial)")
        partition = postgres.sink(table="t", upsert_key=key).open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        postgres.execute("SELECT setval('t_id_seq', 32765)")

        for _ in range(2):
            with pytest.raises(SinkError, match="reached maximum value of sequence"):
                partition.commit(at(4), sequenced(v=[1, 2, 3, 4, 5]))
            postgres.execute("SELECT setval('t_id_seq', 32765)")
        assert (postgres.checkpoint(), postgres.dead_letters()) == (0, [])
        postgres.execute("SELECT setval('t_id_seq', 10)")
        partition.commit(at(4), sequenced(v=[1, 2, 3, 4, 5]))

        assert len(postgres.execute("SELECT v FROM t")) == (6 if check == "v >= 0" else 5)

    @pytest.mark.parametrize("key", [(), "v"])
    def test_an_identity_may_be_given_also_beside_a_row_that_is_refused(
        self, postgres: PostgresSinkDatabase, key: str
    ) -> None:
        postgres.execute("CREATE TABLE t (v bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY CHECK (v <> 1))")
        sink = postgres.sink(table="t", upsert_key=key)
        rows = sequenced(v=[0, 1, 2])

        assert sink.check(rows.schema) is None
        rejected = sink.open(KEY, 1).commit(at(2), rows)

        assert [one.event for one in rejected] == [1]
        assert postgres.execute("SELECT v FROM t ORDER BY v") == [(0,), (2,)]

    def test_an_identity_that_rows_would_have_to_change_is_refused(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v bigint PRIMARY KEY, w bigint GENERATED ALWAYS AS IDENTITY)")

        with pytest.raises(SinkError, match="Leave it out of the rows"):
            postgres.sink(table="t", upsert_key="v").open(KEY, 1).commit(at(0), sequenced(v=[0], w=[0]))

    @pytest.mark.parametrize(
        "change", ["ALTER TABLE t ADD CHECK (v IS NOT NULL)", "ALTER DOMAIN of_any ADD CHECK (value IS NOT NULL)"]
    )
    def test_a_constraint_on_what_is_given_refuses_the_events_that_break_it_and_stops_nothing(
        self, postgres: PostgresSinkDatabase, change: str
    ) -> None:
        postgres.execute("CREATE DOMAIN of_any AS bigint")
        postgres.execute("CREATE TABLE t (v of_any)")
        partition = postgres.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        postgres.execute(change)

        rejected = partition.commit(at(3), sequenced(v=[1, None, 2]))

        assert [one.event for one in rejected] == [1]
        assert postgres.execute("SELECT v FROM t ORDER BY v") == [(0,), (1,), (2,)]

    def test_after_an_alteration_the_new_type_is_learned(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v bigint)")
        partition = postgres.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        postgres.execute("ALTER TABLE t ALTER COLUMN v TYPE double precision")
        with pytest.raises(SinkError):
            partition.commit(at(1), sequenced(v=[1]))

        partition.commit(at(1), sequenced(v=[1]))

        assert postgres.execute("SELECT v FROM t") == [(0.0,), (1.0,)]

    def test_a_column_that_was_removed_stops_and_one_that_was_added_does_not_for_long(
        self, database: SinkDatabase
    ) -> None:
        database.execute("CREATE TABLE t (v bigint, w bigint)")
        partition = database.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0], w=[0]))
        database.execute("ALTER TABLE t DROP COLUMN w")

        for _ in range(2):
            with pytest.raises(SinkError):
                partition.commit(at(1), sequenced(v=[1], w=[1]))
        partition.commit(at(1), sequenced(v=[1]))

        assert database.execute("SELECT v FROM t") == [(0,), (1,)]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ("v bigint, w bigint NOT NULL", "'w' of the table must be given"),
            ("v text", "'v' is int64 in the rows and TEXT in the table"),
            ("v bigint GENERATED ALWAYS AS (w), w bigint", "no column 'v'"),
        ],
    )
    def test_a_table_of_sqlite_that_was_recreated_is_compared_again(
        self, sqlite: SqliteSinkDatabase, columns: str, message: str
    ) -> None:
        sqlite.execute("CREATE TABLE t (v bigint)")
        partition = sqlite.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        sqlite.execute("DROP TABLE t")
        sqlite.execute(f"CREATE TABLE t ({columns})")

        for _ in range(2):
            with pytest.raises(SinkError, match=message):
                partition.commit(at(1), sequenced(v=[1]))

        assert (sqlite.checkpoint(), sqlite.dead_letters()) == (0, [])

    def test_a_sequence_number_for_which_there_is_a_column_meanwhile_is_written(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE t (v bigint)")
        partition = database.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=[0]))
        database.execute('ALTER TABLE t ADD COLUMN "sequenceNumber" bigint')

        if database.dialect == "postgres":
            with pytest.raises(SinkError, match="altered"):
                partition.commit(at(2), sequenced(v=[1, 2]))
        partition.commit(at(2), sequenced(v=[1, 2]))

        assert database.execute('SELECT v, "sequenceNumber" FROM t ORDER BY v') == [(0, None), (1, 0), (2, 1)]

    def test_a_user_without_rights_gets_an_error(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v bigint)")
        postgres.sink(table="t").open(KEY, 1)  # makes hubline's own tables
        postgres.execute("DROP ROLE IF EXISTS reader")
        postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'r'")
        postgres.execute("GRANT ALL ON hubline_checkpoint, hubline_dead_letter, hubline_schema TO reader")
        postgres.execute("GRANT SELECT ON t TO reader")
        scheme, _, rest = postgres.url.partition("://")
        sink = SqlSink(f"{scheme}://reader:r@{rest.partition('@')[2]}", table="t")
        partition = sink.open(KEY, 1)

        with pytest.raises(SinkError, match="Grant INSERT"):
            partition.commit(at(0), sequenced(v=[0]))
        sink.close()

        assert postgres.checkpoint() is None
        postgres.execute("DROP OWNED BY reader")
        postgres.execute("DROP ROLE reader")

    def test_a_read_only_database_is_reported(self, postgres: PostgresSinkDatabase) -> None:
        postgres.execute("CREATE TABLE t (v bigint)")
        partition = postgres.sink(table="t").open(KEY, 1)
        name = postgres.url.rpartition("/")[2]
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        partition.database.pool.close()

        with pytest.raises((SinkError, StoreUnavailable), match="read-only"):
            partition.commit(at(0), sequenced(v=[0]))

    def test_a_full_disk_keeps_nothing_of_a_batch(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute("CREATE TABLE t (v TEXT)")
        partition = sqlite.sink(table="t").open(KEY, 1)
        partition.commit(at(0), sequenced(v=["x"]))
        with partition.database.connection() as connection:
            driver: sqlite3.Connection = connection._driver  # type: ignore[attr-defined]
            ((pages,),) = driver.execute("PRAGMA page_count").fetchall()
            driver.execute(f"PRAGMA max_page_count = {pages + 2}")

        with pytest.raises(StoreError, match="Free some space"):
            partition.commit(at(1), sequenced(v=["y" * 10**6]))

        assert (sqlite.checkpoint(), sqlite.execute("SELECT v FROM t")) == (0, [("x",)])

    def test_a_server_that_is_not_there_says_try_again_and_no_secret(self) -> None:
        sink = SqlSink("postgresql://u:s3cret@127.0.0.1:1/d", table="t")

        with pytest.raises(StoreUnavailable) as caught:
            sink.open(KEY, 1)

        assert "s3cret" not in str(caught.value)
