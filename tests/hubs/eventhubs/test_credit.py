"""How many events a receiver lets come: as many as fit, seldom, and never none for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from hubline.amqp.events.decoder import join_messages
from hubline.amqp.transport.link import Message
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.hubs.eventhubs.credit_window import BYTES_MAX
from hubline.hubs.eventhubs.receive_link import Reading
from hubline.hubs.eventhubs.receiver import EventHubsReceiver
from hubline.hubs.eventhubs.start_position import Progress
from hubline.hubs.local.stored_batch import EVENT_BYTES_MAX, StoredBatch
from hubline.model.events import OUTGOING_SCHEMA, new_events
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position
from hubline.read_ahead import ReadAhead
from tests.amqp.encoded import encode_delivered
from tests.hubs.eventhubs.support import ARRIVAL_SECONDS, GROUP, connected, new_hub, proxied, serving

LAST = 10_000_000


class Granting:
    """A link that notes the credit it is given."""

    def __init__(self) -> None:
        self.credit = 0
        self.grants: list[int] = []

        self.is_over = False
        self.session = self

    def grant(self, credit: int) -> None:
        self.credit = credit
        self.grants.append(credit)

    def detach(self) -> None:
        self.is_over = True

    def end(self) -> None:
        pass


class Scene:
    def __init__(self, start: int = 0) -> None:
        there = PartitionProperties("0", 0, LAST, str(LAST), None)
        progress = Progress("hub", Position.sequence(start, inclusive=True), there)
        reading = Reading(cast("Any", None), "address", "group", "0", None, progress, cast("Any", None))
        self.receiver = EventHubsReceiver(cast("Any", None), reading)
        self.link = Granting()
        self.receiver._link = cast("ReceiverLink", self.link)

    def arrive(self, first: int, count: int, body_bytes: int) -> None:
        rows = [{"body": bytes(body_bytes)}] * count
        made = pa.RecordBatch.from_pylist(rows, schema=OUTGOING_SCHEMA)
        stored = StoredBatch("0", first, "10000", np.array([count]), np.array([0]), made)
        messages = encode_delivered(stored.events.arrow).to_pylist()
        self.link.credit -= count
        if count == 1:
            self.receiver.on_message(cast("ReceiverLink", self.link), Message(0, 0, True, messages[0]))
        else:
            deliveries = Deliveries(0, 0, True, np.arange(count), *join_messages(messages))
            self.receiver.on_deliveries(cast("ReceiverLink", self.link), deliveries)

    def take(self, max_count: int) -> int:
        return len(asyncio.run(self.receiver.receive(max_count=max_count, wait_seconds=0)))

    def settle(self, body_bytes: int) -> int:
        """Takes events of one size until there is no more credit to be had; returns how many came."""
        came = 0
        self.receiver._supply()
        for _ in range(8):
            count = self.link.credit
            self.arrive(came, count, body_bytes)
            came += count
            while self.receiver._buffer.count:
                self.take(came)
        return came

    @property
    def held_bytes(self) -> int:
        return self.receiver._read_ahead.held_bytes


def test_credit_grows_from_what_fits_of_the_largest_events_to_what_fits_of_those_that_came() -> None:
    scene = Scene()
    came = scene.settle(1000)
    grants = scene.link.grants
    assert grants[0] * EVENT_BYTES_MAX < BYTES_MAX
    assert grants == sorted(grants)
    assert len(grants) < 10
    most = scene.link.credit
    assert 0.9 < most * scene.receiver._window.sizes.event_bytes / BYTES_MAX <= 1
    scene.arrive(came, most, 1000)
    count_before = len(scene.link.grants)
    # A slow reader takes some at a time: that makes little room, and no small deliveries.
    for _ in range(4):
        assert scene.take(most // 10) == most // 10
    assert len(scene.link.grants) == count_before
    scene.take(most)
    assert len(scene.link.grants) == count_before + 1
    assert scene.link.credit >= 0.4 * most


def test_events_that_have_become_too_large_are_dropped_beyond_the_bound_and_come_again() -> None:
    scene = Scene()
    came = scene.settle(100)
    credit = scene.link.credit
    assert credit > 1000
    while scene.receiver._link is not None:
        scene.arrive(came, 1, 1_000_000)
        came += 1
        assert scene.held_bytes <= BYTES_MAX
    assert scene.link.is_over
    assert scene.receiver._progress.start.next_sequence == came - 1  # the one that there was no room for
    for _ in range(came - credit, came - 1):
        if not scene.receiver._buffer.count:
            break
        scene.take(1)
    assert scene.held_bytes == 0


def test_events_that_are_not_new_keep_nobody_waiting() -> None:
    scene = Scene(start=1000)
    scene.receiver._supply()
    scene.arrive(1000 - scene.link.credit, scene.link.credit, 20_000)
    assert scene.take(1000) == 0
    assert scene.link.credit > 0


@pytest.mark.parametrize("body_bytes", [1, 1000, 900_000])
@pytest.mark.parametrize("end", [1, 300, 30_000])
def test_a_range_is_asked_for_to_its_end_and_no_further(end: int, body_bytes: int) -> None:
    scene = Scene()
    scene.receiver.prefetch(ReadAhead(2 * BYTES_MAX), end_sequence=end)
    came = 0
    while came < min(end, 2000):
        assert 0 < scene.link.credit <= end - came
        count = min(scene.link.credit, 20)
        scene.arrive(came, count, body_bytes)
        assert scene.take(count) == count
        scene.receiver._read_ahead.give_room()  # as a caller does that counted them, and then needs them no more
        came += count
    assert end > 2000 or scene.link.credit == 0
    scene.receiver.prefetch(ReadAhead(2 * BYTES_MAX), end_sequence=end + 100_000)  # the next range, on the same link
    assert scene.link.credit > 0


def test_large_events_after_small_ones_wait_in_the_hub_while_nobody_takes_them(tmp_path: Path) -> None:
    small_count, large_count, large_bytes = 10_000, 150, 1_000_000

    async def check() -> None:
        name = await new_hub(tmp_path)
        async with serving(tmp_path) as port, proxied(port) as (proxy, proxy_port), connected(port, name) as direct:
            sender = await direct.open_sender()
            await sender.send(new_events([b"small"] * small_count), partition="0")
            for _ in range(large_count):
                await sender.send(new_events([bytes(large_bytes)]), partition="0")
            async with connected(proxy_port, name) as hub:
                receiver = await hub.open_receiver("0", group=GROUP, position=Position.earliest(), epoch=None)
                found = 0
                while found < small_count:
                    batch = await receiver.receive(max_count=small_count - found, wait_seconds=ARRIVAL_SECONDS)
                    found += len(batch)
                seen = -1
                while proxy.bytes_count > seen:
                    seen = proxy.bytes_count
                    await asyncio.sleep(0.5)
                assert seen < large_count * large_bytes / 2
                while found < small_count + large_count:
                    batch = await receiver.receive(max_count=100, wait_seconds=ARRIVAL_SECONDS)
                    assert batch.arrow.column("sequenceNumber").to_pylist() == [*range(found, found + len(batch))]
                    found += len(batch)
                await receiver.close()
            await sender.close()

    asyncio.run(check())
