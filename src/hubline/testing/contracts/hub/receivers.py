"""How events are received: as many as asked for, as soon as they are there, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from hubline.errors import (
    ConfigError,
    HubError,
)
from hubline.ports import Hub, PrefetchingReceiver
from hubline.read_ahead import ReadAhead
from hubline.testing.contracts.hub.support import (
    ARRIVAL_SECONDS,
    HubFactory,
    begun,
    bodies,
    opened,
    scenario,
    send,
    sent,
)

# For a wait that is to end with nothing: it is spent in full.
NOTHING_SECONDS: Final = 0.05


class ReceiverContract(HubFactory):
    @scenario()
    async def test_no_more_events_come_than_were_asked_for(self, hub: Hub) -> None:
        await sent(hub, [str(n) for n in range(10)])
        receiver = await opened(hub)

        batches = [await receiver.receive(max_count=3, wait_seconds=ARRIVAL_SECONDS) for _ in range(3)]

        assert all(1 <= len(batch) <= 3 for batch in batches)
        received = [body for batch in batches for body in batch.bodies]
        assert received == [b"%d" % n for n in range(len(received))]
        assert await bodies(receiver, 10 - len(received)) == [b"%d" % n for n in range(len(received), 10)]

    @scenario()
    async def test_a_wait_for_nothing_gives_an_empty_batch(self, hub: Hub) -> None:
        receiver = await opened(hub)

        for wait_seconds in (0, NOTHING_SECONDS):
            batch = await receiver.receive(max_count=10, wait_seconds=wait_seconds)
            assert (len(batch), batch.partition) == (0, "0")

    @scenario()
    async def test_a_waiting_receiver_gets_what_is_sent(self, hub: Hub) -> None:
        receiver = await opened(hub)
        waiting = asyncio.create_task(receiver.receive(max_count=10, wait_seconds=ARRIVAL_SECONDS))
        await begun(waiting)

        await sent(hub, ["now"])

        assert (await waiting).bodies == [b"now"]

    @scenario()
    async def test_many_receivers_wait_at_once(self, hub: Hub) -> None:
        receivers = [await opened(hub) for _ in range(5)]
        waiting = [asyncio.create_task(bodies(receiver, 1)) for receiver in receivers]
        await begun(*waiting)

        await sent(hub, ["now"])

        assert await asyncio.gather(*waiting) == [[b"now"]] * 5

    @scenario()
    async def test_a_cancelled_wait_loses_nothing(self, hub: Hub) -> None:
        receiver = await opened(hub)
        received: list[bytes] = []

        for step_count in range(30):
            waiting = asyncio.create_task(receiver.receive(max_count=10, wait_seconds=ARRIVAL_SECONDS))
            await send(hub, [str(step_count)])
            for _ in range(step_count):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                received += waiting.result().bodies

        received += await bodies(receiver, 30 - len(received))
        assert received == [b"%d" % n for n in range(30)]

    @scenario()
    async def test_the_newest_sequence_number_is_known_after_a_look(self, hub: Hub) -> None:
        await sent(hub, ["a", "b", "c"])
        receiver = await opened(hub, epoch=1)
        before = receiver.last_sequence

        await receiver.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)

        assert before is None
        assert receiver.last_sequence == 2

    @scenario()
    async def test_a_receiver_may_be_closed_twice_and_not_used_after(self, hub: Hub) -> None:
        receiver = await opened(hub, epoch=1)

        await receiver.close()
        await receiver.close()

        with pytest.raises(HubError):
            await receiver.receive(max_count=1, wait_seconds=0)

    @scenario()
    async def test_asking_for_no_events_is_refused(self, hub: Hub) -> None:
        receiver = await opened(hub)

        with pytest.raises(ConfigError):
            await receiver.receive(max_count=0, wait_seconds=0)

    @scenario()
    async def test_a_receiver_that_reads_ahead_gives_out_every_event_up_to_its_end(self, hub: Hub) -> None:
        await sent(hub, [str(n) for n in range(30)])
        receiver = await opened(hub)
        if not isinstance(receiver, PrefetchingReceiver):
            pytest.skip("this hub's receivers do not read ahead")

        receiver.prefetch(ReadAhead(1), end_sequence=10)
        first = await bodies(receiver, 10)
        receiver.prefetch(ReadAhead(1_000_000), end_sequence=30)

        assert first + await bodies(receiver, 20) == [b"%d" % n for n in range(30)]
