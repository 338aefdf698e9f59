"""A stage that runs as several queries: each partition at its own pace, and each event once whatever their number."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from hubline.errors import PipelineInvalid
from hubline.event_ids import ID_PROPERTY
from hubline.hubs.local import create_hub
from hubline.pipeline.checks import check_file
from hubline.pipeline.runner import Request, run
from hubline.secrets import Secret
from tests.pipeline.files import Ended, Notes, Watching, checkpoints, eventually, readings, send, write
from tests.spark.hubs import TestHub

pytestmark = pytest.mark.timeout(600)

CODE = """
    import json
    from pathlib import Path
    import pyarrow as pa
    import hubline

    pipeline = hubline.Pipeline("paces")
    BROKEN = Path(__file__).with_name("broken")
    SCHEMA = "id long, celsius double"

    @pipeline.batch_stage(source="raw", sink="rows", consumer_group="rows", schema=SCHEMA, max_batch_size=10)
    def rows(events):
        if events["partition"][0].as_py() == "1" and BROKEN.exists():
            raise RuntimeError("partition 1 is broken")
        return pa.Table.from_pylist([json.loads(body) for body in events["body"].to_pylist()])

    @pipeline.stage(source="raw", sink="copy", consumer_group="copy")
    def copy(events):
        return events

    @pipeline.stage(source="raw", sink="copy", consumer_group="counts", event_ids=False, output_mode="update")
    def counts(events):
        return events.groupBy("partitionKey").count().selectExpr("to_json(struct(*)) AS body")
"""
CONFIG = """
    [datasets]
    raw = {{ hub = "local:hubs/raw" }}
    rows = {{ url = "{url}", table = "rows", upsert_key = ["id"] }}
    copy = {{ hub = "local:hubs/copy", create_if_missing = true, partitions = 2 }}
"""
PARTITIONS = 3
EACH = 30
"""Events of a partition: more than one batch takes of it."""


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    monkeypatch.chdir(tmp_path)
    asyncio.run(create_hub(tmp_path / "hubs", "raw", partitions=PARTITIONS))
    return TestHub(f"local:{tmp_path}/hubs/raw", tmp_path / "hubs", "raw")


def fill(hub: TestHub) -> None:
    for partition in range(PARTITIONS):
        send(hub, readings(EACH, first=partition * EACH), partition=str(partition))


def test_partition_whose_commit_is_blocked_or_that_fails_holds_up_no_other(
    spark: SparkSession, raw: TestHub, tmp_path: Path, postgres_database: Secret
) -> None:
    fill(raw)
    database = postgres_database.reveal()
    (tmp_path / "database").write_text(database)
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE rows (id bigint PRIMARY KEY, celsius double precision)")
        connection.execute("INSERT INTO rows (id) VALUES (0)")
    file = write(tmp_path, "paces", CODE, CONFIG.format(url=f"file:{tmp_path}/database"))
    checked = check_file(file, stages=["rows"], overrides={"stages.rows.queries": "3"})
    (tmp_path / "broken").touch()
    view = Watching()

    def reported(name: str) -> list[object]:
        queries = [view.reports.get(f"rows {number}/3") for number in (1, 2, 3)]
        return [query and getattr(query, name) for query in queries]

    with psycopg.connect(database) as blocker, ThreadPoolExecutor() as threads:
        blocker.execute("SELECT 1 FROM rows WHERE id = 0 FOR UPDATE")  # which the first batch of partition 0 writes
        running = threads.submit(run, checked, Request(), spark=spark, view=view)
        try:
            eventually(lambda: running.done() or reported("events") == [0, 0, EACH])
            eventually(lambda: running.done() or view.reports["rows 2/3"].restarts > 0)
            third = checkpoints(database, raw, "rows")
            (tmp_path / "broken").unlink()
            blocker.rollback()
            eventually(lambda: running.done() or reported("rows") == [EACH] * 3)
        finally:
            view.is_enough.set()
        with pytest.raises(Ended):
            running.result()

    assert third == {"2": EACH - 1}
    assert checkpoints(database, raw, "rows") == {"0": EACH - 1, "1": EACH - 1, "2": EACH - 1}
    assert view.reports["rows 1/3"].restarts == view.reports["rows 3/3"].restarts == 0
    assert any(note.startswith("rows 2/3: failed, starts again in") for note in view.notes)


def test_each_event_is_published_once_whatever_the_number_of_queries_was_before(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    file = write(tmp_path, "paces", CODE, CONFIG.format(url="sqlite:///rows.db"))
    folder = tmp_path / "state" / "paces" / "copy"
    copy = TestHub(f"local:{tmp_path}/hubs/copy", tmp_path / "hubs", "copy")

    for number, queries in enumerate((1, 3, 2), start=1):
        fill(raw)
        view = Notes()
        checked = check_file(file, stages=["copy"], overrides={"stages.copy.queries": str(queries)})
        assert run(checked, Request(once=True), spark=spark, view=view)

        ids = Counter(event.properties[ID_PROPERTY] for event in copy.flat())
        assert (len(ids), set(ids.values())) == (number * PARTITIONS * EACH, {1})
        shares = {1: ["copy"], 2: ["copy 1/2", "copy 2/2"], 3: ["copy 1/3", "copy 2/3", "copy 3/3"]}
        assert list(view.reports) == shares[queries]
        assert sum(report.events for report in view.reports.values()) == PARTITIONS * EACH
        for commits in folder.rglob("commits"):
            # As a run leaves it that is killed before Spark writes down that the batch is done: with the same number
            # of queries the batch is run again, and with another one the store says how far it came.
            for each in commits.iterdir():
                each.unlink()
    assert sorted(each.name for each in folder.iterdir() if each.is_dir()) == ["1", "2"]


def test_queries_are_refused_where_rows_come_of_events_of_several_partitions(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    file = write(tmp_path, "paces", CODE, CONFIG.format(url="sqlite:///rows.db"))
    checked = check_file(file, stages=["counts"], overrides={"stages.counts.queries": "2"})
    with pytest.raises(PipelineInvalid) as refused:
        run(checked, Request(once=True), spark=spark)
    (problem,) = refused.value.problems
    assert problem.message == (
        "stage counts: queries=2 share its partitions, and its function brings rows of several together (Aggregate): "
        "each query would only have those of its own"
    )


def test_state_is_refused_where_instances_share_the_partitions_and_nobody_said_how(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    checked = check_file(write(tmp_path, "paces", CODE, CONFIG.format(url="sqlite:///rows.db")), stages=["counts"])
    (stage,) = checked.plan.stages
    shared = replace(checked.plan, stages=(replace(stage, is_shared_by_default=True),))
    with pytest.raises(PipelineInvalid) as refused:
        run(replace(checked, plan=shared), Request(once=True), spark=spark)
    (problem,) = refused.value.problems
    assert problem.message == (
        "stage counts: its function keeps state of events of several partitions (Aggregate), and other instances may "
        "own some of them: each would only have the events of its own"
    )
