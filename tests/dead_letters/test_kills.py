"""Redrives that are killed at every step, and run again: every dead letter once, with its rows, or waiting as it
was."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hubline.event_ids import ID_PROPERTY
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.dead_letters import DeadLetterState
from hubline.model.keys import GroupKey
from hubline.sinks import SqlSink
from tests.dead_letters.child import FAILING, STEPS, Task
from tests.dead_letters.conftest import dead_letter, keep
from tests.dead_letters.test_redrive import dead_letters_in, events_of, numbers, rows

pytestmark = pytest.mark.kills

COUNT = 60


@pytest.fixture
def task(tmp_path: Path, url: str) -> Task:
    group = GroupKey(f"local:{tmp_path}", "orders", "billing")
    keep(url, [dead_letter(sequence, group=group) for sequence in range(COUNT)])
    with closing(SqlSink(url)) as sink, sink.database.connection() as connection:
        connection.execute("CREATE TABLE readings (n BIGINT)", ())
        connection.execute("CREATE TABLE own (n BIGINT)", ())
    return Task(url, str(tmp_path))


def test_rows_and_dead_letters_agree_wherever_a_redrive_by_handler_dies(task: Task) -> None:
    """Killed at each step, in the first batch and in the second in turn."""
    for number, step in enumerate(STEPS):
        killed = replace(task, step=step, batch=number % 2)
        assert killed.run_apart() == -signal.SIGKILL, step
        done = rows(task.url, "readings")
        assert rows(task.url, "own") == done, step
        assert numbers(dead_letters_in(task.url, DeadLetterState.REDRIVEN)) == done, step
        assert sorted([*done, *numbers(dead_letters_in(task.url))]) == list(range(COUNT)), step

    asyncio.run(task.run())
    good = [sequence for sequence in range(COUNT) if sequence % FAILING]
    assert rows(task.url, "readings") == rows(task.url, "own") == good
    assert numbers(dead_letters_in(task.url, DeadLetterState.REDRIVEN)) == good
    assert numbers(dead_letters_in(task.url)) == [sequence for sequence in range(COUNT) if not sequence % FAILING]


def test_nothing_is_lost_and_ids_repeat_wherever_a_redrive_to_a_hub_dies(task: Task, tmp_path: Path) -> None:
    asyncio.run(create_hub(tmp_path, "again", partitions=2))
    to_hub = replace(task, target="again")
    for number, step in enumerate(("handled", "settled", "committed")):
        assert replace(to_hub, step=step, batch=number % 2).run_apart() == -signal.SIGKILL, step
    asyncio.run(to_hub.run())

    async def sent() -> Counter[str]:
        hub = LocalHub(tmp_path, "again")
        events = [event for partition in ("0", "1") for event in await events_of(hub, partition)]
        await hub.close()
        return Counter(event.properties[ID_PROPERTY] for event in events)

    ids = asyncio.run(sent())
    assert len(ids) == COUNT
    assert max(ids.values()) > 1, "a kill after sending sends again: else this test shows nothing"
    assert dead_letters_in(task.url) == []
    assert len(dead_letters_in(task.url, DeadLetterState.REDRIVEN)) == COUNT
