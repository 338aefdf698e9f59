"""A commit: rows, dead letters and checkpoint together or not at all, by the fence's holder only, and only forward."""

from __future__ import annotations

import pickle
import sqlite3
import threading
import traceback
from contextlib import closing, suppress
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from hubline.errors import ConfigError, Fenced, RowsRejected, SinkError, StoreError
from hubline.model.dead_letters import DeadLetter, DeadLetterState
from hubline.model.events import Event
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.secrets import Secret
from hubline.sinks import SqlSink
from tests.sinks.conftest import PostgresSinkDatabase, SinkDatabase, SqliteSinkDatabase

KEY = GroupKey("namespace.example", "orders", "billing").partition("0")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def at(sequence: int) -> Checkpoint:
    return Checkpoint(KEY, f"o{sequence}", sequence)


def rows(*ids: int) -> pa.Table:
    """A row an event, whose sequence number is its id."""
    names = [f"name {number}" for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "name": names, "sequenceNumber": pa.array(ids, pa.int64())})


def dead_letter(sequence: int, error: Exception | None = None, **event: object) -> DeadLetter:
    fields = {"body": b"body", "partition_key": "k", "properties": {"a": "b"}, **event}
    failed = Event(
        partition="0",
        offset=f"o{sequence}",
        sequence_number=sequence,
        enqueued_time=datetime(2026, 11, 15, 1, 2, 3, 456_789, tzinfo=UTC),
        **fields,  # type: ignore[arg-type]
    )
    return DeadLetter.of(KEY, failed, error or ValueError("bad"), attempts=3)


@pytest.fixture
def table(database: SinkDatabase) -> str:
    database.execute("CREATE TABLE readings (id bigint PRIMARY KEY, name varchar(40) NOT NULL CHECK (name <> 'bad'))")
    return "readings"


def ids(database: SinkDatabase) -> list[int]:
    return [row[0] for row in database.execute("SELECT id FROM readings ORDER BY id")]


class TestTogether:
    def test_rows_dead_letters_and_checkpoint_are_there_after_a_commit(
        self, database: SinkDatabase, table: str
    ) -> None:
        partition = database.sink(table=table).open(KEY, 1)

        rejected = partition.commit(at(3), rows(0, 1, 3), dead_letters=[dead_letter(2)])

        assert rejected == []
        assert (ids(database), database.checkpoint()) == ([0, 1, 3], 3)
        assert database.dead_letters() == [(2, "handler", "ValueError", "bad")]
        assert partition.checkpoint == at(3)

    def test_nothing_is_there_if_anything_fails(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)

        with suppress(RuntimeError), partition.transaction(at(3)) as transaction:
            transaction.insert(rows(0, 1))
            transaction.dead_letter([dead_letter(2)])
            raise RuntimeError("after all")

        assert (ids(database), database.dead_letters(), database.checkpoint()) == ([], [], None)

    def test_a_partition_goes_on_after_a_rollback(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)
        with suppress(RuntimeError), partition.transaction(at(3)) as transaction:
            transaction.insert(rows(0, 1))
            raise RuntimeError

        partition.commit(at(1), rows(0, 1))
        partition.commit(at(2), rows(2))

        assert (ids(database), database.checkpoint()) == ([0, 1, 2], 2)

    def test_a_checkpoint_alone_can_be_committed(self, database: SinkDatabase) -> None:
        database.sink().open(KEY, 1).commit(at(5))

        assert database.checkpoint() == 5

    def test_opening_again_tells_where_to_start(self, database: SinkDatabase, table: str) -> None:
        sink = database.sink(table=table)
        assert sink.open(KEY, 1).checkpoint is None
        sink.open(KEY, 1).commit(at(3), rows(3))

        assert sink.open(KEY, 1).checkpoint == at(3)
        assert database.sink(table=table).open(KEY, 2).checkpoint == at(3)

    def test_a_sink_survives_pickling_and_closing(self, database: SinkDatabase, table: str) -> None:
        sink = database.sink(table=table)
        sink.open(KEY, 1).commit(at(0), rows(0))
        sink.close()

        with closing(pickle.loads(pickle.dumps(sink))) as copied:  # noqa: S301 - made just here
            copied.open(KEY, 1).commit(at(1), rows(1))
        sink.open(KEY, 1).commit(at(2), rows(2))

        assert ids(database) == [0, 1, 2]


class TestFence:
    def test_a_former_owner_can_write_nothing(self, database: SinkDatabase, table: str) -> None:
        sink = database.sink(table=table)
        former = sink.open(KEY, 1)
        sink.open(KEY, 2).commit(at(0), rows(0))

        with pytest.raises(Fenced) as caught:
            former.commit(at(1), rows(1), dead_letters=[dead_letter(1)])

        assert (caught.value.epoch, caught.value.held_epoch) == (1, 2)
        assert (ids(database), database.dead_letters(), database.checkpoint()) == ([0], [], 0)

    def test_a_lower_epoch_cannot_open(self, database: SinkDatabase) -> None:
        database.sink().open(KEY, 5)

        with pytest.raises(Fenced):
            database.sink().open(KEY, 4)

    def test_who_joins_does_so_under_the_epoch_that_holds_or_a_higher_one(
        self, database: SinkDatabase, table: str
    ) -> None:
        sink = database.sink(table=table)
        assert sink.join(KEY, 3).epoch == 3
        behind = sink.join(KEY, 1)
        behind.commit(at(0), rows(0))
        ahead = sink.join(KEY, 5)

        assert (behind.epoch, ahead.epoch, ahead.checkpoint) == (3, 5, at(0))
        with pytest.raises(Fenced):
            behind.commit(at(1), rows(1))
        assert ids(database) == [0]

    def test_a_writer_of_the_same_epoch_that_was_overtaken_writes_nothing(
        self, database: SinkDatabase, table: str
    ) -> None:
        sink = database.sink(table=table)
        zombie, current = sink.open(KEY, 1), sink.open(KEY, 1)
        current.commit(at(1), rows(0, 1))

        with pytest.raises(Fenced, match="another writer"):
            zombie.commit(at(2), rows(0, 1, 2))

        assert (ids(database), database.checkpoint()) == ([0, 1], 1)

    def test_what_is_done_cannot_be_done_again(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)
        partition.commit(at(3), rows(3))

        with pytest.raises(SinkError, match="up to 3 already"):
            partition.commit(at(3), rows(4))

    def test_the_next_owner_waits_for_a_transaction_and_starts_after_it(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE TABLE readings (id bigint, name text)")
        sink = postgres.sink(table="readings")
        opened: list[Checkpoint | None] = []
        with sink.open(KEY, 1).transaction(at(0)) as transaction:
            transaction.insert(rows(0))
            taking = threading.Thread(target=lambda: opened.append(postgres.sink().open(KEY, 2).checkpoint))
            taking.start()
            while not postgres.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                assert taking.is_alive()
        taking.join()

        assert opened == [at(0)]

    def test_a_checkpoint_row_that_was_deleted_fences_its_owner(self, database: SinkDatabase) -> None:
        partition = database.sink().open(KEY, 1)
        database.execute("DELETE FROM hubline_checkpoint")

        with pytest.raises(Fenced):
            partition.commit(at(0))


class TestOwnStatements:
    def test_they_are_part_of_the_transaction(self, database: SinkDatabase, table: str) -> None:
        mark = "?" if database.dialect == "sqlite" else "%s"
        partition = database.sink().open(KEY, 1)
        insert = f"INSERT INTO readings (id, name) VALUES ({mark}, {mark})"

        with suppress(RuntimeError), partition.transaction(at(0)) as transaction:
            transaction.execute(insert, (1, "undone"))
            raise RuntimeError
        with partition.transaction(at(1)) as transaction:
            transaction.execute(insert, (2, "done"))
            assert transaction.execute("SELECT id, name FROM readings") == [(2, "done")]

        assert (ids(database), database.checkpoint()) == ([2], 1)

    @pytest.mark.parametrize("query", ["COMMIT", " rollback", "-- so\nBEGIN", "/* so */ end", "savepoint a"])
    def test_they_cannot_end_it(self, database: SinkDatabase, query: str) -> None:
        partition = database.sink().open(KEY, 1)

        with (
            pytest.raises(SinkError, match="hubline begins and ends the transaction"),
            partition.transaction(at(0)) as transaction,
        ):
            transaction.execute(query)

        assert database.checkpoint() is None

    def test_nothing_hides_behind_another_statement(self, database: SinkDatabase) -> None:
        partition = database.sink().open(KEY, 1)

        with pytest.raises(StoreError), partition.transaction(at(0)) as transaction:
            transaction.execute("SELECT 1; COMMIT")

        assert database.checkpoint() is None

    def test_an_error_does_not_print_the_drivers_own(self, database: SinkDatabase) -> None:
        transaction = database.sink().open(KEY, 1).transaction(at(0))
        with pytest.raises(StoreError, match="missing") as raised:
            transaction.execute("SELECT 'secret' FROM missing")
        transaction.rollback()

        printed = "".join(traceback.format_exception(raised.value))
        assert "sqlite3." not in printed
        assert "psycopg" not in printed

    def test_a_savepoint_undoes_its_part_only(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)

        with partition.transaction(at(2)) as transaction:
            transaction.insert(rows(0))
            with suppress(RuntimeError), transaction.savepoint():
                transaction.insert(rows(1))
                raise RuntimeError
            transaction.insert(rows(2))

        assert ids(database) == [0, 2]

    @pytest.mark.parametrize("fails", [False, True], ids=["committed", "undone"])
    def test_none_begins_it_again_after_its_end(self, database: SinkDatabase, table: str, *, fails: bool) -> None:
        partition = database.sink(table=table, max_connections=1, transaction_timeout_seconds=1).open(KEY, 1)
        with suppress(RuntimeError), partition.transaction(at(0)) as transaction:
            if fails:
                raise RuntimeError

        with pytest.raises(SinkError, match="the transaction has ended"):
            transaction.execute("INSERT INTO readings VALUES (1, 'late')")
        with pytest.raises(SinkError, match="the transaction has ended"):
            transaction.insert(rows(1))

        partition.commit(at(2), rows(2))  # nothing is in its way
        assert ids(database) == [2]


ROLLS_BACK = "CREATE TABLE t (v bigint NOT NULL ON CONFLICT ROLLBACK)"


class TestRefusalsThatUndoEverything:
    """SQLite's constraints with ON CONFLICT ROLLBACK, and triggers with RAISE(ROLLBACK)."""

    def test_rows_before_the_second_one_are_not_lost(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute(ROLLS_BACK)
        partition = sqlite.sink(table="t").open(KEY, 1)
        rows = pa.table({"v": [1, None, 2, None, 3], "sequenceNumber": range(5)})

        with pytest.raises(SinkError, match="ON CONFLICT ROLLBACK"):
            partition.commit(at(4), rows)

        assert (sqlite.execute("SELECT v FROM t"), sqlite.checkpoint()) == ([], None)

    def test_a_single_one_is_traced(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute(ROLLS_BACK)
        rows = pa.table({"v": [1, None, 2], "sequenceNumber": range(3)})

        rejected = sqlite.sink(table="t").open(KEY, 1).commit(at(2), rows)

        assert [one.event for one in rejected] == [1]
        assert (sqlite.execute("SELECT v FROM t"), sqlite.checkpoint()) == ([(1,), (2,)], 2)

    def test_what_follows_in_a_handler_that_goes_on_is_not_written_by_itself(self, sqlite: SqliteSinkDatabase) -> None:
        sqlite.execute(ROLLS_BACK)
        partition = sqlite.sink(table="t").open(KEY, 1)
        transaction = partition.transaction(at(0))
        transaction.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError):
            transaction.execute("INSERT INTO t VALUES (NULL)")

        with pytest.raises(SinkError, match="ON CONFLICT ROLLBACK"):
            transaction.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(SinkError, match="ON CONFLICT ROLLBACK"):
            transaction.commit()

        assert (sqlite.execute("SELECT v FROM t"), sqlite.checkpoint()) == ([], None)


class TestRefusedRows:
    def test_the_offending_events_are_found_and_the_rest_is_written(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)
        partition.commit(at(0), rows(7))
        given = rows(*range(1, 20)).to_pylist()
        given[2]["name"] = "bad"
        given[5]["name"] = None
        given[11]["id"] = 7

        rejected = partition.commit(at(19), pa.Table.from_pylist(given))

        bad = {3, 6, 12}
        assert {one.event for one in rejected} == bad | {7}  # 7 itself is there since the first commit
        assert ids(database) == [number for number in range(1, 20) if number not in bad]
        assert database.checkpoint() == 19

    def test_an_event_is_written_whole_or_not_at_all(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)
        given = pa.table({"id": [1, 2, 3, 4], "name": ["a", "b", "bad", "d"], "sequenceNumber": [10, 11, 11, 12]})

        rejected = partition.commit(at(12), given)

        assert ([one.event for one in rejected], ids(database)) == ([11], [1, 4])

    def test_rows_in_any_order_are_written_in_the_order_of_their_events(
        self, database: SinkDatabase, table: str
    ) -> None:
        partition = database.sink(table=table, upsert_key="id").open(KEY, 1)
        given = pa.table({"id": [1, 2, 1], "name": ["late", "b", "early"], "sequenceNumber": [12, 11, 10]})

        partition.commit(at(12), given)

        assert database.execute("SELECT id, name FROM readings ORDER BY id") == [(1, "late"), (2, "b")]

    def test_rows_that_do_not_tell_their_events_stand_or_fall_together(
        self, database: SinkDatabase, table: str
    ) -> None:
        partition = database.sink(table=table).open(KEY, 1)

        with pytest.raises(RowsRejected, match="sequenceNumber"):
            partition.commit(at(1), pa.table({"id": [1, 2], "name": ["a", "bad"]}))

        assert (ids(database), database.checkpoint()) == ([], None)

    def test_every_row_may_be_bad(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)
        given = rows(*range(300)).set_column(1, "name", [["bad"] * 300])

        rejected = partition.commit(at(300), given)

        assert len(rejected) == 300
        assert (ids(database), database.checkpoint()) == ([], 300)

    def test_what_was_written_before_stays(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table).open(KEY, 1)

        with partition.transaction(at(3)) as transaction:
            transaction.execute("INSERT INTO readings VALUES (100, 'own')")
            transaction.insert(rows(0, 1))
            transaction.insert(rows(1, 2, 3))
            assert [one.event for one in transaction.rejected] == [1]

        assert ids(database) == [0, 1, 2, 3, 100]

    def test_values_and_constraints_are_traced_in_one_batch(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE TABLE readings (place bigserial, id bigint UNIQUE, name varchar(8))")
        partition = postgres.sink(table="readings").open(KEY, 1)
        given = rows(*range(200)).to_pylist()
        given[70]["id"], given[71]["name"], given[150]["name"] = 3, "much too long", "\x00"

        rejected = partition.commit(at(200), pa.Table.from_pylist(given))

        assert [(one.event, one.kind) for one in rejected] == [
            (70, "UniqueViolation"),
            (71, "StringDataRightTruncation"),
            (150, "CharacterNotInRepertoire"),
        ]
        written = [row[0] for row in postgres.execute("SELECT id FROM readings ORDER BY place")]
        assert written == [number for number in range(200) if number not in (70, 71, 150)]

    def test_a_user_who_may_only_insert_has_them_traced_too(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE TABLE readings (id bigint PRIMARY KEY, name text)")
        postgres.sink().open(KEY, 1)  # makes hubline's own tables
        postgres.execute("DROP ROLE IF EXISTS inserter")
        postgres.execute("CREATE ROLE inserter LOGIN PASSWORD 'i'")
        postgres.execute("GRANT ALL ON hubline_checkpoint, hubline_dead_letter, hubline_schema TO inserter")
        postgres.execute("GRANT INSERT ON readings TO inserter")
        scheme, _, rest = postgres.url.partition("://")
        with closing(SqlSink(f"{scheme}://inserter:i@{rest.partition('@')[2]}", table="readings")) as sink:
            rejected = sink.open(KEY, 1).commit(at(3), rows(1, 2, 1, 3))

        assert ([one.event for one in rejected], ids(postgres)) == ([1], [2, 3])
        postgres.execute("DROP OWNED BY inserter")
        postgres.execute("DROP ROLE inserter")

    def test_constraints_that_wait_for_the_commit_are_traced_too(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
        postgres.execute("INSERT INTO parents SELECT generate_series(0, 9)")
        postgres.execute(
            "CREATE TABLE readings (id bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED, name text)"
        )
        partition = postgres.sink(table="readings").open(KEY, 1)

        rejected = partition.commit(at(11), rows(8, 9, 10, 11))

        assert ([one.event for one in rejected], ids(postgres)) == ([10, 11], [8, 9])
        assert rejected[0].kind == "ForeignKeyViolation"

    def test_a_constraint_that_was_added_meanwhile_is_traced_at_the_second_try(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
        postgres.execute("INSERT INTO parents SELECT generate_series(0, 9)")
        postgres.execute("CREATE TABLE readings (id bigint, name text)")
        sink = postgres.sink(table="readings")
        sink.open(KEY, 1).commit(at(7), rows(7))
        postgres.execute("ALTER TABLE readings ADD FOREIGN KEY (id) REFERENCES parents DEFERRABLE INITIALLY DEFERRED")
        with pytest.raises(RowsRejected):
            sink.open(KEY, 1).commit(at(10), rows(8, 9, 10))

        rejected = sink.open(KEY, 1).commit(at(10), rows(8, 9, 10))

        assert ([one.event for one in rejected], ids(postgres)) == ([10], [7, 8, 9])

    def test_those_of_a_table_s_partition_are_traced_too(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
        postgres.execute("INSERT INTO parents SELECT generate_series(0, 9)")
        postgres.execute("CREATE TABLE readings (id bigint, name text) PARTITION BY RANGE (id)")
        postgres.execute("CREATE TABLE low PARTITION OF readings FOR VALUES FROM (0) TO (100)")
        postgres.execute("ALTER TABLE low ADD FOREIGN KEY (id) REFERENCES parents DEFERRABLE INITIALLY DEFERRED")

        rejected = postgres.sink(table="readings").open(KEY, 1).commit(at(11), rows(8, 9, 10, 11))

        assert ([one.event for one in rejected], ids(postgres)) == ([10, 11], [8, 9])

    def test_those_of_a_table_that_a_trigger_writes_to_are_traced_at_the_second_try(
        self, postgres: SinkDatabase
    ) -> None:
        postgres.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
        postgres.execute("INSERT INTO parents SELECT generate_series(0, 9)")
        postgres.execute("CREATE TABLE copies (id bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
        postgres.execute("CREATE TABLE readings (id bigint, name text)")
        postgres.execute(
            "CREATE FUNCTION copy() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO copies VALUES (new.id); RETURN new; END $$"
        )
        postgres.execute("CREATE TRIGGER copy AFTER INSERT ON readings FOR EACH ROW EXECUTE FUNCTION copy()")
        sink = postgres.sink(table="readings")
        with pytest.raises(RowsRejected):
            sink.open(KEY, 1).commit(at(10), rows(8, 9, 10))

        rejected = sink.open(KEY, 1).commit(at(10), rows(8, 9, 10))

        assert ([one.event for one in rejected], ids(postgres)) == ([10], [8, 9])

    @pytest.mark.parametrize("key", [(), ("id",)], ids=["insert", "upsert"])
    def test_whatever_is_refused_is_traced_wherever_it_stands(
        self, postgres: SinkDatabase, key: tuple[str, ...]
    ) -> None:
        """A CHECK fails at its row, a foreign key after the last row of a chunk. A second batch does the same."""
        postgres.execute("CREATE TABLE parents (name text PRIMARY KEY)")
        postgres.execute("INSERT INTO parents SELECT 'name ' || number FROM generate_series(0, 999) AS number")
        postgres.execute(
            "CREATE TABLE readings (place bigserial, id bigint PRIMARY KEY CHECK (id >= 0), "
            "name text REFERENCES parents)"
        )
        partition = postgres.sink(table="readings", upsert_key=key).open(KEY, 1)
        negative, orphans = {0, 63, 64, 127, 128, 300, 301, 499}, {10, 64, 150, 151, 302, 999}
        for first in (0, 500):
            events = range(first, first + 500)
            given = pa.table(
                {
                    "id": [-1 if number in negative else number for number in events],
                    "name": ["nobody" if number in orphans else f"name {number}" for number in events],
                    "sequenceNumber": list(events),
                }
            )

            rejected = partition.commit(at(first + 499), given)

            assert [one.event for one in rejected] == sorted((negative | orphans) & set(events))
            kinds = {one.event: one.kind for one in rejected}
            assert {number for number, kind in kinds.items() if kind == "CheckViolation"} == negative & set(events)
        assert ids(postgres) == [number for number in range(1_000) if number not in negative | orphans]


class TestUpsert:
    def test_the_last_row_of_a_key_counts(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table, upsert_key="id").open(KEY, 1)
        partition.commit(at(1), pa.table({"id": [1, 2], "name": ["a", "b"]}))

        partition.commit(at(4), pa.table({"id": [1, 3, 1], "name": ["x", "c", "y"]}))

        found = database.execute("SELECT id, name FROM readings ORDER BY id")
        assert found == [(1, "y"), (2, "b"), (3, "c")]

    def test_it_goes_on_after_a_rollback(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table, upsert_key="id").open(KEY, 1)
        with suppress(RuntimeError), partition.transaction(at(0)) as transaction:
            transaction.insert(rows(0))
            raise RuntimeError

        partition.commit(at(1), rows(0, 1))
        partition.commit(at(2), rows(1, 2))

        assert ids(database) == [0, 1, 2]

    def test_bad_rows_are_found(self, database: SinkDatabase, table: str) -> None:
        partition = database.sink(table=table, upsert_key="id").open(KEY, 1)
        given = rows(*range(10)).to_pylist()
        given[4]["name"] = "bad"

        rejected = partition.commit(at(9), pa.Table.from_pylist(given))

        assert [one.event for one in rejected] == [4]
        assert ids(database) == [number for number in range(10) if number != 4]

    @pytest.mark.parametrize("value", [9, -9], ids=["all taken", "one rejected"])
    def test_rows_without_a_key_do_not_replace_each_other(self, database: SinkDatabase, value: int) -> None:
        database.execute("CREATE TABLE t (k bigint, l bigint, v bigint CHECK (v > 0), UNIQUE (k, l))")
        partition = database.sink(table="t", upsert_key=("l", "k")).open(KEY, 1)
        columns = {"k": [1, 1, 1, 1, 2], "l": [None, None, 1, 1, 2], "v": [5, 6, 7, 8, value]}

        partition.commit(at(4), pa.table({**columns, "sequenceNumber": range(5)}))

        assert database.execute("SELECT v FROM t WHERE k = 1 ORDER BY v") == [(5,), (6,), (8,)]

    @pytest.mark.parametrize("value", [9, -9], ids=["all taken", "one rejected"])
    def test_they_do_where_the_index_says_so(self, postgres: SinkDatabase, value: int) -> None:
        postgres.execute("CREATE TABLE t (k bigint UNIQUE NULLS NOT DISTINCT, v bigint CHECK (v > 0))")
        partition = postgres.sink(table="t", upsert_key="k").open(KEY, 1)

        partition.commit(at(2), pa.table({"k": [None, None, 1], "v": [5, 6, value], "sequenceNumber": range(3)}))

        assert postgres.execute("SELECT v FROM t WHERE k IS NULL") == [(6,)]

    def test_a_key_without_a_unique_index_is_said(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE plain (id bigint, name text)")
        partition = database.sink(table="plain", upsert_key="id").open(KEY, 1)

        with pytest.raises(SinkError, match="no unique index"):
            partition.commit(at(1), rows(1))

    def test_a_table_of_keys_alone_is_filled_without_repeats(self, database: SinkDatabase) -> None:
        database.execute("CREATE TABLE seen (id bigint PRIMARY KEY)")
        partition = database.sink(table="seen", upsert_key=["id"]).open(KEY, 1)

        partition.commit(at(1), pa.table({"id": [1, 2, 1]}))
        partition.commit(at(2), pa.table({"id": [2, 3]}))

        assert database.execute("SELECT id FROM seen ORDER BY id") == [(1,), (2,), (3,)]


class TestDeadLetters:
    def test_a_dead_letter_keeps_what_is_known(self, database: SinkDatabase) -> None:
        database.sink().open(KEY, 1).commit(at(2), dead_letters=[dead_letter(2)])

        (row,) = database.execute(
            'SELECT hub, consumer_group, partition_id, sequence_number, "offset", partition_key, body, properties, '
            "stage, attempts, state FROM hubline_dead_letter"
        )
        assert row == ("orders", "billing", "0", 2, "o2", "k", b"body", '{"a": "b"}', "handler", 3, "waiting")

    def test_without_bodies_pointers_are_kept(self, database: SinkDatabase) -> None:
        database.sink(keep_dead_letter_bodies=False).open(KEY, 1).commit(at(2), dead_letters=[dead_letter(2)])

        assert database.execute("SELECT body, properties FROM hubline_dead_letter") == [(None, None)]

    def test_no_text_is_too_hostile(self, database: SinkDatabase) -> None:
        hostile = dead_letter(
            1, ValueError("zero \x00 lone \ud800"), partition_key="k\x00", properties={"\x00": "\x00"}
        )

        database.sink().open(KEY, 1).commit(at(2), dead_letters=[hostile])

        assert database.dead_letters() == [(1, "handler", "ValueError", "zero \\x00 lone \\ud800")]

    def test_a_database_of_another_encoding_keeps_what_it_has_no_characters_for(self, postgres: SinkDatabase) -> None:
        postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        with closing(PostgresSinkDatabase(Secret(f"{postgres.url.rpartition('/')[0]}/latin"))) as latin:
            partition = latin.sink().open(KEY, 1)
            partition.commit(at(0), dead_letters=[dead_letter(0, ValueError("é"), partition_key="ä")])
            partition.commit(at(1), dead_letters=[dead_letter(1, ValueError("☃"), partition_key="☃")])

            assert [text for _, _, _, text in latin.dead_letters()] == ["é", "\\u2603"]
            assert partition.waiting_keys() == {"ä", "\\u2603"}
        postgres.execute("DROP DATABASE latin")

    def test_an_event_that_fails_again_has_only_its_newest_dead_letter(self, database: SinkDatabase) -> None:
        sink = database.sink()
        sink.open(KEY, 1).commit(at(2), dead_letters=[dead_letter(2)])
        database.execute("UPDATE hubline_checkpoint SET sequence_number = 1")
        database.execute(f"UPDATE hubline_dead_letter SET state = '{DeadLetterState.DISCARDED}'")

        sink.open(KEY, 1).commit(at(2), dead_letters=[dead_letter(2, TypeError("again"))])

        assert database.dead_letters() == [(2, "handler", "TypeError", "again")]
        assert database.execute("SELECT state FROM hubline_dead_letter") == [("waiting",)]

    def test_runaway_errors_are_cut(self, database: SinkDatabase) -> None:
        database.sink().open(KEY, 1).commit(at(2), dead_letters=[dead_letter(1, ValueError("x" * 10**6))])

        ((text,),) = database.execute("SELECT error_text FROM hubline_dead_letter")
        assert len(text) < 5_000


class TestConstruction:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"table": ""}, "table must have a name"),
            ({"table": "a."}, "table must have a name"),
            ({"table": ".a"}, "schema must have a name"),
            ({"table": "x" * 64}, "longer than 63"),
            ({"table": "a\x00b"}, "no database takes"),
            ({"table": "hubline_checkpoint"}, "are hubline's own"),
            ({"table": "public.HUBLINE_member"}, "are hubline's own"),
            ({"upsert_key": "id"}, "Name one"),
            ({"create_table": True}, "Name one"),
            ({"table": "t", "upsert_key": [""]}, "column must have a name"),
            ({"max_connections": 0}, "max_connections must be a whole number, 1 or more, not 0"),
        ],
    )
    def test_what_cannot_work_is_refused_at_once(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            SqlSink("sqlite:///x.db", **options)  # type: ignore[arg-type]

    def test_a_sink_is_a_sql_database(self) -> None:
        with pytest.raises(ConfigError, match="SQL database"):
            SqlSink("memory:")

    def test_no_secret_is_shown(self) -> None:
        assert "s3cret" not in repr(SqlSink("postgresql://u:s3cret@h/d", table="t"))
