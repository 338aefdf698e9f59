"""Local hubs and their endpoint, for tests: plain calls, which work in plain and in async tests."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from hubline.emulator import Endpoint
from hubline.hubs.local import LocalHub, create_hub
from hubline.hubs.local.folder_hubs import FolderHubs
from hubline.model.events import Event, NewEvent, new_events
from hubline.model.positions import Position

_HOST: Final = "127.0.0.1"

_MAX_BATCH_SIZE: Final = 10_000

T = TypeVar("T")


class TestHub:
    """A local hub that a test writes to and looks into. Make one with the fixture `hubline_hub`.

    Args:
        folder: The folder that the hub is in.

    Attributes:
        name: The name of the hub.
        address: Its address, `local:PATH/NAME`, as processors, producers and TOML files take it.
    """

    __test__ = False  # to pytest, it is no class of tests

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.address = f"local:{folder}/{name}"
        self._folder = folder

    def __repr__(self) -> str:
        return f"TestHub({self.address!r})"

    def send(self, events: Sequence[NewEvent], *, partition: str | None = None) -> None:
        """Send events, and return once the hub has stored them.

        Args:
            events: The events, as `hubline.new_events` takes them.
            partition: The partition to send to. Default: that of each event's partition key, or any.

        Raises:
            HubError: The hub does not take the events.
        """
        _run(self._send(events, partition))

    def events(self) -> list[Event]:
        """Return all events of the hub, in the order of partitions and sequence numbers."""
        return _run(self._events())

    async def _send(self, events: Sequence[NewEvent], partition: str | None) -> None:
        hub = LocalHub(self._folder, self.name)
        try:
            sender = await hub.open_sender()
            await sender.send(new_events(events), partition=partition)
            await sender.close()
        finally:
            await hub.close()

    async def _events(self) -> list[Event]:
        hub = LocalHub(self._folder, self.name)
        found: list[Event] = []
        try:
            for partition in (await hub.describe()).partition_ids:
                receiver = await hub.open_receiver(partition, group="test", position=Position.earliest())
                while batch := await receiver.receive(max_count=_MAX_BATCH_SIZE, wait_seconds=0):
                    found += batch
                await receiver.close()
        finally:
            await hub.close()
        return found


class TestHubs:
    """Makes local hubs in the folder of a test: the fixture `hubline_hub`.

    Args:
        folder: The folder.
    """

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str = "events", *, partitions: int = 1, events: Sequence[NewEvent] = ()) -> TestHub:
        """Create a hub.

        Args:
            name: Its name. Default: `"events"`.
            partitions: How many partitions it has. Default: 1.
            events: The events to send to it. Default: none.

        Returns:
            The hub.

        Raises:
            HubExists: The test has a hub of this name.
        """
        _run(create_hub(self._folder, name, partitions=partitions))
        hub = TestHub(self._folder, name)
        if events:
            hub.send(events)
        return hub


class TestEndpoint:
    """Serves the hubs of a test over AMQP, as `hubline serve` does: the fixture `hubline_endpoint`.

    Args:
        folder: The folder of the hubs. One that is created later is served, too.
    """

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._hubs = FolderHubs(folder)
        self._endpoint = Endpoint(self._hubs)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hubline-endpoint", daemon=True)
        self._thread.start()
        self._port = self._call(self._endpoint.start(_HOST))

    def connection_string(self, hub: TestHub | str) -> str:
        """Return the connection string of a hub of the test, for hubline and for the official SDKs.

        Args:
            hub: The hub, or its name.
        """
        name = hub if isinstance(hub, str) else hub.name
        key = secrets.token_urlsafe(16)  # any will do: the endpoint listens on this machine only
        return (
            f"Endpoint=sb://{_HOST}:{self._port};SharedAccessKeyName=test;SharedAccessKey={key};"
            f"EntityPath={name};UseDevelopmentEmulator=true"
        )

    def close(self) -> None:
        """Close all connections, and stop listening. The fixture does so at the end of the test."""
        self._call(self._endpoint.stop())
        self._call(self._hubs.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, also where a loop runs: a test may be async."""
    with ThreadPoolExecutor(1) as thread:
        running: Future[T] = thread.submit(asyncio.run, coroutine)
        return running.result()
