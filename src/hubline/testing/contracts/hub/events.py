"""What a hub tells of itself and its partitions, and how events come back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hubline.errors import (
    PartitionNotFound,
)
from hubline.model.events import new_events
from hubline.model.positions import Position
from hubline.ports import Hub
from hubline.testing.contracts.hub.support import (
    GROUP,
    HubFactory,
    scenario,
    sent,
)


class DescriptionContract(HubFactory):
    @scenario(partitions=3)
    async def test_a_hub_tells_its_partitions(self, hub: Hub) -> None:
        described = await hub.describe()

        assert (described.namespace, described.name) == (hub.namespace, hub.name)
        assert described.partition_ids == ("0", "1", "2")
        assert described.created_at.tzinfo is not None

    @scenario()
    async def test_a_new_partition_is_empty(self, hub: Hub) -> None:
        described = await hub.describe_partition("0")

        assert described.is_empty
        assert (described.begin_sequence, described.last_sequence) == (0, -1)
        assert (described.last_offset, described.last_enqueued_time) == (None, None)

    @scenario()
    async def test_a_partition_tells_its_newest_event(self, hub: Hub) -> None:
        newest = (await sent(hub, ["a", "b", "c"]))[-1]

        described = await hub.describe_partition("0")

        assert (described.begin_sequence, described.last_sequence) == (0, 2)
        assert described.last_offset == newest.offset
        assert described.last_enqueued_time == newest.enqueued_time

    @scenario(partitions=2)
    async def test_a_partition_that_is_not_there_is_named(self, hub: Hub) -> None:
        sender = await hub.open_sender()

        for unknown in ("2", "-1", "00", "", "first"):
            with pytest.raises(PartitionNotFound) as described:
                await hub.describe_partition(unknown)
            with pytest.raises(PartitionNotFound):
                await hub.open_receiver(unknown, group=GROUP, position=Position.earliest())
            with pytest.raises(PartitionNotFound):
                await sender.send(new_events(["a"]), partition=unknown)
            assert described.value.partition == unknown


class EventContract(HubFactory):
    @scenario()
    async def test_events_come_back_as_they_were_sent_and_in_order(self, hub: Hub) -> None:
        rows: list[dict[str, Any]] = [
            {"body": b"plain"},
            {"body": b""},
            {"body": bytes(range(256)), "partitionKey": "a key"},
            {"body": "текст", "partitionKey": "ключ", "properties": {"имя": "значение", "empty": ""}},
            {"body": b"empty key", "partitionKey": "", "properties": {"": "nameless"}},
            {"body": "{}", "properties": {"amqp:message-id": "m", "amqp:content-type": "application/json", "a": "b"}},
        ]

        events = await sent(hub, rows)

        assert [event.body for event in events] == [new_events([row]).column("body")[0].as_py() for row in rows]
        assert [event.partition_key for event in events] == [row.get("partitionKey") for row in rows]
        assert [event.properties for event in events] == [row.get("properties", {}) for row in rows]
        assert {event.partition for event in events} == {"0"}

    @scenario()
    async def test_sequence_numbers_start_at_zero_and_have_no_gaps(self, hub: Hub) -> None:
        events = [event for count in (1, 3, 2) for event in await sent(hub, ["x"] * count)]

        assert [event.sequence_number for event in events] == list(range(6))

    @scenario()
    async def test_every_event_has_an_offset_of_its_own(self, hub: Hub) -> None:
        events = await sent(hub, ["a", "b", "c"]) + await sent(hub, ["d"])

        assert len({event.offset for event in events}) == 4

    @scenario()
    async def test_enqueued_times_never_go_back(self, hub: Hub) -> None:
        events = [event for _ in range(5) for event in await sent(hub, ["x", "y"])]

        times = [event.enqueued_time for event in events]
        assert times == sorted(times)
        assert all(time.utcoffset() == timedelta(0) for time in times)

    @scenario(partitions=2)
    async def test_partitions_count_by_themselves(self, hub: Hub) -> None:
        await sent(hub, ["a", "b"], partition="0")

        (event,) = await sent(hub, ["c"], partition="1")

        assert (event.partition, event.sequence_number) == ("1", 0)
