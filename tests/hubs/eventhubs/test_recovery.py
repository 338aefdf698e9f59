"""What happens to receivers and senders when the network, the endpoint or a token fails them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hubline.amqp.events.encoder import encode_deliveries
from hubline.amqp.transport.sender_link import SenderLink
from hubline.emulator import receivers as feeds
from hubline.errors import (
    AccessDenied,
    HubDamaged,
    HubError,
    HubNotFound,
    HubUnavailable,
    PositionInvalid,
    ReaderStolen,
)
from hubline.hubs.eventhubs import EventHubsHub
from hubline.hubs.eventhubs import service_connection as service
from hubline.hubs.eventhubs.credit_window import BYTES_MAX
from hubline.hubs.eventhubs.receiver import EventHubsReceiver
from hubline.hubs.local import LocalHub, create_hub, delete_hub
from hubline.hubs.reconnecting_receiver import ReconnectingReceiver, ReconnectPolicy
from hubline.model.events import new_events
from hubline.model.positions import Position
from hubline.ports import Hub, Receiver
from hubline.read_ahead import ReadAhead
from hubline.retry import RetryPolicy
from tests.hubs.eventhubs.support import ARRIVAL_SECONDS, GROUP, Proxy, address, connected, new_hub, proxied, serving


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def send(hub: Hub, first: int, count: int, *, padding: int = 0) -> None:
    sender = await hub.open_sender()
    await sender.send(new_events([f"{number}".ljust(padding) for number in range(first, first + count)]), partition="0")
    await sender.close()


async def opened(hub: Hub, position: Position | None = None, *, epoch: int | None = None) -> Receiver:
    return await hub.open_receiver("0", group=GROUP, position=position or Position.earliest(), epoch=epoch)


def resuming(
    hub: Hub, position: Position | None = None, *, epoch: int | None = None, outage_seconds: float = math.inf
) -> ReconnectingReceiver:
    backoff = RetryPolicy(initial_backoff_seconds=0.001, max_backoff_seconds=1.0)
    policy = ReconnectPolicy(backoff, lambda error: None, outage_seconds=outage_seconds)
    where = position or Position.earliest()
    return ReconnectingReceiver(hub, "0", group=GROUP, position=where, epoch=epoch, policy=policy)


async def sequences(receiver: Receiver, count: int) -> list[int]:
    received: list[int] = []
    while len(received) < count:
        batch = await receiver.receive(max_count=count - len(received), wait_seconds=ARRIVAL_SECONDS)
        assert len(batch), f"only {len(received)} of {count} events came"
        received += batch.arrow.column("sequenceNumber").to_pylist()
    return received


class TestConnectionLost:
    @pytest.mark.parametrize("epoch", [None, 3])
    def test_a_cut_in_mid_stream_leaves_no_gap_and_no_duplicate(self, tmp_path: Path, epoch: int | None) -> None:
        count = 20_000

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, proxied(port) as (proxy, proxy_port), connected(port, name) as direct:
                await send(direct, 0, count, padding=200)
                async with connected(proxy_port, name) as hub:
                    reader = resuming(hub, epoch=epoch)
                    received: list[int] = []
                    cutting = asyncio.create_task(cut_now_and_then(proxy, times=5))
                    while len(received) < count:
                        batch = await reader.receive(max_count=700, wait_seconds=ARRIVAL_SECONDS)
                        received += batch.arrow.column("sequenceNumber").to_pylist()
                    await cutting
                    await reader.close()
            assert received == list(range(count))
            assert proxy.connections_count > 1

        async def cut_now_and_then(proxy: Proxy, *, times: int) -> None:
            for _ in range(times):
                carried = proxy.bytes_count
                while proxy.bytes_count < carried + 300_000 and proxy.bytes_count < 4_000_000:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                proxy.cut()

        run(check())

    def test_a_waiting_receiver_goes_on_after_a_cut(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with (
                serving(tmp_path) as port,
                proxied(port) as (proxy, proxy_port),
                connected(port, name) as direct,
                connected(proxy_port, name) as hub,
            ):
                reader = resuming(hub, Position.latest())
                await reader.receive(max_count=1, wait_seconds=0.01)
                waiting = asyncio.create_task(sequences(reader, 1))
                await asyncio.sleep(0)
                proxy.cut()
                await send(direct, 0, 1)
                assert await waiting == [0]

        run(check())

    def test_an_endpoint_that_is_gone_is_unavailable_until_it_is_back(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port:
                hub = EventHubsHub(address(port, name))
                await send(hub, 0, 3)
                reader = resuming(hub, outage_seconds=0.2)
                assert await sequences(reader, 2) == [0, 1]
            with pytest.raises(HubUnavailable):
                await sequences(reader, 2)  # what was read ahead is still given out
            async with serving(tmp_path, port=port):
                await send(hub, 3, 2)
                assert (await sequences(reader, 2))[-1] == 4
                await hub.close()

        run(check())

    def test_closing_the_hub_ends_its_receivers_with_an_error(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                waiting = asyncio.create_task((await opened(hub)).receive(max_count=1, wait_seconds=ARRIVAL_SECONDS))
                await asyncio.sleep(0)
                await hub.close()
                with pytest.raises(HubError, match="closed by this program"):
                    await waiting
                with pytest.raises(HubError, match="closed by this program"):
                    await hub.describe()

        run(check())

    def test_a_cut_while_sending_is_reported_to_the_sender(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with (
                serving(tmp_path) as port,
                proxied(port) as (proxy, proxy_port),
                connected(proxy_port, name) as hub,
            ):
                sender = await hub.open_sender()
                await sender.send(new_events(["first"]), partition="0")
                proxy.stall()
                sending = asyncio.create_task(sender.send(new_events(["second"]), partition="0"))
                await asyncio.sleep(0)
                proxy.cut()
                with pytest.raises(HubUnavailable):
                    await sending
                proxy.resume()
                await sender.send(new_events(["third"]), partition="0")
                assert (await hub.describe_partition("0")).last_sequence >= 1

        run(check())

    def test_a_receiver_that_never_waits_comes_back_too(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with (
                serving(tmp_path) as port,
                proxied(port) as (proxy, proxy_port),
                connected(port, name) as direct,
                connected(proxy_port, name) as hub,
            ):
                reader = resuming(hub)
                await reader.receive(max_count=1, wait_seconds=0)
                proxy.cut()
                await send(direct, 0, 1)
                while not len(await reader.receive(max_count=1, wait_seconds=0)):  # noqa: ASYNC110
                    await asyncio.sleep(0)

        run(check())

    def test_a_peer_that_is_silent_for_too_long_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service, "IDLE_SECONDS", 0.2)

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with (
                serving(tmp_path) as port,
                proxied(port) as (proxy, proxy_port),
                connected(port, name) as direct,
                connected(proxy_port, name) as hub,
            ):
                reader = resuming(hub)
                await reader.receive(max_count=1, wait_seconds=0)
                proxy.stall()
                await send(direct, 0, 1)
                waiting = asyncio.create_task(sequences(reader, 1))
                while proxy.connections_count < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                proxy.resume()
                assert await waiting == [0]

        run(check())


class TestTakeover:
    def test_a_reader_that_comes_back_after_a_takeover_gets_an_error(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with (
                serving(tmp_path) as port,
                proxied(port) as (proxy, proxy_port),
                connected(port, name) as other,
                connected(proxy_port, name) as hub,
            ):
                old = resuming(hub, epoch=1)
                await old.receive(max_count=1, wait_seconds=0)
                proxy.stall()
                successor = await opened(other, epoch=2)
                proxy.cut()
                proxy.resume()
                with pytest.raises(ReaderStolen) as stolen:
                    await old.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
                assert (stolen.value.epoch, stolen.value.taken_by_epoch) == (1, 2)
                await send(other, 0, 1)
                assert await sequences(successor, 1) == [0]

        run(check())

    def test_a_sixth_reader_without_an_epoch_may_try_later(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                readers = [await opened(hub) for _ in range(5)]
                with pytest.raises(HubUnavailable, match="as many readers"):
                    await opened(hub)
                await readers[0].close()
                await send(hub, 0, 1)
                sixth = await opened(hub)
                assert await sequences(sixth, 1) == [0]

        run(check())


class TestAccess:
    def test_a_wrong_key_is_refused_and_not_shown(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port:
                hub = EventHubsHub(address(port, name, key="pLaNtEd"))
                with pytest.raises(AccessDenied) as refused:
                    await hub.describe()
                assert "pLaNtEd" not in str(refused.value)
                await hub.close()

        run(check())
        assert "pLaNtEd" not in caplog.text

    def test_a_hub_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        async def check() -> None:
            async with serving(tmp_path) as port, connected(port, "missing") as hub:
                with pytest.raises(HubNotFound, match="missing"):
                    await hub.describe()
                with pytest.raises(HubNotFound, match="missing"):
                    await hub.open_sender()

        run(check())

    def test_tokens_are_renewed_before_they_expire(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hubline.hubs.eventhubs.authorization.SAS_SECONDS", 2)

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                reader = await opened(hub, Position.latest())
                link = reader._link  # type: ignore[attr-defined]
                loop = asyncio.get_running_loop()
                end = loop.time() + 4.5
                while loop.time() < end:  # noqa: ASYNC110  (a token's life is real time, at the endpoint too)
                    await asyncio.sleep(0.05)
                await send(hub, 0, 1)
                assert await sequences(reader, 1) == [0]
                assert reader._link is link, "the link was lost with its token"  # type: ignore[attr-defined]

        run(check())


class TestPositions:
    def test_a_position_that_retention_removed_is_refused(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                await send(hub, 0, 3)
                first = await (await opened(hub)).receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)
                await send(hub, 3, 3)
                await trimmed(tmp_path, name, before_sequence=3)
                for position in (Position.sequence(0), Position.offset(first.last_offset)):
                    with pytest.raises(PositionInvalid) as refused:
                        await opened(hub, position)
                    assert (refused.value.reason, refused.value.begin_sequence) == ("expired", 3)

        run(check())

    def test_a_reader_that_retention_overtakes_gets_an_error(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with (
                serving(tmp_path) as port,
                proxied(port) as (proxy, proxy_port),
                connected(port, name) as direct,
                connected(proxy_port, name) as hub,
            ):
                await send(direct, 0, 3)
                reader = resuming(hub)
                assert await sequences(reader, 3) == [0, 1, 2]
                proxy.stall()
                await send(direct, 3, 3)
                await send(direct, 6, 3)
                await trimmed(tmp_path, name, before_sequence=6)
                proxy.cut()
                proxy.resume()
                with pytest.raises(PositionInvalid) as refused:
                    await reader.receive(max_count=10, wait_seconds=ARRIVAL_SECONDS)
                assert (refused.value.reason, refused.value.begin_sequence) == ("expired", 6)

        run(check())


class TestLargeEvents:
    def test_events_of_almost_a_megabyte_come_through(self, tmp_path: Path) -> None:
        bodies = [bytes([number]) * 1_000_000 for number in range(12)]

        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                sender = await hub.open_sender()
                await sender.send(new_events(bodies), partition="0")
                reader = await opened(hub)
                received: list[bytes] = []
                while len(received) < len(bodies):
                    received += (await reader.receive(max_count=100, wait_seconds=ARRIVAL_SECONDS)).bodies
                assert received == bodies

        run(check())

    def test_a_receiver_that_is_not_read_holds_a_bounded_number_of_bytes(self, tmp_path: Path) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, proxied(port) as (proxy, proxy_port), connected(port, name) as direct:
                for first in range(0, 400, 40):
                    await send(direct, first, 40, padding=100_000)
                async with connected(proxy_port, name) as hub:
                    reader = await opened(hub)
                    assert await sequences(reader, 1) == [0]
                    await hub.describe()
                    await (await opened(hub, Position.latest())).receive(max_count=1, wait_seconds=0.2)
                    assert proxy.bytes_count < BYTES_MAX * 1.1
                    assert await sequences(reader, 399) == list(range(1, 400))

        run(check())


class TestTooMuch:
    """Events that are larger than those before: more come than there is room for, and are dropped."""

    def test_what_was_dropped_comes_again_in_order(self, tmp_path: Path) -> None:
        run(self.check(tmp_path))

    def test_a_reader_that_comes_meanwhile_has_the_partition(self, tmp_path: Path) -> None:
        run(self.check(tmp_path, is_taken=True))

    def test_a_hub_that_is_recreated_meanwhile_is_not_read_from_the_middle(self, tmp_path: Path) -> None:
        run(self.check(tmp_path, is_recreated=True))

    async def check(self, root: Path, *, is_taken: bool = False, is_recreated: bool = False) -> None:
        name = await new_hub(root)
        async with serving(root) as port, connected(port, name) as hub:
            await send(hub, 0, 3_000)
            for first in range(3_000, 3_020):
                await send(hub, first, 1, padding=1_000_000)
            reader = resuming(hub, epoch=1)
            read_ahead = ReadAhead(4_000_000)
            reader.prefetch(read_ahead)
            assert await sequences(reader, 100) == list(range(100))
            receiver = reader._receiver
            assert isinstance(receiver, EventHubsReceiver)
            async with asyncio.timeout(ARRIVAL_SECONDS):
                while not receiver._is_cut:
                    read_ahead.give_room()  # there is room, since nothing is kept here
                    await asyncio.sleep(0.01)
            assert 0 < read_ahead.held_bytes <= 4_000_000
            if is_taken:
                other = await opened(hub, epoch=2)
                with pytest.raises(ReaderStolen):
                    await sequences(reader, 2_920)
                await other.close()
            elif is_recreated:
                kept = await sequences(reader, receiver._buffer.count)
                await delete_hub(root, name)
                await create_hub(root, name, partitions=1)
                await send(hub, 0, kept[-1] + 100)
                with pytest.raises(PositionInvalid, match="it is of another hub"):
                    await sequences(reader, 1)
            else:
                assert await sequences(reader, 2_920) == list(range(100, 3_020))
            await reader.close()


class TestDamage:
    @pytest.mark.parametrize("size", [20, 100_000], ids=["together", "one by one"])
    def test_an_event_that_cannot_be_read_stops_its_partition_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        def damaged(events: pa.RecordBatch, *place: Any, **details: Any) -> list[bytes]:
            frames = [bytes(part) for part in encode_deliveries(events, *place, **details)]
            return [part.replace(b"x-opt-sequence", b"x-opt-nonsense") for part in frames] if is_bad(events) else frames

        monkeypatch.setattr(feeds, "encode_deliveries", damaged)
        run(self.check_damage(tmp_path, size, r"message 1 .* x-opt-sequence-number"))

    async def check_damage(self, root: Path, size: int, reason: str) -> None:
        name = await new_hub(root, 2)
        async with serving(root) as port, connected(port, name) as hub:
            for partition in ("0", "1"):
                await (await hub.open_sender()).send(new_events([bytes(size)] * 20), partition=partition)
            bad = await opened(hub)
            for _ in range(2):  # and none is passed over
                with pytest.raises(HubDamaged, match=rf"x-opt-offset > '-1': {reason}"):
                    await bad.receive(max_count=20, wait_seconds=ARRIVAL_SECONDS)
            connection = hub._service._authorized.connection  # type: ignore[union-attr]
            good = await hub.open_receiver("1", group=GROUP, position=Position.earliest())
            assert await sequences(good, 20) == list(range(20))
            assert hub._service._authorized.connection is connection  # type: ignore[union-attr]

    def test_more_events_than_were_asked_for_are_not_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                await send(hub, 0, 1000)
                monkeypatch.setattr(SenderLink, "sendable_count", 1000)
                with pytest.raises(HubUnavailable, match="more messages came than there was credit for"):
                    await (await opened(hub)).receive(max_count=1000, wait_seconds=ARRIVAL_SECONDS)

        run(check())


def is_bad(events: pa.RecordBatch) -> bool:
    return bool(events.column("partition")[0].as_py() == "0")


async def trimmed(root: Path, name: str, *, before_sequence: int) -> None:
    """Removes events as retention does: those of the first batches, up to a sequence number."""
    hub = LocalHub(root, name)
    _, incarnation = hub._open_hub.current()
    partition = incarnation.partition(0)
    with partition._transaction(writes=True) as connection:
        connection.execute("DELETE FROM batches WHERE first_sequence < ?", (before_sequence,))
        connection.execute("UPDATE state SET begin_sequence = ?", (before_sequence,))
    await hub.close()
