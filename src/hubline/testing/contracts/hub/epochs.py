"""Who may read a partition: readers with an epoch disconnect those with a lower one, or none."""

from __future__ import annotations

import asyncio

import pytest

from hubline.errors import (
    ReaderRefused,
    ReaderStolen,
)
from hubline.ports import Hub
from hubline.testing.contracts.hub.support import (
    ARRIVAL_SECONDS,
    OTHER_GROUP,
    HubFactory,
    begun,
    bodies,
    opened,
    scenario,
    sent,
)


class EpochContract(HubFactory):
    @scenario()
    async def test_a_lower_epoch_is_refused(self, hub: Hub) -> None:
        holder = await opened(hub, epoch=5)

        with pytest.raises(ReaderRefused) as refused:
            await opened(hub, epoch=4)

        assert (refused.value.epoch, refused.value.held_epoch, refused.value.partition) == (4, 5, "0")
        await sent(hub, ["undisturbed"])
        assert await bodies(holder, 1) == [b"undisturbed"]

    @scenario()
    async def test_an_equal_or_higher_epoch_takes_over(self, hub: Hub) -> None:
        await sent(hub, ["a"])
        readers = [await opened(hub, epoch=epoch) for epoch in (5, 5, 9)]

        for old, taken_by_epoch in ((readers[0], 9), (readers[1], 9)):
            with pytest.raises(ReaderStolen) as stolen:
                await old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
            assert (stolen.value.epoch, stolen.value.partition) == (5, "0")
            assert stolen.value.taken_by_epoch in (5, taken_by_epoch)
        assert await bodies(readers[2], 1) == [b"a"]

    @scenario()
    async def test_a_waiting_reader_learns_that_it_was_replaced(self, hub: Hub) -> None:
        old = await opened(hub, epoch=1)
        waiting = asyncio.create_task(old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS))
        await begun(waiting)

        await opened(hub, epoch=2)

        with pytest.raises(ReaderStolen) as stolen:
            await waiting
        assert (stolen.value.epoch, stolen.value.taken_by_epoch) == (1, 2)

    @scenario()
    async def test_a_reader_stays_replaced_when_its_successor_has_gone(self, hub: Hub) -> None:
        await sent(hub, ["a"])
        old = await opened(hub, epoch=1)
        await (await opened(hub, epoch=2)).close()

        for _ in range(2):
            with pytest.raises(ReaderStolen):
                await old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)

    @scenario()
    async def test_a_replaced_reader_gives_out_nothing_it_had_read_ahead(self, hub: Hub) -> None:
        await sent(hub, ["a", "b", "c"])
        old = await opened(hub, epoch=1)
        await old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)

        await opened(hub, epoch=1)

        with pytest.raises(ReaderStolen):
            await old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)

    @scenario()
    async def test_a_closed_readers_epoch_refuses_nobody(self, hub: Hub) -> None:
        await sent(hub, ["a"])
        await (await opened(hub, epoch=9)).close()

        assert await bodies(await opened(hub, epoch=1), 1) == [b"a"]
        assert await bodies(await opened(hub, epoch=1), 1) == [b"a"]

    @scenario()
    async def test_closing_a_replaced_reader_leaves_its_successor_alone(self, hub: Hub) -> None:
        await sent(hub, ["a"])
        old = await opened(hub, epoch=1)
        successor = await opened(hub, epoch=2)

        await old.close()

        with pytest.raises(ReaderRefused):
            await opened(hub, epoch=1)
        assert await bodies(successor, 1) == [b"a"]

    @scenario()
    async def test_a_reader_without_an_epoch_is_refused_beside_one_that_has_one(self, hub: Hub) -> None:
        holder = await opened(hub, epoch=0)

        with pytest.raises(ReaderRefused) as refused:
            await opened(hub)

        assert (refused.value.epoch, refused.value.held_epoch) == (None, 0)
        await holder.close()
        await sent(hub, ["a"])
        assert await bodies(await opened(hub), 1) == [b"a"]

    @scenario()
    async def test_a_reader_with_an_epoch_disconnects_those_without(self, hub: Hub) -> None:
        plain = [await opened(hub) for _ in range(2)]
        waiting = asyncio.create_task(plain[0].receive(max_count=1, wait_seconds=ARRIVAL_SECONDS))
        await begun(waiting)

        await opened(hub, epoch=0)

        for receiving in (waiting, plain[1].receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)):
            with pytest.raises(ReaderStolen) as stolen:
                await receiving
            assert (stolen.value.epoch, stolen.value.taken_by_epoch) == (None, 0)

    @scenario()
    async def test_readers_without_an_epoch_read_side_by_side(self, hub: Hub) -> None:
        receivers = [await opened(hub) for _ in range(3)]

        await sent(hub, ["a", "b"])

        assert [await bodies(receiver, 2) for receiver in receivers] == [[b"a", b"b"]] * 3

    @scenario(partitions=2)
    async def test_groups_and_partitions_are_held_by_themselves(self, hub: Hub) -> None:
        await sent(hub, ["a"], partition="0")
        await sent(hub, ["b"], partition="1")
        holder = await opened(hub, epoch=9)

        other_group = await opened(hub, epoch=1, group=OTHER_GROUP)
        other_partition = await opened(hub, epoch=1, partition="1")

        assert await bodies(other_group, 1) == [b"a"]
        assert await bodies(other_partition, 1) == [b"b"]
        assert await bodies(holder, 1) == [b"a"]
