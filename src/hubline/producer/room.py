"""How much may wait to be sent, in bytes and events."""

from __future__ import annotations

import asyncio


class Room:
    """A bound on what waits. Who brings more waits until there is room, one after the other.

    What alone is larger than the bound is let in when nothing else is there. Used from one event loop.
    """

    def __init__(self, max_bytes: int, max_events: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_open = True
        self.bytes_count = 0
        self.events_count = 0

    def try_take(self, bytes_count: int, events_count: int) -> bool:
        """Takes room if there is enough, and nobody waits for it."""
        if self._turn.locked() or not self._has_room(bytes_count, events_count):
            return False
        self._take(bytes_count, events_count)
        return True

    async def take(self, bytes_count: int, events_count: int) -> None:
        """Takes room as soon as there is enough."""
        async with self._turn:
            while self._is_open and not self._has_room(bytes_count, events_count):
                await self._change()
            self._take(bytes_count, events_count)

    def give(self, bytes_count: int, events_count: int) -> None:
        """Gives room back."""
        self.bytes_count -= bytes_count
        self.events_count -= events_count
        self._changed.set()

    async def emptied(self) -> None:
        """Returns when nothing waits any more."""
        while self._is_open and self.events_count:
            await self._change()

    def open_up(self) -> None:
        """Makes nobody wait any more, for good: what is there is not going to be sent."""
        self._is_open = False
        self._changed.set()

    def _has_room(self, bytes_count: int, events_count: int) -> bool:
        if not self.events_count:
            return True
        if self._max_events is not None and self.events_count + events_count > self._max_events:
            return False
        return self.bytes_count + bytes_count <= self._max_bytes

    def _take(self, bytes_count: int, events_count: int) -> None:
        self.bytes_count += bytes_count
        self.events_count += events_count

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
