"""The gate by which a run ends between two batches, as the planning process and the run see it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hubline.coordination.control_loop import ControlLoop
from hubline.coordination.snapshot import Wait
from hubline.pipeline.stage_run import StageRun, State
from hubline.pipeline.stage_source import StageReader, StageSource
from hubline.pipeline.stop_gate import Gate
from hubline.spark import compatibility
from hubline.spark.compatibility import ReadMaxRows
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.source import stream_reader as stream
from hubline.spark.source.offsets import Entry, StreamOffset
from hubline.spark.source.stream_planner import StreamPlanner
from tests.pipeline.files import new_hub, readings, send


class Planned:
    """A planner that hears what is done."""

    def __init__(self) -> None:
        self.done_up_to: list[StreamOffset] = []

    async def done(self, end: StreamOffset) -> None:
        self.done_up_to.append(end)

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize("is_begun_before", [True, False])
def test_batch_that_an_earlier_run_began_is_not_done_because_none_ran_when_the_gate_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_begun_before: bool
) -> None:
    monkeypatch.setattr(stream, "ignore_sigterm", lambda: None)  # this process continues, and so do those it starts
    source = StageSource(
        {"hub": f"local:{tmp_path}/raw", "gate": str(tmp_path / "gate"), "share": "1/1", "once": "False"}
    )
    planner = Planned()
    reader = StageReader(source.parsed, SOURCE_SCHEMA, source.gate, is_once=False)
    reader._control = ControlLoop(in_thread=True)
    reader._planner = cast("StreamPlanner", planner)
    batch = StreamOffset(entries={"0": Entry(0, 5, 1)})
    source.gate.open()
    if is_begun_before:
        reader.partitions(batch.to_json(), batch.to_json())
    source.gate.close()
    if not is_begun_before:
        reader.partitions(batch.to_json(), batch.to_json())
    source.gate.mark_done()
    reader.stop()
    assert planner.done_up_to == ([batch] if is_begun_before else [])


def test_gate_whose_folder_was_tidied_away_is_closed_all_the_same(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    gate.open()
    gate.close()
    assert gate.is_closed
    gate.remove()
    gate.mark_idle()
    assert gate.is_idle


def test_gate_of_several_hubs_is_idle_when_all_of_them_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(tmp_path / "gate")
    gate.open()
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        gate.enter()
    gate.close()
    gate.mark_idle()
    is_idle_early = gate.is_idle  # the first was asked before, and its batch runs
    monkeypatch.setattr(os, "getpid", lambda: 1)
    gate.mark_idle()
    assert (is_idle_early, gate.is_idle) == (False, True)
    gate.leave()
    assert not gate.is_left


def test_what_a_planning_process_waits_for_is_noted_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    source = StageSource({"hub": f"local:{tmp_path}/raw", "gate": str(gate.folder), "share": "1/1", "once": "False"})
    reader = StageReader(source.parsed, SOURCE_SCHEMA, gate, is_once=False)
    assert gate.take_notes() == []

    reader._waits(Wait("a", ["0", "1"], 26.0))
    reader._waits(Wait("b", [str(number) for number in range(30)], 9.5))

    assert gate.take_notes() == [
        "waiting for partitions 0, 1: owned by a, lease expires in 26 s unless renewed",
        "waiting for 30 partitions: owned by b, lease expires in 10 s unless renewed",
    ]
    assert gate.take_notes() == []


class Planning:
    """A planner with something to read when asked for the second time."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_pinned = False

    async def pin(self) -> None:
        self.is_pinned = True

    async def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        assert self.is_pinned
        assert is_limited
        self.asked += 1
        return StreamOffset(entries={"0": Entry(0, 5, 1)}) if self.asked == 2 else start

    async def stop(self) -> None:
        pass


def test_run_that_ends_by_itself_reads_to_a_pinned_end_within_the_limits_and_says_when_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def started(*_: object, **__: object) -> Planning:
        return planner

    planner = Planning()
    monkeypatch.setattr(stream, "start_planner", started)
    monkeypatch.setattr(stream, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(stream, "ignore_sigterm", lambda: None)
    gate = Gate(tmp_path / "gate")
    options = StageSource(
        {"hub": f"local:{tmp_path}/raw", "gate": str(gate.folder), "share": "1/1", "once": "True"}
    ).parsed
    reader = StageReader(options, SOURCE_SCHEMA, gate, is_once=True)
    gate.open()
    start = StreamOffset().to_json()
    is_idle = []
    for _ in range(3):
        reader.latestOffset(start, ReadMaxRows(1))
        is_idle.append(gate.is_idle)
    reader.stop()
    assert is_idle == [True, False, True]


@pytest.mark.parametrize("is_available_now", [True, False])
def test_trigger_that_ends_after_one_batch_on_older_spark_gets_all_events_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_available_now: bool
) -> None:
    monkeypatch.setattr(compatibility, "HAS_READ_LIMITS", False)  # as on Spark 4.0 and 4.1
    monkeypatch.setattr(stream, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(stream, "ignore_sigterm", lambda: None)
    hub = new_hub(tmp_path, "raw")
    send(hub, readings(40), partition="0")
    source = StageSource(
        {
            "hub": hub.address,
            "startingPosition": "earliest",
            "maxEventsPerTrigger": "8",
            "gate": str(tmp_path / "gate"),
            "share": "1/1",
            "once": "True",
            "availableNow": str(is_available_now),
        }
    )
    reader = source.streamReader(SOURCE_SCHEMA)
    reader.initialOffset()
    end = cast("Any", reader).latestOffset()
    reader.stop()
    assert end["0"]["to"] == (40 if is_available_now else 8)


class Query:
    """A query of Spark's that is active, and has nothing left to do when the test says so."""

    isActive = True  # noqa: N815 - Spark's name
    recentProgress = ()  # noqa: N815

    def __init__(self) -> None:
        self.asked = 0
        self.is_done = threading.Event()

    def processAllAvailable(self) -> None:  # noqa: N802
        self.asked += 1
        self.is_done.wait()


def test_run_that_ends_by_itself_waits_once_more_after_a_partition_came(tmp_path: Path) -> None:
    gate, query = Gate(tmp_path / "gate"), Query()
    stage = StageRun(cast("Any", SimpleNamespace(stage=None)), gate, cast("Any", SimpleNamespace(is_once=True)))
    stage.state, stage.query = State.RUNNING, cast("Any", query)

    gate.mark_idle()
    stage.poll()
    gate.mark_busy()
    stage.poll()
    gate.mark_idle()
    stage.poll()

    assert (query.asked, stage.state) == (2, State.RUNNING)
    query.is_done.set()
