"""Databases with dead letters in them, as a sink leaves them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.sink import SqlSink

GROUP = GroupKey("local:/data", "orders", "billing")
ENQUEUED = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/dead_letters.db"
    return str(request.getfixturevalue("postgres_database").reveal())


def dead_letter(
    sequence: int,
    *,
    group: GroupKey = GROUP,
    partition: str = "0",
    body: bytes = b"",
    key: str | None = None,
    properties: Mapping[str, str] | None = None,
    error: Exception | None = None,
) -> DeadLetter:
    event = Event(
        body or f"event {sequence}".encode(),
        partition,
        f"offset-{sequence}",
        sequence,
        ENQUEUED + timedelta(seconds=sequence),
        key,
        properties or {},
    )
    return DeadLetter.of(group.partition(partition), event, error or ValueError(f"cannot take {sequence}"), attempts=3)


def keep(url: str, dead_letters: Iterable[DeadLetter], *, keep_dead_letter_bodies: bool = True) -> None:
    """Leaves dead letters in the database, as a processor does: in the transactions that move the checkpoints past
    them."""
    sink = SqlSink(url, keep_dead_letter_bodies=keep_dead_letter_bodies)
    by_partition: dict[object, list[DeadLetter]] = {}
    for each in dead_letters:
        by_partition.setdefault(each.key, []).append(each)
    for of_partition in by_partition.values():
        opened = sink.open(of_partition[0].key, 0)
        last = of_partition[-1]
        checkpoint = Checkpoint(last.key, last.event.offset, last.event.sequence_number)
        opened.commit(checkpoint, dead_letters=of_partition)
    sink.close()
