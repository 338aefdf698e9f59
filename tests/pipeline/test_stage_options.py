"""The options of stages, on real Spark: each one does what the reference says."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from hubline.cli.app import main
from hubline.errors import PipelineInvalid, StageFailed
from hubline.event_ids import ID_PROPERTY, origin_of
from hubline.hubs.local import LocalHub, Retention, create_hub
from hubline.pipeline.checks import check_file
from hubline.pipeline.runner import Request, run
from tests.pipeline.files import Notes, checkpoints, new_hub, readings, send, write
from tests.spark.hubs import TestHub
from tests.spark.planted import address_of, executions, fetched

# Far longer than anything takes: a bound on waiting, not a measure.
pytestmark = pytest.mark.timeout(600)

Once = Callable[..., Notes]


@pytest.fixture
def hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hubs"


@pytest.fixture
def once(spark: SparkSession) -> Once:
    """Runs a file's stages, with other options than the file's, until all is done."""

    def ran(file: Path, *stages: str, **options: str) -> Notes:
        view = Notes()
        chosen = stages or [stage.name for stage in check_file(file).plan.stages]
        settings = {f"stages.{stage}.{name}": value for stage in chosen for name, value in options.items()}
        checked = check_file(file, stages=stages, overrides=settings)
        assert run(checked, Request(once=True), spark=spark, view=view)
        return view

    return ran


def at(hubs: Path, name: str) -> TestHub:
    return TestHub(f"local:{hubs}/{name}", hubs, name)


def numbers(hub: TestHub) -> list[int]:
    return sorted(json.loads(event.body)["id"] for event in hub.flat())


def rows(database: Path, text: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(text).fetchall()
    finally:
        connection.close()


def test_manual_checkpoints_are_where_every_start_reads_on_and_without_any_it_begins_at_the_start(
    once: Once, hubs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
        import hubline
        pipeline = hubline.Pipeline("hand")
        @pipeline.stage(source="raw", sink="by-hand", consumer_group="hand", checkpoint="manual")
        def hand(events):
            return events
        @pipeline.stage(source="raw", sink="from-start", consumer_group="none", checkpoint="never")
        def none(events):
            return events
        @pipeline.stage(source="raw", sink="in-place", consumer_group="kept", checkpoint="never",
                        load_balancing=hubline.Fixed(2))
        def kept(events):
            return events
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        by-hand = { hub = "local:hubs/by-hand", create_if_missing = true, partitions = 2 }
        from-start = { hub = "local:hubs/from-start", create_if_missing = true, partitions = 2 }
        in-place = { hub = "local:hubs/in-place", create_if_missing = true, partitions = 2 }
    """
    file = write(hubs.parent, "hand", code, config)
    raw = new_hub(hubs, "raw")
    send(raw, readings(6), partition="0")
    store = f"sqlite:///{hubs.parent}/state/hand/checkpoints.db"

    once(file)
    assert numbers(at(hubs, "by-hand")) == [0, 1, 2, 3, 4, 5]
    assert numbers(at(hubs, "from-start")) == [0, 1, 2, 3, 4, 5]
    assert checkpoints(store, raw, "hand") == {}

    moved = ["--store", store, "--group", "hand", "--partition", "0", "--position", "sequence:4", "--yes"]
    assert main(["checkpoints", "set", raw.address, *moved]) == 0
    once(file)
    assert numbers(at(hubs, "by-hand")) == [0, 1, 2, 3, 4, 5, 5]
    assert numbers(at(hubs, "from-start")) == numbers(at(hubs, "in-place")) == sorted([0, 1, 2, 3, 4, 5] * 2)
    assert checkpoints(store, raw, "hand") == {"0": 4}
    assert checkpoints(store, raw, "kept") == {}
    owned = "SELECT partition_id, epoch FROM hubline_ownership WHERE consumer_group = 'kept' ORDER BY 1"
    assert rows(hubs.parent / "state/hand/checkpoints.db", owned) == [("0", 2), ("1", 2)]


def test_two_hubs_and_static_tables_make_one_stage_and_output_ids_keep_parts_apart(once: Once, hubs: Path) -> None:
    code = """
        import hubline
        from hubline.spark import parse_json
        from pyspark.sql import functions as F
        pipeline = hubline.Pipeline("joined")
        @pipeline.stage(source=["north", "south"], sink="out", consumer_group="joined")
        def joined(north, south, names, sites):
            both = parse_json(north.unionByName(south), "id long, celsius double").where("_error is null")
            named = both.join(F.broadcast(names), "id").join(F.broadcast(sites), "site")
            parts = F.array(F.col("name"), F.col("city"))
            exploded = named.select("eventId", F.posexplode(parts).alias("pos", "part"))
            numbered = exploded.withColumn("eventId", hubline.pipeline.output_id(F.col("pos")))
            return numbered.select("eventId", F.col("part").cast("binary").alias("body"))
    """
    config = """
        [datasets]
        north = { hub = "local:hubs/north" }
        south = { hub = "local:hubs/south" }
        out = { hub = "local:hubs/out", create_if_missing = true, partitions = 2 }
        names = { url = "sqlite:///names.db", table = "names" }
        sites = { format = "parquet", path = "sites" }
    """
    file = write(hubs.parent, "joined", code, config)
    north, south = new_hub(hubs, "north"), new_hub(hubs, "south")
    send(north, readings(1))
    send(south, [*readings(1, first=1), b"unknown"])
    database = sqlite3.connect(hubs.parent / "names.db")
    database.execute("CREATE TABLE names (id INTEGER, name TEXT, site TEXT)")
    database.execute("INSERT INTO names VALUES (0, 'zero', 'n'), (1, 'one', 's')")
    database.commit()
    database.close()
    (hubs.parent / "sites").mkdir()
    parquet.write_table(pa.table({"site": ["n", "s"], "city": ["Narvik", "Sevilla"]}), hubs.parent / "sites/1.parquet")

    once(file)
    first = at(hubs, "out").flat()
    assert sorted(event.body for event in first) == [b"Narvik", b"Sevilla", b"one", b"zero"]
    ids = {event.properties[ID_PROPERTY]: event.body for event in first}
    assert len(ids) == 4
    assert {each.rsplit("/", 3)[0] for each in ids} == {origin_of(north.described()), origin_of(south.described())}

    assert once(file).reports["joined"].events == 0  # nothing new: nothing is written
    assert len(at(hubs, "out").flat()) == 4


def test_static_table_has_the_types_of_its_columns_also_while_it_is_empty_and_what_is_wrong_with_it_names_its_dataset(
    once: Once, hubs: Path
) -> None:
    code = """
        import hubline
        from hubline.spark import parse_json
        from pyspark.sql import functions as F
        pipeline = hubline.Pipeline("priced")
        @pipeline.stage(source="raw", sink="rows", consumer_group="priced")
        def priced(events, prices):
            return parse_json(events, "id long, celsius double").join(F.broadcast(prices), "id", "left")
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        rows = { url = "sqlite:///rows.db", table = "rows", create_if_missing = true }
        prices = { url = "sqlite:///prices.db", table = "prices" }
    """
    file = write(hubs.parent, "priced", code, config)
    raw = new_hub(hubs, "raw")
    database = sqlite3.connect(hubs.parent / "prices.db", isolation_level=None)
    database.execute("CREATE TABLE prices (id INTEGER, price DECIMAL(9, 2))")

    send(raw, readings(1))
    once(file)
    database.execute("INSERT INTO prices VALUES (1, 1.5)")
    send(raw, readings(1, first=1))
    once(file)
    assert rows(hubs.parent / "rows.db", "SELECT id, price FROM rows ORDER BY id") == [(0, None), (1, 1.5)]

    database.execute("INSERT INTO prices VALUES (2, 'dear')")
    database.close()
    with pytest.raises(PipelineInvalid) as raised:
        once(file)
    (problem,) = raised.value.problems
    assert (Path(problem.file).name, problem.line) == ("priced.toml", 4)
    assert "dataset prices, table prices in " in problem.message
    assert "column 'price', DECIMAL(9, 2)" in problem.message


def test_columns_that_cannot_be_written_are_reported_before_the_start(once: Once, hubs: Path) -> None:
    """Spark itself reports them only in the first batch, and again after each restart of the stage."""
    code = """
        import hubline
        pipeline = hubline.Pipeline("columns")
        @pipeline.event_stage(source="raw", sink="rows", consumer_group="spelt", schema="Body string")
        def spelt(event):
            return {"Body": "a"}
        @pipeline.stage(source="raw", sink="rows", consumer_group="twice")
        def twice(events):
            return events.selectExpr("*", "1 as a", "2 as a")
        @pipeline.stage(source="raw", sink="rows", consumer_group="interval")
        def interval(events):
            return events.selectExpr("*", "interval '1' year as age")
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        rows = { url = "sqlite:///rows.db", table = "rows", create_if_missing = true }
    """
    file = write(hubs.parent, "columns", code, config)
    new_hub(hubs, "raw")
    with pytest.raises(PipelineInvalid) as raised:
        once(file)
    messages = " ".join(problem.message for problem in raised.value.problems)
    assert "schema names 'Body', but events have 'body'" in messages
    assert "two columns 'a'" in messages
    assert "'age' is interval year" in messages


def test_options_that_are_kept_elsewhere_reach_spark_and_are_not_shown(
    once: Once, hubs: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import hubline
        from hubline.spark import parse_json
        from pyspark.sql import functions as F
        pipeline = hubline.Pipeline("hidden")
        @pipeline.stage(source="raw", sink="files", consumer_group="files", dead_letters="dead")
        def files(events, names):
            named = parse_json(events, "id long").join(F.broadcast(names), "id", "left")
            return named.where("_error IS NOT NULL OR name IS NOT NULL").select("id", "name", "_error")
        @pipeline.stage(source="raw", sink="nowhere", consumer_group="nowhere")
        def nowhere(events):
            return events
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        dead = { hub = "local:hubs/dead", create_if_missing = true }
        names = { format = "csv", path = "names", options = { header = true, sep = "env:MARK" } }
        files = { format = "csv", path = "files", options = { sep = "env:MARK" } }
        nowhere = { format = "noop", options = { sep = "env:MARK" } }
    """
    monkeypatch.setenv("MARK", "~pLaNtEdMaRk~")  # a name that nothing hides by itself
    file = write(hubs.parent, "hidden", code, config)
    (hubs.parent / "names").mkdir()
    (hubs.parent / "names" / "names.csv").write_text("id~pLaNtEdMaRk~name\n0~pLaNtEdMaRk~zero\n")
    send(new_hub(hubs, "raw"), readings(2))

    before = executions(spark)

    once(file)
    assert "".join(each.read_text() for each in (hubs.parent / "files").glob("*.csv")) == "0~pLaNtEdMaRk~zero\n"
    after = executions(spark)
    own = f"offset={len(after & before)}&length={len(after - before)}"  # others' plans take long to write
    ran = fetched(f"{spark.sparkContext.uiWebUrl}{address_of(spark)}/sql?{own}&details=true&planDescription=true")
    assert "sep=*********(redacted)" in ran
    assert "pLaNtEd" not in ran


def test_functions_over_tables_have_dead_letters_where_schema_names_an_error_and_need_no_hub_for_them_else(
    once: Once, hubs: Path
) -> None:
    code = """
        import json
        import pyarrow as pa
        import hubline
        pipeline = hubline.Pipeline("tables")
        def ids(table):
            return [json.loads(body)["id"] for body in table.column("body").to_pylist()]
        @pipeline.batch_stage(source="raw", sink="copy", consumer_group="copy", schema="body binary")
        def copy(table):
            return table.select(["body"])
        @pipeline.batch_stage(source="raw", sink="files", consumer_group="files", schema="id long")
        def files(table):
            return pa.table({"id": ids(table)})
        @pipeline.batch_stage(source="raw", sink="rows", consumer_group="rows", schema="id long")
        def rows(table):
            return pa.table({"id": ids(table)})
        @pipeline.batch_stage(source="raw", sink="even", dead_letters="dead", schema="body binary, _error string")
        def even(table):
            return pa.table({"body": table["body"], "_error": ["odd" if each % 2 else None for each in ids(table)]})
        @pipeline.batch_stage(source="raw", sink="one", consumer_group="one", dead_letters="dead", schema="body binary")
        def one(table):
            return table.select(["body"])
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        copy = { hub = "local:hubs/copy", create_if_missing = true }
        files = { format = "parquet", path = "files" }
        rows = { url = "sqlite:///rows.db", table = "rows", create_if_missing = true }
        even = { hub = "local:hubs/even", create_if_missing = true }
        one = { hub = "local:hubs/one", create_if_missing = true, partitions = 1 }
        dead = { hub = "local:hubs/dead", create_if_missing = true }
    """
    file = write(hubs.parent, "tables", code, config)
    send(new_hub(hubs, "raw"), readings(6))

    once(file)
    everything = list(range(6))
    assert numbers(at(hubs, "copy")) == numbers(at(hubs, "one")) == everything
    assert sorted(parquet.read_table(hubs.parent / "files").column("id").to_pylist()) == everything
    assert rows(hubs.parent / "rows.db", "SELECT id FROM rows ORDER BY id") == [(each,) for each in everything]
    assert numbers(at(hubs, "even")) == [0, 2, 4]
    assert len(at(hubs, "dead").flat()) == 3


def test_state_of_the_last_hours_is_read_again_and_only_what_is_new_is_published(once: Once, hubs: Path) -> None:
    code = """
        import hubline
        from hubline.spark import parse_json
        from pyspark.sql import functions as F
        pipeline = hubline.Pipeline("recent")
        def totals(events):
            read = parse_json(events, "id long, celsius double").where("_error is null")
            replayed = F.bool_and("replayed").alias("replayed")
            return read.groupBy((F.col("id") % 2).alias("odd")).agg(F.count("*").alias("n"), replayed)
        @pipeline.stage(
            source="raw", sink="out", consumer_group="a", lookback="1h", output_mode="update", event_ids=False
        )
        def published(events):
            return totals(events).select(F.to_json(F.struct("odd", "n")).alias("body"), "replayed")
        @pipeline.stage(source="raw", sink="totals", consumer_group="b", lookback="1h", output_mode="update")
        def kept(events):
            return totals(events)
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        out = { hub = "local:hubs/out", create_if_missing = true, partitions = 2 }
        totals = { url = "sqlite:///totals.db", table = "totals", upsert_key = ["odd"], create_if_missing = true }
    """
    file = write(hubs.parent, "recent", code, config)
    raw = new_hub(hubs, "raw")
    send(raw, readings(4))

    def bodies() -> list[tuple[int, int]]:
        found = (json.loads(event.body) for event in at(hubs, "out").flat())
        return sorted((each["odd"], each["n"]) for each in found)

    once(file)
    assert bodies() == [(0, 2), (1, 2)]
    assert rows(hubs.parent / "totals.db", "SELECT odd, n FROM totals ORDER BY odd") == [(0, 2), (1, 2)]

    send(raw, [b'{"id": 5, "celsius": 1}'])  # it arrives while nothing runs
    again = once(file)
    assert again.reports["published"].events == 5  # read again, into state
    assert bodies() == [(0, 2), (1, 2), (1, 3)]  # made of all of the last hour, and nothing else again
    assert rows(hubs.parent / "totals.db", "SELECT odd, n FROM totals ORDER BY odd") == [(0, 2), (1, 3)]


def test_windows_that_are_over_are_files_and_rows_once_and_tables_in_memory_have_their_datasets_name(
    spark: SparkSession, once: Once, hubs: Path
) -> None:
    code = """
        import hubline
        from hubline.spark import parse_json
        from pyspark.sql import functions as F
        pipeline = hubline.Pipeline("windows")
        @pipeline.stage(source="raw", sink="minutes", consumer_group="windows")
        def minutes(events):
            read = parse_json(events, "at timestamp").where("_error is null").withWatermark("at", "10 seconds")
            counted = read.groupBy(F.window("at", "1 minute").alias("during")).count()
            return counted.select(F.col("during.start").alias("minute"), "count")
        pipeline.stage(source="raw", sink="rows", consumer_group="rows", name="rows")(minutes)
        @pipeline.stage(source="raw", sink="seen", consumer_group="seen")
        def seen(events):
            return events.select(F.col("body").cast("string").alias("body"))
        pipeline.stage(source="raw", sink="screen", consumer_group="screen", name="screen")(seen)
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        minutes = { format = "parquet", path = "minutes" }
        rows = { url = "sqlite:///rows.db", table = "rows", create_if_missing = true }
        seen = { format = "memory" }
        screen = { format = "console" }
    """
    file = write(hubs.parent, "windows", code, config)
    raw = new_hub(hubs, "raw")
    start = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)

    def sent(*seconds: int) -> None:
        bodies = [json.dumps({"at": (start + timedelta(seconds=each)).isoformat()}).encode() for each in seconds]
        send(raw, bodies, partition="0")

    def written() -> list[int]:
        return sorted(row["count"] for row in spark.read.parquet(str(hubs.parent / "minutes")).collect())

    def in_table() -> list[object]:
        return [count for (count,) in rows(hubs.parent / "rows.db", "SELECT count FROM rows ORDER BY count")]

    sent(1, 2, 3, 61, 62, 200)
    once(file)
    assert written() == [2, 3]  # the last one is not over
    assert in_table() == [2, 3]
    assert spark.table("seen").count() == 6
    sent(400)
    again = once(file)  # state is kept: the window of before ends, and no other comes again
    assert written() == [1, 2, 3]
    assert in_table() == [1, 2, 3]
    assert (spark.table("seen").count(), again.reports["screen"].events) == (1, 1)  # they continue by the store
    spark.catalog.dropTempView("seen")


def test_files_are_one_stages_with_one_state_folder_and_rows_of_others_are_not_left_out_in_silence(
    spark: SparkSession, once: Once, hubs: Path
) -> None:
    code = """
        import hubline
        pipeline = hubline.Pipeline("files")
        @pipeline.stage(source="raw", sink="kept", consumer_group="kept")
        def kept(events):
            return events.selectExpr("cast(body as string) AS body")
        pipeline.stage(source="raw", sink="kept", consumer_group="other", name="other")(kept)
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        kept = { format = "parquet", path = "kept" }
        [run]
        store = "sqlite:///store.db"
    """
    file = write(hubs.parent, "files", code, config)
    raw = new_hub(hubs, "raw")
    send(raw, readings(3))

    once(file, "kept")
    with pytest.raises(PipelineInvalid, match="stage other: the folder"):
        once(file, "other")
    send(raw, readings(2, first=3))
    shutil.copytree("state/files", "kept-state")
    shutil.rmtree("state/files")
    with pytest.raises(PipelineInvalid, match="Name another path for the dataset kept"):
        once(file, "kept")

    shutil.rmtree("state/files")
    shutil.copytree("kept-state", "state/files")
    once(file, "kept")
    assert spark.read.parquet(str(hubs.parent / "kept")).count() == 5


def test_table_keeps_events_as_they_are_in_columns_of_their_names_and_is_not_made_of_these_alone(
    once: Once, hubs: Path
) -> None:
    code = """
        import hubline
        pipeline = hubline.Pipeline("archive")
        @pipeline.stage(source="raw", sink="archive", consumer_group="archive")
        def archive(events):
            return events
    """
    config = """
        [datasets]
        raw = { hub = "local:hubs/raw" }
        archive = { url = "sqlite:///archive.db", table = "archive", create_if_missing = true }
    """
    file = write(hubs.parent, "archive", code, config)
    send(new_hub(hubs, "raw"), [b"1", b"\xff"], partition="0")
    with pytest.raises(PipelineInvalid, match=r"gives no column.*only if the table has columns of the same"):
        once(file)

    rows(Path("archive.db"), 'CREATE TABLE archive ("sequenceNumber" integer, body blob)')
    once(file)

    assert rows(Path("archive.db"), "SELECT * FROM archive ORDER BY 1") == [(0, b"1"), (1, b"\xff")]


GAPS = """
    import hubline
    from hubline.spark import parse_json
    pipeline = hubline.Pipeline("gaps")
    @pipeline.stage(source="raw", sink="rows", consumer_group="rows")
    def rows(events):
        return parse_json(events, "id long")
    @pipeline.stage(source="raw", sink="copy", consumer_group="copy")
    def copy(events):
        return events
"""
GAPS_CONFIG = """
    [datasets]
    raw = { hub = "local:hubs/raw" }
    rows = { url = "sqlite:///rows.db", table = "rows", create_if_missing = true }
    copy = { hub = "local:hubs/copy", create_if_missing = true, partitions = 2 }
    [run]
    max_restarts = 0
"""


def expire(hub: TestHub) -> None:
    """Lets retention remove all but what was sent last."""

    async def trimmed() -> None:
        opened = LocalHub(hub.root, hub.name)
        await opened.apply_retention()
        await opened.close()

    asyncio.run(trimmed())


def test_events_that_expired_end_a_stage_or_are_a_loss_that_is_reported_and_passed(once: Once, hubs: Path) -> None:
    file = write(hubs.parent, "gaps", GAPS, GAPS_CONFIG)
    asyncio.run(create_hub(hubs, "raw", partitions=1, retention=Retention(bytes=1)))
    raw, database = at(hubs, "raw"), hubs.parent / "rows.db"
    stores = {"rows": f"sqlite:///{database}", "copy": f"sqlite:///{hubs.parent}/state/gaps/checkpoints.db"}
    send(raw, readings(4))
    once(file)
    send(raw, readings(3, first=4))  # nobody reads them in time
    send(raw, readings(2, first=7))
    expire(raw)

    with pytest.raises(StageFailed, match=r"PositionInvalid: .*have been removed.*on_data_loss"):
        once(file, "rows")
    assert [checkpoints(store, raw, group) for group, store in stores.items()] == [{"0": 3}] * 2

    view = once(file, on_data_loss="earliest")
    gap = "data loss: partition 0 of raw: 3 events are gone (expired), from sequence number 4 on; it continues at 7"
    assert {f"{stage}: {gap}" for stage in stores} <= set(view.notes)
    assert [view.reports[stage].lost_events for stage in stores] == [3, 3]
    assert rows(database, "SELECT id FROM rows ORDER BY id") == [(0,), (1,), (2,), (3,), (7,), (8,)]
    assert numbers(at(hubs, "copy")) == [0, 1, 2, 3, 7, 8]
    assert [checkpoints(store, raw, group) for group, store in stores.items()] == [{"0": 8}] * 2

    # At the newest one there is nothing to read yet: the gap is moved over all the same.
    for first in (9, 10):
        send(raw, readings(1, first=first))
    expire(raw)
    assert [report.lost_events for report in once(file, on_data_loss="latest").reports.values()] == [2, 2]
    assert [checkpoints(store, raw, group) for group, store in stores.items()] == [{"0": 10}] * 2
    send(raw, readings(1, first=11))
    assert once(file, "copy").reports["copy"].lost_events == 0
    assert numbers(at(hubs, "copy")) == [0, 1, 2, 3, 7, 8, 11]
    assert rows(database, "SELECT max(id), count(*) FROM rows") == [(8, 6)]


def test_table_does_not_take_events_of_a_hub_that_was_recreated_for_those_that_it_has(once: Once, hubs: Path) -> None:
    file = write(hubs.parent, "gaps", GAPS, GAPS_CONFIG)
    raw = new_hub(hubs, "raw")
    send(raw, readings(4), partition="0")
    once(file, "rows")
    shutil.rmtree(hubs / "raw")
    new_hub(hubs, "raw")
    send(raw, readings(2, first=4), partition="0")

    with pytest.raises(StageFailed, match=r"the hub now begins again at 0.*hubline checkpoints reset"):
        once(file, "rows", on_data_loss="earliest")
    reset = ["--store", f"sqlite:///{hubs.parent}/rows.db", "--group", "rows", "--yes"]
    assert main(["checkpoints", "reset", raw.address, *reset]) == 0
    once(file, "rows", on_data_loss="earliest")
    assert rows(hubs.parent / "rows.db", "SELECT id FROM rows ORDER BY id") == [(number,) for number in range(6)]
