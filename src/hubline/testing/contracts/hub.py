"""What every :class:`~hubline.ports.Hub` must do, as pytest tests over a factory.

    class TestMyHub(HubContract):
        @pytest.fixture(autouse=True)
        def _place(self, tmp_path):
            self.place = tmp_path

        async def create_hub(self, partition_count):
            return await MyHub.create(self.place, secrets.token_hex(4), partition_count)

The suite needs pytest and nothing else. It waits for conditions, up to a generous bound, and never for a time to pass.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pytest

from hubline.errors import (
    ConfigError,
    EventTooLarge,
    HubError,
    PartitionNotFound,
    PositionInvalid,
    ReaderRefused,
    ReaderStolen,
)
from hubline.hubs.partition_hash import partition_index
from hubline.model.events import Event, new_events
from hubline.model.positions import Position
from hubline.ports import Hub, Receiver

GROUP: Final = "$Default"
OTHER_GROUP: Final = "audit"
CLI_GROUP: Final = "tests"

# For events that are on their way: far longer than any hub takes, so that a slow machine fails no test.
ARRIVAL_SECONDS: Final = 30.0
# For a wait that is to end with nothing: it is spent in full.
NOTHING_SECONDS: Final = 0.05
# Turns of the event loop after which a task that was started is likely to be waiting.
STEPS_TO_BEGIN: Final = 20

# Larger than any hub takes: the service's limit is 1 MiB for all of an event.
OVERSIZED_BYTES: Final = 1024 * 1024 + 1


class HubFactory(ABC):
    """Where the hubs under test come from."""

    @abstractmethod
    async def create_hub(self, partition_count: int) -> Hub:
        """A hub that is new and empty, with the partitions "0", "1", and so on. Every call makes another one."""

    @asynccontextmanager
    async def hub(self, partition_count: int) -> AsyncIterator[Hub]:
        hub = await self.create_hub(partition_count)
        try:
            yield hub
        finally:
            await hub.close()


Factory = TypeVar("Factory", bound=HubFactory)
Rows: TypeAlias = Sequence[bytes | str | Mapping[str, Any]]


def scenario(
    *, partitions: int = 1
) -> Callable[[Callable[[Factory, Hub], Awaitable[None]]], Callable[[Factory], None]]:
    """Makes a plain test of a coroutine function that takes a fresh hub."""

    def made(test: Callable[[Factory, Hub], Awaitable[None]]) -> Callable[[Factory], None]:
        @functools.wraps(test)
        def run(self: Factory) -> None:
            async def play() -> None:
                async with self.hub(partitions) as hub:
                    await test(self, hub)

            asyncio.run(play())

        del run.__wrapped__  # pytest would take the test's parameters for fixtures
        return run

    return made


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
            assert refused.value.bytes_max < OVERSIZED_BYTES <= refused.value.bytes_count

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


class HubContract(
    DescriptionContract, EventContract, ReceiverContract, PositionContract, SenderContract, EpochContract
):
    """All of it."""


async def opened(
    hub: Hub,
    position: Position | None = None,
    *,
    partition: str = "0",
    group: str = GROUP,
    epoch: int | None = None,
) -> Receiver:
    """A receiver of the group, from the start by default."""
    return await hub.open_receiver(partition, group=group, position=position or Position.earliest(), epoch=epoch)


async def send(hub: Hub, rows: Rows, *, partition: str | None = None) -> None:
    sender = await hub.open_sender()
    await sender.send(new_events(rows), partition=partition)
    await sender.close()


async def sent(hub: Hub, rows: Rows, *, partition: str = "0") -> list[Event]:
    """Sends to one partition, and reads back what was sent."""
    last_sequence = (await hub.describe_partition(partition)).last_sequence
    await send(hub, rows, partition=partition)
    receiver = await opened(hub, Position.sequence(last_sequence), partition=partition, group=CLI_GROUP)
    try:
        return await events(receiver, len(rows))
    finally:
        await receiver.close()


async def sent_later_than(hub: Hub, event: Event, *, body: str = "later") -> Event:
    """Sends until the hub's clock has moved on: the first event with a later time than the given one's."""
    while True:
        (later,) = await sent(hub, [body])
        if later.enqueued_time > event.enqueued_time:
            return later


async def events(receiver: Receiver, count: int) -> list[Event]:
    """The next events, as many as asked for; fails if they do not come."""
    received: list[Event] = []
    while len(received) < count:
        batch = await receiver.receive(max_count=count - len(received), wait_seconds=ARRIVAL_SECONDS)
        assert len(batch), f"only {len(received)} of {count} events came"
        received += batch
    return received


async def bodies(receiver: Receiver, count: int) -> list[bytes]:
    return [event.body for event in await events(receiver, count)]


async def everything(hub: Hub) -> dict[str, list[Event]]:
    """All events by partition."""
    found: dict[str, list[Event]] = {}
    for partition in (await hub.describe()).partition_ids:
        described = await hub.describe_partition(partition)
        receiver = await opened(hub, partition=partition, group=CLI_GROUP)
        found[partition] = await events(receiver, described.last_sequence - described.begin_sequence + 1)
        await receiver.close()
    return found


async def begun(*tasks: asyncio.Task[Any]) -> None:
    """Lets tasks run up to a wait. Which one it is does not matter to the tests: they hold for all."""
    for _ in range(STEPS_TO_BEGIN):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
