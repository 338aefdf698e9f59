"""Columns that only dead letters need are not read, unless there are letters; nobody else ever misses one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, udf
from pyspark.sql.types import StructField, StructType

from hubline.spark import SqlSink, parse_json
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.sql_sink.pruning import is_handed_over, leaving_out, unread
from tests.spark.hubs import TestHub
from tests.spark.test_sql_sink import read, run_once, send

OF_LETTERS = ["body", "enqueuedTime", "publisher", "partitionKey", "properties", "systemProperties"]
UNREAD = OF_LETTERS[1:]

EVENTS: list[bytes | dict[str, object]] = [
    {"body": f'{{"device": "d{number}"}}'.encode(), "partitionKey": f"k{number % 2}", "properties": {"n": f"{number}"}}
    for number in range(4)
]


@pytest.fixture
def hub(tmp_path: Path) -> TestHub:
    hub = TestHub.local(tmp_path / "hubs", "telemetry")
    send(hub, EVENTS, partition="1")
    return hub


@pytest.fixture
def events(spark: SparkSession, hub: TestHub) -> DataFrame:
    return read(spark, hub)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
    connection.execute("CREATE TABLE readings (device TEXT)")
    yield connection
    connection.close()


def devices(database: sqlite3.Connection) -> list[str]:
    return sorted(device for (device,) in database.execute("SELECT device FROM readings"))


def shouted(events: DataFrame) -> DataFrame:
    shout = udf(lambda text: text.upper(), "string")  # None has no upper()
    return events.withColumn("partitionKey", shout("partitionKey"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (lambda events: parse_json(events, "device string"), UNREAD),
        (lambda events: events.withColumn("device", lit("a")), OF_LETTERS),
        (
            lambda events: parse_json(events, "device string").where("partitionKey = 'k1'"),
            [name for name in UNREAD if name != "partitionKey"],
        ),
        (
            lambda events: events.selectExpr("*", "properties['n'] as device"),
            [name for name in OF_LETTERS if name != "properties"],
        ),
        (
            lambda events: events.withWatermark("enqueuedTime", "1 hour").withColumn("device", lit("a")),
            [name for name in OF_LETTERS if name != "enqueuedTime"],
        ),
        # What one batch has no use for another may use.
        (lambda events: events.withColumn("device", lit("a")).where("now() > '2000-01-01' or partitionKey = 'k1'"), []),
        (lambda events: events.where("current_timestamp() > '2000-01-01' or partitionKey = 'k1'"), []),
        # What a function makes of an event it makes of the whole event, and under its name nothing may be null.
        (lambda events: events.mapInArrow(lambda batches: batches, events.schema), []),
        (shouted, []),
    ],
    ids=[
        "parsed",
        "constant",
        "filtered",
        "of properties",
        "watermark",
        "now",
        "time",
        "function over tables",
        "made anew",
    ],
)
def test_what_a_query_uses_is_read(
    events: DataFrame, tmp_path: Path, query: Callable[[DataFrame], DataFrame], expected: list[str]
) -> None:
    found: list[list[str] | None] = []
    run_once(query(events), lambda frame, _: found.append(unread(frame, OF_LETTERS)), tmp_path / "folder")
    assert found == [expected]


def test_columns_that_a_schema_calls_never_null_are_read(spark: SparkSession, hub: TestHub, tmp_path: Path) -> None:
    schema = StructType([StructField(each.name, each.dataType, each.name != "properties") for each in SOURCE_SCHEMA])
    events = (
        spark.readStream.format("eventhubs").schema(schema).options(hub=hub.address, startingPosition="earliest").load()
    )
    found: list[list[str] | None] = []
    run_once(events, lambda frame, _: found.append(unread(frame, OF_LETTERS)), tmp_path / "folder")
    assert found == [[name for name in OF_LETTERS if name != "properties"]]


def test_a_job_that_leaves_columns_out_reads_without_them_and_the_next_one_with(
    events: DataFrame, tmp_path: Path
) -> None:
    found: list[list[int]] = []

    def count(frame: DataFrame, _: int) -> None:
        (row,) = frame.selectExpr(*(f"count({name})" for name in ("properties", "partitionKey", "body"))).collect()
        found.append(list(row))

    def count_twice(frame: DataFrame, number: int) -> None:
        with leaving_out(frame, ["properties", "partitionKey"]):
            count(frame, number)
        count(frame, number)

    run_once(events, count_twice, tmp_path / "folder")
    assert found == [[0, 0, 4], [4, 4, 4]]


def test_what_was_made_of_a_batch_or_is_kept_of_it_is_made_of_whole_events(
    events: DataFrame, database: sqlite3.Connection, tmp_path: Path
) -> None:
    sink = SqlSink(f"sqlite:///{tmp_path}/results.db", table="readings")
    kept: list[int] = []

    def write_some(frame: DataFrame, number: int) -> None:
        some = frame.where("partitionKey = 'k1'")
        assert is_handed_over(frame)
        assert not is_handed_over(some)
        sink(some, number)

    def keep(frame: DataFrame, number: int) -> None:
        frame.persist()
        sink(frame, number)
        kept.append(frame.where("partitionKey = 'k1'").count())

    readings = parse_json(events, "device string")
    run_once(readings, write_some, tmp_path / "some")
    assert devices(database) == ["d1", "d3"]
    for table in ("readings", "hubline_checkpoint"):
        database.execute(f"DELETE FROM {table}")
    run_once(readings, keep, tmp_path / "all")
    assert devices(database) == ["d0", "d1", "d2", "d3"]
    assert kept == [2]


def test_rows_are_written_without_what_only_letters_need_and_letters_have_it(
    events: DataFrame, hub: TestHub, database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []

    def noted(frame: DataFrame, names: Sequence[str]) -> AbstractContextManager[None]:
        told.append(list(names))
        return leaving_out(frame, names)

    monkeypatch.setattr("hubline.spark.sql_sink.sink.leaving_out", noted)
    sink = SqlSink(f"sqlite:///{tmp_path}/results.db", table="readings")
    readings = parse_json(events, "device string")
    run_once(readings, sink, tmp_path / "folder")
    bad: dict[str, object] = {"body": b"no json", "partitionKey": "k0", "properties": {"n": "0"}}
    send(hub, [bad, EVENTS[1]], partition="1")
    run_once(readings, sink, tmp_path / "folder")

    assert told == [UNREAD, UNREAD]
    assert devices(database) == ["d0", "d1", "d1", "d2", "d3"]
    letters = database.execute("SELECT body, partition_key, properties FROM hubline_dead_letter").fetchall()
    assert letters == [(b"no json", "k0", '{"n": "0"}')]
