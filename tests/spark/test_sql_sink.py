"""Streams into SQL, exactly once: rows, dead letters and checkpoints, whatever Spark runs again."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.functions import broadcast, expr, lit, window
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, YearMonthIntervalType

from hubline import new_events
from hubline.errors import ConfigError, SinkError
from hubline.event_ids import ID_PROPERTY
from hubline.hubs.local import LocalHub
from hubline.model.keys import GroupKey
from hubline.secrets import Secret
from hubline.sinks import DropDuplicates, SqlSink
from hubline.spark import SqlBatchWriter, parse_json
from hubline.spark.compatibility import HAS_READ_LIMITS
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.source.offsets import Entry
from hubline.spark.sql_sink.batch_commit import BatchCommit
from hubline.spark.sql_sink.batch_target import BatchTarget, Written
from hubline.spark.sql_sink.partition_commit import PartitionCommit
from hubline.spark.sql_sink.range_rules import RangeRules
from hubline.spark.sql_sink.sink import CommitBy, columns_to_write
from tests.spark.hubs import TestHub

FIELDS = "device string, celsius double"


@pytest.fixture
def hub(tmp_path: Path) -> TestHub:
    return TestHub.local(tmp_path / "hubs", "telemetry")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
    connection.execute(
        "CREATE TABLE readings (device TEXT, celsius REAL CHECK (celsius < 100), sequenceNumber INTEGER)"
    )
    yield connection
    connection.close()


def bodies(count: int) -> list[bytes]:
    return [json.dumps({"device": f"d{number}", "celsius": number % 50}).encode() for number in range(count)]


def send(hub: TestHub, bodies: Sequence[bytes | dict[str, object]], partition: str | None = None) -> None:
    async def sent() -> None:
        opened = LocalHub(hub.root, hub.name)
        sender = await opened.open_sender()
        await sender.send(new_events(bodies), partition=partition)
        await opened.close()

    asyncio.run(sent())


def published(numbers: list[int], body: bytes | None = None) -> list[dict[str, object]]:
    """As an earlier stage sends them: each with the id of the event that it came from."""
    return [
        {"body": body or bodies(number + 1)[-1], "properties": {ID_PROPERTY: f"ns/first@17/0/{number}/0"}}
        for number in numbers
    ]


def run_once(rows: DataFrame, sink: SqlBatchWriter, folder: Path) -> None:
    writing = sink.write_stream(rows, checkpoint_location=str(folder))
    writing.trigger(availableNow=True).start().awaitTermination()


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(spark: SparkSession, hub: TestHub, start: str = "earliest") -> DataFrame:
    return spark.readStream.format("eventhubs").options(hub=hub.address, startingPosition=start).load()


def renumbered(events: DataFrame, number: int | None) -> DataFrame:
    """By a function over whole rows, which nobody looks into."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            place = batch.schema.get_field_index("sequenceNumber")
            yield batch.set_column(place, "sequenceNumber", pa.array([number] * len(batch), pa.int64()))

    return events.mapInArrow(rows, events.schema)


def devices(database: sqlite3.Connection) -> list[str]:
    return sorted(device for (device,) in database.execute("SELECT device FROM readings"))


def checkpoints(database: sqlite3.Connection) -> dict[str, int]:
    return dict(database.execute("SELECT partition_id, sequence_number FROM hubline_checkpoint").fetchall())


@pytest.fixture
def sink(hub: TestHub, database: sqlite3.Connection, tmp_path: Path) -> SqlBatchWriter:
    return SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="readings")


def test_rows_and_dead_letters_are_written_once_though_spark_runs_the_batch_again(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    hot = b'{"device": "hot", "celsius": 120}'
    send(hub, [*bodies(40), b"not json", b"\xff\xfe", hot])
    run_once(parse_json(read(spark, hub), FIELDS), sink, tmp_path / "folder")
    (tmp_path / "folder" / "commits" / "0").unlink()  # as if the driver had died before it wrote this
    run_once(parse_json(read(spark, hub), FIELDS), sink, tmp_path / "folder")
    assert devices(database) == sorted(f"d{number}" for number in range(40))
    dead_letters = database.execute("SELECT stage, body FROM hubline_dead_letter ORDER BY stage, body").fetchall()
    assert dead_letters == [("query", b"not json"), ("query", b"\xff\xfe"), ("sink", hot)]


def test_only_what_the_database_does_not_have_is_written(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    """The checkpoint was moved back to before two dead letters: one event succeeds now, and one fails again."""
    send(hub, [*bodies(8), b"not json", bodies(10)[9]], partition="1")
    events = parse_json(read(spark, hub), FIELDS)
    run_once(events, sink, tmp_path / "one")
    database.execute("UPDATE hubline_dead_letter SET sequence_number = 7")  # as if that one had failed
    assert checkpoints(database) == {"1": 9}
    assert database.execute('SELECT "offset" FROM hubline_checkpoint').fetchall() == [(hub.events()["1"][9].offset,)]
    database.execute("UPDATE hubline_checkpoint SET sequence_number = 6")
    database.execute("DELETE FROM readings WHERE sequenceNumber > 6")
    run_once(events, sink, tmp_path / "other")
    assert devices(database) == sorted(f"d{number}" for number in range(10) if number != 8)
    dead_letters = database.execute("SELECT sequence_number, state FROM hubline_dead_letter ORDER BY 1").fetchall()
    assert dead_letters == [(7, "redriven"), (8, "waiting")]


def test_a_partition_whose_rows_were_all_left_out_moves_on_too(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    send(hub, bodies(3), partition="0")
    send(hub, bodies(5), partition="2")
    wanted = spark.createDataFrame([("0",)], "partition string")
    run_once(parse_json(read(spark, hub), FIELDS).join(broadcast(wanted), "partition"), sink, tmp_path / "folder")
    assert (len(devices(database)), checkpoints(database)) == (3, {"0": 2, "2": 4})


def test_with_the_store_in_the_same_database_a_lost_folder_costs_nothing(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    events = spark.readStream.format("eventhubs").options(
        hub=hub.address, startingPosition="earliest", store=f"sqlite:///{tmp_path}/results.db", loadBalancing="greedy"
    )
    readings = parse_json(events.load(), FIELDS).where(
        "celsius != 9"
    )  # the last event of the first run, and its offset
    send(hub, bodies(10), partition="1")
    run_once(readings, sink, tmp_path / "one")
    eventually(lambda: database.execute("SELECT 1 FROM hubline_ownership WHERE owner_id != ''").fetchone() is None)
    send(hub, bodies(12)[10:], partition="1")
    run_once(readings, sink, tmp_path / "other")
    assert devices(database) == sorted(f"d{number}" for number in range(12) if number != 9)


def device_target(sink: SqlSink, entries: Mapping[str, Entry]) -> BatchTarget:
    return BatchTarget(sink, ["device"], GroupKey("namespace", "hub", "group"), RangeRules(entries, {}))


def test_partitions_of_a_task_are_committed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    database = SqlSink("postgresql://host/name", table="readings")
    commits = PartitionCommit(device_target(database, {}), ["partition", "sequenceNumber"])
    all_begun = threading.Barrier(3)

    def commit(_: PartitionCommit, partition: str, rows: pa.Table) -> Written:
        all_begun.wait(timeout=60)
        return Written(rows=len(rows) if partition != "1" else 0)

    monkeypatch.setattr(PartitionCommit, "commit", commit)
    handed = [pa.record_batch({"partition": [partition] * 10, "sequenceNumber": range(10)}) for partition in "012"]

    done = [row for answer in commits(handed) for row in answer.to_pylist()]

    assert [(row["partition"], row["rows"]) for row in done] == [("0", 10), ("1", 0), ("2", 10)]


def test_rows_that_come_late_out_of_state_are_no_repeats(database: sqlite3.Connection, tmp_path: Path) -> None:
    into = SqlSink(f"sqlite:///{tmp_path}/results.db", table="readings", drop_duplicates="ordered")

    def commit(partition: str, entry: Entry, *places: tuple[str, int]) -> None:
        columns = {
            "partition": [of for of, _ in places],
            "sequenceNumber": [number for _, number in places],
            "device": [f"{of}/{number}" for of, number in places],
        }
        ids = [[(ID_PROPERTY, f"ns/first@17/{of}/{number}/0")] for of, number in places]
        rows = pa.table({**columns, "properties": pa.array(ids, pa.map_(pa.string(), pa.string()))})
        BatchCommit(device_target(into, {partition: entry})).commit_all([partition], rows)

    commit("1", Entry(0, 3), ("1", 2))
    commit("0", Entry(0, 3), ("0", 2))
    commit("0", Entry(3, 5), ("0", 0), ("0", 3), ("0", 4), ("1", 0))
    commit("0", Entry(5, 6), ("0", 5))
    into.close()

    assert devices(database) == ["0/0", "0/2", "0/3", "0/4", "0/5", "1/0", "1/2"]


def test_a_table_that_gets_a_column_fails_no_batch_and_one_that_needs_a_value_does(postgres_database: Secret) -> None:
    into = SqlSink(postgres_database.reveal(), table="readings")

    def commit(number: int) -> Written:
        rows = pa.table({"device": [f"d{number}"], "sequenceNumber": [number]})
        entries = {"0": Entry(number, number + 1)}
        return PartitionCommit(device_target(into, entries), rows.column_names).commit("0", rows)

    with psycopg.connect(postgres_database.reveal(), autocommit=True) as connection:
        connection.execute("CREATE TABLE readings (device text)")
        assert commit(0) == Written(rows=1)
        connection.execute("ALTER TABLE readings ADD COLUMN place text")
        assert commit(1) == Written(rows=1)
        connection.execute("UPDATE readings SET place = 'here'")
        connection.execute("ALTER TABLE readings ALTER COLUMN place SET NOT NULL")
        with pytest.raises(SinkError, match="'place' of the table must be given"):
            commit(2)
        assert connection.execute("SELECT device FROM readings ORDER BY device").fetchall() == [("d0",), ("d1",)]
        assert connection.execute("SELECT count(*) FROM hubline_dead_letter").fetchall() == [(0,)]
    into.close()


def test_what_a_commit_refuses_is_traced_in_the_same_task(postgres_database: Secret) -> None:
    """The next attempt of a task is another process, which would know no more than this one did."""
    into = SqlSink(postgres_database.reveal(), table="readings")
    with psycopg.connect(postgres_database.reveal(), autocommit=True) as connection:
        connection.execute("CREATE TABLE parents (id text PRIMARY KEY)")
        connection.execute("INSERT INTO parents VALUES ('d0')")
        connection.execute("CREATE TABLE copies (id text REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("CREATE TABLE readings (device text)")
        connection.execute(
            "CREATE FUNCTION copy() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO copies VALUES (new.device); RETURN new; END $$"
        )
        connection.execute("CREATE TRIGGER copy AFTER INSERT ON readings FOR EACH ROW EXECUTE FUNCTION copy()")
        rows = pa.table({"partition": ["0", "0"], "device": ["d0", "d1"], "sequenceNumber": [0, 1]})
        commits = PartitionCommit(device_target(into, {"0": Entry(0, 2)}), rows.column_names)

        assert commits.commit("0", rows) == Written(rows=1, dead_letters=1)
        assert connection.execute("SELECT device FROM readings").fetchall() == [("d0",)]
    into.close()


def test_a_batch_that_would_leave_a_gap_is_refused(
    spark: SparkSession, database: sqlite3.Connection, tmp_path: Path
) -> None:
    hub = TestHub.local(tmp_path / "hubs", "single", partitions=1)
    sink = SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="readings")
    send(hub, bodies(4))
    run_once(parse_json(read(spark, hub), FIELDS), sink, tmp_path / "one")
    send(hub, bodies(4))
    later = parse_json(read(spark, hub, start="sequence:5"), FIELDS)
    with pytest.raises(StreamingQueryException, match=r"up to sequence number 3[^\n]* starts at \d"):
        run_once(later, sink, tmp_path / "other")
    assert len(devices(database)) == 4


def test_rows_that_may_leave_their_task_are_committed_by_the_driver_and_once(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    """The first task that commits a partition moves it: what others have of it would be dropped as duplicates."""
    send(hub, bodies(4), partition="0")
    events = parse_json(read(spark, hub), FIELDS)
    split = spark.readStream.format("eventhubs").options(
        hub=hub.address, startingPosition="earliest", maxRecordsPerPartition=2
    )
    static = spark.range(0, 6, 1, 3).selectExpr("cast(id as int) as other")
    moved = {
        "repartition": (events.repartition(2), 1),
        "halves": (parse_json(split.load(), FIELDS), 1),
        "sent": (static.join(broadcast(events), expr("other >= 0")).drop("other"), 6),
        "state": (events.coalesce(1).dropDuplicates(["device"]), 1),
        "line break": (events.withColumn("device", F.regexp_replace("device", "a\n+- Project", "")), 1),
    }
    for name, (rows, copies) in moved.items():
        for _ in range(2):
            run_once(rows, sink, tmp_path / name)
            (tmp_path / name / "commits" / "0").unlink()  # as if the driver had died before it wrote this
        assert devices(database) == sorted(copies * ["d0", "d1", "d2", "d3"]), name
        database.execute("DELETE FROM hubline_checkpoint")
        database.execute("DELETE FROM readings")

    run_once(events.crossJoin(broadcast(static)).drop("other"), sink, tmp_path / "static")  # which is sent to the rows
    assert len(devices(database)) == 24
    assert database.execute("SELECT \"offset\" != '' FROM hubline_checkpoint").fetchall() == [(1,)]  # by a task


def test_queries_that_drop_the_place_of_their_rows_are_refused_before_they_start(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    send(hub, bodies(4))
    events = parse_json(read(spark, hub), FIELDS)
    with pytest.raises(ConfigError, match="dropped the column 'sequenceNumber'"):
        run_once(events.drop("sequenceNumber"), sink, tmp_path / "drops")
    with pytest.raises(ConfigError, match="'body' and 'Body', which Spark cannot distinguish"):
        run_once(events.selectExpr("*", "1 as Body"), sink, tmp_path / "spelling")
    with pytest.raises(ConfigError, match="reads hubs 2 times"):
        run_once(events.union(events), sink, tmp_path / "twice")
    with pytest.raises(StreamingQueryException, match="a row has no partition or no sequenceNumber"):
        run_once(renumbered(events, None), sink, tmp_path / "nulls")
    assert devices(database) == []


def test_a_checkpoint_location_that_is_not_the_querys_or_cannot_be_read_is_named(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    send(hub, bodies(4))
    rows = parse_json(read(spark, hub), FIELDS)
    run_once(rows, sink, tmp_path / "one")
    for name, says in (("one", "is another query's: batch 0 is committed"), ("none", "offsets/0: it does not exist")):
        writing = sink.write_stream(rows, checkpoint_location=str(tmp_path / name)).trigger(availableNow=True)
        with pytest.raises(StreamingQueryException, match=rf"checkpoint location {tmp_path / name} .*{says}"):
            writing.option("checkpointLocation", str(tmp_path / "other")).start().awaitTermination()
    assert len(devices(database)) == 4


def test_columns_of_the_querys_own_do_not_pass_for_those_of_events(
    spark: SparkSession, hub: TestHub, sink: SqlBatchWriter, database: sqlite3.Connection, tmp_path: Path
) -> None:
    send(hub, bodies(4), partition="0")
    events = parse_json(read(spark, hub), FIELDS)
    numbered = {"sequenceNumber": lit(1).cast("long")}
    static = broadcast(spark.createDataFrame([("0",)], "partition string"))
    for number, wrong in enumerate([events.withColumns(numbered), events.drop("partition").join(static)]):
        with pytest.raises(ConfigError, match=r"the query computes the column '\w+'"):
            sink.check_query(wrong)
        with pytest.raises(ConfigError, match=r"the query computes the column '\w+'"):
            run_once(wrong, sink, tmp_path / str(number))
    with pytest.raises(StreamingQueryException, match=r"row is of event 100 of partition 0, .* batch reads 0 to 3"):
        run_once(renumbered(events, 100), sink, tmp_path / "rows")
    assert devices(database) == []
    assert checkpoints(database) == {}

    # By an offset nothing is known but where to read on, which the sequence number tells as well. What fills nulls, and
    # there is none, makes nothing.
    own = events.withColumn("offset", lit("12.5")).fillna({"partition": "none", "sequenceNumber": 0})
    run_once(own.withColumn("sequenceNumber", own["sequenceNumber"].cast("long")), sink, tmp_path / "offset")
    assert devices(database) == ["d0", "d1", "d2", "d3"]
    assert database.execute('SELECT sequence_number, "offset" FROM hubline_checkpoint').fetchall() == [(3, "")]


@pytest.mark.parametrize("commit_by", ["partition", "batch"])
def test_columns_are_taken_whatever_their_names(
    spark: SparkSession, hub: TestHub, database: sqlite3.Connection, tmp_path: Path, commit_by: CommitBy
) -> None:
    fields = StructType([StructField(name, StringType()) for name in ("a.b", "Order", "my `col`", "größe", 'q"%s{}')])
    row = {name: name.upper() for name in fields.names}
    send(hub, [json.dumps(row).encode(), b"no json"], partition="1")
    sink = SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="named", create_table=True, commit_by=commit_by)
    events = read(spark, hub).withColumn("c.d", lit(1))
    run_once(parse_json(events, fields), sink, tmp_path / "folder")

    found = database.execute("SELECT * FROM named")
    assert [column[0] for column in found.description] == ["c.d", *fields.names]
    assert found.fetchall() == [(1, *row.values())]
    assert database.execute("SELECT body FROM hubline_dead_letter").fetchall() == [(b"no json",)]


def test_dead_letters_of_rows_that_have_no_event_are_refused(spark: SparkSession, hub: TestHub, tmp_path: Path) -> None:
    send(hub, [b"no json"])
    sink = SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="readings", commit_by="batch")
    events = renumbered(parse_json(read(spark, hub), FIELDS), None)
    with pytest.raises(StreamingQueryException, match="need the columns partition and sequenceNumber"):
        run_once(events, sink, tmp_path / "folder")


def test_windows_that_are_over_are_written_without_further_events_and_once(
    spark: SparkSession, hub: TestHub, tmp_path: Path
) -> None:
    sink = SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="counts", create_table=True, commit_by="batch")
    folder = tmp_path / "folder"

    def sent(*seconds: int) -> None:
        send(hub, [json.dumps({"at": f"2026-11-16T12:00:{each:02d}Z"}).encode() for each in seconds], partition="0")

    def run() -> list[int]:
        timed = parse_json(read(spark, hub), "at timestamp").withWatermark("at", "0 seconds")
        counted = timed.groupBy(window("at", "10 seconds").alias("w")).count().select("count")
        # Not by availableNow, for which Spark 4.0 and 4.1 run no batch without events.
        query = sink.write_stream(counted, checkpoint_location=str(folder)).start()
        query.processAllAvailable()
        query.stop()
        with sqlite3.connect(tmp_path / "results.db") as database:
            counts = [count for (count,) in database.execute("SELECT count FROM counts ORDER BY count")]
        database.close()
        return counts

    sent(1, 2, 3, 11, 12, 25)
    assert run() == [2, 3]  # in the second batch, which has no event; the last window is not over
    (folder / "commits" / "1").unlink()  # as if the driver had died before it wrote this
    assert run() == [2, 3]
    sent(45)
    assert run() == [1, 2, 3]
    assert sorted(path.name for path in (folder / "commits").iterdir() if path.name.isdigit()) == ["0", "1", "2", "3"]
    folder = tmp_path / "another"  # whose state would give the windows once more
    with pytest.raises(StreamingQueryException, match="this query with another checkpoint location"):
        run()


def test_any_query_is_written_by_batch_with_its_state_and_once(
    spark: SparkSession, hub: TestHub, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE counts (device TEXT PRIMARY KEY, count INTEGER)")
    sink = SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="counts", upsert_key="device", commit_by="batch")

    def run() -> None:
        counts = parse_json(read(spark, hub), FIELDS).groupBy("device").count()
        writer = sink.write_stream(counts, checkpoint_location=str(tmp_path / "folder")).outputMode("update")
        writer.trigger(availableNow=True).start().awaitTermination()

    send(hub, bodies(3), partition="0")
    send(hub, bodies(5), partition="2")
    run()
    (tmp_path / "folder" / "commits" / "0").unlink()
    send(hub, bodies(1), partition="2")
    run()
    if not HAS_READ_LIMITS:  # before 4.2, repeating the batch is all that a run for availableNow does
        run()
    counts = dict(database.execute("SELECT device, count FROM counts").fetchall())
    assert counts == {"d0": 3, "d1": 2, "d2": 2, "d3": 1, "d4": 1}
    assert checkpoints(database) == {"0": 2, "2": 5, "state": 1}  # the last is the number of the query's batch
    shutil.rmtree(tmp_path / "folder")
    run()  # counted again from the beginning, which replaces what was there
    assert dict(database.execute("SELECT device, count FROM counts").fetchall()) == counts


def test_events_of_several_partitions_that_a_batch_cannot_take_are_dead_letters(
    spark: SparkSession, hub: TestHub, database: sqlite3.Connection, tmp_path: Path
) -> None:
    sink = SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="readings", commit_by="batch")
    hot = b'{"device": "hot", "celsius": 120}'
    send(hub, [*bodies(2), hot], partition="0")
    send(hub, [*bodies(2), b"cold"], partition="1")
    run_once(parse_json(read(spark, hub), FIELDS).repartition(3), sink, tmp_path / "folder")
    assert devices(database) == ["d0", "d0", "d1", "d1"]
    dead_letters = database.execute("SELECT partition_id, sequence_number, stage, body FROM hubline_dead_letter")
    assert sorted(dead_letters) == [("0", 2, "sink", hot), ("1", 2, "query", b"cold")]


@pytest.mark.parametrize(("how", "commit_by"), [("ordered", "partition"), ("any_order", "batch")])
def test_events_that_an_earlier_stage_published_twice_are_written_once_and_counted(
    spark: SparkSession,
    hub: TestHub,
    database: sqlite3.Connection,
    tmp_path: Path,
    how: DropDuplicates,
    commit_by: CommitBy,
) -> None:
    """Two rows an event: what is left out is an event with all of its rows."""
    reported: list[tuple[int, Written]] = []
    sink = SqlBatchWriter(
        f"sqlite:///{tmp_path}/results.db",
        table="readings",
        commit_by=commit_by,
        drop_duplicates=how,
        on_commit=lambda number, written: reported.append((number, written)),
    )
    twice = parse_json(read(spark, hub), FIELDS).crossJoin(broadcast(spark.range(2).drop("id")))
    send(hub, published([0, 1, 2, 1, 3]), partition="1")
    run_once(twice, sink, tmp_path / "folder")
    send(hub, [*published([2, 3]), *published([4], body=b"not json"), b'{"device": "no id"}'], partition="1")
    run_once(twice, sink, tmp_path / "folder")
    run_once(twice, sink, tmp_path / "folder")
    assert devices(database) == sorted(["d0", "d1", "d2", "d3", "no id"] * 2)
    assert reported == [(0, Written(rows=8, duplicates=1)), (1, Written(rows=2, dead_letters=1, duplicates=2))]


def test_a_query_is_compared_with_the_table_before_it_starts(sink: SqlBatchWriter, tmp_path: Path) -> None:
    fields = [StructField("device", StringType()), StructField("celsius", DoubleType())]
    place = [SOURCE_SCHEMA["partition"], SOURCE_SCHEMA["sequenceNumber"]]
    readings = StructType([*SOURCE_SCHEMA, *fields, StructField("_error", StringType())])
    assert sink.check(readings) is None
    with pytest.raises(SinkError, match="no column 'unknown'"):
        sink.check(StructType([*readings, StructField("unknown", StringType())]))
    with pytest.raises(ConfigError, match="two columns 'device'"):
        sink.check(StructType([*readings, fields[0]]))
    with pytest.raises(ConfigError, match="'age' is interval year, which no table takes"):
        sink.check(StructType([*readings, StructField("age", YearMonthIntervalType(0, 0))]))
    with pytest.raises(ConfigError, match="dropped the column 'sequenceNumber'"):
        sink.check(StructType([place[0], *fields]))
    url = f"sqlite:///{tmp_path}/results.db"
    with pytest.raises(ConfigError, match="dropped the column 'properties'"):
        SqlBatchWriter(url, table="readings", drop_duplicates="ordered", commit_by="batch").check(
            StructType([*place, *fields])
        )
    made = SqlBatchWriter(url, table="made", create_table=True).check(readings)
    assert made == 'CREATE TABLE IF NOT EXISTS "made" ("device" TEXT, "celsius" REAL)'


def test_columns_that_a_run_adds_are_written_for_as_long_as_the_table_has_them(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    into = SqlSink(f"sqlite:///{tmp_path}/results.db", table="readings")
    database.execute("ALTER TABLE readings ADD COLUMN eventId TEXT")
    names = ["device", "eventId", "offset", "sequenceNumber", "_error"]

    assert columns_to_write(into, names, ["eventId"]) == ["device", "eventId", "sequenceNumber"]
    database.execute("ALTER TABLE readings DROP COLUMN eventId")
    database.execute("ALTER TABLE readings ADD COLUMN offset TEXT")
    assert columns_to_write(into, names, ["eventId"]) == ["device", "offset", "sequenceNumber"]
    assert columns_to_write(into, names) == ["device", "eventId", "offset", "sequenceNumber"]  # the query's own
    into.close()


def test_fields_are_compared_with_the_columns_that_are_there(spark: SparkSession) -> None:
    events = spark.createDataFrame([(b"{}", "0")], "body binary, partition string")
    with pytest.raises(ConfigError, match="already have a column 'partition'"):
        parse_json(events, "partition string")
    with pytest.raises(ConfigError, match="has no fields to read"):
        parse_json(events, StructType([]))


def test_bodies_are_parsed_with_a_reason_for_each_that_cannot_be(spark: SparkSession) -> None:
    deep = b"[" * 1_000_000
    rows = [
        b'{"device": "a", "celsius": 1.5}',
        b'{"device": 7}',
        b'{"celsius": "x"}',
        b"",
        b"null",
        None,
        b"\xff",
        b"{'device': 'a'}",
        deep,
        b'[{"device": "a"}]',
        # Of each of these Spark would take the first object, and not look at the rest.
        b'{"device": "a"}\n{"device": "b"}',
        b'{"device": "a"},{"device": "b"}',
        b'{"device": "a"} and more',
        b'{"device": "a"}} and more',
        b'{"device": "a"},"x":1',
        b'{"device": "a"},"end":true,"bodies":[{"device":"b"}]',
        b"",
        b"[]",
    ]
    events = spark.createDataFrame([(body,) for body in rows], "body binary")
    parsed = parse_json(events, FIELDS).select("device", "celsius", "_error").collect()
    assert [(row.device, row.celsius) for row in parsed[:2]] == [("a", 1.5), ("7", None)]
    assert [row["_error"] is None for row in parsed] == [True, True, *[False] * (len(rows) - 2)]
    missing = parse_json(events.limit(2), FIELDS, required=True).select("_error").collect()
    assert [row["_error"] for row in missing] == [None, "the field celsius is missing"]
