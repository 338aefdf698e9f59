"""What a query writes under its checkpoint location, as a sink reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hubline.errors import ConfigError, SinkError
from hubline.model.keys import GroupKey
from hubline.spark.checkpoint_location import CheckpointLocation
from hubline.spark.folders import LocalFolder
from hubline.spark.source.offsets import Entry, StreamOffset
from hubline.spark.sql_sink.micro_batch import MicroBatch, QueryShape

STATELESS = QueryShape(("partition", "sequenceNumber"), frozenset(), stays_in_task=True, has_state=False)
STATEFUL = QueryShape(("count",), frozenset(), stays_in_task=False, has_state=True)


def offset(end: int, *, is_split: bool = False) -> str:
    group = GroupKey("namespace", "hub", "group")
    return json.dumps(StreamOffset("2026", {"0": Entry(0, end), "1": Entry(7, 7)}, is_split, group).to_json())


def batch(folder: Path, number: int, *sources: str, shape: QueryShape = STATELESS) -> MicroBatch:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "metadata").write_text('{"id":"the-query"}')
    (folder / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    return MicroBatch.logged(CheckpointLocation(str(folder)), LocalFolder(folder).text, number, shape)


def test_a_batch_is_the_range_that_its_query_logged(tmp_path: Path) -> None:
    found = batch(tmp_path, 0, "-", '{"rate": 4}', "7", offset(5))
    assert found.moved == {"0"}
    assert found.group == GroupKey("namespace", "hub", "group")
    assert found.is_narrow
    assert found.state_of is None


def test_a_range_that_several_tasks_read_has_no_task_of_its_own(tmp_path: Path) -> None:
    assert not batch(tmp_path, 0, offset(5, is_split=True)).is_narrow


def test_a_batch_for_the_state_alone_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "2").write_text("\n".join(["v1", "{}", offset(4)]))
    assert batch(tmp_path, 3, offset(5), shape=STATEFUL).moved == {"0"}
    again = batch(tmp_path, 4, offset(5), shape=STATEFUL)
    assert (again.reads, again.moved, again.state_of) == (False, set(), "the-query")


def test_sources_must_be_one_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads hubs 2 times"):
        batch(tmp_path, 0, offset(5), offset(5))
    with pytest.raises(ConfigError, match="does not read a hub"):
        batch(tmp_path, 0, "12")


def test_what_cannot_be_read_names_the_location_and_the_file(tmp_path: Path) -> None:
    location, read = CheckpointLocation(str(tmp_path)), LocalFolder(tmp_path).text
    wrong = {"offsets/1": ("v9\n{}\n", "its format"), "offsets/2": ("v1\n{}\n{", "not JSON")}
    (tmp_path / "offsets").mkdir()
    for name, (text, _) in wrong.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "offsets" / "3").mkdir()
    cases = {
        **{name: says for name, (_, says) in wrong.items()},
        "offsets/3": "Is a directory",
        "offsets/4": "not exist",
    }
    for name, says in cases.items():
        with pytest.raises(SinkError, match=rf"location {tmp_path} cannot be read: {name}: .*{says}"):
            location.offsets(read, int(name[-1]))
    (tmp_path / "metadata").write_text("[]")
    with pytest.raises(SinkError, match="metadata: it is not what Spark writes there"):
        location.query_id(read)


def test_a_batch_that_is_committed_there_is_another_querys(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    with pytest.raises(SinkError, match="is another query's: batch 0 is committed there"):
        batch(tmp_path, 0, offset(5))
