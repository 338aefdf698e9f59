"""What the service may answer: too busy, full, go elsewhere, no such group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from hubline.amqp.codec.performatives import SENDER, Error, Open, Source
from hubline.amqp.codec.types import Symbol
from hubline.amqp.transport.connection import Connection
from hubline.amqp.transport.link import Link
from hubline.emulator import Endpoint
from hubline.emulator.client_session import ClientSession
from hubline.errors import HubError, HubFull, HubUnavailable
from hubline.hubs.eventhubs import EventHubsHub, send_link
from hubline.hubs.local import LocalHub
from hubline.hubs.local.sender import LocalSender
from hubline.model.events import new_events
from hubline.model.positions import Position
from hubline.ports import Hub, Unsent
from hubline.retry import RetryPolicy
from tests.amqp.connections import until
from tests.hubs.eventhubs.support import ARRIVAL_SECONDS, GROUP, KEY, Folder, address, connected, new_hub, serving


class FailingHub(LocalHub):
    """A hub whose senders raise each of ``failures``, and keep nothing in partition 0 while ``slow`` is not set."""

    failures: list[HubError]
    slow: asyncio.Event

    async def open_sender(self) -> LocalSender:
        opened = await super().open_sender()
        send = opened.send_shares

        async def failing(
            events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
        ) -> list[Unsent]:
            if self.failures:
                raise self.failures.pop()
            if partition == "0":
                await self.slow.wait()
            return await send(events, partition=partition, partition_key=partition_key)

        opened.send_shares = failing  # type: ignore[method-assign]
        return opened


class OneHub:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def find(self, name: str) -> Hub | None:
        return self.hub if name == self.hub.name else None


@asynccontextmanager
async def failing(root: Path, failures: list[HubError], *, partition_count: int = 1) -> AsyncIterator[EventHubsHub]:
    local = FailingHub(root, await new_hub(root, partition_count))
    local.failures = failures
    FailingHub.slow = asyncio.Event()
    FailingHub.slow.set()
    endpoint = Endpoint(OneHub(local), key=KEY)
    port = await endpoint.start()
    async with connected(port, local.name) as hub:
        yield hub
    await endpoint.stop()
    await local.close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_link, "BUSY", RetryPolicy(max_attempts=4, initial_backoff_seconds=0.0))


async def received(hub: EventHubsHub, partition: str, count: int) -> list[bytes]:
    receiver = await hub.open_receiver(partition, group=GROUP, position=Position.earliest())
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += (await receiver.receive(max_count=count, wait_seconds=ARRIVAL_SECONDS)).bodies
    await receiver.close()
    return bodies


class TestOutcomes:
    def test_a_busy_service_is_asked_again_and_keeps_the_events_once(self, tmp_path: Path) -> None:
        async def check() -> None:
            busy: list[HubError] = [HubUnavailable("busy") for _ in range(send_link.BUSY.max_attempts - 1)]
            async with failing(tmp_path, busy) as hub:
                await (await hub.open_sender()).send(new_events(["a", "b"]), partition="0")
                assert (await hub.describe_partition("0")).last_sequence == 1

        asyncio.run(check())

    def test_what_is_turned_away_is_kept_before_what_comes_after_it(self, tmp_path: Path) -> None:
        bodies = [bytes([number]) * 700_000 for number in range(4)]  # a message each

        async def check() -> None:
            async with failing(tmp_path, [HubUnavailable("busy")]) as hub:
                await (await hub.open_sender()).send(new_events(bodies), partition="0")
                assert await received(hub, "0", len(bodies)) == bodies

        asyncio.run(check())

    def test_a_partition_that_is_slow_to_acknowledge_holds_up_no_other(self, tmp_path: Path) -> None:
        async def check() -> None:
            async with failing(tmp_path, [], partition_count=2) as hub:
                sender = await hub.open_sender()
                FailingHub.slow.clear()
                slow = [asyncio.create_task(sender.send(new_events([body]), partition="0")) for body in "ab"]
                async with asyncio.timeout(ARRIVAL_SECONDS):
                    await sender.send(new_events(["c"]), partition="1")
                assert not any(task.done() for task in slow)
                FailingHub.slow.set()
                await asyncio.gather(*slow)
                assert await received(hub, "0", 2) == [b"a", b"b"]

        asyncio.run(check())

    def test_what_waited_behind_a_lost_link_is_sent_on_the_next_one(self, tmp_path: Path) -> None:
        async def check() -> None:
            async with failing(tmp_path, []) as hub:
                sender = await hub.open_sender()
                FailingHub.slow.clear()
                lost, waiting = (asyncio.create_task(sender.send(new_events([body]), partition="0")) for body in "ab")
                link = sender._links
                await until(lambda: bool(link) and bool(link["0"]._outcomes))
                await hub.describe()  # that the next one waits by now is certain once this is answered
                assert hub._service._authorized is not None
                hub._service._authorized.connection.abort()
                with pytest.raises(HubUnavailable):
                    await lost
                FailingHub.slow.set()
                await waiting
                assert (await received(hub, "0", 2))[-1] == b"b"

        asyncio.run(check())

    def test_nothing_is_sent_to_a_partition_after_what_it_refuses(self, tmp_path: Path) -> None:
        bodies = [bytes([number]) * 700_000 for number in range(4)]

        async def check() -> None:
            async with failing(tmp_path, [HubFull("no room")]) as hub:
                with pytest.raises(HubFull):
                    await (await hub.open_sender()).send(new_events(bodies), partition="0")
                assert (await hub.describe_partition("0")).is_empty

        asyncio.run(check())

    def test_a_service_that_stays_busy_is_unavailable(self, tmp_path: Path) -> None:
        async def check() -> None:
            busy: list[HubError] = [HubUnavailable("busy") for _ in range(send_link.BUSY.max_attempts)]
            async with failing(tmp_path, busy) as hub:
                with pytest.raises(HubUnavailable, match="too busy"):
                    await (await hub.open_sender()).send(new_events(["a"]), partition="0")
                assert (await hub.describe_partition("0")).is_empty

        asyncio.run(check())

    def test_what_lasts_is_not_tried_again(self, tmp_path: Path) -> None:
        async def check() -> None:
            failures: list[HubError] = [HubFull("no room"), HubFull("no room")]
            async with failing(tmp_path, failures) as hub:
                opened = await hub.open_sender()
                with pytest.raises(HubFull):
                    await opened.send(new_events(["a"]), partition="0")
                assert len(failures) == 1
                failures.clear()
                await opened.send(new_events(["b"]), partition="0")  # the link is still good
                assert (await hub.describe_partition("0")).last_sequence == 0

        asyncio.run(check())


class TestRedirects:
    @pytest.fixture
    def redirect(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, int], list[int]]:
        """Makes the next link or connection be sent elsewhere; gives what was sent there."""

        def make(condition: str, host: str, port: int) -> list[int]:
            redirected: list[int] = []
            error = Error(condition, "elsewhere", {Symbol("network-host"): host, Symbol("port"): port})
            on_link, on_open = ClientSession.on_link, ClientSession.on_open

            def redirecting_link(self: ClientSession, link: Link) -> None:
                source = link.remote.source if link.remote else None
                is_events = isinstance(source, Source) and "ConsumerGroups" in (source.address or "")
                if condition.startswith("amqp:link") and is_events and link.role is SENDER and not redirected:
                    redirected.append(port)
                    link.refuse(error)
                else:
                    on_link(self, link)

            def redirecting_open(self: ClientSession, connection: Connection, remote: Open) -> None:
                on_open(self, connection, remote)
                if condition.startswith("amqp:connection") and not redirected:
                    redirected.append(port)
                    connection.close(error)

            monkeypatch.setattr(ClientSession, "on_link", redirecting_link)
            monkeypatch.setattr(ClientSession, "on_open", redirecting_open)
            return redirected

        return make

    @pytest.mark.parametrize("condition", ["amqp:link:redirect", "amqp:connection:redirect"])
    def test_a_redirect_within_the_domain_is_followed(
        self, tmp_path: Path, redirect: Callable[[str, str, int], list[int]], condition: str
    ) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as first, serving(tmp_path) as second, connected(first, name) as hub:
                redirected = redirect(condition, "localhost", second)
                await (await hub.open_sender()).send(new_events(["a"]), partition="0")
                receiver = await hub.open_receiver("0", group=GROUP, position=Position.earliest())
                assert (await receiver.receive(max_count=1, wait_seconds=ARRIVAL_SECONDS)).bodies == [b"a"]
                assert redirected == [second]

        asyncio.run(check())

    @pytest.mark.parametrize("condition", ["amqp:link:redirect", "amqp:connection:redirect"])
    def test_a_redirect_out_of_the_domain_is_not_followed(
        self, tmp_path: Path, redirect: Callable[[str, str, int], list[int]], condition: str
    ) -> None:
        async def check() -> None:
            name = await new_hub(tmp_path)
            async with serving(tmp_path) as port, connected(port, name) as hub:
                redirect(condition, "evil.example.org", 5671)
                with pytest.raises(HubUnavailable, match="outside of its own domain"):
                    await hub.open_receiver("0", group=GROUP, position=Position.earliest())

        asyncio.run(check())


def test_a_group_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_link = ClientSession.on_link

    def refusing(self: ClientSession, link: Link) -> None:
        source = link.remote.source if link.remote else None
        if isinstance(source, Source) and "ConsumerGroups/nobody" in (source.address or ""):
            link.refuse(Error("amqp:not-found", "no such group"))
        else:
            on_link(self, link)

    monkeypatch.setattr(ClientSession, "on_link", refusing)

    async def check() -> None:
        name = await new_hub(tmp_path)
        async with serving(tmp_path) as port, connected(port, name) as hub:
            with pytest.raises(HubError, match=r"no consumer group nobody. Create it"):
                await hub.open_receiver("0", group="nobody", position=Position.earliest())

    asyncio.run(check())


def test_a_hub_may_be_closed_before_it_was_used(tmp_path: Path) -> None:
    async def check() -> None:
        hub = EventHubsHub(address(1, "never-used"))
        await hub.close()
        await hub.close()

    asyncio.run(check())


def test_many_that_ask_at_once_share_one_connection(tmp_path: Path) -> None:
    async def check() -> None:
        name = await new_hub(tmp_path, 4)
        folder = Folder(tmp_path)
        endpoint = Endpoint(folder, key=KEY)
        port = await endpoint.start()
        async with connected(port, name) as hub:
            await asyncio.gather(hub.describe(), *(hub.describe_partition(str(number)) for number in range(4)))
            assert endpoint.connections_count == 1
        await endpoint.stop()
        await folder.close()

    asyncio.run(check())
