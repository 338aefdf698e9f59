"""What a process keeps open between tasks: one sink for all that are equal, closed when nobody uses it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubline.concurrency import IdleCache
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.sinks import SqlSink
from hubline.spark.tasks import databases
from hubline.spark.tasks.databases import shared_sink

KEY = GroupKey("namespace.example", "orders", "billing").partition("0")


@pytest.fixture
def sink(tmp_path: Path) -> SqlSink:
    return SqlSink(f"sqlite:///{tmp_path}/sink.db")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = IdleCache(SqlSink.close, idle_seconds=databases.IDLE_SECONDS, open=databases._sinks._open)
    monkeypatch.setattr(databases, "_sinks", made)
    yield
    made.close()


def connections_count(sink: SqlSink) -> int:
    return len(sink.database.pool._idle)


def unpickled(sink: SqlSink) -> SqlSink:
    copied: SqlSink = pickle.loads(pickle.dumps(sink))  # noqa: S301 - made just here
    return copied


def test_a_task_finds_the_connections_that_another_left(sink: SqlSink) -> None:
    with shared_sink(unpickled(sink)) as first:
        first.open(KEY, 1).commit(Checkpoint(KEY, "0", 0))
    assert connections_count(first) == 1

    with shared_sink(unpickled(sink)) as second:
        assert second is first


def test_sinks_that_differ_are_kept_apart(sink: SqlSink, tmp_path: Path) -> None:
    with (
        shared_sink(sink) as first,
        shared_sink(SqlSink(f"sqlite:///{tmp_path}/sink.db", keep_dead_letter_bodies=False)) as second,
    ):
        assert second is not first


def test_the_end_of_a_process_closes_its_connections(sink: SqlSink) -> None:
    with shared_sink(sink) as kept:
        kept.open(KEY, 1)
    assert connections_count(kept) == 1
    databases._sinks.close()
    assert connections_count(kept) == 0


def test_a_forked_process_opens_its_own(sink: SqlSink) -> None:
    with shared_sink(sink) as parents:
        parents.open(KEY, 1)
        child = os.fork()
        if not child:
            with shared_sink(unpickled(sink)) as own:
                os._exit(0 if own is not parents else 1)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
