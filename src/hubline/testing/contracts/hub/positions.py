"""Where reading starts, and which positions are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from hubline.errors import (
    PositionInvalid,
)
from hubline.model.events import Event
from hubline.model.positions import Position
from hubline.ports import Hub
from hubline.testing.contracts.hub.support import (
    HubFactory,
    bodies,
    events,
    opened,
    scenario,
    sent,
    sent_later_than,
)


class PositionContract(HubFactory):
    def test_reading_starts_where_asked(self) -> None:
        starts: list[tuple[Callable[[list[Event]], Position], str]] = [
            (lambda _: Position.earliest(), "abcd"),
            (lambda _: Position.latest(), ""),
            (lambda _: Position.latest(inclusive=True), "d"),
            (lambda events: Position.offset(events[1].offset), "cd"),
            (lambda events: Position.offset(events[1].offset, inclusive=True), "bcd"),
            (lambda events: Position.offset(events[3].offset), ""),
            (lambda _: Position.sequence(1), "cd"),
            (lambda _: Position.sequence(1, inclusive=True), "bcd"),
            (lambda _: Position.sequence(3), ""),
            (lambda _: Position.sequence(4, inclusive=True), ""),
            (lambda _: Position.sequence(-1), "abcd"),
        ]

        async def check(position_in: Callable[[list[Event]], Position], expected: str) -> None:
            async with self.hub(1) as hub:
                position = position_in(await sent(hub, ["a", "b"]) + await sent(hub, ["c", "d"]))
                receiver = await opened(hub, position)
                await sent(hub, ["!"])
                received = await bodies(receiver, len(expected) + 1)
                assert b"".join(received).decode() == f"{expected}!", position

        for position_in, expected in starts:
            asyncio.run(check(position_in, expected))

    @scenario()
    async def test_an_empty_partition_can_be_read_from_either_end(self, hub: Hub) -> None:
        positions = [Position.earliest(), Position.latest(), Position.latest(inclusive=True), Position.sequence(-1)]
        receivers = [await opened(hub, position) for position in positions]

        await sent(hub, ["first"])

        assert [await bodies(receiver, 1) for receiver in receivers] == [[b"first"]] * 4

    @scenario()
    async def test_reading_starts_at_a_time(self, hub: Hub) -> None:
        (early,) = await sent(hub, ["early"])
        late = await sent_later_than(hub, early)

        for position, expected in [
            (Position.enqueued(early.enqueued_time - timedelta(days=1)), early),
            (Position.enqueued(early.enqueued_time), early),
            (Position.enqueued(early.enqueued_time, inclusive=False), late),
            (Position.enqueued(late.enqueued_time), late),
        ]:
            (first, *_) = await events(await opened(hub, position), 1)
            assert first.sequence_number == expected.sequence_number, position

    @scenario()
    async def test_reading_from_a_later_time_waits_for_new_events(self, hub: Hub) -> None:
        (event,) = await sent(hub, ["old"])
        receiver = await opened(hub, Position.enqueued(event.enqueued_time, inclusive=False))

        await sent_later_than(hub, event, body="new")

        assert (await bodies(receiver, 1)) == [b"new"]

    @scenario()
    async def test_a_position_after_the_end_is_refused(self, hub: Hub) -> None:
        await sent(hub, ["a", "b"])

        for position in (Position.sequence(2), Position.sequence(3, inclusive=True)):
            with pytest.raises(PositionInvalid) as refused:
                await opened(hub, position)
            assert (refused.value.reason, refused.value.partition) == ("beyond", "0")
            assert (refused.value.begin_sequence, refused.value.last_sequence) == (0, 1)

    @scenario()
    async def test_an_offset_of_another_hub_is_refused(self, hub: Hub) -> None:
        await sent(hub, ["a"])
        async with self.hub(1) as other:
            (event,) = await sent(other, ["a"])

        for offset in (event.offset, "no offset at all"):
            with pytest.raises(PositionInvalid) as refused:
                await opened(hub, Position.offset(offset))
            assert refused.value.reason == "foreign"

    @scenario()
    async def test_a_reader_that_cannot_start_takes_nothing(self, hub: Hub) -> None:
        receiver = await opened(hub, epoch=1)

        with pytest.raises(PositionInvalid):
            await opened(hub, Position.sequence(5), epoch=2)

        await sent(hub, ["still here"])
        assert await bodies(receiver, 1) == [b"still here"]
