"""How a run lives: failed stages start again beside the others, signals end it in good order, locks keep it alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.errors import ConfigError, PipelineInvalid, StageFailed
from hubline.identity import ID_PROPERTY
from hubline.pipeline.checks import checked_file
from hubline.pipeline.runner import Request, locked, run
from tests.pipeline.files import PARTITIONS, Notes, checkpoints, eventually, new_hub, owners, readings, send, write
from tests.spark.hubs import TestHub

# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 500.0
pytestmark = pytest.mark.timeout(600)

CODE = """
    from pathlib import Path
    import pyarrow as pa
    import hubline

    pipeline = hubline.Pipeline("life")
    BROKEN = Path(__file__).with_name("broken")

    @pipeline.stage(source="raw", to="copy", group="copy")
    def copy(events):
        return events

    @pipeline.batches(source="raw", to="rows", group="rows", schema="bytes long")
    def rows(events):
        if BROKEN.exists():
            raise RuntimeError("the handler is broken")
        return pa.table({"bytes": [len(body) for body in events.column("body").to_pylist()]})
"""
PLACES = """
    [places]
    raw = { hub = "local:hubs/raw" }
    copy = { hub = "local:hubs/copy", create = true, partitions = 2 }
    rows = { url = "sqlite:///rows.db", table = "rows", create = true }
"""
COUNT = 20


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    monkeypatch.chdir(tmp_path)
    return new_hub(tmp_path / "hubs", "raw")


class Mending(Notes):
    """Mends the broken handler when it hears of it."""

    def __init__(self, broken: Path) -> None:
        super().__init__()
        self._broken = broken

    def note(self, text: str) -> None:
        super().note(text)
        if text.startswith("rows: failed"):
            self._broken.unlink(missing_ok=True)


def signal_when(is_so: Callable[[], bool]) -> threading.Thread:
    """Asks this process to end as soon as it is so, as a supervisor would."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def rows_count(database: Path) -> int:
    if not database.exists():
        return 0
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])
    except sqlite3.OperationalError:  # not made yet
        return 0
    finally:
        connection.close()


def test_failed_stage_starts_again_and_a_signal_ends_all_between_two_batches(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    file = write(tmp_path, "life", CODE, PLACES)
    (tmp_path / "broken").touch()
    send(raw, readings(COUNT))
    view = Mending(tmp_path / "broken")
    copy = TestHub(f"local:{tmp_path}/hubs/copy", tmp_path / "hubs", "copy")
    before = signal.getsignal(signal.SIGTERM)
    checked = checked_file(file)
    ending = signal_when(lambda: rows_count(tmp_path / "rows.db") == COUNT and view.reports["copy"].events >= COUNT)

    assert not run(checked, Request(), spark=spark, view=view)

    ending.join()
    reports = view.reports
    assert reports["copy"].state == "stopped"
    assert (reports["rows"].state, reports["rows"].rows) == ("stopped", COUNT)
    assert reports["rows"].restarts >= 1
    assert any("RuntimeError: the handler is broken" in note for note in view.notes)
    assert "copy: stopped" in view.notes  # and not cut short
    # At least once: on a machine so busy that Spark gives up a planning process, a batch may come again.
    assert len({event.properties[ID_PROPERTY] for event in copy.flat()}) == COUNT
    store = f"sqlite:///{tmp_path}/state/life/checkpoints.db"
    assert sum((last or 0) + 1 for last in checkpoints(store, raw, "copy").values()) == COUNT
    eventually(lambda: owners(store, raw, "copy") == set())
    eventually(lambda: owners(f"sqlite:///{tmp_path}/rows.db", raw, "rows") == set())
    assert signal.getsignal(signal.SIGTERM) is before


def test_stage_that_fails_too_often_ends_the_run_with_the_reason(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    file = write(tmp_path, "life", CODE, PLACES + "    [run]\n    restarts = 0\n")
    (tmp_path / "broken").touch()
    send(raw, readings(PARTITIONS))
    view = Notes()
    with pytest.raises(StageFailed, match="stage rows failed 1 time: RuntimeError: the handler is broken") as raised:
        run(checked_file(file, stages=["rows"]), Request(), spark=spark, view=view)
    assert raised.value.stage == "rows"
    assert rows_count(tmp_path / "rows.db") == 0


def test_columns_that_do_not_fit_are_told_of_all_stages_before_any_starts(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    database = sqlite3.connect(tmp_path / "rows.db")
    database.execute("CREATE TABLE rows (other TEXT)")
    database.close()
    code = """
        import hubline
        import hubline.spark
        pipeline = hubline.Pipeline("wrong")
        @pipeline.stage(source="raw", to="hub-a", group="a")
        def dropped(events):
            return events.drop("eventId")
        @pipeline.stage(source="raw", to="rows", group="b")
        def typed(events):
            return events.selectExpr("partition", "sequenceNumber", "'x' as other", "length(body) as bytes")
        @pipeline.stage(source="raw", to="hub-c", group="c")
        def misspelt(events):
            kept = events.where("body is not null")
            return kept.select("bodi")
        @pipeline.stage(source="raw", to="hub-d", group="d")
        def unkept(events):
            return hubline.spark.parse_json(events, "id long").drop("id")
        @pipeline.stage(source="raw", to="hub-e", group="e", lookback="1h")
        def forgets(events):
            return events.drop("replayed")
        @pipeline.stage(source="raw", to="hub-f", group="f")
        def explodes(events):
            return events.selectExpr("explode(array(body, body)) as body", "eventId")
        @pipeline.stage(source="raw", to="hub-g", group="g")
        def shuffles(events):
            return events.repartition(3)
        @pipeline.stage(source="hub-g", to="rows", group="h", drop_repeats="ordered")
        def ordered(events):
            return events.selectExpr("partition", "sequenceNumber", "properties", "'x' as other")
    """
    hubs = "".join(f"    hub-{each} = {{ hub = 'local:hubs/{each}', create = true }}\n" for each in "acdefg")
    checked = checked_file(write(tmp_path, "wrong", code, PLACES + hubs))
    with pytest.raises(PipelineInvalid) as raised:
        run(checked, Request(), spark=spark, view=Notes())
    told = {problem.line: problem.what for problem in raised.value.problems}
    assert "it drops the column eventId" in told[4]
    assert "the table has no column 'bytes'" in told[7]
    assert "bodi" in told[13]
    assert "rows with an _error, and nowhere to keep dead letters" in told[14]
    assert "it drops the column replayed" in told[17]
    assert "it makes several rows of an event (explode), all with one eventId" in told[20]
    assert "it moves rows between tasks (Repartition)" in told[23]
    assert len(told) == 7
    assert not (tmp_path / "state" / "wrong" / "dropped").exists()


def test_state_folder_is_one_runs_alone(raw: TestHub, tmp_path: Path) -> None:
    plan = checked_file(write(tmp_path, "life", CODE, PLACES)).plan
    with locked(plan), pytest.raises(ConfigError, match=r"another run uses .*--set run\.state=PATH"), locked(plan):
        pass
    with locked(plan):
        pass
