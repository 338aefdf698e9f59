"""What the user of a producer sees: events are there when `send` returns, in order, and what is not is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hubline
from hubline.errors import (
    ConfigError,
    EventTooLarge,
    HubError,
    HubFull,
    HubNotFound,
    HubUnavailable,
    PartitionNotFound,
    SendFailed,
)
from hubline.event_ids import ID_PROPERTY
from hubline.hubs.local import create_hub
from hubline.hubs.partition_hash import partition_index
from tests.producer.hubs import PATIENCE_SECONDS, Hub


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work

    return asyncio.run(bounded())


def with_producer(hub: str | Hub, work: Callable[[hubline.Producer], Awaitable[Any]], **options: Any) -> Any:
    async def running() -> Any:
        async with hubline.Producer(hub, **options) as producer:
            return await work(producer)

    return run(running())


# Where events go ---------------------------------------------------------------------------------------------------


def test_what_is_sent_to_an_address_is_there_when_send_returns(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        await create_hub(tmp_path, "telemetry", partitions=2)
        async with hubline.Producer(f"local:{tmp_path}/telemetry") as producer:
            await producer.send(["21.5 C", {"body": "22 C", "properties": {"sensor": "7"}}], partition_id="1")
            hub = hubline.open_hub(f"local:{tmp_path}/telemetry")
            receiver = await hub.open_receiver("1", group="g", position=hubline.Position.earliest())
            events = list(await receiver.receive(max_count=10, wait_seconds=0))
            await hub.close()
        assert events[1].properties == {"sensor": "7"}
        return [event.text() for event in events]

    assert run(scenario()) == ["21.5 C", "22 C"]


@pytest.mark.parametrize("events", ["one", b"one", {"body": "one"}, ["one"], iter(["one"])])
def test_one_event_needs_no_list(hub: Hub, events: Any) -> None:
    with_producer(hub, lambda producer: producer.send(events))
    assert hub.all_bodies() == [b"one"]


def test_events_go_to_the_partition_of_their_key_in_order(hub: Hub) -> None:
    keys = [f"device-{number % 7}" for number in range(200)]

    async def work(producer: hubline.Producer) -> None:
        for start in range(0, 200, 50):
            some = range(start, start + 50)
            await producer.send({"body": str(number), "partitionKey": keys[number]} for number in some)
        await producer.send(["a", "b"], partition_key="device-1")

    with_producer(hub, work)
    for partition in "0123":
        expected = [b"%d" % number for number, key in enumerate(keys) if str(partition_index(key, 4)) == partition]
        if str(partition_index("device-1", 4)) == partition:
            expected += [b"a", b"b"]
        assert hub.bodies(partition) == expected


def test_a_partition_can_be_named(hub: Hub) -> None:
    with_producer(hub, lambda producer: producer.send([{"body": "x", "partitionKey": "k"}, "y"], partition_id="2"))
    assert hub.bodies("2") == [b"x", b"y"]


def test_columns_are_sent_as_they_are(hub: Hub) -> None:
    columns = hubline.new_events(["a", {"body": "b", "partitionKey": "own"}])
    with_producer(hub, lambda producer: producer.send(columns, partition_key="all"))
    assert hub.bodies(str(partition_index("all", 4)))[:1] == [b"a"]
    assert b"b" in hub.bodies(str(partition_index("own", 4)))


def test_a_batch_that_was_received_can_be_sent_on(hub: Hub) -> None:
    async def work(producer: hubline.Producer) -> None:
        await producer.send([{"body": "x", "partitionKey": "k", "properties": {"a": "b"}}])
        partition = str(partition_index("k", 4))
        receiver = await hub.open_receiver(partition, group="g", position=hubline.Position.earliest())
        batch = await receiver.receive(max_count=10, wait_seconds=0)
        await producer.send(batch)
        again = await receiver.receive(max_count=10, wait_seconds=0)
        assert [(event.text(), event.partition_key, event.properties) for event in again] == [("x", "k", {"a": "b"})]

    with_producer(hub, work)


def test_events_with_ids_and_no_key_keep_together_by_where_they_were_read(hub: Hub) -> None:
    """Sent twice, they are in the same partition again: a reader that drops duplicates sees them."""
    ids = [f"ns/raw@1/{partition}/{number}/0" for number in range(20) for partition in (1, 6)]
    events = [{"body": each, "properties": {ID_PROPERTY: each}} for each in ids]

    async def work(producer: hubline.Producer) -> None:
        await producer.send(events)
        await producer.send(events[10:])

    with_producer(hub, work)
    assert [len(hub.bodies(partition)) for partition in "0123"] == [0, 35, 35, 0]


# Batches -----------------------------------------------------------------------------------------------------------


def test_many_megabytes_are_sent_in_parts_and_arrive_whole(hub: Hub) -> None:
    bodies = [bytes([number]) * 300_000 for number in range(60)]
    with_producer(hub, lambda producer: producer.send(bodies, partition_id="0"))
    assert hub.bodies("0") == bodies
    assert len(hub.sends) >= 4
    assert all(sum(map(len, sent)) <= 4 * 1024 * 1024 for _, sent in hub.sends)


def test_sends_of_many_tasks_share_messages(hub: Hub) -> None:
    is_through = asyncio.Event()

    async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
        await is_through.wait()

    async def work(producer: hubline.Producer) -> None:
        hub.answer = answer
        sends = [asyncio.create_task(producer.send(f"{number}", partition_id="0")) for number in range(100)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert not any(send.done() for send in sends)  # nothing is kept yet
        is_through.set()
        await asyncio.gather(*sends)

    with_producer(hub, work)
    assert hub.bodies("0") == [b"%d" % number for number in range(100)]
    assert len(hub.sends) <= 3


def test_a_slow_partition_holds_up_no_other(hub: Hub) -> None:
    is_through = asyncio.Event()

    async def answer(partition: str | None, _bodies: list[bytes]) -> None:
        if partition == "0":
            await is_through.wait()

    async def work(producer: hubline.Producer) -> None:
        hub.answer = answer
        slow = asyncio.create_task(producer.send("slow", partition_id="0"))
        for number in range(10):
            await producer.send(f"{number}", partition_id="1")
        assert not slow.done()
        is_through.set()
        await slow

    with_producer(hub, work)
    assert len(hub.bodies("1")) == 10


# What goes wrong ---------------------------------------------------------------------------------------------------


def test_a_hub_that_is_away_for_a_while_gets_everything_once(hub: Hub) -> None:
    async def work(producer: hubline.Producer) -> None:
        hub.is_away = True
        sending = asyncio.create_task(producer.send(["a", "b"], partition_id="0"))
        await asyncio.sleep(0.02)
        hub.is_away = False
        await sending

    with_producer(hub, work)
    assert hub.bodies("0") == [b"a", b"b"]


def test_a_hub_that_stays_away_is_reported_with_the_events(hub: Hub) -> None:
    async def work(producer: hubline.Producer) -> None:
        hub.is_away = True
        with pytest.raises(SendFailed, match="2 events could not be sent: the hub is away") as caught:
            await producer.send(["a", "b"], partition_id="0")
        (failure,) = caught.value.failures
        assert isinstance(failure.error, HubUnavailable)
        assert isinstance(caught.value.__cause__, HubUnavailable)
        assert (failure.bodies, failure.partition_id) == ([b"a", b"b"], "0")
        hub.is_away = False
        await producer.send(failure.events, partition_id=failure.partition_id)

    with_producer(hub, work, max_outage_seconds=0.05)
    assert hub.bodies("0") == [b"a", b"b"]


def test_only_what_failed_is_named_and_the_rest_is_sent(hub: Hub) -> None:
    async def answer(partition: str | None, _bodies: list[bytes]) -> None:
        if partition == "1":
            raise HubFull("the hub is full")

    async def work(producer: hubline.Producer) -> None:
        hub.answer = answer
        keys = {str(partition_index(key, 4)): key for key in "abcdefghijklmn"}
        with pytest.raises(SendFailed) as caught:
            await producer.send({"body": partition, "partitionKey": key} for partition, key in keys.items())
        (failure,) = caught.value.failures
        assert (failure.bodies, failure.partition_id) == ([b"1"], "1")
        assert isinstance(failure.error, HubFull)

    with_producer(hub, work)
    assert sorted(hub.all_bodies()) == [b"0", b"2", b"3"]


def test_an_event_that_is_too_large_is_named_and_the_others_are_sent(hub: Hub) -> None:
    hub.max_bytes = 5

    async def work(producer: hubline.Producer) -> None:
        with pytest.raises(SendFailed, match=r"2 events .*: event 1 has 6 bytes .* takes at most 5") as caught:
            await producer.send(["a", "large!", "b", "larger!", "c"], partition_id="0")
        assert [failure.bodies for failure in caught.value.failures] == [[b"large!"], [b"larger!"]]
        assert all(isinstance(failure.error, EventTooLarge) for failure in caught.value.failures)

    with_producer(hub, work)
    assert hub.bodies("0") == [b"a", b"b", b"c"]


def test_an_event_that_is_too_large_fails_its_own_call_alone(hub: Hub) -> None:
    hub.max_bytes = 5

    async def work(producer: hubline.Producer) -> list[BaseException | None]:
        bodies = ["a", "b", "large!", "c"]
        sends = [producer.send(body, partition_id="0") for body in bodies]
        return await asyncio.gather(*sends, return_exceptions=True)

    outcomes = with_producer(hub, work)
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), SendFailed, type(None)]
    assert hub.bodies("0") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("events", "options", "says"),
    [
        (["a", 5], {}, "the body of event 1 is int"),
        (5, {}, "events to send cannot be of type int"),
        ([{"body": "a", "partition_key": "k"}], {}, "unknown key 'partition_key'"),
        (["a"], {"partition_id": 0}, "partition_id is int. Give text, such as partition_id='0'"),
        (["a"], {"partition_key": 7}, "partition_key is int. Give text, such as partition_key='7'"),
        (["a"], {"partition_key": "k", "partition_id": "0"}, "only one of them"),
        (pa.RecordBatch.from_pydict({"text": ["a"]}), {}, "hubline.new_events"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(
    hub: Hub, events: Any, options: dict[str, Any], says: str
) -> None:
    async def work(producer: hubline.Producer) -> None:
        with pytest.raises(ConfigError, match=says):
            await producer.send(events, **options)

    with_producer(hub, work)
    assert hub.all_bodies() == []


@pytest.mark.parametrize("seconds", [-1, "60", None, True, float("nan")], ids=str)
def test_options_of_the_wrong_kind_are_refused(hub: Hub, seconds: Any) -> None:
    with pytest.raises(ConfigError, match="max_outage_seconds must be"):
        hubline.Producer(hub, max_outage_seconds=seconds)


def test_a_partition_that_is_not_there_is_named(hub: Hub) -> None:
    async def work(producer: hubline.Producer) -> None:
        with pytest.raises(PartitionNotFound, match="has no partition '9'"):
            await producer.send("a", partition_id="9")

    with_producer(hub, work)


def test_a_partition_that_was_added_can_be_named_at_once(hub: Hub) -> None:
    async def work(producer: hubline.Producer) -> None:
        hub.grow(6)
        await producer.send("a", partition_id="5")

    with_producer(hub, work)
    assert hub.bodies("5") == [b"a"]


def test_a_hub_that_is_missing_shows_at_the_start(tmp_path: Path) -> None:
    async def start() -> None:
        async with hubline.Producer(f"local:{tmp_path}/none"):
            pass

    with pytest.raises(HubNotFound):
        run(start())


# The end -----------------------------------------------------------------------------------------------------------


def test_it_opens_by_itself_and_closes_once_all_is_sent(hub: Hub) -> None:
    is_through = asyncio.Event()

    async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
        await is_through.wait()

    async def work() -> None:
        hub.answer = answer
        producer = hubline.Producer(hub)
        sending = asyncio.create_task(producer.send("a"))
        for _ in range(20):
            await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        is_through.set()
        await closing
        await sending
        await producer.close()
        with pytest.raises(HubError, match=r"the producer is closed. Create another one"):
            await producer.send("b")

    run(work())
    assert hub.all_bodies() == [b"a"]
    assert not hub.is_closed  # it is its owner's


def test_a_close_that_is_interrupted_leaves_no_send_waiting(hub: Hub) -> None:
    async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        hub.answer = answer
        producer = hubline.Producer(hub)
        sends = []
        for number in range(3):
            sends.append(asyncio.create_task(producer.send(f"{number}", partition_id="0")))
            await asyncio.sleep(0.005)  # the first is on its way
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.01)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert "may or may not have stored" in str(outcomes[0])
        assert "before these events were sent" in str(outcomes[1])
        assert all(isinstance(outcome, SendFailed) for outcome in outcomes)

    run(work())


def test_a_send_that_is_cancelled_disturbs_no_other(hub: Hub) -> None:
    async def work(producer: hubline.Producer) -> None:
        cancelled = asyncio.create_task(producer.send(["a"], partition_id="0"))
        for _ in range(10):
            await asyncio.sleep(0)
        cancelled.cancel()
        await producer.send(["b"], partition_id="0")

    with_producer(hub, work)
    assert hub.bodies("0")[-1:] == [b"b"]
