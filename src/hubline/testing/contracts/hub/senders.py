"""Which partition events go to, and what is kept of a send."""

from __future__ import annotations

import asyncio
from typing import Final

import pyarrow as pa
import pytest

from hubline.errors import (
    ConfigError,
    EventTooLarge,
    HubError,
)
from hubline.hubs.partition_hash import partition_index
from hubline.model.events import new_events
from hubline.ports import Hub
from hubline.testing.contracts.hub.support import (
    HubFactory,
    Rows,
    everything,
    scenario,
    send,
    sent,
)

# Larger than any hub takes: the service's limit is 1 MiB for all of an event.
OVERSIZED_BYTES: Final = 1024 * 1024 + 1


class SenderContract(HubFactory):
    @scenario(partitions=4)
    async def test_a_partition_key_chooses_the_services_partition(self, hub: Hub) -> None:
        sender = await hub.open_sender()
        keys = ["7", "alphabet", "TheBestParitionEver", "ключ", ""]

        for key in keys:
            await sender.send(new_events([key]), partition_key=key)

        for partition, events in (await everything(hub)).items():
            expected = [key for key in keys if str(partition_index(key, 4)) == partition]
            assert [event.text() for event in events] == expected
            assert [event.partition_key for event in events] == expected

    @scenario(partitions=4)
    async def test_each_event_goes_to_the_partition_of_its_own_key_in_order(self, hub: Hub) -> None:
        keys = [f"key {n % 7}" for n in range(50)]

        await send(hub, [{"body": str(n), "partitionKey": key} for n, key in enumerate(keys)])

        for partition, events in (await everything(hub)).items():
            expected = [n for n, key in enumerate(keys) if str(partition_index(key, 4)) == partition]
            assert [int(event.body) for event in events] == expected

    @scenario(partitions=3)
    async def test_events_without_a_key_go_to_the_partitions_in_turn(self, hub: Hub) -> None:
        sender = await hub.open_sender()

        for n in range(6):
            await sender.send(new_events([f"{n}a", f"{n}b"]))

        partitions = [[event.text() for event in events] for events in (await everything(hub)).values()]
        assert sorted(partitions) == [[f"{n}a", f"{n}b", f"{n + 3}a", f"{n + 3}b"] for n in range(3)]

    @scenario(partitions=4)
    async def test_events_with_and_without_keys_may_be_mixed(self, hub: Hub) -> None:
        sender = await hub.open_sender()

        for n in range(4):
            rows: Rows = [f"{n}a", {"body": f"{n}b", "partitionKey": "alphabet"}, f"{n}c"]
            await sender.send(new_events(rows))

        found = await everything(hub)
        with_key = [event.text() for event in found[str(partition_index("alphabet", 4))] if event.partition_key]
        without_key = [[event.text() for event in events if event.partition_key is None] for events in found.values()]
        assert with_key == ["0b", "1b", "2b", "3b"]
        assert sorted(without_key) == [[f"{n}a", f"{n}c"] for n in range(4)]

    @scenario(partitions=4)
    async def test_a_chosen_partition_outranks_the_events_keys(self, hub: Hub) -> None:
        keys = ["a", None, "b", "c"]

        events = await sent(hub, [{"body": "x", "partitionKey": key} for key in keys], partition="3")

        assert [event.partition_key for event in events] == keys

    @scenario()
    async def test_a_partition_and_a_key_at_once_are_refused(self, hub: Hub) -> None:
        sender = await hub.open_sender()

        with pytest.raises(ConfigError):
            await sender.send(new_events(["a"]), partition="0", partition_key="a")

    @scenario()
    async def test_sending_nothing_is_fine(self, hub: Hub) -> None:
        await send(hub, [])

        assert (await hub.describe_partition("0")).is_empty

    @scenario()
    async def test_an_event_that_is_too_large_is_named_and_nothing_is_sent(self, hub: Hub) -> None:
        sender = await hub.open_sender()
        body_too_large: Rows = [b"small", bytes(OVERSIZED_BYTES), bytes(2 * OVERSIZED_BYTES)]
        properties_too_large: Rows = ["small", {"body": "small", "properties": {"large": "x" * OVERSIZED_BYTES}}]

        for rows in (body_too_large, properties_too_large):
            with pytest.raises(EventTooLarge) as refused:
                await sender.send(new_events(rows), partition="0")
            assert refused.value.index == 1
            assert refused.value.max_bytes < OVERSIZED_BYTES <= refused.value.bytes_count

        assert (await hub.describe_partition("0")).is_empty

    @scenario()
    async def test_a_send_of_many_megabytes_arrives_whole(self, hub: Hub) -> None:
        large = [bytes([n]) * 500_000 for n in range(40)]

        events = await sent(hub, large)

        assert [event.body for event in events] == large

    @scenario()
    async def test_part_of_a_column_can_be_sent(self, hub: Hub) -> None:
        rows = [{"body": str(n), "partitionKey": f"k{n}", "properties": {"n": str(n)}} for n in range(10)]
        sender = await hub.open_sender()

        await sender.send(new_events(rows).slice(3, 4), partition="0")

        events = (await everything(hub))["0"]
        assert [event.text() for event in events] == ["3", "4", "5", "6"]
        assert [event.properties["n"] for event in events] == ["3", "4", "5", "6"]

    @scenario()
    async def test_other_columns_are_refused(self, hub: Hub) -> None:
        sender = await hub.open_sender()

        with pytest.raises(ConfigError):
            await sender.send(pa.RecordBatch.from_pydict({"text": ["a"]}))

    @scenario()
    async def test_columns_that_are_said_to_be_nullable_are_taken(self, hub: Hub) -> None:
        sender = await hub.open_sender()
        events = new_events(["a", "b"])

        await sender.send(pa.record_batch(dict(zip(events.schema.names, events.columns, strict=True))))

        assert sum(map(len, (await everything(hub)).values())) == 2

    @scenario()
    async def test_what_several_tasks_send_arrives_once_and_each_send_whole(self, hub: Hub) -> None:
        sender = await hub.open_sender()

        await asyncio.gather(
            *(sender.send(new_events([f"{n} {part}" for part in range(5)]), partition="0") for n in range(20))
        )

        texts = [event.text() for event in (await everything(hub))["0"]]
        sends = [texts[start : start + 5] for start in range(0, 100, 5)]
        assert sorted(sends) == sorted([f"{n} {part}" for part in range(5)] for n in range(20))

    @scenario()
    async def test_a_closed_sender_sends_nothing(self, hub: Hub) -> None:
        sender = await hub.open_sender()
        await sender.close()
        await sender.close()

        with pytest.raises(HubError):
            await sender.send(new_events(["a"]))
