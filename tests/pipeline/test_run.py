"""Pipelines on real Spark: what goes in comes out, as often as promised, whatever is run again."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.dead_letters import DeadLetterHub
from hubline.event_ids import ID_PROPERTY, origin_of
from hubline.pipeline.checks import check_file
from hubline.pipeline.runner import Request, run
from tests.pipeline.files import Notes, checkpoints, eventually, new_hub, owners, readings, send, write
from tests.spark.hubs import TestHub

# Far longer than anything takes: a bound on waiting, not a measure.
pytestmark = pytest.mark.timeout(600)

CODE = """
    import json
    from pyspark.sql import functions as F
    import hubline
    import hubline.spark

    pipeline = hubline.Pipeline("all-kinds")

    @pipeline.stage(source="raw", sink="clean", consumer_group="ingest", load_balancing=hubline.Balanced())
    def ingest(events):
        return events.where("body != 'skip'")

    @pipeline.stage(source="clean", sink="readings", consumer_group="store", load_balancing=hubline.Fixed(2))
    def store(events, names):
        parsed = hubline.spark.parse_json(events, "id long, celsius double")
        return parsed.join(F.broadcast(names), "id", "left")

    @pipeline.stage(
        source="raw", sink="recent", consumer_group="recent", load_balancing=hubline.Fixed(2), lookback="1h"
    )
    def recent(events):
        seen = F.when(F.col("replayed"), F.lit("replayed")).otherwise(F.lit("new"))
        return events.withColumn("properties", F.create_map(F.lit("seen"), seen))

    @pipeline.event_stage(source="clean", sink="warm", consumer_group="warm", dead_letters="dead", schema="body binary")
    def warm(event):
        reading = json.loads(event.body)
        return {"body": str(reading["id"]).encode()} if reading["celsius"] >= 10 else None
"""

CONFIG = """
    [datasets]
    raw = { hub = "local:hubs/raw" }
    clean = { hub = "local:hubs/clean", create_if_missing = true, partitions = 2 }
    warm = { hub = "local:hubs/warm", create_if_missing = true, partitions = 2 }
    recent = { hub = "local:hubs/recent", create_if_missing = true, partitions = 2 }
    dead = { hub = "local:hubs/dead", create_if_missing = true, partitions = 2 }
    readings = { url = "sqlite:///results/readings.db", table = "readings", create_if_missing = true }
    names = { format = "csv", path = "names.csv", options = { header = true, inferSchema = true } }
"""

COUNT = 40
MORE = 5


@dataclass(frozen=True)
class Ran:
    """A pipeline that ran twice: over all there was, and again over a few events more."""

    folder: Path
    first: Notes
    second: Notes

    def query(self, database: str, text: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.folder / "results" / f"{database}.db")
        found = connection.execute(text).fetchall()
        connection.close()
        return found

    def hub(self, name: str) -> TestHub:
        return TestHub(f"local:{self.folder}/hubs/{name}", self.folder / "hubs", name)

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/state/all-kinds/checkpoints.db"


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("all-kinds")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        (folder / "names.csv").write_text("id,name\n1,one\n2,two\n")
        file = write(folder, "kinds", CODE, CONFIG)
        raw = new_hub(folder / "hubs", "raw")
        send(raw, [*readings(COUNT), b"not json", b"skip"])
        first, second = Notes(), Notes()
        assert run(check_file(file), Request(once=True), spark=spark, view=first)
        send(raw, readings(MORE, first=COUNT))
        assert run(check_file(file, stages=["ingest", "recent", "store"]), Request(once=True), spark=spark, view=second)
    return Ran(folder, first, second)


def test_every_reading_is_a_row_once_and_what_does_not_read_a_dead_letter(ran: Ran) -> None:
    assert ran.query("readings", "SELECT id FROM readings ORDER BY id") == [(n,) for n in range(COUNT + MORE)]
    assert ran.query("readings", "SELECT body FROM hubline_dead_letter") == [(b"not json",)]
    named = ran.query("readings", "SELECT id, name FROM readings WHERE name IS NOT NULL ORDER BY id")
    assert named == [(1, "one"), (2, "two")]


def test_what_a_stage_publishes_keeps_the_identity_of_its_event(ran: Ran) -> None:
    origin = origin_of(ran.hub("raw").described())
    ids = {event.properties[ID_PROPERTY] for event in ran.hub("clean").flat()}
    assert len(ids) == COUNT + 1 + MORE
    assert all(each.startswith(f"{origin}/") and each.endswith("/0") for each in ids)
    assert {event.properties[ID_PROPERTY] for event in ran.hub("warm").flat()} < ids


def test_progress_is_in_the_store_and_nobody_owns_anything_after_the_end(ran: Ran) -> None:
    raw, clean = ran.hub("raw"), ran.hub("clean")
    assert sum((last or 0) + 1 for last in checkpoints(ran.store, raw, "ingest").values()) == COUNT + 2 + MORE
    readings_store = f"sqlite:///{ran.folder}/results/readings.db"
    assert sum((last or 0) + 1 for last in checkpoints(readings_store, clean, "store").values()) == COUNT + 1 + MORE
    eventually(lambda: owners(ran.store, raw, "ingest") == set())


def test_handler_by_event_publishes_and_keeps_what_it_cannot_take(ran: Ran) -> None:
    assert sorted(int(event.body) for event in ran.hub("warm").flat()) == list(range(20, COUNT))
    (dead_letter,) = map(DeadLetterHub.read, ran.hub("dead").flat())
    assert dead_letter.event.body == b"not json"
    assert dead_letter.error_text.startswith("JSONDecodeError")
    assert (dead_letter.key.hub, dead_letter.key.group) == ("clean", "warm")


def test_what_is_read_again_to_warm_up_is_not_published_again_and_what_is_new_is(ran: Ran) -> None:
    published = ran.hub("recent").flat()
    assert len(published) == COUNT + 2 + MORE
    assert {event.properties["seen"] for event in published} == {"new"}
    assert ran.second.reports["recent"].events == COUNT + 2 + MORE  # read, to know the last hour


def test_reports_have_events_lag_and_dead_letters(ran: Ran) -> None:
    report = ran.first.reports["store"]
    assert (report.state, report.events, report.dead_letters, report.lag_events) == ("done", COUNT + 1, 1, 0)
    assert ran.second.reports["ingest"].events == MORE
    assert list(ran.second.reports) == ["ingest", "store", "recent"]
