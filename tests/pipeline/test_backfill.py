"""Backfills: a range of old events into a new table, beside the stage, up to an end that the first start fixes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from hubline.adapters import open_hub, open_store
from hubline.cli.app import main
from hubline.cli.exit_codes import ExitCode
from hubline.errors import ConfigError, PipelineInvalid, StageFailed
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.pipeline.backfill import Backfill, pinned_ends
from hubline.pipeline.checks import CheckedPlan, check_file
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.runner import Request, run
from hubline.pipeline.stage_frame import Reading, build_frame
from hubline.pipeline.stop_gate import Gate
from tests.pipeline.files import Notes, checkpoints, new_hub, readings, send, write
from tests.spark.hubs import TestHub

# Far longer than anything takes: a bound on waiting, not a measure.
pytestmark = pytest.mark.timeout(600)

CODE = """
    import os
    from pyspark.sql import functions as F
    import hubline
    import hubline.spark

    pipeline = hubline.Pipeline("archive")

    @pipeline.stage(source="raw", sink="readings", consumer_group="store", max_batch_size=8)
    def store(events):
        parsed = hubline.spark.parse_json(events, "id long, celsius double")
        if os.environ.get("FAILS_AT"):
            failing = F.col("id") == int(os.environ["FAILS_AT"])
            parsed = parsed.withColumn("id", F.when(failing, F.raise_error(F.lit("the machine is gone")))
                .otherwise(F.col("id")).cast("long"))
        return parsed.withColumn("fahrenheit", F.col("celsius") * 1.8 + 32)
"""

CONFIG = """
    [datasets]
    raw = { hub = "local:hubs/raw" }
    readings = { url = "sqlite:///readings.db", table = "readings", create_if_missing = true }

    [run]
    max_restarts = 0
"""

COUNT = 40
MORE = 6
NEW_TABLE = {"datasets.readings.table": "readings_v2"}
BACKFILL = Backfill("store")


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    monkeypatch.chdir(tmp_path)
    return new_hub(tmp_path / "hubs", "raw")


@pytest.fixture
def file(tmp_path: Path, raw: TestHub) -> Path:
    return write(tmp_path, "archive", CODE, CONFIG)


def checked(
    file: Path, backfill: Backfill | None = BACKFILL, *, overrides: Mapping[str, str] | None = None
) -> CheckedPlan:
    return check_file(file, overrides={**NEW_TABLE, **(overrides or {})}, backfill=backfill)


def rows(table: str) -> list[int]:
    connection = sqlite3.connect("readings.db")
    found = [number for (number,) in connection.execute(f"SELECT id FROM {table} ORDER BY id")]
    connection.close()
    return found


def ends_of(plan: CheckedPlan, notes: list[str] | None = None) -> dict[str, int]:
    (stage,) = plan.plan.stages
    return pinned_ends(stage, stage.sources[0], note=([] if notes is None else notes).append)


def test_a_failed_backfill_goes_on_to_the_end_it_had_and_the_stage_goes_on_from_there(
    raw: TestHub, file: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(raw, readings(COUNT))
    assert run(check_file(file), Request(once=True), spark=spark, view=Notes())
    of_the_stage = checkpoints("sqlite:///readings.db", raw, "store")

    monkeypatch.setenv("FAILS_AT", str(COUNT - 5))
    with pytest.raises(StageFailed, match="the machine is gone"):
        run(checked(file), Request(once=True), spark=spark, view=Notes())
    monkeypatch.delenv("FAILS_AT")
    done_before = rows("readings_v2")
    send(raw, readings(MORE, first=COUNT))
    view = Notes()
    assert run(checked(file), Request(once=True), spark=spark, view=view)

    assert 0 < len(done_before) < COUNT
    assert rows("readings_v2") == list(range(COUNT))
    assert view.reports["store"].events == COUNT - len(done_before)
    assert view.reports["store"].lag_events == 0
    assert rows("readings") == list(range(COUNT))
    assert checkpoints("sqlite:///readings.db", raw, "store") == of_the_stage

    switched = checked(file, None, overrides={"stages.store.consumer_group": "store-backfill"})
    assert run(switched, Request(once=True), spark=spark, view=Notes())
    assert rows("readings_v2") == list(range(COUNT + MORE))


class TestTheEnd:
    def test_it_is_where_the_first_start_found_it(self, raw: TestHub, file: Path) -> None:
        send(raw, readings(5), partition="0")
        assert ends_of(checked(file)) == {"0": 5, "1": 0}
        send(raw, readings(5), partition="0")
        send(raw, readings(5), partition="1")
        assert ends_of(checked(file)) == {"0": 5, "1": 0}
        assert checkpoints("sqlite:///readings.db", raw, "store-backfill.end") == {"0": 4, "1": -1}

    @pytest.mark.parametrize(
        ("position", "end"),
        [("sequence:3", 3), ("sequence:3:inclusive", 4), ("sequence:99", 5), ("time:-1h", 0)],
    )
    def test_it_is_before_a_position(self, raw: TestHub, file: Path, position: str, end: int) -> None:
        send(raw, readings(5), partition="0")
        assert ends_of(checked(file, replace(BACKFILL, ending_position=position)))["0"] == end

    def test_a_start_that_died_while_it_wrote_the_ends_writes_the_others(self, raw: TestHub, file: Path) -> None:
        send(raw, readings(5), partition="0")
        ends_of(checked(file))
        forget("store-backfill.end", raw, "1")
        assert ends_of(checked(file)) == {"0": 5, "1": 0}

    def test_a_group_with_checkpoints_is_refused(self, raw: TestHub, file: Path) -> None:
        send(raw, readings(5), partition="0")
        ends_of(checked(file))
        for partition in ("0", "1"):
            forget("store-backfill.end", raw, partition)
        ends_of(checked(file, replace(BACKFILL, group="other")))
        with pytest.raises(ConfigError, match=r"the consumer group other\.end has checkpoints already"):
            ends_of(checked(file, replace(BACKFILL, group="other.end")))

    def test_a_table_with_rows_is_refused(self, raw: TestHub, file: Path, tmp_path: Path) -> None:
        send(raw, readings(5), partition="0")
        connection = sqlite3.connect(tmp_path / "readings.db")
        connection.execute("CREATE TABLE readings_v2 (id integer)")
        connection.commit()
        assert ends_of(checked(file)) == {"0": 5, "1": 0}
        connection.execute("INSERT INTO readings_v2 VALUES (1)")
        connection.commit()
        connection.close()
        assert ends_of(checked(file)) == {"0": 5, "1": 0}  # the backfill's own rows
        with pytest.raises(ConfigError, match=r"has rows already.*--set datasets\.readings\.table=NAME"):
            ends_of(checked(file, replace(BACKFILL, group="other")))

    def test_a_later_start_into_another_table_is_refused(self, raw: TestHub, file: Path) -> None:
        send(raw, readings(5), partition="0")
        ends_of(checked(file))
        with pytest.raises(
            ConfigError, match=r"latest into table readings_v2 in .*, and not .* into table readings in"
        ):
            ends_of(check_file(file, backfill=BACKFILL))
        assert ends_of(checked(file)) == {"0": 5, "1": 0}

    @pytest.mark.parametrize("given", [{"starting_position": "sequence:1"}, {"ending_position": "sequence:2"}])
    def test_a_later_start_with_other_positions_is_refused(
        self, raw: TestHub, file: Path, given: dict[str, str]
    ) -> None:
        send(raw, readings(5), partition="0")
        ends_of(checked(file))
        with pytest.raises(ConfigError, match=r"was started from earliest to before latest into .*--group"):
            ends_of(checked(file, replace(BACKFILL, **given)))

    def test_what_is_refused_says_once_what_to_do(self, raw: TestHub, file: Path, tmp_path: Path) -> None:
        send(raw, readings(5), partition="0")
        ends_of(checked(file))
        (stage,) = check_file(file, backfill=BACKFILL).plan.stages
        reading = Reading(Gate(tmp_path / "gate"), None, True, False, {}, print)
        with pytest.raises(PipelineInvalid, match=r"with --group, and a new table\.$"):
            build_frame(cast("SparkSession", None), stage.queries[0], reading)  # refused before Spark is asked

    def test_a_range_of_which_nothing_is_left_is_noted(self, raw: TestHub, file: Path) -> None:
        send(raw, readings(5), partition="0")
        notes: list[str] = []
        ends_of(checked(file), notes)
        move("store-backfill", raw, "0", 3)
        ends_of(checked(file), notes)
        assert notes == []
        move("store-backfill", raw, "0", 4)
        ends_of(checked(file), notes)
        assert notes == [
            "all events of the range of group store-backfill are processed. For another range, choose another --group"
        ]


def forget(group: str, hub: TestHub, partition: str) -> None:
    move(group, hub, partition, None)


def move(group: str, hub: TestHub, partition: str, sequence: int | None) -> None:
    async def moved() -> None:
        store, opened = open_store("sqlite:///readings.db"), open_hub(hub.address)
        key = GroupKey(opened.namespace, opened.name, group).partition(partition)
        await store.reset_checkpoint(key, None if sequence is None else Checkpoint(key, str(sequence), sequence))
        await store.close()
        await opened.close()

    asyncio.run(moved())


class TestThePlan:
    def test_it_is_apart_from_the_stage(self, file: Path) -> None:
        plan = checked(file, Backfill("store", "store-v2", "time:-7d", "latest")).plan
        (stage,) = plan.stages
        assert isinstance(stage, PlannedStage)
        assert stage.options.consumer_group == "store-v2"
        assert stage.options.starting_position == "time:-7d"
        assert stage.ending_position == "latest"
        assert stage.folder.endswith("state/archive-backfill/store")

    def test_a_hub_as_the_sink_keeps_the_store_of_the_pipeline(self, file: Path, tmp_path: Path) -> None:
        write(
            tmp_path,
            "archive",
            CODE,
            CONFIG.replace('url = "sqlite:///readings.db", table = "readings",', 'hub = "local:hubs/new",'),
        )
        (stage,) = check_file(file, backfill=BACKFILL).plan.stages
        assert stage.store == f"sqlite:///{tmp_path}/state/archive/checkpoints.db"

    def test_what_the_stage_says_of_owners_and_checkpoints_does_not_count(self, file: Path) -> None:
        overrides = {"stages.store.load_balancing": "fixed:1", "stages.store.checkpoint": "never"}
        (stage,) = checked(file, overrides=overrides).plan.stages
        assert (stage.options.load_balancing, stage.options.checkpoint) == ("all", "every_batch")

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"stage": "stor"}, "there is no stage 'stor'. Did you mean store?"),
            ({"starting_position": "yesterday"}, "yesterday"),
            ({"ending_position": "yesterday"}, "yesterday"),
            ({"starting_position": "sequence:9", "ending_position": "sequence:2"}, "'sequence:2' has no events"),
            ({"starting_position": "sequence:2", "ending_position": "sequence:3"}, "after the starting position"),
            ({"starting_position": "time:-1h", "ending_position": "time:-2h"}, "has no events"),
            ({"starting_position": "latest"}, "has no events"),
            ({"ending_position": "earliest"}, "has no events"),
            ({"group": "store"}, "is that of stage store itself"),
            ({"group": "a b"}, "consumer group"),
            ({"group": "x" * 47}, "51 characters"),
        ],
    )
    def test_what_is_wrong_is_refused(self, file: Path, wrong: dict[str, Any], says: str) -> None:
        with pytest.raises((ConfigError, PipelineInvalid)) as refused:
            checked(file, replace(BACKFILL, **wrong))
        assert says in str(refused.value)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--backfill"], "--backfill is for one stage, not 0. Name it: --stage NAME."),
            (["--backfill", "--stage", "store", "--stage", "other"], "for one stage, not 2"),
            (["--group", "x"], "are for --backfill. Add it."),
            (["--ending-position", "latest"], "are for --backfill. Add it."),
        ],
    )
    def test_flags_that_do_not_fit_are_refused(
        self, file: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["run", str(file), *arguments]) == ExitCode.USAGE
        assert says in " ".join(capsys.readouterr().err.split())
