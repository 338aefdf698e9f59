"""Protocols of asyncio, which get their bytes in two ways."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

AnyProtocol: TypeAlias = asyncio.Protocol | asyncio.BufferedProtocol


def feed(protocol: AnyProtocol, data: bytes | bytearray | memoryview) -> None:
    """Gives bytes to a protocol of either kind."""
    if isinstance(protocol, asyncio.Protocol):
        if data:
            protocol.data_received(bytes(data))
        return
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        protocol.buffer_updated(count)
        view = view[count:]
