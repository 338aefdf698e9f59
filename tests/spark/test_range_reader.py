"""The task's side, without Spark: ranges read from real hubs, by links that are kept."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from uuid import UUID

import pyarrow as pa
import pytest
from azure.eventhub import EventData, EventHubProducerClient
from pyspark.sql.types import StructType

from hubline.adapters import open_hub
from hubline.errors import HubNotFound, HubUnavailable, PositionInvalid
from hubline.hubs.local import LocalHub, Retention, create_hub, delete_hub
from hubline.hubs.local.receiver import LocalReceiver
from hubline.hubs.reconnecting_receiver import ReconnectingReceiver
from hubline.model.events import EventBatch, new_events
from hubline.model.positions import Position
from hubline.ports import PrefetchingReceiver, Receiver
from hubline.read_ahead import ReadAhead
from hubline.retry import RetryPolicy
from hubline.spark.arrow_columns import Layout
from hubline.spark.options import Options, parse_options
from hubline.spark.schema import LOOKBACK_SCHEMA, SOURCE_SCHEMA
from hubline.spark.source.offsets import Range
from hubline.spark.tasks import event_loop as process
from hubline.spark.tasks import gc_tuning, links, range_reader
from hubline.spark.tasks.range_reader import read_ranges
from tests.emulator.serving import Server, serving
from tests.hubs.support import ManualClock

LAYOUT = Layout(SOURCE_SCHEMA)

LARGE_BYTES = 300_000


@pytest.fixture(autouse=True)
def _own_process() -> Iterator[None]:
    """Each test has the loop and the links of a fresh worker."""
    process.close()
    yield
    process.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served"), "--create", "telemetry:2") as running:
        asyncio.run(_fill(running.data, [5_000, 5_000], b""))
        yield running


async def _fill(root: Path, counts: Sequence[int], body: bytes) -> None:
    await create_hub(root, "telemetry", partitions=len(counts), exist_ok=True)
    hub = LocalHub(root, "telemetry")
    sender = await hub.open_sender()
    for partition, count in enumerate(counts):
        for start in range(0, count, 1_000):
            numbers = range(start, min(start + 1_000, count))
            await sender.send(new_events([body + b"%d" % number for number in numbers]), partition=str(partition))
    await hub.close()


@pytest.fixture(params=["local", "served"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    """Two partitions with 5,000 events each."""
    if request.param == "local":
        asyncio.run(_fill(tmp_path, [5_000, 5_000], b""))
        return parse_options({"hub": f"local:{tmp_path}/telemetry", "receiverTimeout": "10s"})
    server: Server = request.getfixturevalue("server")
    return parse_options({"hub": server.connection_string("telemetry"), "receiverTimeout": "10s"})


def read(options: Options, *ranges: Range) -> list[tuple[str, int, bytes]]:
    rows = []
    for batch in read_ranges(options, ranges, LAYOUT):
        assert batch.schema.equals(LAYOUT.schema)
        rows += list(
            zip(*(batch.column(name).to_pylist() for name in ("partition", "sequenceNumber", "body")), strict=True)
        )
    return rows


def expected(*ranges: Range) -> list[tuple[str, int, bytes]]:
    return [(one.partition, number, b"%d" % number) for one in ranges for number in range(one.start, one.end)]


def test_a_range_is_read_exactly(hub: Options) -> None:
    ranges = (Range("0", 100, 3_333), Range("1", 0, 1), Range("1", 4_999, 5_000))

    assert read(hub, *ranges) == expected(*ranges)


def test_ranges_that_are_opened_ahead_share_what_a_task_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the later ones fill it, and the first has to wait for room at each event."""
    asyncio.run(_fill(tmp_path, [10] * 6, b""))
    options = parse_options({"hub": f"local:{tmp_path}/telemetry", "prefetchBytes": "4MiB"})
    parts: list[int] = []
    open_ahead = range_reader._RangeReader.open_ahead

    def noted(reader: range_reader._RangeReader) -> None:
        parts.append(reader.read_ahead.max_bytes)
        open_ahead(reader)

    monkeypatch.setattr(range_reader._RangeReader, "open_ahead", noted)
    ranges = [Range(str(partition), 0, 10) for partition in range(6)]

    assert read(options, *ranges) == expected(*ranges)
    assert parts[:4] == [1024 * 1024] * 4


def test_the_events_before_a_place_are_marked_as_replayed(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path, [30, 30], b""))
    options = parse_options({"hub": f"local:{tmp_path}/telemetry"})
    ranges = Range("0", 5, 30, replayed_to=12), Range("1", 0, 30)

    batches = list(read_ranges(options, ranges, Layout(LOOKBACK_SCHEMA)))

    replayed = [row for batch in batches for row in batch.to_pylist() if row["replayed"]]
    assert [(row["partition"], row["sequenceNumber"]) for row in replayed] == [("0", number) for number in range(5, 12)]
    assert sum(len(batch) for batch in batches) == 55


def test_consecutive_ranges_are_read_by_one_link(hub: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_openings(monkeypatch)
    ranges = [Range("0", start, start + 700) for start in range(0, 4_900, 700)]

    for one in ranges:
        assert read(hub, one) == expected(one)

    assert opened == ["0"]


def test_a_link_that_stands_elsewhere_is_not_used(hub: Options) -> None:
    first, again = Range("0", 0, 100), Range("0", 50, 150)

    read(hub, first)

    assert read(hub, again) == expected(again)


def test_many_ranges_take_turns(hub: Options) -> None:
    ranges = [Range(str(number % 2), number * 100, number * 100 + 50) for number in range(20)]

    assert read(hub, *ranges) == expected(*ranges)


def test_what_spark_does_not_take_is_not_read(hub: Options) -> None:
    reading = read_ranges(hub, [Range("0", 0, 5_000), Range("1", 0, 5_000)], LAYOUT)

    with closing(reading) as some:  # type: ignore[type-var]  # it is a generator
        next(some)

    assert read(hub, Range("0", 0, 10)) == expected(Range("0", 0, 10))


@pytest.mark.parametrize("kind", ["local", "served"])
def test_a_task_holds_its_bound_of_all_its_ranges_together(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server | None = request.getfixturevalue("server") if kind == "served" else None
    root = tmp_path if server is None else server.data
    asyncio.run(_fill_unevenly(root, "uneven", partitions=3, small_count=2_000, large_count=12))
    address = f"local:{root}/uneven" if server is None else server.connection_string("uneven")
    bound, allocated_before = 4_000_000, pa.total_allocated_bytes()
    peak_counted = peak_allocated = count = 0
    hold = ReadAhead.hold

    def noted(ahead: ReadAhead, bytes_count: int) -> None:
        nonlocal peak_counted, peak_allocated
        hold(ahead, bytes_count)
        if ahead._pool is not None:
            peak_counted = max(peak_counted, ahead._pool.held_bytes)
            peak_allocated = max(peak_allocated, pa.total_allocated_bytes() - allocated_before)

    monkeypatch.setattr(ReadAhead, "hold", noted)
    options = parse_options({"hub": address, "prefetchBytes": str(bound), "receiverTimeout": "10s"})

    for batch in read_ranges(options, [Range(str(partition), 0, 2_012) for partition in range(3)], LAYOUT):
        count += len(batch)
        time.sleep(0.01)

    assert count == 3 * 2_012
    assert bound / 4 < peak_counted <= bound + 2 * LARGE_BYTES  # the first events of ranges that joined meanwhile
    assert peak_allocated < bound + 5 * LARGE_BYTES  # with events that arrive or are decoded


async def _fill_unevenly(root: Path, name: str, *, partitions: int, small_count: int, large_count: int) -> None:
    await create_hub(root, name, partitions=partitions)
    hub = LocalHub(root, name)
    sender = await hub.open_sender()
    for partition in map(str, range(partitions)):
        await sender.send(new_events([bytes(100)] * small_count), partition=partition)
        await sender.send(new_events([bytes(LARGE_BYTES)] * large_count), partition=partition)
    await hub.close()


class TestWhatGoesWrong:
    def test_a_lost_receiver_is_replaced_and_no_event_comes_twice(
        self, hub: Options, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(range_reader, "RETRY", RetryPolicy(initial_backoff_seconds=0.0))
        monkeypatch.setattr(range_reader, "COUNT_MAX", 500)
        fail_every_third(monkeypatch)
        whole = Range("0", 0, 5_000)

        assert read(hub, whole) == expected(whole)

    def test_a_hub_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        options = parse_options({"hub": f"local:{tmp_path}/none"})

        with pytest.raises(HubNotFound):
            read(options, Range("0", 0, 1))

    def test_an_endpoint_that_is_not_there_is_given_up_after_the_timeout(self) -> None:
        address = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=c"
        options = parse_options({"hub": f"{address};UseDevelopmentEmulator=true", "receiverTimeout": "1s"})

        with pytest.raises(HubUnavailable):
            read(options, Range("0", 0, 1))

    def test_a_range_beyond_the_end_is_no_endless_wait(self, hub: Options, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(range_reader, "SILENCE_SECONDS", 0.2)

        with pytest.raises(PositionInvalid) as caught:
            read(hub, Range("0", 4_990, 5_010))

        assert caught.value.reason == "beyond"

    def test_expired_events_are_an_error_or_a_gap(self, tmp_path: Path) -> None:
        asyncio.run(_expired(tmp_path))
        address = f"local:{tmp_path}/telemetry"

        with pytest.raises(PositionInvalid):
            read(parse_options({"hub": address}), Range("0", 0, 20))
        earliest = read(parse_options({"hub": address, "onDataLoss": "earliest"}), Range("0", 0, 20))
        latest = read(parse_options({"hub": address, "onDataLoss": "latest"}), Range("0", 0, 20))

        assert [sequence for _, sequence, _ in earliest] == list(range(10, 20))
        assert latest == []

    def test_expired_events_that_were_handled_before_are_no_loss(self, tmp_path: Path) -> None:
        asyncio.run(_expired(tmp_path))
        options = parse_options({"hub": f"local:{tmp_path}/telemetry"})

        some = read(options, Range("0", 0, 20, replayed_to=15))
        none = read(options, Range("0", 0, 5, replayed_to=15))
        with pytest.raises(PositionInvalid):
            read(options, Range("0", 0, 20, replayed_to=8))

        assert [sequence for _, sequence, _ in some] == list(range(10, 20))
        assert none == []

    def test_a_link_that_is_open_already_reads_nothing_of_a_recreated_hub(self, tmp_path: Path) -> None:
        asyncio.run(_fill(tmp_path, [100], b""))
        options = parse_options({"hub": f"local:{tmp_path}/telemetry"})
        read(options, Range("0", 0, 100))
        asyncio.run(delete_hub(tmp_path, "telemetry"))
        asyncio.run(_fill(tmp_path, [200], b"other"))

        with pytest.raises(PositionInvalid) as caught:
            read(options, Range("0", 100, 200))

        assert caught.value.reason == "foreign"


@pytest.mark.parametrize("program", ["pyspark.daemon", "hubline.spark.tasks.worker_daemon"])
def test_spark_need_not_look_through_all_modules_for_garbage_after_every_task(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    freezes: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: freezes.append(None))
    gc_tuning.freeze_loaded_modules()
    assert len(freezes) == 0  # this is no worker

    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(program, None))
    monkeypatch.setattr(gc_tuning, "_freeze", functools.cache(gc_tuning._freeze.__wrapped__))
    gc_tuning.freeze_loaded_modules()
    assert len(freezes) == 1
    gc_tuning.freeze_loaded_modules()
    assert len(freezes) == 1
    monkeypatch.setitem(sys.modules, "loaded_since", ModuleType("loaded_since"))
    process.loop()
    assert len(freezes) == 2


def test_links_that_wait_too_long_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINK_IDLE_SECONDS", 0.01)
    asyncio.run(_fill(tmp_path, [100], b""))
    closed = threading.Event()
    close = LocalReceiver.close

    async def noted(receiver: LocalReceiver) -> None:
        await close(receiver)
        closed.set()

    monkeypatch.setattr(LocalReceiver, "close", noted)

    read(parse_options({"hub": f"local:{tmp_path}/telemetry"}), Range("0", 0, 50))

    assert closed.wait(60)


def test_a_choice_of_columns_is_all_that_is_sent(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path, [3], b""))
    layout = Layout(StructType([SOURCE_SCHEMA["sequenceNumber"], SOURCE_SCHEMA["body"]]))

    (batch,) = read_ranges(parse_options({"hub": f"local:{tmp_path}/telemetry"}), [Range("0", 0, 3)], layout)

    assert batch.schema.names == ["sequenceNumber", "body"]
    assert batch.column("body") == pa.array([b"0", b"1", b"2"], pa.binary())


def test_maps_are_never_null(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path, [3], b""))

    (batch,) = read_ranges(parse_options({"hub": f"local:{tmp_path}/telemetry"}), [Range("0", 0, 3)], LAYOUT)

    assert batch.schema == LAYOUT.schema
    for name in ("offset", "properties", "systemProperties"):
        assert batch.column(name).null_count == 0
    assert batch.column("body") == pa.array([b"0", b"1", b"2"], pa.binary())


def test_properties_of_every_type_come_as_text(server: Server) -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    properties: dict[str | bytes, object] = {
        "text": "ä",
        "empty": "",
        "number": 5,
        "large": 1_000_000,
        "negative": -1,
        "fraction": 0.1,
        "yes": True,
        "no": False,
        "time": moment,
        "id": UUID(int=5),
        "bytes": b"\x00\xff",
        "nothing": None,
    }
    event = EventData(b"body")
    event.properties = properties
    with EventHubProducerClient.from_connection_string(server.create("typed", 1)) as client:
        client.send_batch([event])

    (batch,) = read_ranges(parse_options({"hub": server.connection_string("typed")}), [Range("0", 0, 1)], LAYOUT)

    assert dict(batch.column("properties")[0].as_py()) == {
        "text": "ä",
        "empty": "",
        "number": "5",
        "large": "1000000",
        "negative": "-1",
        "fraction": "0.1",
        "yes": "true",
        "no": "false",
        "time": "2026-01-31T12:00:00.000Z",
        "id": str(UUID(int=5)),
        "bytes": "AP8=",
        "nothing": None,
    }


def test_the_service_is_asked_for_no_more_than_the_range(server: Server) -> None:
    async def ask() -> None:
        hub = open_hub(server.connection_string("telemetry"))
        receiver = await hub.open_receiver("0", group="$Default", position=Position.sequence(0, inclusive=True))
        assert isinstance(receiver, PrefetchingReceiver)
        for end in (700, 701, 5_000):
            receiver.prefetch(ReadAhead(1_000_000), end_sequence=end)
            last = -1
            while last < end - 1:
                last = (await receiver.receive(max_count=5_000, wait_seconds=30)).last_sequence
            assert last == end - 1
            assert not len(await receiver.receive(max_count=1, wait_seconds=0.1))
        await receiver.close()
        await hub.close()

    asyncio.run(ask())


# Means


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    fresh = ReconnectingReceiver._open

    async def counted(receiver: ReconnectingReceiver) -> Receiver:
        opened.append(receiver._partition)
        return await fresh(receiver)

    monkeypatch.setattr(ReconnectingReceiver, "_open", counted)
    return opened


def fail_every_third(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ReconnectingReceiver._receive
    calls = iter(range(10_000))

    async def unreliable(receiver: ReconnectingReceiver, max_count: int, wait_seconds: float) -> EventBatch | None:
        if next(calls) % 3 == 2:
            raise HubUnavailable("the link was lost")
        return await receive(receiver, max_count, wait_seconds)

    monkeypatch.setattr(ReconnectingReceiver, "_receive", unreliable)


async def _expired(root: Path) -> None:
    """Twenty events, of which the first ten are gone."""
    clock = ManualClock()
    await create_hub(root, "telemetry", partitions=1, retention=Retention(seconds=3600))
    hub = LocalHub(root, "telemetry", clock=clock)
    sender = await hub.open_sender()
    await sender.send(new_events([b"%d" % number for number in range(10)]), partition="0")
    clock.now += 7200
    await sender.send(new_events([b"%d" % number for number in range(10, 20)]), partition="0")
    await hub.apply_retention()
    await hub.close()
