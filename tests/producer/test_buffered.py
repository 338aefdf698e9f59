"""What the user of a buffered producer sees: it does not wait, within bounds, and what fails is reported."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import hubline
from hubline.errors import (
    ConfigError,
    EventTooLarge,
    FailedSend,
    HubFull,
    HubUnavailable,
    PartitionNotFound,
    SendFailed,
)
from hubline.hubs.local import create_hub
from hubline.hubs.partition_hash import partition_index
from tests.producer.hubs import Hub
from tests.producer.test_producer import run


def with_producer(hub: str | Hub, work: Callable[[hubline.BufferedProducer], Awaitable[Any]], **options: Any) -> Any:
    async def running() -> Any:
        async with hubline.BufferedProducer(hub, **options) as producer:
            return await work(producer)

    return run(running())


class Gate:
    """Holds up sends, to all partitions or to one."""

    def __init__(self, hub: Hub, partition: str | None = None) -> None:
        self._partition = partition
        self.is_open = asyncio.Event()
        hub.answer = self._answer

    async def _answer(self, partition: str | None, _bodies: list[bytes]) -> None:
        if self._partition in (None, partition):
            await self.is_open.wait()


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


# Sending -----------------------------------------------------------------------------------------------------------


def test_all_that_was_given_is_there_at_the_end(tmp_path: Path) -> None:
    async def scenario() -> int:
        await create_hub(tmp_path, "telemetry", partitions=4)
        async with hubline.BufferedProducer(f"local:{tmp_path}/telemetry") as producer:
            for number in range(5_000):
                await producer.send(f"{number}", partition_key=f"device-{number % 50}")
        hub = hubline.open_hub(f"local:{tmp_path}/telemetry")
        ends = [(await hub.describe_partition(partition)).last_sequence + 1 for partition in "0123"]
        await hub.close()
        return sum(ends)

    assert run(scenario()) == 5_000


def test_events_of_a_key_stay_in_order_and_are_sent_together(hub: Hub) -> None:
    places = {key: str(partition_index(key, 4)) for key in (f"device-{number}" for number in range(7))}
    keys = [f"device-{number % 7}" for number in range(10_000)]

    async def work(producer: hubline.BufferedProducer) -> None:
        for number, key in enumerate(keys):
            await producer.send(b"%d" % number, partition_key=key)

    with_producer(hub, work)
    for partition in "0123":
        expected = [b"%d" % number for number, key in enumerate(keys) if places[key] == partition]
        assert hub.bodies(partition) == expected
    assert len(hub.sends) < 200


def test_events_lists_and_columns_are_taken_and_stay_in_order(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        await producer.send("0", partition_id="2")
        await producer.send([b"1", {"body": "2"}], partition_id="2")
        await producer.send(hubline.new_events(["3", "4"]), partition_id="2")
        await producer.send("5", partition_id="2")

    with_producer(hub, work)
    assert hub.bodies("2") == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_send_returns_before_the_hub_has_anything_and_flush_after(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        gate = Gate(hub)
        await producer.send(["a", "b"])
        flushing = asyncio.create_task(producer.flush())
        await settle()
        assert (hub.all_bodies(), producer.buffered_events, flushing.done()) == ([], 2, False)
        assert producer.buffered_bytes >= 2
        gate.is_open.set()
        await flushing
        assert (sorted(hub.all_bodies()), producer.buffered_events, producer.buffered_bytes) == ([b"a", b"b"], 0, 0)

    with_producer(hub, work)


def test_what_is_given_is_sent_without_a_flush(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        await producer.send("a")
        await settle()
        assert hub.all_bodies() == [b"a"]

    with_producer(hub, work)


# Bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "size", "most"),
    [({"max_buffer_events": 10}, 1, 10), ({"max_buffer_bytes": 10_000}, 936, 10)],
    ids=["events", "bytes"],
)
def test_a_full_buffer_makes_send_wait(hub: Hub, options: dict[str, int], size: int, most: int) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        given = 0

        async def send_all() -> None:
            nonlocal given
            for _ in range(100):
                await producer.send(bytes(size), partition_id="0")
                given += 1

        gate = Gate(hub)
        sending = asyncio.create_task(send_all())
        await settle()
        assert given == producer.buffered_events == most
        gate.is_open.set()
        await sending
        assert given == 100

    with_producer(hub, work, **options)
    assert len(hub.bodies("0")) == 100


def test_bounds_hold_for_lists_and_columns(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        async def answer(_partition: str | None, _bodies: list[bytes]) -> None:
            assert producer.buffered_events <= 10

        hub.answer = answer
        await producer.send([b"x"] * 95)
        await producer.send(hubline.new_events([b"y"] * 95))

    with_producer(hub, work, max_buffer_events=10)
    assert len(hub.all_bodies()) == 190


def test_an_event_that_is_larger_than_the_buffer_goes_alone(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        for body in (b"a", bytes(5_000), b"b"):
            await producer.send(body, partition_id="0")

    with_producer(hub, work, max_buffer_bytes=1_000)
    assert list(map(len, hub.bodies("0"))) == [1, 5_000, 1]


def test_a_partition_that_is_blocked_holds_up_no_other_while_there_is_room(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        gate = Gate(hub, partition="0")
        for number in range(100):
            await producer.send(f"{number}", partition_id=str(number % 2))
        await settle()
        assert (len(hub.bodies("0")), len(hub.bodies("1"))) == (0, 50)
        gate.is_open.set()

    with_producer(hub, work)
    assert len(hub.bodies("0")) == 50


# What fails --------------------------------------------------------------------------------------------------------


async def full(_partition: str | None, _bodies: list[bytes]) -> None:
    raise HubFull("the hub is full")


def test_what_failed_is_raised_by_the_next_send_which_takes_nothing(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        hub.answer = full
        await producer.send("a", partition_id="0")
        await settle()
        hub.answer = None
        with pytest.raises(SendFailed, match=r"1 event could not be sent: the hub is full.*not taken") as caught:
            await producer.send("b", partition_id="0")
        assert caught.value.failures[0].bodies == [b"a"]
        await producer.send("c", partition_id="0")  # it was reported once

    with_producer(hub, work)
    assert hub.bodies("0") == [b"c"]


def test_what_failed_is_raised_by_flush_and_can_be_sent_again(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        hub.answer = full
        await producer.send(["a", "b"], partition_id="0")
        with pytest.raises(SendFailed) as caught:
            await producer.flush()
        hub.answer = None
        for failure in caught.value.failures:
            await producer.send(failure.events, partition_id=failure.partition_id)

    with_producer(hub, work)
    assert hub.bodies("0") == [b"a", b"b"]


def test_what_failed_is_raised_at_the_end(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        hub.answer = full
        await producer.send("a", partition_id="0")

    with pytest.raises(SendFailed, match="the hub is full"):
        with_producer(hub, work)


def test_what_failed_does_not_hide_the_error_that_ended_it(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        hub.answer = full
        await producer.send("a", partition_id="0")
        raise KeyError("mine")

    with caplog.at_level(logging.WARNING), pytest.raises(KeyError, match="mine"):
        with_producer(hub, work)
    assert "1 event could not be sent: the hub is full" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_on_error_gets_what_failed_and_nothing_is_raised(hub: Hub, is_async: bool) -> None:
    failures: list[FailedSend] = []

    async def later(failure: FailedSend) -> None:
        await asyncio.sleep(0.001)
        failures.append(failure)

    async def work(producer: hubline.BufferedProducer) -> None:
        hub.answer = full
        await producer.send("a", partition_id="0")
        await producer.flush()
        assert len(failures) == 1
        await producer.send("b", partition_id="1")

    with_producer(hub, work, on_error=later if is_async else failures.append)
    assert [(each.bodies, each.partition_id) for each in failures] == [([b"a"], "0"), ([b"b"], "1")]
    assert all(isinstance(each.error, HubFull) for each in failures)


def test_on_error_may_send_again_also_into_a_full_buffer(hub: Hub) -> None:
    async def again(failure: FailedSend) -> None:
        hub.answer = None
        await producers[0].send(failure.events, partition_id=failure.partition_id)

    async def work(producer: hubline.BufferedProducer) -> None:
        producers.append(producer)
        hub.answer = full
        for number in range(10):
            await producer.send(f"{number}", partition_id="0")

    producers: list[hubline.BufferedProducer] = []
    with_producer(hub, work, on_error=again, max_buffer_events=2)
    assert sorted(hub.bodies("0")) == [b"%d" % number for number in range(10)]


def test_an_on_error_that_fails_is_logged_and_stops_nothing(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_failure: FailedSend) -> None:
        raise KeyError("mine")

    async def work(producer: hubline.BufferedProducer) -> None:
        hub.answer = full
        await producer.send("a", partition_id="0")
        await producer.flush()
        hub.answer = None
        await producer.send("b", partition_id="0")

    with_producer(hub, work, on_error=fails)
    assert "on_error_failed" in caplog.text
    assert hub.bodies("0") == [b"b"]


def test_an_event_that_is_too_large_is_left_out_alone(hub: Hub) -> None:
    hub.max_bytes = 5
    failures: list[FailedSend] = []

    async def work(producer: hubline.BufferedProducer) -> None:
        for body in ("a", "large!", "b"):
            await producer.send(body, partition_id="0")

    with_producer(hub, work, on_error=failures.append)
    assert hub.bodies("0") == [b"a", b"b"]
    (failure,) = failures
    assert isinstance(failure.error, EventTooLarge)
    assert failure.bodies == [b"large!"]
    assert "event 1 of those that the producer was given has 6 bytes" in str(failure.error)


def test_a_hub_that_is_away_fills_the_buffer_and_gets_everything_when_it_is_back(hub: Hub) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        hub.is_away = True
        for number in range(50):
            await producer.send(f"{number}", partition_id="0")
        await asyncio.sleep(0.02)
        assert producer.buffered_events == 50
        hub.is_away = False

    with_producer(hub, work)
    assert hub.bodies("0") == [b"%d" % number for number in range(50)]


def test_a_hub_that_is_away_from_the_start_fails_what_was_given(hub: Hub) -> None:
    async def work() -> None:
        hub.is_away = True
        producer = hubline.BufferedProducer(hub, max_outage_seconds=0.02)
        await producer.send("a")  # it opens by itself
        with pytest.raises(SendFailed) as caught:
            await producer.close()
        assert caught.value.failures[0].bodies == [b"a"]
        assert isinstance(caught.value.failures[0].error, HubUnavailable)

    run(work())


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"body": "x", "partitionKey": 5}, "the partitionKey of event 0 cannot be sent"),
        ({"body": "x", "partitionKey": "\ud800"}, "the partitionKey of event 0 cannot be sent"),
        ({"body": "x", "properties": {"a": 5}}, "the properties of event 0 cannot be sent"),
        ({"body": "x", "properties": {"a": "\ud800"}}, "the properties of event 0 cannot be sent"),
        (5, "events to send cannot be of type int"),
    ],
)
def test_what_cannot_be_sent_is_refused_where_it_is_given(hub: Hub, event: Any, says: str) -> None:
    async def work(producer: hubline.BufferedProducer) -> None:
        with pytest.raises(ConfigError, match=says):
            await producer.send(event)
        with pytest.raises(PartitionNotFound):
            await producer.send("a", partition_id="9")

    with_producer(hub, work)
    assert hub.all_bodies() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"max_buffer_bytes": 0},
            "max_buffer_bytes must be a number of bytes, 1 or more, or text such as '1MiB', not 0",
        ),
        ({"max_buffer_events": 1.5}, "max_buffer_events must be a whole number, 1 or more, not 1.5"),
        ({"max_buffer_events": True}, "max_buffer_events must be a whole number, 1 or more, not True"),
        ({"max_outage_seconds": -1}, "max_outage_seconds must be a number of seconds, 0 or more, not -1"),
        ({"on_error": "log"}, "on_error must be a function or None, not 'log'"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(hub: Hub, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hubline.BufferedProducer(hub, **options)


# The end -----------------------------------------------------------------------------------------------------------


def test_an_end_that_is_interrupted_reports_how_many_were_not_sent(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        Gate(hub)
        producer = hubline.BufferedProducer(hub)
        await producer.send(["a", "b"], partition_id="0")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.01)

    run(work())
    assert "not_sent hub=hub events=2" in caplog.text


def test_senders_that_are_cancelled_lose_nothing_of_the_others() -> None:
    """Tasks send, are cancelled at random, and what each send had taken when it returned arrives, in order."""

    async def one_seed(hub: Hub, rng: random.Random) -> None:
        async def slowly(_partition: str | None, _bodies: list[bytes]) -> None:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

        async def sending(name: int) -> None:
            for number in range(40):
                await producer.send(b"%d %d" % (name, number), partition_key=f"k{name}")
                returned.append(b"%d %d" % (name, number))

        hub.answer = slowly
        returned: list[bytes] = []
        producer = hubline.BufferedProducer(hub, max_buffer_events=7)
        tasks = [asyncio.create_task(sending(name)) for name in range(5)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            if rng.random() < 0.01:
                rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.close()
        for name in range(5):
            of_one = [body for body in hub.all_bodies() if body.startswith(b"%d " % name)]
            given = [body for body in returned if body.startswith(b"%d " % name)]
            assert of_one[: len(given)] == given
            assert len(of_one) <= len(given) + 1  # what a cancelled send had taken

    for seed in range(30):
        run(one_seed(Hub(), random.Random(seed)))
