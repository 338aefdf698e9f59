"""``python -m benchmarks.amqp_delay PORT SECONDS``: a proxy that delays every byte, each way, and prints its port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

# What is on the way: far more than any client asks for, so that the delay alone is measured.
BYTES_MAX: Final = 256 * 1024 * 1024


class Late(asyncio.Protocol):
    """Passes on what it receives, later. ``opened`` is called with its transport."""

    def __init__(self, seconds: float, opened: Callable[[Late], None] | None = None) -> None:
        self._seconds = seconds
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.other: Late | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=BYTES_MAX)
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._seconds, self._pass_on, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._loop.call_later(self._seconds, self._end)

    def _pass_on(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def _end(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[None]] = set()

    def accept(client: Late) -> None:
        async def connect() -> None:
            _, target = await loop.create_connection(lambda: Late(seconds), "127.0.0.1", port)
            client.other, target.other = target, client
            assert client.transport is not None
            client.transport.resume_reading()

        assert client.transport is not None
        client.transport.pause_reading()
        task = loop.create_task(connect())
        connecting.add(task)
        task.add_done_callback(connecting.discard)

    server = await loop.create_server(lambda: Late(seconds, accept), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
