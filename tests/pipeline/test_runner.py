"""How a run lives: failed stages start again beside the others, signals end it in good order, locks keep it alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.cli.app import main
from hubline.cli.exit_codes import ExitCode
from hubline.errors import ConfigError, PipelineInvalid
from hubline.event_ids import ID_PROPERTY
from hubline.pipeline import runner as runner_module
from hubline.pipeline.checks import check_file
from hubline.pipeline.preparation import locked
from hubline.pipeline.progress import StageReport
from hubline.pipeline.runner import Request, run
from hubline.pipeline.stop_gate import Gate
from tests.pipeline.files import (
    PARTITIONS,
    Ended,
    Notes,
    Watching,
    checkpoints,
    eventually,
    new_hub,
    owners,
    readings,
    send,
    write,
)
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

    @pipeline.stage(source="raw", sink="copy", consumer_group="copy")
    def copy(events):
        return events

    @pipeline.batch_stage(source="raw", sink="rows", consumer_group="rows", schema="bytes long")
    def rows(events):
        if BROKEN.exists():
            raise RuntimeError("the handler is broken")
        return pa.table({"bytes": [len(body) for body in events.column("body").to_pylist()]})
"""
CONFIG = """
    [datasets]
    raw = { hub = "local:hubs/raw" }
    copy = { hub = "local:hubs/copy", create_if_missing = true, partitions = 2 }
    rows = { url = "sqlite:///rows.db", table = "rows", create_if_missing = true }
"""
COUNT = 20


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    monkeypatch.chdir(tmp_path)
    return new_hub(tmp_path / "hubs", "raw")


class Fixing(Notes):
    """Fixes the broken handler when its stage has failed."""

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
    file = write(tmp_path, "life", CODE, CONFIG)
    (tmp_path / "broken").touch()
    send(raw, readings(COUNT))
    view = Fixing(tmp_path / "broken")
    copy = TestHub(f"local:{tmp_path}/hubs/copy", tmp_path / "hubs", "copy")
    before = signal.getsignal(signal.SIGTERM)
    checked = check_file(file)
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


def test_signal_while_the_next_batch_is_not_due_for_long_still_writes_the_checkpoints_of_the_last_one(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    send(raw, readings(COUNT))
    checked = check_file(
        write(tmp_path, "life", CODE, CONFIG), stages=["copy"], overrides={"stages.copy.trigger_interval": "15s"}
    )
    view = Notes()
    ending = signal_when(lambda: "copy" in view.reports and view.reports["copy"].events >= COUNT)

    assert not run(checked, Request(), spark=spark, view=view)

    ending.join()
    assert "copy: stopped" in view.notes  # and not cut short
    store = f"sqlite:///{tmp_path}/state/life/checkpoints.db"
    assert owners(store, raw, "copy") == set()
    assert sum((last or 0) + 1 for last in checkpoints(store, raw, "copy").values()) == COUNT
    assert not list((tmp_path / "state" / "life").glob(".gate*"))


def test_what_spark_does_not_run_as_a_stream_is_reported_before_any_stage_starts(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    code = """
        import hubline
        pipeline = hubline.Pipeline("counting")
        @pipeline.stage(source="raw", sink="copy", consumer_group="copy")
        def copy(events):
            return events
        @pipeline.stage(source="copy", sink="rows", consumer_group="rows")
        def counted(events):
            return events.groupBy("partitionKey").count()
    """
    checked = check_file(write(tmp_path, "counting", code, CONFIG))
    with pytest.raises(PipelineInvalid, match=r"counting\.py:6: stage counted: .*append"):
        run(checked, Request(once=True), spark=spark, view=Notes())
    assert not (tmp_path / "state" / "counting" / "copy").exists()


def test_run_whose_reader_went_away_ends_in_good_order(spark: SparkSession, raw: TestHub, tmp_path: Path) -> None:
    class Gone(Notes):
        def show(self, reports: Sequence[StageReport]) -> None:
            super().show(reports)
            if reports[0].events:
                raise BrokenPipeError

    send(raw, readings(COUNT))
    checked = check_file(write(tmp_path, "life", CODE, CONFIG), stages=["copy"])
    with pytest.raises(BrokenPipeError):
        run(checked, Request(), spark=spark, view=Gone())
    store = f"sqlite:///{tmp_path}/state/life/checkpoints.db"
    eventually(lambda: owners(store, raw, "copy") == set())
    assert sum((last or 0) + 1 for last in checkpoints(store, raw, "copy").values()) == COUNT


def test_sigterm_while_spark_starts_interrupts_the_command(
    raw: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_SECONDS)

    monkeypatch.setattr(runner_module, "session", start)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", str(write(tmp_path, "life", CODE, CONFIG))]) == ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_ends_the_command_and_all_below_it_without_a_word_too_many(raw: TestHub, tmp_path: Path) -> None:
    """A terminal signals Java and its Python processes, too."""
    file = write(tmp_path, "life", CODE, CONFIG)
    send(raw, readings(COUNT))
    errors = tmp_path / "stderr.txt"
    command = [sys.executable, "-m", "hubline", "run", str(file), "--stage", "copy", "--master", "local[1]"]
    with errors.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, start_new_session=True) as process:
        eventually(lambda: process.poll() is not None or f"copy: running, {COUNT} events" in errors.read_text())
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.OK
    lines = errors.read_text().splitlines()
    assert [
        line
        for line in lines
        if "Traceback" in line or not line.startswith(("created", "starting", "stopping", "copy"))
    ] == []
    assert lines[-2:-1] == ["copy: stopped"]


def test_batch_that_fails_while_the_run_ends_is_not_done(
    spark: SparkSession, raw: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its planning process may not have left yet, and would believe it."""
    said: list[Gate] = []
    monkeypatch.setattr(Gate, "mark_done", said.append)
    code = HOLDING.replace("return pa.table", "raise RuntimeError('no')\n        return pa.table")
    file = write(tmp_path, "held", code, CONFIG)
    (tmp_path / "hold").touch()
    send(raw, readings(COUNT))

    class Releasing(Notes):
        def note(self, text: str) -> None:
            super().note(text)
            if text.startswith("stopping rows"):
                (tmp_path / "hold").unlink()

    ending = signal_when((tmp_path / "begun").exists)
    assert not run(check_file(file), Request(), spark=spark, view=Releasing())
    ending.join()
    assert said == []


def test_columns_that_do_not_fit_are_reported_of_all_stages_before_any_starts(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    database = sqlite3.connect(tmp_path / "rows.db")
    database.execute("CREATE TABLE rows (other TEXT, partitionkey TEXT)")
    database.close()
    code = """
        import hubline
        import hubline.spark
        pipeline = hubline.Pipeline("wrong")
        @pipeline.stage(source="raw", sink="hub-a", consumer_group="a")
        def dropped(events):
            return events.drop("eventId")
        @pipeline.stage(source="raw", sink="rows", consumer_group="b")
        def typed(events):
            return events.selectExpr("partition", "sequenceNumber", "'x' as other", "length(body) as bytes")
        @pipeline.stage(source="raw", sink="hub-c", consumer_group="c")
        def misspelt(events):
            kept = events.where("body is not null")
            return kept.select("bodi")
        @pipeline.stage(source="raw", sink="hub-d", consumer_group="d")
        def unkept(events):
            return hubline.spark.parse_json(events, "id long").drop("id")
        @pipeline.stage(source="raw", sink="hub-e", consumer_group="e", lookback="1h")
        def forgets(events):
            return events.drop("replayed")
        @pipeline.stage(source="raw", sink="hub-f", consumer_group="f")
        def explodes(events):
            return events.selectExpr("explode(array(body, body)) as body", "eventId")
        @pipeline.stage(source="raw", sink="hub-g", consumer_group="g")
        def shuffles(events):
            return events.repartition(3)
        @pipeline.stage(source="hub-g", sink="hub-h", consumer_group="h")
        def passes(events):
            return events
        @pipeline.stage(source="hub-h", sink="rows", consumer_group="i", drop_duplicates="ordered")
        def ordered(events):
            return events.selectExpr("partition", "sequenceNumber", "properties", "'x' as other")
        @pipeline.stage(source="hub-h", sink="rows", consumer_group="j")
        def as_json(events):
            return events.selectExpr("partition", "sequenceNumber", "to_json(properties) as properties", "'x' as other")
        @pipeline.stage(source="raw", sink="rows", consumer_group="k")
        def spelt(events):
            return events.selectExpr("*", "'x' as other")
        @pipeline.stage(source="hub-h", sink="rows", consumer_group="l")
        def relabelled(events):
            return events.selectExpr("'7' as partition", "sequenceNumber", "'x' as other")
        @pipeline.event_stage(source="raw", sink="rows", consumer_group="m", schema="other string, sequenceNumber long")
        def counts(event):
            return {"other": "x", "sequenceNumber": 1}
        @pipeline.batch_stage(source="raw", sink="rows", consumer_group="n", schema="other string, partition string")
        def labels(events):
            return events
        @pipeline.stage(source="raw", sink="rows", consumer_group="o")
        def doubles(events):
            other = events.selectExpr("partition", "sequenceNumber", "'x' as other")
            return other.unionByName(other.where("partition = '0'"))
    """
    hubs = "".join(
        f"    hub-{each} = {{ hub = 'local:hubs/{each}', create_if_missing = true }}\n" for each in "acdefgh"
    )
    checked = check_file(write(tmp_path, "wrong", code, CONFIG + hubs))
    with pytest.raises(PipelineInvalid) as raised:
        run(checked, Request(), spark=spark, view=Notes())
    messages = {problem.line: problem.message for problem in raised.value.problems}
    assert "it drops the column eventId" in messages[4]
    assert "the table has no column 'bytes'" in messages[7]
    assert "bodi" in messages[13]
    assert "rows with an _error, but the stage has no place for dead letters" in messages[14]
    assert "it drops the column replayed" in messages[17]
    assert "it makes several rows of an event (explode), all with one eventId" in messages[20]
    assert "it moves rows between tasks (Repartition)" in messages[23]
    assert "the query changed the column 'properties' from map<string,string> to string" in messages[32]
    assert "the table has a column partitionkey, but events have partitionKey" in messages[35]
    assert "the query computes the column 'partition', which must say of which events its rows are" in messages[38]
    assert "schema names 'sequenceNumber', by which a row's event is known" in messages[41]
    assert "schema names 'partition', by which a row's event is known" in messages[44]
    assert "the query reads hubs 2 times by format('eventhubs'), in a join or a union" in messages[47]
    assert len(messages) == 13
    assert not (tmp_path / "state" / "wrong" / "dropped").exists()


def test_state_folder_is_one_runs_alone(raw: TestHub, tmp_path: Path) -> None:
    plan = check_file(write(tmp_path, "life", CODE, CONFIG)).plan
    with (
        locked(plan),
        pytest.raises(ConfigError, match=r"another run uses .*run\.spark_checkpoints=PATH.*run\.store=URL"),
        locked(plan),
    ):
        pass
    with locked(plan):
        pass


def test_stage_that_reads_another_hub_is_not_started_again(raw: TestHub, tmp_path: Path, spark: SparkSession) -> None:
    checked = check_file(write(tmp_path, "life", CODE, CONFIG), stages=["copy"])
    view = Notes()
    running = runner_module.PipelineRun(checked, Request(), spark, view)
    (each,) = running._queries
    raised = (
        "hubline.errors.PositionInvalid: partition 1 of hub raw cannot be read from sequence:0: it is of another hub"
    )
    each._fail(ValueError(f"Traceback (most recent call last):\n  File x\n{raised}\n"))
    running.close()
    assert each.state == "failed"
    assert f"remove {tmp_path}/state/life/copy, and its checkpoints: hubline checkpoints reset" in view.notes[0]
    assert view.notes[0].endswith(f"--group 'copy' --store sqlite:///{tmp_path}/state/life/checkpoints.db")


def test_two_instances_share_a_group_and_one_takes_over_what_the_other_leaves(
    spark: SparkSession, raw: TestHub, tmp_path: Path
) -> None:
    file = write(tmp_path, "life", CODE, CONFIG + "    [run]\n    store = 'sqlite:///progress.db'\n")
    store = f"sqlite:///{tmp_path}/progress.db"
    copy = TestHub(f"local:{tmp_path}/hubs/copy", tmp_path / "hubs", "copy")
    views = {"one": Watching(), "two": Watching()}

    def runner(name: str) -> None:
        checked = check_file(file, stages=["copy"], overrides={"run.spark_checkpoints": f"state/{name}"})
        # A session has but one query of a name.
        with suppress(Ended):
            run(checked, Request(), spark=spark.newSession(), view=views[name])

    def copied() -> int:
        return len({event.properties[ID_PROPERTY] for event in copy.flat()})

    threads = {name: threading.Thread(target=runner, args=(name,)) for name in views}
    try:
        for thread in threads.values():
            thread.start()
        eventually(lambda: len(owners(store, raw, "copy")) == len(views))
        send(raw, readings(COUNT // 2), partition="0")
        send(raw, readings(COUNT // 2), partition="1")
        eventually(lambda: copied() == COUNT)
        eventually(lambda: [view.reports["copy"].events for view in views.values()] == [COUNT // 2] * 2)

        views["one"].is_enough.set()
        threads["one"].join()
        assert "copy: stopped" in views["one"].notes  # and not cut short
        for partition in ("0", "1"):
            send(raw, readings(1), partition=partition)
        eventually(lambda: copied() == COUNT + 2)
    finally:
        for view in views.values():
            view.is_enough.set()
        for thread in threads.values():
            thread.join()
    assert len(copy.flat()) == COUNT + 2  # nothing was published twice


HOLDING = """
    from pathlib import Path
    import time
    import pyarrow as pa
    import hubline

    pipeline = hubline.Pipeline("held")
    HERE = Path(__file__).parent

    @pipeline.batch_stage(source="raw", sink="rows", consumer_group="rows", schema="bytes long")
    def rows(events):
        (HERE / "begun").touch()
        while (HERE / "hold").exists():
            time.sleep(0.05)
        return pa.table({"bytes": [len(body) for body in events.column("body").to_pylist()]})
"""


def test_second_signal_cuts_a_batch_short_and_it_comes_again(
    spark: SparkSession, raw: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "held", HOLDING, CONFIG)
    (tmp_path / "hold").touch()
    send(raw, readings(COUNT))
    view = Notes()
    signals = [
        signal_when((tmp_path / "begun").exists),
        signal_when(lambda: any(note.startswith("stopping rows") for note in view.notes)),
    ]
    assert not run(check_file(file), Request(), spark=spark, view=view)
    for thread in signals:
        thread.join()
    assert "rows: stopped: its batch was cut short, and the next run repeats it" in view.notes
    (tmp_path / "hold").unlink()
    assert rows_count(tmp_path / "rows.db") == 0

    # The command, in this process and on this session.
    monkeypatch.setattr(runner_module, "session", lambda *_, **__: spark)
    monkeypatch.setattr(runner_module, "_stop_session", lambda _: None)
    assert main(["run", str(file), "--once"]) == ExitCode.OK
    assert rows_count(tmp_path / "rows.db") == COUNT


def test_signal_while_stages_are_checked_lets_none_start(spark: SparkSession, raw: TestHub, tmp_path: Path) -> None:
    class Impatient(Notes):
        def note(self, text: str) -> None:
            super().note(text)
            if "checking" in text:
                os.kill(os.getpid(), signal.SIGINT)

    view = Impatient()
    assert not run(check_file(write(tmp_path, "life", CODE, CONFIG)), Request(), spark=spark, view=view)
    assert view.notes[1:] == ["copy: checking its columns"]  # after the hub was made
    assert {report.state for report in view.reports.values()} == {"stopped"}


def test_command_ends_with_8_where_a_stage_fails_too_often_and_names_the_users_own_line_in_a_few(
    spark: SparkSession,
    raw: TestHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runner_module, "session", lambda *_, **__: spark)
    monkeypatch.setattr(runner_module, "_stop_session", lambda _: None)
    file = write(tmp_path, "life", CODE, CONFIG)
    (tmp_path / "broken").touch()
    send(raw, readings(PARTITIONS))
    arguments = ["--stage", "rows", "--set", "run.max_restarts=1"]
    assert main(["run", str(file), *arguments]) == ExitCode.STAGE_FAILED
    said = capfd.readouterr().err  # Java's, too
    line = file.read_text().splitlines().index('        raise RuntimeError("the handler is broken")') + 1
    error = f"{file}:{line}: RuntimeError: the handler is broken"
    assert f"rows: failed for good, after 1 restart: {error}\n" in said
    assert said.splitlines()[-1].startswith(f"hubline: stage rows failed 2 times: {error}. ")
    assert len(said.splitlines()) < 30, said
    assert rows_count(tmp_path / "rows.db") == 0
