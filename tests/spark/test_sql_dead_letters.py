"""Dead letters of streams into SQL: they have their whole events, although tasks get rows without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's users have it)

from hubline.dead_letters.repository import DeadLetterRepository
from hubline.errors import ConfigError
from hubline.event_ids import ID_PROPERTY
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection
from hubline.secrets import Secret
from hubline.sinks import DropDuplicates
from hubline.spark import SqlBatchWriter, parse_json
from hubline.spark.session_settings import temporary_settings
from hubline.spark.sql_sink.batch_target import Written
from hubline.spark.sql_sink.partition_commit import PartitionCommit
from hubline.spark.sql_sink.sink import CommitBy
from tests.sinks.conftest import PostgresSinkDatabase, SinkDatabase, SqliteSinkDatabase
from tests.spark.hubs import TestHub
from tests.spark.test_sql_sink import FIELDS, bodies, read, run_once, send

HOT = b'{"device": "hot", "celsius": 120}'
COLUMNS = "device TEXT, celsius REAL CHECK (celsius < 100)"


@pytest.fixture
def hub(tmp_path: Path) -> TestHub:
    return TestHub.local(tmp_path / "hubs", "telemetry")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteSinkDatabase]:
    with closing(SqliteSinkDatabase(tmp_path / "results.db")) as found:
        found.execute(f"CREATE TABLE readings ({COLUMNS})")
        yield found


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run of a batch in tasks had the events beside its rows."""
    runs: list[bool] = []
    in_tasks = PartitionCommit.in_tasks

    def noted(commits: PartitionCommit, frame: DataFrame) -> tuple[dict[str, Written], list[str]]:
        runs.append(commits.has_events)
        return in_tasks(commits, frame)

    monkeypatch.setattr(PartitionCommit, "in_tasks", noted)
    return runs


def whole(body: bytes, number: int) -> dict[str, object]:
    """An event with all that an event can have, so that a test sees what a dead letter lacks."""
    return {"body": body, "partitionKey": "ann", "properties": {"room": "7", ID_PROPERTY: f"ns/first@17/0/{number}/0"}}


def dead_letters(database: SinkDatabase) -> list[DeadLetter]:
    async def found() -> list[DeadLetter]:
        repository = DeadLetterRepository(database.url)
        page = await repository.page(DeadLetterSelection())
        await repository.close()
        return page

    return asyncio.run(found())


def devices(database: SinkDatabase) -> list[str]:
    return [device for (device,) in database.execute("SELECT device FROM readings ORDER BY device")]


@pytest.mark.parametrize("how", ["off", "ordered"])
def test_a_dead_letter_has_its_whole_event_and_everything_else_is_written_once(
    spark: SparkSession, hub: TestHub, postgres_database: Secret, tmp_path: Path, how: DropDuplicates
) -> None:
    """The database refuses one, and the query another; beside them, and in other partitions, are good ones."""
    database = PostgresSinkDatabase(postgres_database)
    database.execute(f"CREATE TABLE readings ({COLUMNS}, body BYTEA)")
    reported: list[Written] = []
    sink = SqlBatchWriter(
        database.url, table="readings", drop_duplicates=how, on_commit=lambda _, written: reported.append(written)
    )
    good = bodies(6)
    for partition in ("0", "1", "2", "3"):
        send(hub, [good[int(partition)]], partition=partition)
    send(hub, [whole(body, number) for number, body in enumerate([good[4], HOT, b"no json", good[5]])])
    run_once(parse_json(read(spark, hub), FIELDS), sink, tmp_path / "folder")
    assert database.execute("SELECT device, body FROM readings ORDER BY device") == [
        (f"d{number}", body) for number, body in enumerate(good)
    ]
    assert reported == [Written(rows=6, dead_letters=2)]
    found = {each.event.body: each for each in dead_letters(database)}
    assert {body: each.stage for body, each in found.items()} == {HOT: "sink", b"no json": "query"}
    assert {event.body: event for event in hub.flat() if event.body in found} == {
        body: each.event for body, each in found.items()
    }


def test_a_driver_that_dies_between_the_two_runs_leaves_whole_partitions_and_the_next_one_does_the_rest(
    spark: SparkSession, hub: TestHub, sqlite: SqliteSinkDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Written] = []
    sink = SqlBatchWriter(sqlite.url, table="readings", on_commit=lambda _, written: reported.append(written))
    events = parse_json(read(spark, hub), FIELDS)
    send(hub, bodies(3), partition="0")
    send(hub, [*bodies(5)[3:], HOT], partition="1")
    in_tasks = PartitionCommit.in_tasks

    def dying(commits: PartitionCommit, frame: DataFrame) -> tuple[dict[str, Written], list[str]]:
        if commits.has_events:
            raise RuntimeError("killed")
        return in_tasks(commits, frame)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionCommit, "in_tasks", dying)
        with pytest.raises(StreamingQueryException, match="killed"):
            run_once(events, sink, tmp_path / "folder")
    assert devices(sqlite) == ["d0", "d1", "d2"]
    assert sqlite.execute(
        "SELECT partition_id, sequence_number FROM hubline_checkpoint WHERE sequence_number >= 0"
    ) == [("0", 2)]
    run_once(events, sink, tmp_path / "folder")
    assert devices(sqlite) == ["d0", "d1", "d2", "d3", "d4"]
    assert [each.event.body for each in dead_letters(sqlite)] == [HOT]
    assert reported == [Written(rows=2, dead_letters=1)]


def test_events_are_handed_over_at_once_after_a_batch_with_dead_letters(
    spark: SparkSession, hub: TestHub, sqlite: SqliteSinkDatabase, tmp_path: Path, handed_over: list[bool]
) -> None:
    sink = SqlBatchWriter(sqlite.url, table="readings")
    events = parse_json(read(spark, hub), FIELDS)
    runs = []
    for sent in ([*bodies(1), HOT], bodies(2)[1:], bodies(3)[2:]):
        send(hub, sent, partition="1")
        run_once(events, sink, tmp_path / "folder")
        runs.append(handed_over.copy())
        handed_over.clear()
    assert runs == [[False, True], [True], [False]]
    assert devices(sqlite) == ["d0", "d1", "d2"]


def test_a_query_that_kept_nothing_of_its_events_is_run_once(
    spark: SparkSession, hub: TestHub, sqlite: SqliteSinkDatabase, tmp_path: Path, handed_over: list[bool]
) -> None:
    events = parse_json(read(spark, hub), FIELDS).select("partition", "sequenceNumber", "device", "celsius")
    send(hub, [*bodies(1), HOT], partition="1")
    run_once(events, SqlBatchWriter(sqlite.url, table="readings"), tmp_path / "folder")
    assert handed_over == [True]
    assert [(each.event.sequence_number, each.is_body_kept) for each in dead_letters(sqlite)] == [(1, False)]


def test_a_stream_without_the_columns_that_a_stage_does_not_need_is_written_and_its_dead_letters_lack_them(
    spark: SparkSession, hub: TestHub, sqlite: SqliteSinkDatabase, tmp_path: Path, handed_over: list[bool]
) -> None:
    source = spark.readStream.format("eventhubs").options(hub=hub.address, startingPosition="earliest")
    events = source.schema("body binary, partition string, sequenceNumber long").load()
    send(hub, [*bodies(1), whole(HOT, 1)], partition="1")
    run_once(parse_json(events, FIELDS), SqlBatchWriter(sqlite.url, table="readings"), tmp_path / "folder")
    assert handed_over == [False, True]
    assert devices(sqlite) == ["d0"]
    (dead_letter,) = dead_letters(sqlite)
    event = dead_letter.event
    assert (event.body, event.partition_key, dict(event.properties)) == (HOT, None, {})


@pytest.mark.parametrize("commit_by", ["partition", "batch"])
def test_dead_letters_are_written_without_the_columns_that_the_query_replaced(
    spark: SparkSession, hub: TestHub, sqlite: SqliteSinkDatabase, tmp_path: Path, commit_by: CommitBy
) -> None:
    """Text that is not UTF-8 is rejected by the database; and columns are JSON and text, under an event's names."""
    sqlite.execute('CREATE TABLE texts (text TEXT, properties TEXT, "enqueuedTime" TEXT)')
    send(hub, [whole(body, number) for number, body in enumerate([b"good", b"\xff\xfe", b"bad \xff"])])
    events = read(spark, hub).selectExpr(
        "* except (properties, enqueuedTime)",
        "cast(body as string) as text",
        "to_json(properties) as properties",
        "cast(enqueuedTime as string) as enqueuedTime",
        "if(body = X'62616420FF', concat('it is ', cast(body as string)), null) as _error",
    )
    run_once(events, SqlBatchWriter(sqlite.url, table="texts", commit_by=commit_by), tmp_path / "folder")

    assert [text for (text,) in sqlite.execute("SELECT text FROM texts")] == ["good"]
    found = {each.event.body: each for each in dead_letters(sqlite)}
    assert found.keys() == {b"\xff\xfe", b"bad \xff"}
    assert found[b"bad \xff"].error_text == "it is bad \N{REPLACEMENT CHARACTER}"
    assert {each.event.partition_key for each in found.values()} == {"ann"}
    assert {len(each.event.properties) for each in found.values()} == {0}


@pytest.mark.parametrize("commit_by", ["partition", "batch"])
@pytest.mark.parametrize(
    ("made", "properties", "time"),
    [
        ("map('a', 1) as properties", {}, True),
        ("map(1, 'a') as properties", {}, True),
        ("map(cast(X'61FF' as string), cast(X'62FF' as string)) as properties", {"a\ufffd": "b\ufffd"}, True),
        ("map('a', 'b', 'c', cast(null as string)) as properties", {"a": "b"}, True),
        ("cast(enqueuedTime as timestamp_ntz) as enqueuedTime", {"room": "7"}, False),
        ("timestamp'99999-01-01' as enqueuedTime", {"room": "7"}, False),
    ],
)
def test_columns_that_a_query_names_as_an_events_stop_no_dead_letter(
    spark: SparkSession, hub: TestHub, sqlite: SqliteSinkDatabase, tmp_path: Path,
    commit_by: CommitBy, made: str, properties: dict[str, str], time: bool,
) -> None:  # fmt: skip
    send(hub, [*bodies(1), {"body": b"bad", "partitionKey": "ann", "properties": {"room": "7"}}], partition="1")
    name = made.rpartition(" ")[2]
    events = parse_json(read(spark, hub), FIELDS).selectExpr(f"* except ({name})", made)
    run_once(events, SqlBatchWriter(sqlite.url, table="readings", commit_by=commit_by), tmp_path / "folder")

    assert devices(sqlite) == ["d0"]
    (dead_letter,) = dead_letters(sqlite)
    assert (dead_letter.event.body, dead_letter.event.partition_key) == (b"bad", "ann")
    assert dead_letter.event.properties == properties
    assert (dead_letter.event.enqueued_time.year > 2000) == time


@pytest.mark.parametrize("how", ["off", "ordered", "any_order"])
@pytest.mark.parametrize("commit_by", ["partition", "batch"])
def test_rows_and_dead_letters_are_the_same_where_spark_has_large_types(
    spark: SparkSession,
    hub: TestHub,
    sqlite: SqliteSinkDatabase,
    tmp_path: Path,
    commit_by: CommitBy,
    how: DropDuplicates,
) -> None:
    sqlite.execute("ALTER TABLE readings ADD COLUMN body BLOB")
    (good,) = bodies(1)
    sent = [whole(body, number) for number, body in enumerate([good, HOT, b"\xff"])]
    send(hub, [*sent, *sent[:1]], partition="1")
    sink = SqlBatchWriter(sqlite.url, table="readings", commit_by=commit_by, drop_duplicates=how)
    with temporary_settings(spark, {"spark.sql.execution.arrow.useLargeVarTypes": "true"}):
        run_once(parse_json(read(spark, hub), FIELDS), sink, tmp_path / "folder")

    assert sqlite.execute("SELECT device, body FROM readings") == [("d0", good)] * (2 if how == "off" else 1)
    assert [each.event for each in dead_letters(sqlite)] == hub.events()["1"][1:3]


def test_columns_that_tell_of_an_event_are_of_its_types(spark: SparkSession, hub: TestHub, tmp_path: Path) -> None:
    events = read(spark, hub).withColumn("partition", F.col("partition").cast("int"))
    with pytest.raises(ConfigError, match="changed the column 'partition' from string to int"):
        SqlBatchWriter(f"sqlite:///{tmp_path}/results.db", table="readings").check(events.schema)
