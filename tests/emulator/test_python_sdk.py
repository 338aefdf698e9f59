"""azure-eventhub, as it comes, against a running ``hubline serve``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient, aio
from azure.eventhub._buffered_producer import _partition_resolver
from azure.eventhub._eventprocessor.in_memory_checkpoint_store import InMemoryCheckpointStore
from azure.eventhub.exceptions import AuthenticationError, ConnectError, ConnectionLostError, EventHubError

from hubline.cli.app import main
from hubline.cli.exit_codes import ExitCode
from tests.emulator.serving import PATIENCE_SECONDS, Server, serving

# The SDK's types are narrower than what it takes.
Producer: Any = EventHubProducerClient
Consumer: Any = EventHubConsumerClient
AioProducer: Any = aio.EventHubProducerClient
AioConsumer: Any = aio.EventHubConsumerClient
CheckpointStore: Any = InMemoryCheckpointStore

EARLIEST = "-1"
# The SDK sleeps between attempts; there is nothing to wait for here.
HASTY: dict[str, Any] = {"retry_total": 0}


def send(connection_string: str, bodies: list[str], **where: Any) -> None:
    with Producer.from_connection_string(connection_string, **HASTY) as producer:
        batch = producer.create_batch(**where)
        for body in bodies:
            batch.add(EventData(body))
        producer.send_batch(batch)


async def receive(connection_string: str, count: int, *, group: str = "$Default", **how: Any) -> list[Any]:
    """The first events from one partition, or from all."""
    received: list[Any] = []
    errors: list[Exception] = []
    enough = asyncio.Event()

    async def on_batch(_context: Any, events: list[Any]) -> None:
        received.extend(events)
        if len(received) >= count:
            enough.set()

    async def on_error(_context: Any, error: Exception) -> None:
        errors.append(error)
        enough.set()

    consumer = AioConsumer.from_connection_string(connection_string, group, **HASTY)
    async with consumer:
        task = asyncio.create_task(consumer.receive_batch(on_batch, on_error=on_error, **how))
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), PATIENCE_SECONDS)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    if errors:
        raise errors[0]
    return received


def test_what_is_sent_is_received_with_keys_and_properties(hub: str) -> None:
    with Producer.from_connection_string(hub, **HASTY) as producer:
        batch = producer.create_batch(partition_key="customer-7")
        for number in range(100):
            event = EventData(f"event {number}")
            event.properties = {"number": number, "color": "green", "ratio": 0.5, "raw": b"\xff", "hot": True}
            event.message_id, event.correlation_id, event.content_type = f"m-{number}", "c", "text/plain"
            batch.add(event)
        producer.send_batch(batch)
    events = asyncio.run(receive(hub, 100, starting_position=EARLIEST))
    assert [event.body_as_str() for event in events] == [f"event {number}" for number in range(100)]
    assert [event.sequence_number for event in events] == list(range(100))
    assert {event.partition_key for event in events} == {b"customer-7"}
    assert events[7].properties == {b"number": 7, b"color": b"green", b"ratio": 0.5, b"raw": b"\xff", b"hot": True}
    assert (events[7].message_id, events[7].correlation_id, events[7].content_type) == ("m-7", "c", "text/plain")
    assert all(datetime.now(UTC) - event.enqueued_time < timedelta(minutes=5) for event in events)
    offsets = [event.offset for event in events]
    assert offsets == sorted(offsets)


def test_sections_of_a_body_come_back_apart(hub: str) -> None:
    with Producer.from_connection_string(hub, **HASTY) as producer:
        producer.send_batch([EventData([b"aa", b"bb", b"cc"]), EventData(b"one")], partition_id="0")
    events = asyncio.run(receive(hub, 2, starting_position=EARLIEST))
    assert [list(event.body) for event in events] == [[b"aa", b"bb", b"cc"], [b"one"]]
    assert [event.properties for event in events] == [{}, {}]


def test_tail_shows_what_is_there_through_the_sdk_too(hub: str, capfd: pytest.CaptureFixture[str]) -> None:
    for partition in range(4):
        send(hub, [f"{partition}-{number}" for number in range(8)], partition_id=str(partition))
    assert main(["tail", f"{hub};Transport=sdk", "--no-follow", "--json"]) == ExitCode.OK
    shown = [json.loads(line)["body"] for line in capfd.readouterr().out.splitlines()]
    assert sorted(shown) == [f"{partition}-{number}" for partition in range(4) for number in range(8)]


def test_synchronous_consumer_receives_from_every_partition(hub: str) -> None:
    for partition in range(4):
        send(hub, [f"{partition}-{number}" for number in range(10)], partition_id=str(partition))
    received: list[str] = []
    enough = threading.Event()

    def on_batch(context: Any, events: list[Any]) -> None:
        received.extend(f"{context.partition_id}:{event.body_as_str()}" for event in events)
        if len(received) >= 40:
            enough.set()

    consumer = Consumer.from_connection_string(hub, "$Default")
    worker = threading.Thread(target=consumer.receive_batch, args=(on_batch,), kwargs={"starting_position": EARLIEST})
    worker.start()
    assert enough.wait(PATIENCE_SECONDS)
    consumer.close()
    worker.join(PATIENCE_SECONDS)
    assert sorted(received) == sorted(f"{p}:{p}-{number}" for p in range(4) for number in range(10))


def test_asynchronous_producer_sends_batches_and_single_events(hub: str) -> None:
    async def run() -> list[Any]:
        async with AioProducer.from_connection_string(hub, **HASTY) as producer:
            batch = await producer.create_batch(partition_id="2")
            batch.add(EventData(b"\x00\xff binary"))
            await producer.send_batch(batch)
            await producer.send_event(EventData("alone"), partition_id="2")
        return await receive(hub, 2, partition_id="2", starting_position=EARLIEST)

    assert [b"".join(event.body) for event in asyncio.run(run())] == [b"\x00\xff binary", b"alone"]


def test_buffered_producer_flushes_what_it_holds(hub: str) -> None:
    async def run() -> tuple[list[Any], list[Any]]:
        sent: list[Any] = []
        failed: list[Any] = []

        async def on_success(events: list[Any], _partition: str | None) -> None:
            sent.extend(events)

        async def on_error(events: list[Any], _partition: str | None, error: Exception) -> None:
            failed.append(error)

        producer = AioProducer.from_connection_string(
            hub, buffered_mode=True, on_success=on_success, on_error=on_error, max_wait_time=1
        )
        async with producer:
            for number in range(200):
                await producer.send_event(EventData(f"event {number}"))
            await producer.flush()
        assert failed == []
        assert len(sent) == 200
        return sent, await receive(hub, 200, starting_position=EARLIEST)

    _, events = asyncio.run(run())
    assert {event.body_as_str() for event in events} == {f"event {number}" for number in range(200)}


def test_every_start_position_is_honoured(hub: str) -> None:
    send(hub, [f"old {number}" for number in range(10)], partition_id="0")
    events = asyncio.run(receive(hub, 10, partition_id="0", starting_position=EARLIEST))
    later = events[-1].enqueued_time + timedelta(milliseconds=1)
    while datetime.now(UTC) <= later + timedelta(milliseconds=5):
        pass
    send(hub, ["new"], partition_id="0")

    async def first(position: Any, *, inclusive: bool = False, group: str = "$Default") -> str:
        where = {"partition_id": "0", "starting_position": position, "starting_position_inclusive": inclusive}
        return str((await receive(hub, 1, group=group, **where))[0].body_as_str())

    async def run() -> list[str]:
        return await asyncio.gather(
            first(EARLIEST),
            first(events[4].offset),
            first(events[4].offset, inclusive=True),
            first(6),
            first(6, inclusive=True),
            first(later, group="by-time"),
            first(datetime(2000, 1, 1, tzinfo=UTC), group="by-time"),
            _first_of_latest(hub),
        )

    assert asyncio.run(run()) == ["old 0", "old 5", "old 4", "old 7", "old 6", "new", "old 0", "newest"]


async def _first_of_latest(hub: str) -> str:
    """Starts at the end, and sends once the reader is there: it says so by an empty batch."""
    found: list[str] = []
    is_reading, enough = asyncio.Event(), asyncio.Event()

    async def on_batch(_context: Any, events: list[Any]) -> None:
        is_reading.set()
        found.extend(event.body_as_str() for event in events)
        if found:
            enough.set()

    consumer = AioConsumer.from_connection_string(hub, "$Default", **HASTY)
    async with consumer, AioProducer.from_connection_string(hub, **HASTY) as producer:
        task = asyncio.create_task(
            consumer.receive_batch(on_batch, partition_id="3", starting_position="@latest", max_wait_time=1)
        )
        await asyncio.wait_for(is_reading.wait(), PATIENCE_SECONDS)
        await producer.send_event(EventData("newest"), partition_id="3")
        await asyncio.wait_for(enough.wait(), PATIENCE_SECONDS)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return found[0]


@pytest.mark.parametrize("position", ["999999999", "elsewhere", 99])
def test_position_that_is_not_there_is_reported_to_the_consumer(hub: str, position: Any) -> None:
    send(hub, ["x"], partition_id="0")
    with pytest.raises(EventHubError, match=f"'{position}' is invalid. The last sequence number in the system is '0'"):
        asyncio.run(receive(hub, 1, partition_id="0", starting_position=position))


def test_partition_keys_land_where_the_sdks_expect(server: Server) -> None:
    # Where a key's hash is negative the Python SDK rounds otherwise than the service and the other SDKs: the known
    # values of "alphabet" are theirs.
    resolver: Any = _partition_resolver
    keys = [key for key in map(str, range(20)) if resolver.generate_hash_code(key) >= 0][:3]
    ids = [str(number) for number in range(11)]
    expected = {key: resolver.PartitionResolver(ids).get_partition_id_by_partition_key(key) for key in keys}
    expected["alphabet"] = "4"
    connection_string = server.create("keys", 11)
    with Producer.from_connection_string(connection_string, **HASTY) as producer:
        for key in expected:
            producer.send_event(EventData(key), partition_key=key)
    for key, partition in expected.items():
        events = asyncio.run(receive(connection_string, 1, partition_id=partition, starting_position=EARLIEST))
        assert key in [event.body_as_str() for event in events]


def test_properties_tell_what_the_hub_and_its_partitions_hold(hub: str) -> None:
    send(hub, ["a", "b"], partition_id="1")
    with Producer.from_connection_string(hub, **HASTY) as producer:
        assert producer.get_partition_ids() == ["0", "1", "2", "3"]
        filled, empty = producer.get_partition_properties("1"), producer.get_partition_properties("0")
    assert (filled["beginning_sequence_number"], filled["last_enqueued_sequence_number"]) == (0, 1)
    assert not filled["is_empty"]
    assert empty["is_empty"]
    assert empty["last_enqueued_offset"] == "-1"


def test_higher_owner_level_takes_over_and_the_lower_one_gets_an_error(hub: str) -> None:
    async def run() -> tuple[list[Exception], list[Exception]]:
        first, second, third = _Reader(hub, owner_level=1), _Reader(hub, owner_level=2), _Reader(hub, owner_level=1)
        async with first, second, third:
            first.start()
            await first.reading()
            second.start()
            taken = await first.failed()
            await second.reading()
            third.start()
            refused = await third.failed()
            assert second.errors == []
        return taken, refused

    send(hub, ["x"], partition_id="0")
    taken, refused = asyncio.run(run())
    for errors in (taken, refused):
        assert isinstance(errors[0], ConnectionLostError)
        assert "amqp:link:stolen" in str(errors[0]) or "LinkStolen" in str(errors[0])


def test_equal_owner_level_takes_over(hub: str) -> None:
    async def run() -> list[Exception]:
        first, second = _Reader(hub, owner_level=5), _Reader(hub, owner_level=5)
        async with first, second:
            first.start()
            await first.reading()
            second.start()
            return await first.failed()

    send(hub, ["x"], partition_id="0")
    assert isinstance(asyncio.run(run())[0], ConnectionLostError)


class _Reader:
    """An SDK's consumer of partition 0 with an owner level, and what it hears."""

    def __init__(self, connection_string: str, *, owner_level: int | None) -> None:
        self._consumer = AioConsumer.from_connection_string(connection_string, "$Default", **HASTY)
        self._owner_level = owner_level
        self._is_reading, self._has_failed = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.errors: list[Exception] = []

    async def __aenter__(self) -> _Reader:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._consumer.close()

    def start(self) -> None:
        self._task = asyncio.create_task(
            self._consumer.receive_batch(
                self._on_batch,
                on_error=self._on_error,
                partition_id="0",
                starting_position=EARLIEST,
                owner_level=self._owner_level,
            )
        )

    async def reading(self) -> None:
        await asyncio.wait_for(self._is_reading.wait(), PATIENCE_SECONDS)

    async def failed(self) -> list[Exception]:
        await asyncio.wait_for(self._has_failed.wait(), PATIENCE_SECONDS)
        return self.errors

    async def _on_batch(self, _context: Any, _events: list[Any]) -> None:
        self._is_reading.set()

    async def _on_error(self, _context: Any, error: Exception) -> None:
        self.errors.append(error)
        self._has_failed.set()


def test_last_enqueued_properties_are_tracked(hub: str) -> None:
    async def run() -> dict[str, Any]:
        tracked: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        async def on_batch(context: Any, events: list[Any]) -> None:
            if events and not tracked.done():
                tracked.set_result(context.last_enqueued_event_properties)

        consumer = AioConsumer.from_connection_string(hub, "$Default", **HASTY)
        async with consumer:
            task = asyncio.create_task(
                consumer.receive_batch(
                    on_batch, partition_id="0", starting_position=EARLIEST, track_last_enqueued_event_properties=True
                )
            )
            result = await asyncio.wait_for(tracked, PATIENCE_SECONDS)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return result

    send(hub, ["a", "b", "c"], partition_id="0")
    tracked = asyncio.run(run())
    assert tracked["sequence_number"] == 2
    assert tracked["enqueued_time"] <= tracked["retrieval_time"]
    with Producer.from_connection_string(hub, **HASTY) as producer:
        assert tracked["offset"] == producer.get_partition_properties("0")["last_enqueued_offset"]


def test_events_of_900_kilobytes_go_through(hub: str) -> None:
    body = bytes(range(256)) * 3515
    with Producer.from_connection_string(hub, **HASTY) as producer:
        for _ in range(3):
            producer.send_event(EventData(body), partition_id="0")
    events = asyncio.run(receive(hub, 3, partition_id="0", starting_position=EARLIEST))
    assert [b"".join(event.body) for event in events] == [body] * 3


def test_event_beyond_the_limit_is_refused_by_the_sdk_as_with_the_service(hub: str) -> None:
    with (
        Producer.from_connection_string(hub, **HASTY) as producer,
        pytest.raises(ValueError, match="size"),
    ):
        producer.create_batch().add(EventData(bytes(1024 * 1024 + 1)))


@pytest.mark.parametrize("act", [lambda p: p.send_event(EventData("x")), lambda p: p.get_eventhub_properties()])
def test_wrong_key_is_refused(server: Server, hub: str, act: Callable[[Any], object]) -> None:
    wrong = hub.replace("SharedAccessKey=c2Vj", "SharedAccessKey=AAAA")
    with Producer.from_connection_string(wrong, **HASTY) as producer, pytest.raises(AuthenticationError):
        act(producer)


def test_missing_hub_is_reported_as_such(server: Server) -> None:
    missing = server.connection_string("nowhere")
    with Producer.from_connection_string(missing, **HASTY) as producer:
        with pytest.raises(ConnectError, match="nowhere"):
            producer.get_eventhub_properties()
        with pytest.raises(EventHubError):
            producer.send_event(EventData("x"))


def test_two_consumers_share_the_partitions(hub: str) -> None:
    store = CheckpointStore()
    owned: dict[str, set[str]] = {"a": set(), "b": set()}
    shared = threading.Event()

    def consumer(name: str) -> tuple[Any, threading.Thread]:
        def on_initialize(context: Any) -> None:
            owned[name].add(context.partition_id)
            check()

        def on_close(context: Any, _reason: Any) -> None:
            owned[name].discard(context.partition_id)
            check()

        client = Consumer.from_connection_string(
            hub, "$Default", checkpoint_store=store, load_balancing_interval=1, **HASTY
        )
        return client, threading.Thread(
            target=client.receive_batch,
            args=(lambda _context, _events: None,),
            kwargs={
                "on_partition_initialize": on_initialize,
                "on_partition_close": on_close,
                "on_error": lambda _context, _error: None,
                "starting_position": EARLIEST,
                "max_wait_time": 1,
            },
        )

    def check() -> None:
        if len(owned["a"]) == len(owned["b"]) == 2 and owned["a"] | owned["b"] == {"0", "1", "2", "3"}:
            shared.set()

    consumers = [consumer("a"), consumer("b")]
    for _, worker in consumers:
        worker.start()
    assert shared.wait(PATIENCE_SECONDS), owned
    for client, worker in consumers:
        client.close()
        worker.join(PATIENCE_SECONDS)


def test_data_outlives_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("kept")
    with serving(data, "--create", "telemetry:2") as first:
        send(first.connection_string("telemetry"), ["one", "two"], partition_id="1")
        assert first.stop() == 0
    with serving(data, "--create", "telemetry:2") as second, serving(data) as third:
        assert second.port != third.port
        for server in (second, third):
            connection_string = server.connection_string("telemetry")
            events = asyncio.run(receive(connection_string, 2, partition_id="1", starting_position=EARLIEST))
            assert [event.body_as_str() for event in events] == ["one", "two"]


def test_without_a_key_any_is_taken(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("open"), "--create", "telemetry:1", key=None) as server:
        connection_string = server.connection_string("telemetry", key="whatever")
        send(connection_string, ["x"])
        assert len(asyncio.run(receive(connection_string, 1, partition_id="0", starting_position=EARLIEST))) == 1
