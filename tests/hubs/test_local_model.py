"""Random appends, reads, restarts and removals, compared with a plain list."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubline.errors import PositionInvalid
from hubline.hubs.local import LocalHub, Retention, create_hub
from hubline.hubs.local.group_append import Appends
from hubline.model.events import Event, new_events
from hubline.model.positions import Position

from .support import GROUP, ManualClock

RETENTION_SECONDS = 100


@dataclass(frozen=True)
class Append:
    sizes: Sequence[int]


@dataclass(frozen=True)
class Read:
    start: float  # as a share of what is there
    count_maxes: Sequence[int]


@dataclass(frozen=True)
class Expire:
    seconds: int


@dataclass(frozen=True)
class Reopen:
    pass


STEPS = st.lists(
    st.builds(Append, st.lists(st.integers(0, 300), min_size=1, max_size=12))
    | st.builds(Read, st.floats(-0.1, 1.1), st.lists(st.integers(1, 20), min_size=1, max_size=6))
    | st.builds(Expire, st.integers(0, 2 * RETENTION_SECONDS))
    | st.builds(Reopen),
    max_size=15,
)


class Model:
    """What the partition must hold: every event ever sent, and where the kept ones begin."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.begin_sequence = 0

    def append(self, rows: list[dict[str, Any]], now: float) -> None:
        self.rows += rows
        self.times += [now] * len(rows)

    def expire(self, now: float) -> None:
        while self.begin_sequence < len(self.rows) and self.times[self.begin_sequence] < now - RETENTION_SECONDS:
            self.begin_sequence += 1


@settings(max_examples=40)
@given(STEPS)
def test_a_partition_behaves_as_a_list_that_loses_its_head(steps: list[Append | Read | Expire | Reopen]) -> None:
    # Appending removes what is too old in its own time; here only the steps do.
    with tempfile.TemporaryDirectory() as root, patch.object(Appends, "_trim_if_due"):
        asyncio.run(_play(Path(root), steps))


async def _play(root: Path, steps: list[Append | Read | Expire | Reopen]) -> None:
    clock, model = ManualClock(), Model()
    await create_hub(root, "orders", partitions=1, retention=Retention(seconds=RETENTION_SECONDS))
    hub = LocalHub(root, "orders", clock=clock)
    try:
        for step in steps:
            clock.now += 1
            if isinstance(step, Append):
                await _append(hub, model, step, clock.now)
            elif isinstance(step, Read):
                await _read(hub, model, step)
            elif isinstance(step, Expire):
                clock.now += step.seconds
                await hub.apply_retention()
                model.expire(clock.now)
            else:
                await hub.close()
                hub = LocalHub(root, "orders", clock=clock)
            described = await hub.describe_partition("0")
            assert (described.begin_sequence, described.last_sequence) == (model.begin_sequence, len(model.rows) - 1)
    finally:
        await hub.close()


async def _append(hub: LocalHub, model: Model, step: Append, now: float) -> None:
    first = len(model.rows)
    rows = [
        {
            "body": bytes([(first + n) % 256]) * size,
            "partitionKey": None if size % 3 else f"key {size}",
            "properties": {str(size): str(n)} if size % 2 else {},
        }
        for n, size in enumerate(step.sizes)
    ]
    await (await hub.open_sender()).send(new_events(rows), partition="0")
    model.append(rows, now)


async def _read(hub: LocalHub, model: Model, step: Read) -> None:
    start = round(step.start * len(model.rows))
    opening = hub.open_receiver("0", group=GROUP, position=Position.sequence(start, inclusive=True), epoch=1)
    start = max(start, 0)
    if not model.begin_sequence <= start <= len(model.rows):
        with pytest.raises(PositionInvalid) as invalid:
            await opening
        assert invalid.value.reason == ("expired" if start < model.begin_sequence else "beyond")
        return
    receiver = await opening
    for max_count in step.count_maxes:
        batch = await receiver.receive(max_count=max_count, wait_seconds=0)
        assert len(batch) <= max_count
        assert bool(len(batch)) == (start < len(model.rows))
        for event in batch:
            _require_same(event, start, model)
            start += 1
    await receiver.close()


def _require_same(event: Event, sequence: int, model: Model) -> None:
    row = model.rows[sequence]
    assert event.sequence_number == sequence
    assert (event.body, event.partition_key, dict(event.properties)) == (
        row["body"],
        row["partitionKey"],
        row["properties"],
    )
    assert event.enqueued_time.timestamp() == model.times[sequence]
