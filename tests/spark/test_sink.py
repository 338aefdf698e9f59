"""Writing with real Spark: to the local hub, and to ``hubline serve``."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import hubline.spark
from hubline.event_ids import ID_PROPERTY, derived_ids, is_id, origin_of
from hubline.hubs.partition_hash import partition_index
from hubline.model.events import Event
from tests.emulator.serving import Server, serving
from tests.spark.hubs import TestHub

# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 120

SENT_COLUMNS = "body string, properties map<string,string>, partitionId string"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served"), "--create", "first:1") as running:
        yield running


@pytest.fixture(params=["local", "served"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> TestHub:
    if request.param == "local":
        return TestHub.local(tmp_path)
    return TestHub.served(request.getfixturevalue("server"), tmp_path.name.replace("_", "-").strip("-"))


@pytest.fixture
def local_hub(tmp_path: Path) -> TestHub:
    return TestHub.local(tmp_path)


def write(rows: DataFrame, hub: TestHub, **options: str) -> None:
    rows.write.format("eventhubs").option("hub", hub.address).options(**options).mode("append").save()


def numbers(events: list[Event]) -> list[int]:
    return [int(event.text()) for event in events]


class TestBatches:
    def test_keys_land_where_the_hash_says_and_stay_in_order(self, spark: SparkSession, hub: TestHub) -> None:
        rows = spark.range(0, 25_000, 1, 1).selectExpr(
            "cast(id as string) body", "concat('key-', id % 50) partitionKey"
        )

        write(rows, hub)

        place = {f"key-{number}": str(partition_index(f"key-{number}", 4)) for number in range(50)}
        for partition, events in hub.events().items():
            assert {place[str(event.partition_key)] for event in events} == {partition}
            assert numbers(events) == [number for number in range(25_000) if place[f"key-{number % 50}"] == partition]

    def test_properties_and_binary_bodies_arrive_as_they_are(self, spark: SparkSession, hub: TestHub) -> None:
        rows = spark.sql(
            """select unhex('00ff10') body, '1' partitionId, map('a', 'ä', 'b', '', 'c', null) properties
            union all select binary('') body, '1' partitionId, null properties"""
        ).coalesce(1)

        write(rows, hub)

        first, second = hub.events()["1"]
        assert (first.body, first.properties) == (b"\x00\xff\x10", {"a": "ä", "b": "", "c": None})
        assert (second.body, second.properties, second.partition_key) == (b"", {}, None)

    def test_rows_that_name_no_place_arrive_once_each(self, spark: SparkSession, hub: TestHub) -> None:
        write(spark.range(0, 1_000, 1, 3).selectExpr("cast(id as string) body"), hub)

        assert sorted(numbers(hub.flat())) == list(range(1_000))

    def test_rows_of_the_largest_size_arrive(self, spark: SparkSession, hub: TestHub) -> None:
        rows = spark.range(12).selectExpr("repeat(string(id % 10), 900000) body", "int(id % 4) partitionId")

        write(rows, hub)

        assert sorted(len(event.body) for event in hub.flat()) == [900_000] * 12
        assert [len(events) for events in hub.events().values()] == [3, 3, 3, 3]

    def test_a_dataframe_without_rows_connects_to_nothing(self, spark: SparkSession) -> None:
        rows = spark.range(0).selectExpr("cast(id as string) body")

        rows.write.format("eventhubs").option("hub", "local:/nowhere/none").mode("append").save()


class TestRefusals:
    def test_wrong_columns_are_named_before_anything_is_sent(self, spark: SparkSession, local_hub: TestHub) -> None:
        with pytest.raises(AnalysisException, match="did you mean partitionKey"):
            write(spark.sql("select 'a' body, 'k' partition_key"), local_hub)
        assert local_hub.count() == 0

    def test_a_hub_cannot_be_overwritten(self, spark: SparkSession, local_hub: TestHub) -> None:
        writer = spark.sql("select 'a' body").write.format("eventhubs").option("hub", local_hub.address)

        with pytest.raises(AnalysisException, match="events can only be added to a hub"):
            writer.mode("overwrite").save()

    def test_an_event_over_the_limit_is_named(self, spark: SparkSession, hub: TestHub) -> None:
        rows = spark.range(0, 3, 1, 1).selectExpr("repeat('x', int(pow(10, 5 + id))) body", "'2' partitionId")

        with pytest.raises(
            PySparkException, match=r"row 2 of the task is an event of 10,\d+,\d+ bytes, but hub .* takes "
        ):
            write(rows, hub)
        assert {len(event.body) for event in hub.flat()} <= {10**5, 10**6}

    def test_a_null_body_is_named(self, spark: SparkSession, local_hub: TestHub) -> None:
        rows = spark.range(0, 5, 1, 1).selectExpr("if(id = 3, null, 'x') body")

        with pytest.raises(PySparkException, match="row 3 of the task has a null body"):
            write(rows, local_hub)
        assert local_hub.count() == 0

    def test_a_hub_that_is_not_there_is_named_without_its_key(self, spark: SparkSession, server: Server) -> None:
        address = server.connection_string("no-such-hub")

        with pytest.raises(PySparkException, match="no-such-hub") as caught:
            write(spark.sql("select 'a' body"), TestHub(address, server.data, "no-such-hub"), operationTimeout="1s")
        assert "SharedAccessKey" not in str(caught.value)


class TestIdentity:
    def test_events_carry_the_id_of_the_event_they_came_from(
        self, spark: SparkSession, tmp_path: Path, hub: TestHub
    ) -> None:
        source = TestHub.local(tmp_path / "source", "source")
        write(spark.range(0, 100, 1, 2).selectExpr("cast(id as string) body", "string(id % 4) partitionId"), source)
        read = spark.read.format("eventhubs").option("hub", source.address).load()

        write(read.select("body", hubline.spark.event_id(source.address).alias("eventId")), hub)

        origin = origin_of(source.described())
        for partition, events in hub.events().items():
            assert [event.properties[ID_PROPERTY] for event in events] == [
                f"{origin}/{partition}/{number}/0" for number in range(25)
            ]

    def test_what_is_made_of_an_event_with_an_id_keeps_to_it(self, spark: SparkSession, tmp_path: Path) -> None:
        source = TestHub.local(tmp_path, "source")
        write(spark.sql("select 'ab' body, '0' partitionId, 'first/3/17/0' eventId"), source)
        write(spark.sql("select 'cd' body, '0' partitionId"), source)
        read = spark.read.format("eventhubs").option("hub", source.address).load()
        characters = read.select(
            "*", F.posexplode(F.split(F.col("body").cast("string"), "")).alias("place", "character")
        )

        ids = characters.select(hubline.spark.event_id(source.address, F.col("place"))).collect()

        origin = origin_of(source.described())
        derived = derived_ids(pa.array(["first/3/17/0"] * 2), pa.array([0, 1])).to_pylist()
        assert [row[0] for row in ids] == [*derived, f"{origin}/0/1/0", f"{origin}/0/1/1"]

    def test_what_any_producer_sends_as_an_id_stops_nothing(self, spark: SparkSession, tmp_path: Path) -> None:
        """An event whose property is not an id has its own id, as if it carried none; Spark and Arrow see ids alike."""
        texts = ["", "not-an-id", "h/0/01/0", "h/0/1/0\n", "h/0/1/0\r", "h/0/1/0\u2028", "h\r/0/1/0", "h/0/1/0"]
        source, hub = TestHub.local(tmp_path / "source", "source"), TestHub.local(tmp_path)
        sent = spark.createDataFrame([("x", {ID_PROPERTY: text}, "0") for text in texts], SENT_COLUMNS)
        write(sent.coalesce(1), source)
        read = spark.read.format("eventhubs").option("hub", source.address).load()
        carried = [str(event.properties[ID_PROPERTY]) for event in source.events()["0"]]

        write(read.withColumn("eventId", hubline.spark.event_id(source.address)).drop("partition"), hub)
        derived = read.select(hubline.spark.event_id(source.address, F.lit(0))).collect()

        origin = origin_of(source.described())
        own = [f"{origin}/0/{number}/0" for number in range(len(texts))]
        expected = [text if is_id(pa.array([text]))[0].as_py() else own[place] for place, text in enumerate(carried)]
        assert carried == texts
        assert expected == [*own[:6], *texts[6:]]
        assert [event.properties[ID_PROPERTY] for event in hub.events()["0"]] == expected
        assert [row[0] for row in derived] == expected

    @pytest.mark.kills
    def test_a_killed_worker_repeats_the_same_ids_in_the_same_order(
        self, spark: SparkSession, tmp_path: Path, hub: TestHub
    ) -> None:
        is_killed = tmp_path / "killed"
        rows = spark.range(0, 60_000, 1, 2).mapInArrow(held_back_until(is_killed), "id long")
        written = rows.selectExpr(
            "cast(id as string) body", "concat('key-', id % 8) partitionKey", "concat('h/0/', id, '/0') eventId"
        )

        with WorkersKilledOnce(spark, hub, is_killed):
            write(written, hub)

        assert hub.count() > 60_000
        place = [str(partition_index(f"key-{number}", 4)) for number in range(8)]
        for partition, events in hub.events().items():
            for task in (range(30_000), range(30_000, 60_000)):
                own = [number for number in numbers(events) if number in task]
                assert without_repetitions(own) == [number for number in task if place[number % 8] == partition]
            assert all(event.properties[ID_PROPERTY] == f"h/0/{event.text()}/0" for event in events)


def held_back_until(flag: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows of which most come only once the flag is there: something is sent, and the task continues."""
    path = str(flag)

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            while number == 2 and not os.path.exists(path):  # noqa: PTH110 - runs in a worker
                time.sleep(0.05)
            yield batch

    return hold


class WorkersKilledOnce:
    """Kills all Python workers of the session as soon as the hub has something."""

    def __init__(self, spark: SparkSession, hub: TestHub, flag: Path) -> None:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self.java = gateway.proc.pid
        self.hub = hub
        self.flag = flag
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.hub.count() and time.monotonic() < deadline:
            time.sleep(0.02)
        for daemon in children(self.java, "daemon"):
            for worker in children(daemon, "daemon"):
                os.kill(worker, signal.SIGKILL)
        self.flag.touch()

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.thread.join(PATIENCE_SECONDS)


def children(parent: int, command: str) -> list[int]:
    """The processes that a process has started, of those with this command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parent_id = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent_id == parent and command in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def without_repetitions(own: list[int]) -> list[int]:
    highest = -1
    return [highest := number for number in own if number > highest]


class TestStreams:
    def test_a_batch_whose_end_was_not_written_down_is_repeated_with_the_same_ids(
        self, spark: SparkSession, tmp_path: Path, hub: TestHub
    ) -> None:
        source = TestHub.local(tmp_path / "source", "source")
        identity = hubline.spark.event_id(source.address)

        def run_once() -> None:
            read = (
                spark.readStream.format("eventhubs")
                .option("hub", source.address)
                .option("startingPosition", "earliest")
                .load()
            )
            query = (
                read.select("body", "properties", identity.alias("eventId"))
                .writeStream.format("eventhubs")
                .option("hub", hub.address)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .queryName("relay")
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(PATIENCE_SECONDS)

        for first in (0, 40):
            rows = spark.range(first, first + 40, 1, 1).selectExpr(
                "cast(id as string) body", "string(id % 4) partitionId"
            )
            write(rows, source)
            run_once()
        once = {partition: numbers(events) for partition, events in hub.events().items()}
        # As after a crash between the last send and Spark's commit.
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        run_once()

        for partition, events in hub.events().items():
            assert sorted(once[partition]) == list(range(int(partition), 80, 4))
            ids = [event.properties[ID_PROPERTY] for event in events]
            assert numbers(events)[len(once[partition]) :] == once[partition][10:]
            assert ids[20:] == ids[10:20]

    def test_complete_output_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        hub = TestHub.local(tmp_path)
        counts = spark.readStream.format("rate").load().groupBy().count().selectExpr("cast(count as string) body")
        writing = counts.writeStream.format("eventhubs").option("hub", hub.address).outputMode("complete")

        with pytest.raises(PySparkException, match="events can only be added to a hub"):
            writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start().processAllAvailable()
