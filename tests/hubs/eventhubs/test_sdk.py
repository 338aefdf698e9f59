"""Event Hubs through the official SDK keeps the contract of every hub, as far as the SDK can.

It takes seconds for what the others do in milliseconds, so not all of the contract is run, but some of each part. The
docstring of ``hubline.hubs.eventhubs.sdk`` lists what it cannot do: a link, for example, is opened after
``open_receiver`` has returned.
"""

from __future__ import annotations

import asyncio

import pytest

from hubline.addresses.hub_address import EventHubsAddress
from hubline.errors import AccessDenied, ReaderRefused, ReaderStolen
from hubline.hubs.eventhubs.sdk import SdkHub
from hubline.model.positions import Position
from hubline.ports import Hub
from hubline.testing.contracts.hub import (
    ARRIVAL_SECONDS,
    DescriptionContract,
    EventContract,
    PositionContract,
    ReceiverContract,
    SenderContract,
    bodies,
    opened,
    send,
)
from tests.hubs.eventhubs.support import EndpointHubFactory, address, new_hub, serving

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the SDK's own sockets and tasks


class TestSdkHub(EndpointHubFactory):
    def client(self, at: EventHubsAddress) -> Hub:
        return SdkHub(at)

    test_a_hub_tells_its_partitions = DescriptionContract.test_a_hub_tells_its_partitions
    test_a_new_partition_is_empty = DescriptionContract.test_a_new_partition_is_empty
    test_a_partition_that_is_not_there_is_named = DescriptionContract.test_a_partition_that_is_not_there_is_named
    test_events_come_back = EventContract.test_events_come_back_as_they_were_sent_and_in_order
    test_a_wait_for_nothing_gives_an_empty_batch = ReceiverContract.test_a_wait_for_nothing_gives_an_empty_batch
    test_the_newest_sequence_number = ReceiverContract.test_the_newest_sequence_number_is_known_after_a_look
    test_a_position_after_the_end_is_refused = PositionContract.test_a_position_after_the_end_is_refused
    test_each_event_goes_to_the_partition_of_its_own_key = (
        SenderContract.test_each_event_goes_to_the_partition_of_its_own_key_in_order
    )
    test_an_event_that_is_too_large_is_named = (
        SenderContract.test_an_event_that_is_too_large_is_named_and_nothing_is_sent
    )

    def test_reading_starts_where_asked(self) -> None:
        async def check() -> None:
            async with self.hub(1) as hub:
                await send(hub, ["a", "b", "c"], partition="0")
                first = await (await opened(hub)).receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
                for position, expected in [
                    (Position.sequence(0), b"b"),
                    (Position.latest(inclusive=True), b"c"),
                    (Position.offset(first.last_offset), b"b"),
                    (Position.enqueued(first[0].enqueued_time), b"a"),
                ]:
                    assert await bodies(await opened(hub, position), 1) == [expected], position

        asyncio.run(check())

    def test_readers_with_a_higher_epoch_take_over_and_lower_ones_are_refused(self) -> None:
        async def check() -> None:
            async with self.hub(1) as hub:
                await send(hub, ["a"], partition="0")
                old = await opened(hub, epoch=1)
                assert await bodies(old, 1) == [b"a"]
                assert await bodies(await opened(hub, epoch=2), 1) == [b"a"]
                with pytest.raises(ReaderStolen) as stolen:
                    await old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
                assert (stolen.value.epoch, stolen.value.taken_by_epoch) == (1, 2)
                with pytest.raises(ReaderRefused) as refused:
                    await (await opened(hub, epoch=1)).receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
                assert (refused.value.epoch, refused.value.held_epoch) == (1, 2)

        asyncio.run(check())

    def test_a_wrong_key_is_refused(self) -> None:
        async def check() -> None:
            name = await new_hub(self.root)
            async with serving(self.root) as port:
                hub = SdkHub(address(port, name, key="pLaNtEd"))
                with pytest.raises(AccessDenied) as refused:
                    await hub.describe()
                assert "pLaNtEd" not in str(refused.value)
                await hub.close()

        asyncio.run(check())
